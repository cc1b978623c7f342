"""The holes that removed templates, references and formulas leave in a sentence, closed as a writer would.

Brackets around nothing, commas between nothings and spaces before a full stop go; what the author wrote elsewhere stays
as it is. One pass from mark to mark, so that no number of holes makes it slow.
"""

from __future__ import annotations

import re

from bertsmith.corpus.wiki.outer import MARK

_LOOSE = " ,;:"
_INSIDE = " ,;:/–-"
_CLOSING = tuple(".,;:!?)]")
_LOOKED_BACK = 8
_SPACES = re.compile(r"[^\S\n]{2,}|[^\S\n ]")


def tidied(line: str) -> str:
    """A line of text without marks; white space is one space, as a browser shows it; "" where no text is left."""
    line = _SPACES.sub(" ", line)
    if MARK in line:
        line = _closed(line)
    line = line.strip()
    # A line of nothing but punctuation is what a list of templates leaves.
    return line if any(map(str.isalnum, line)) else ""


def _closed(line: str) -> str:
    first, *pieces = line.split(MARK)
    parts = [first]
    for piece in pieces:
        opening, bare = _last(parts, _LOOSE), piece.lstrip(_INSIDE)
        if opening == "(" and bare.startswith(")"):
            _trim(parts, _LOOSE)
            parts[-1] = parts[-1][:-1]
            _trim(parts, " ")
            piece = bare[1:].lstrip(" ")
            parts.append("" if piece.startswith(_CLOSING) else " ")
        elif opening == "(":
            _trim(parts, _LOOSE)
            piece = piece.lstrip(_LOOSE)
        elif bare.startswith(")"):
            _trim(parts, _LOOSE)
            piece = bare
        elif piece.lstrip(" ").startswith(_CLOSING):
            piece = piece.lstrip(" ")
            _trim(parts, " ,;" if piece[0] in ",;.:" else " ")
        elif piece.startswith(" "):
            _trim(parts, " ")
        if piece:
            parts.append(piece)
    return _SPACES.sub(" ", "".join(parts))


def _last(parts: list[str], skipped: str) -> str:
    """The last character that is none of those to skip, or "" where the last few parts hold none."""
    for part in parts[: -_LOOKED_BACK - 1 : -1]:
        if bare := part.rstrip(skipped):
            return bare[-1]
    return ""


def _trim(parts: list[str], characters: str) -> None:
    """Takes the characters off the end."""
    while parts:
        parts[-1] = parts[-1].rstrip(characters)
        if parts[-1] or len(parts) == 1:
            return
        parts.pop()
