"""CoNLL's columns: a token a line, its tag in the last column, empty lines between sentences.

Columns are separated by tabs, or else by spaces. The token stands in the first one; in the second where the first only
numbers the tokens of each sentence (as GermEval's files have it). Tags are those of spans: O, and B-, I- and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from bertsmith.rows.row import Row

# Of spans in IOB, IOBES, BMEWO or BILOU; where there is one kind of span, it may have no name.
_TAG = re.compile(r"[OBIES]|[BILUESMW]-\S+")
_DOCUMENT = "-DOCSTART-"
_FEWEST_TOKENS = 2
UNEVEN = "sentences whose lines differ in their number of columns"


def is_conll(lines: Iterable[str]) -> bool:
    """Whether all of the lines that a file begins with are tokens with their tags, or stand between these."""
    tokens = 0
    for line in lines:
        columns = _columns(line)
        if _is_token(columns):
            tokens += 1
        elif columns and not _is_beside(columns):
            return False
    return tokens >= _FEWEST_TOKENS


def conll_rows(lines: Iterable[tuple[int, bytes]]) -> Iterator[Row[list[list[str]]]]:
    """The sentences of lines with the byte that each begins at: the columns of every token, a leading number left out.

    Lines that begin a document, and comments, are no tokens. A sentence of uneven lines has its cells with its fault.
    """
    held: list[list[str]] = []
    raw: list[bytes] = []
    first, first_line, is_utf8 = 0, 0, True
    for number, (begin, line) in enumerate(chain(lines, [(0, b"")]), start=1):
        text = line.decode(errors="replace").rstrip("\r\n")
        columns = _columns(text)
        if columns and (_is_token(columns) or not _is_beside(columns)):
            if not held:
                first, first_line, is_utf8 = begin, number, True
            held.append(columns)
            raw.append(line)
            is_utf8 = is_utf8 and ("\ufffd" not in text or _is_utf8(line))
        elif held:
            numbered = len(held) > 1 and all(
                len(row) > 2 and row[0] == str(place) for place, row in enumerate(held, start=1)
            )
            fault = UNEVEN if len({len(row) for row in held}) > 1 else ""
            joined = b"".join(raw)
            cells = [row[numbered:] for row in held]
            yield Row(first, first_line, joined, len(joined), cells, fault, "", is_utf8)
            held, raw = [], []


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _columns(line: str) -> list[str]:
    """The columns of a line; none of an empty one."""
    if not line.strip():
        return []
    return [column.strip() for column in line.split("\t")] if "\t" in line else line.split()


def _is_token(columns: list[str]) -> bool:
    """A row of a table of sentences with letters for labels is none."""
    if len(columns) < 2 or columns[0] == _DOCUMENT or " " in columns[0]:
        return False
    return _TAG.fullmatch(columns[-1]) is not None


def _is_beside(columns: list[str]) -> bool:
    """Whether a line that holds no token may stand between sentences."""
    return columns[0] == _DOCUMENT or columns[0].startswith("#")
