"""CoNLL's columns: a token a line, its tag in the last column, empty lines between sentences.

Columns are parted by tabs, or else by spaces. The token stands in the first one; in the second where the first only
numbers the tokens of each sentence (as GermEval's files have it). Tags are those of spans: O, and B-, I- and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

# Of spans in IOB, IOBES, BMEWO or BILOU; where there is one kind of span, it may have no name.
_TAG = re.compile(r"[OBIES]|[BILUESMW]-\S+")
_DOCUMENT = "-DOCSTART-"
_FEWEST_TOKENS = 2


def is_conll(lines: Iterable[str]) -> bool:
    """Whether all of the lines that a file begins with are tokens with their tags, or part these."""
    tokens = 0
    for line in lines:
        columns = _columns(line)
        if _is_token(columns):
            tokens += 1
        elif columns and not _is_beside(columns):
            return False
    return tokens >= _FEWEST_TOKENS


def sentences_of_conll(lines: Iterable[str]) -> Iterator[str]:
    """The tokens of each sentence, joined by spaces; lines that begin a document, and comments, are no tokens."""
    rows: list[list[str]] = []
    for line in chain(lines, [""]):
        columns = _columns(line)
        if columns and (_is_token(columns) or not _is_beside(columns)):
            rows.append(columns)
        elif rows:
            numbered = len(rows) > 1 and all(len(row) > 2 and row[0] == str(place) for place, row in enumerate(rows, 1))
            yield " ".join(row[numbered] for row in rows if row[numbered])
            rows = []


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
