"""Ids of bulk text by remembering words: most words were seen before, and a look-up is cheaper than a match.

BERT's normaliser and pre-tokenizer never look across a space, so the ids of a text are those of its space-separated
words one behind the other; a test holds this against the library on random Unicode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike
from tokenizers import Tokenizer as Engine

# About 80 MB at most; when it is full it starts afresh, which changes speed and nothing else.
_MOST_WORDS = 500_000
_LONGEST_WORD = 64
_BATCH_TEXTS = 2048


class WordMemo:
    """Encodes texts with `engine`, remembering the ids of words. splits: false where added tokens may hold spaces."""

    def __init__(self, engine: Engine, dtype: DTypeLike, splits: bool = True) -> None:
        self._engine, self._dtype, self._splits = engine, np.dtype(dtype), splits
        self._memo: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, as the bytes of an array of the dtype."""
        if not self._splits:
            return self._fresh(texts)
        out: list[bytes] = []
        for start in range(0, len(texts), _BATCH_TEXTS):
            out += self._batch(texts[start : start + _BATCH_TEXTS])
        return out

    def _batch(self, texts: Sequence[str]) -> list[bytes]:
        split = [text.split(" ") for text in texts]
        if len(self._memo) > _MOST_WORDS:
            self._memo.clear()
        memo = self._memo
        new = [word for word in set().union(*split) if word not in memo]
        memo.update(zip(new, self._fresh(new), strict=True))
        ids_of = memo.__getitem__
        out = [b"".join(map(ids_of, words)) for words in split]
        for word in new:
            if len(word) > _LONGEST_WORD:
                del memo[word]
        return out

    def _fresh(self, texts: Sequence[str]) -> list[bytes]:
        encodings = self._engine.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self._dtype).tobytes() for encoding in encodings]
