"""Project Gutenberg's own words before and after a book: found by the marks around the book, and removed."""

from __future__ import annotations

import re

from bertsmith.base.tally import excerpt
from bertsmith.corpus.accounting import Account

# How far into a text a header reaches at most: the small print of the nineties is some 15,000 characters long.
_HEADER_REACH = 1 << 16
_E = r"E-?(?:BOOK|TEXT)"
# A title may run on for some lines before the asterisks that end the mark. What + follows is not gone back to (here and
# below): otherwise a text whose lines are long, or which has no small letters, takes hours.
_REST = r"(?:[^\n]*\*{3}|[^\n]*(?:\n[^\S\n]*+[^\s*][^\n*]*+){1,3}\*{3}|)[^\n]*(?:\n|\Z)"
_START = re.compile(rf"^[ \t]*\*{{3}}[ \t]*START OF (?:THE|THIS) PROJECT GUTENBERG {_E}{_REST}", re.I | re.M)
_SMALL_PRINT_END = re.compile(r"^[ \t]*\*END[ *]*THE SMALL PRINT!?[^\n]*(?:\n|\Z)", re.I | re.M)
_END = re.compile(
    rf"^[ \t]*+(?:\*{{3}}[ \t]*END OF (?:THE |THIS )?PROJECT GUTENBERG {_E}"
    rf"|\**[ \t]*End of (?:The |This )?Project Gutenberg(?:['’]s|{_E}|[ \t]+{_E})"
    r"|\*{3}[ \t]*START: FULL LICENSE[ \t]*\*{3}|THE FULL PROJECT GUTENBERG LICENSE\b)",
    re.I | re.M,
)
# What is left of a START mark whose beginning was cut off with the header: a title in capitals and three asterisks.
_HALF_CUT = re.compile(r"\s*+(?=[^\na-z*]*[A-Z])[^\na-z*]*+\*\*\*[ \t\r]*(?:\n|\Z)")
_CREDITS = re.compile(
    r"\s*(?:(?:Produced|Prepared|Transcribed|Scanned|E-?text prepared|HTML version) by\b|Transcribed from the\b"
    rf"|This {_E} was\b|Special thanks (?:are due )?to\b|Note: Project Gutenberg also has\b)"
    r"(?:(?!\r?\n[ \t\r]*\n).)*",
    re.I | re.S,
)
_MOST_CREDITS = 1500


def without_gutenberg(text: str, name: str, account: Account) -> str:
    """A plain text without the header, the licence and the credits of Project Gutenberg; what goes is counted.

    Of several books in one text, what stands between them goes too. name: for the examples.
    """
    begin, what = _header_end(text)
    if begin:
        _note(what, text[:begin], name, account)
        text = text[begin:]
        while (credits := _CREDITS.match(text)) and credits.end() <= _MOST_CREDITS:
            _note("Project Gutenberg credits, left out", credits[0], name, account)
            text = text[credits.end() :]
    kept, position = [], 0
    while "gutenberg" in text[position:].lower() and (end := _END.search(text, position)):
        kept.append(text[position : end.start()])
        start = _START.search(text, end.end())
        position = start.end() if start else len(text)
        _note("Project Gutenberg footers, left out", text[end.start() : position], name, account)
    return "".join([*kept, text[position:]])


def _header_end(text: str) -> tuple[int, str]:
    """(where the book begins, what stands before it); 0 where there is no header."""
    head = text[:_HEADER_REACH]
    if "GUTENBERG" in head.upper():
        end = _END.search(head)
        before = head[: end.start()] if end else head
        marks = [*_START.finditer(before), *_SMALL_PRINT_END.finditer(before)]
        if marks:
            return max(mark.end() for mark in marks), "Project Gutenberg headers, left out"
    half = _HALF_CUT.match(head)
    return (half.end(), "half-cut header lines of Project Gutenberg, left out") if half else (0, "")


def _note(what: str, cut: str, name: str, account: Account) -> None:
    account.changed.note(what, 1, len(cut.encode(errors="replace")), excerpt(name, cut.strip()))
