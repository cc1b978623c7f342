"""What WikiExtractor leaves in its plain text of what it took out: placeholders, emptied brackets, tags; all counted.

A formula stands there as "formula_12" and code as "codice_3": the word alone is kept, since the sentence needs one, but
not the running number, which no reader could know. Brackets around nothing but separators held templates.
"""

from __future__ import annotations

import re

from bertsmith.base.tally import Tally

# The look back stands behind the first letter, which the search can then look for: that is five times as fast.
_PLACEHOLDER = re.compile(r"(f(?<!\wf)ormula|c(?<!\wc)odice)_\d+(?:st|nd|rd|th)?")
_WORDS = {"formula": "formula", "codice": "code"}
_BRACKETS = re.compile(r"\([\s\[\];:,]*\)")
_TAGS = (
    "abbr b big blockquote br center chem cite code dd del dfn div dl dt em font gallery hiero hr i ins kbd li math "
    "noinclude nowiki ol onlyinclude p poem pre q rb ref rp rt ruby s samp score small span strike strong sub sup "
    "table tbody td th timeline tr tt u ul var"
)
# The case is ignored behind the first letter only, which the search looks for ten times as fast as for either case.
_TAG = re.compile(rf"<(?i:/?({'|'.join(_TAGS.split())})(?:\s+[\w-]+\s*=[^<>\n]{{0,200}})?\s*/?>)")


def without_remains(text: str, name: str, changed: Tally) -> str:
    """The text of one document without them. name: for the examples."""
    if "_" in text and ("formula_" in text or "codice_" in text):
        text, count = _PLACEHOLDER.subn(lambda found: _WORDS[found[1]], text)
        _note("placeholders of WikiExtractor (formula_1, codice_1), numbers left out", count, name, changed)
    if "<" in text:
        text, count = _TAG.subn(lambda found: "\n" if found[1].lower() == "br" else "", text)
        _note("tags that WikiExtractor left, left out", count, name, changed)
    return _without_empty_brackets(text, name, changed)


def _without_empty_brackets(text: str, name: str, changed: Tally) -> str:
    """Only behind white space, so that the brackets of `main()` stay."""
    kept, done = list[str](), 0
    for found in _BRACKETS.finditer(text):
        if found.start() and text[found.start() - 1] == " ":
            kept.append(text[done : found.start() - 1])
            done = found.end()
    _note("brackets that WikiExtractor emptied, left out", len(kept), name, changed)
    return "".join((*kept, text[done:])) if kept else text


def _note(what: str, count: int, name: str, changed: Tally) -> None:
    if count:
        changed.note(what, count, example=name)
