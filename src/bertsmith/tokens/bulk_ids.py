"""Ids of bulk text, by the fastest library that gives the ids of `tokenizers`: which one is decided once a corpus.

`nanotoken` is WordPiece alone, some fifteen times as fast, and gives ids only, so everything that needs offsets stays
with `tokenizers`. It is used in versions that were compared with `tokenizers` over every code point of Unicode and all
normaliser settings (a test does it again); other versions are compared before they are used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, log_choice
from bertsmith.base.versions import version_of
from bertsmith.tokens.special_ids import token_dtype
from bertsmith.tokens.tokenizer import Tokenizer

Ids = NDArray[np.unsignedinteger[Any]]

TOKENIZERS = "tokenizers"
NANOTOKEN = "nanotoken"
# (tokenizers, nanotoken) that agree on every code point.
COMPARED_VERSIONS = frozenset({("0.23.3", "0.1.0")})
_SURROGATES = range(0xD800, 0xE000)
# Words that nanotoken remembers: 2**18 take 50 MB; more were no faster on Wikipedia.
_REMEMBERED_WORDS = 1 << 18
_PER_TEXT = 128
_MISSING = "pip install 'bertsmith[fast]' makes preparation several times as fast"


class BulkEncoder(Protocol):
    """Turns texts into ids without special tokens."""

    def encode(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """The ids of all texts one after the other (uint16, or uint32 past 65,535 pieces), and how many each has."""
        ...


def choose_library(tokenizer: Tokenizer) -> str:
    """The library for the bulk ids of a corpus with its version, such as "nanotoken 0.1.0"; the choice is logged."""
    ours, fast = version_of(TOKENIZERS), version_of(NANOTOKEN)
    choice, reason = f"{TOKENIZERS} {ours}", ""
    if fast is None:
        reason = f"{NANOTOKEN} is not installed; {_MISSING}"
    elif tokenizer.has_added_tokens:
        reason = "the tokenizer has added tokens, which are matched before words"
    elif (fault := _fault(tokenizer, (ours, fast))) is not None:
        reason = fault
    else:
        choice, reason = f"{NANOTOKEN} {fast}", f"the same ids as {TOKENIZERS} {ours}, faster"
    log_choice("ids of bulk text", choice, reason)
    return choice


def bulk_encoder(tokenizer: Tokenizer, library: str) -> BulkEncoder:
    """The encoder that `choose_library` chose. Raises BertsmithError where another version is installed here."""
    name = library.partition(" ")[0]
    found = f"{name} {version_of(name)}"
    if found != library:
        what = f"this preparation makes ids with {library}, but {found} is installed here"
        fix = "use the same environment on every machine, or prepare into a new folder"
        raise BertsmithError(what, "the Python environment", fix)
    return _Fast(tokenizer) if name == NANOTOKEN else _Remembered(tokenizer)


def differing_code_points(tokenizer: Tokenizer, code_points: Iterable[int]) -> list[int]:
    """The code points for which the libraries give other ids: within a word, between words, under an accent.

    Costs 9 s of CPU time for all of Unicode.
    """
    points, fast = [each for each in code_points if each not in _SURROGATES], _Fast(tokenizer)

    def differ(some: Sequence[int]) -> bool:
        text = " ".join(f"x{chr(each)}y {chr(each)} e{chr(each)}\u0301" for each in some)
        return bool(fast.encode([text])[0].tolist() != tokenizer.encode_by_library([text])[0])

    groups = [points[start : start + _PER_TEXT] for start in range(0, len(points), _PER_TEXT)]
    return [each for group in groups if differ(group) for each in group if differ([each])]


def _fault(tokenizer: Tokenizer, versions: tuple[str | None, str | None]) -> str | None:
    """Why nanotoken cannot be used for this tokenizer, if it cannot."""
    from nanotoken import UnsupportedTokenizerError

    try:
        _Fast(tokenizer)
    except UnsupportedTokenizerError as error:
        return f"{NANOTOKEN} cannot take this tokenizer: {error}"
    differing = [] if versions in COMPARED_VERSIONS else _compared(tokenizer)
    if not differing:
        return None
    return f"{NANOTOKEN} differs in {counted(len(differing), 'code point')}, such as U+{differing[0]:04X}"


@functools.lru_cache(maxsize=4)
def _compared(tokenizer: Tokenizer) -> list[int]:
    return differing_code_points(tokenizer, range(sys.maxunicode + 1))


@functools.lru_cache(maxsize=2)
def _engine(plain_json: str) -> Any:
    import nanotoken

    nanotoken.set_cache_entries(_REMEMBERED_WORDS)
    return nanotoken.Tokenizer.from_json(plain_json)


class _Fast:
    """By nanotoken, on the calling thread: a worker is one core."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._dtype = token_dtype(tokenizer.size)
        self._engine = _engine(tokenizer.plain_json)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """See BulkEncoder."""
        found = self._engine.encode_batch(texts, add_special_tokens=False, parallel=False)
        return found.ids.astype(self._dtype), np.diff(found.offsets)


class _Remembered:
    """By tokenizers, behind a memory of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._dtype = tokenizer, token_dtype(tokenizer.size)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, NDArray[np.int64]]:
        """See BulkEncoder."""
        found = self._tokenizer.encode_bytes(texts)
        lengths = np.fromiter(map(len, found), np.int64, len(found)) // self._dtype.itemsize
        return np.frombuffer(b"".join(found), self._dtype), lengths
