"""CoNLL's columns: a token a line, its tag in the last column, empty lines between sentences.

Columns are separated by tabs, or else by spaces. The token stands in the first one; in the second where the first only
numbers the tokens (as GermEval's files have it, from 1 in each sentence; others from 0, or through the file): where it
is one more than in the line before, in most lines of many sentences, as words are not that are figures. Tags are those
of spans: O, and B-, I- and the like.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise

from bertsmith.rows.lines import split_at_returns
from bertsmith.rows.row import Row

# Of spans in IOB, IOBES, BMEWO or BILOU; where there is one kind of span, it may have no name.
_TAG = re.compile(r"[OBIES]|[BILUESMW]-\S+")
_NUMBER = re.compile("[0-9]{1,9}")
# Other white space, as in 10 000 with U+00A0, is part of a token.
_BETWEEN_SPACES = re.compile(r"[^ \r\n\f\v]+")
_DOCUMENT = "-DOCSTART-"
_FEWEST_TOKENS = 2
# So many tell whether the tokens of a file are numbered.
_FIRST_SENTENCES = 1000
UNEVEN = "sentences whose lines differ in their number of columns"
NOT_NUMBERED = "sentences whose tokens are not numbered as those of others are"


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

    Lines that begin a document, and comments, are no tokens. A sentence at fault has its cells all the same: with the
    first column where that does not number its tokens, as that of CoNLL-U does not where two are written as one.
    """
    sentences = _sentences(lines)
    first = list(islice(sentences, _FIRST_SENTENCES))
    sound = [each for each in first if not each.fault]
    steps = [step for each in sound for step in _steps(each)]
    numbered = 2 * sum(steps) > len(steps) if steps else all(map(_is_numbered, sound))
    for sentence in chain(first, sentences):
        if not numbered:
            yield sentence
        elif _is_numbered(sentence):
            yield sentence._replace(cells=[token[1:] for token in sentence.cells or ()])
        else:
            yield sentence._replace(fault=sentence.fault or NOT_NUMBERED)


def _sentences(lines: Iterable[tuple[int, bytes]]) -> Iterator[Row[list[list[str]]]]:
    """The same, with leading numbers."""
    held: list[list[str]] = []
    raw: list[bytes] = []
    first, first_line, is_utf8 = 0, 0, True
    for number, (begin, line) in enumerate(chain(split_at_returns(lines), [(0, b"")]), start=1):
        text = line.decode(errors="replace")
        columns = _columns(text)
        # Within a sentence a word behind # is a token that lacks its tag, and not a comment; #2 may begin another one.
        lacks_tag = bool(held) and len(columns) == 1 and re.fullmatch(rf"{_DOCUMENT}|#\d+", columns[0]) is None
        if columns and (lacks_tag or _is_token(columns) or not _is_beside(columns)):
            if not held:
                first, first_line, is_utf8 = begin, number, True
            held.append(columns)
            raw.append(line)
            is_utf8 = is_utf8 and ("\ufffd" not in text or text.encode() == line)
        elif held:
            fault = UNEVEN if len({len(row) for row in held}) > 1 else ""
            joined = b"".join(raw)
            yield Row(first, first_line, joined, len(joined), held, fault, "", is_utf8)
            held, raw = [], []


def _is_numbered(sentence: Row[list[list[str]]]) -> bool:
    """Whether numbers stand before the tokens, each by one above the last."""
    return not math.isnan(_number((sentence.cells or [[""]])[0])) and all(_steps(sentence))


def _steps(sentence: Row[list[list[str]]]) -> list[bool]:
    """Whether the number before each token but the first is by one above the last."""
    return [_number(token) == _number(last) + 1 for last, token in pairwise(sentence.cells or ())]


def _number(token: list[str]) -> float:
    """The number before a token; NaN, which is equal to nothing, where there is none."""
    return int(token[0]) if len(token) > 2 and _NUMBER.fullmatch(token[0]) else math.nan


def _columns(line: str) -> list[str]:
    """The columns of a line; none of an empty one."""
    if not line.strip():
        return []
    return [column.strip() for column in line.split("\t")] if "\t" in line else _BETWEEN_SPACES.findall(line)


def _is_token(columns: list[str]) -> bool:
    """A row of a table of sentences with letters for labels is none, nor is a comment such as # text = Grade: B."""
    if len(columns) < 2 or columns[0] == _DOCUMENT or " " in columns[0] or (columns[0] == "#" and "=" in columns[2:4]):
        return False
    return _TAG.fullmatch(columns[-1]) is not None


def _is_beside(columns: list[str]) -> bool:
    """Whether a line that holds no token may stand between sentences."""
    return columns[0] == _DOCUMENT or columns[0].startswith("#")
