"""Ids of bulk text by remembering words: most words were seen before, and a look-up is cheaper than a match.

BERT's normaliser and pre-tokenizer never look across a space, so the ids of a text are those of its space-separated
words one after the other; a test holds this against the library on random Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike
from tokenizers import Tokenizer as Engine

MOST_WORDS = 500_000
"""About 80 MB; when that many are remembered it starts afresh, which changes speed and nothing else."""
FEW_WORDS = 20_000
"""For rows, with which a model takes most of the time and memory is to stay as it is: some 3 MB, as 225,000 took 32."""
_LONGEST_WORD = 64
_BATCH_TEXTS = 2048
# BERT's pre-tokenizer takes every ASCII character that is no letter or digit for a word of its own.
_PARTS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")


class WordMemo:
    """Encodes texts with `engine`, remembering the ids of words, `most` of them. splits: false where added tokens may
    hold spaces."""

    def __init__(self, engine: Engine, dtype: DTypeLike, splits: bool = True, most: int = MOST_WORDS) -> None:
        self._engine, self._dtype, self._splits = engine, np.dtype(dtype), splits
        self._most = most
        self._memo: dict[str, bytes] = {}
        self._long: list[str] = []

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, as the bytes of an array of the dtype."""
        if not self._splits:
            return self._fresh(texts)
        out: list[bytes] = []
        for start in range(0, len(texts), _BATCH_TEXTS):
            out += self._batch(texts[start : start + _BATCH_TEXTS])
        return out

    def _batch(self, texts: Sequence[str]) -> list[bytes]:
        split = [text.replace("\n", " ").split(" ") for text in texts]
        if len(self._memo) > self._most:
            self._memo.clear()
        self._remember({word for word in set().union(*split) if word not in self._memo})
        ids_of = self._memo.__getitem__
        out = [b"".join(map(ids_of, words)) for words in split]
        for word in self._long:
            del self._memo[word]
        self._long.clear()
        return out

    def _remember(self, words: set[str]) -> None:
        """Puts the words into the memo; "word," is put together from "word" and ",", so the engine sees few of them."""
        parts = {word: _PARTS.findall(word) for word in words if word.isascii() and word.isprintable()}
        plain = {part for found in parts.values() for part in found if part not in self._memo}
        fresh = [*plain, *(words - parts.keys())]
        self._memo.update(zip(fresh, self._fresh(fresh), strict=True))
        ids_of = self._memo.__getitem__
        self._memo.update((word, b"".join(map(ids_of, found))) for word, found in parts.items())
        self._long += {word for word in (*fresh, *parts) if len(word) > _LONGEST_WORD}

    def _fresh(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self._dtype).tobytes() for encoding in encodings]
