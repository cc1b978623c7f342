"""Second pass: a part splits its documents into sentences and these into ids, or counts words for a vocabulary.

train.tokens.npy, train.sentences.npy, train.documents.npy, held_out...    arrays as a shard has them
unigrams.npy                                                              int64[V], pieces of the train documents
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.account import EXAMPLES, Tally, excerpt
from bertsmith.corpus.cleaned import CleanedPart
from bertsmith.corpus.documents import Document
from bertsmith.corpus.duplicates import dropped_documents
from bertsmith.corpus.parts import make_once
from bertsmith.corpus.sentences import sentences_of
from bertsmith.corpus.shards import LONGEST_SENTENCE, SPLITS, token_dtype, write_shard
from bertsmith.corpus.tokenizer import Tokenizer
from bertsmith.corpus.vocabulary import count_words

_BATCH_CHARACTERS = 500_000
# Documents of 2**(i-1) to 2**i - 1 tokens are counted in place i of a histogram.
HISTOGRAM_PLACES = 33
COPY = "copy of an earlier document"


@dataclass(frozen=True)
class TextTask:
    """One cleaned part. drops: folders of the duplicate ranges. held_out: the share never trained on."""

    folder: Path
    made_of: str
    part: int
    cleaned: Path
    drops: tuple[Path, ...]
    held_out: float

    def __str__(self) -> str:
        return f"part {self.part}"

    def kept(self, cleaned: CleanedPart) -> NDArray[np.bool_]:
        """bool[N]: the documents that are no duplicates."""
        kept = np.ones(len(cleaned.lengths), dtype=np.bool_)
        kept[dropped_documents(self.drops, self.part)] = False
        return kept


@dataclass(frozen=True)
class WordsTask:
    """Counts the words of a sample of a part."""

    text: TextTask
    share: float
    lowercase: bool

    def __str__(self) -> str:
        return f"counting words of {self.text}"


@dataclass(frozen=True)
class TokensTask:
    """Turns a part into ids by the tokenizer in the folder `tokenizer`, whose hash is `tokenizer_sha256`."""

    text: TextTask
    tokenizer: Path
    tokenizer_sha256: str
    language: str

    def __str__(self) -> str:
        return f"tokenising {self.text}"


def count_part_words(task: WordsTask) -> dict[str, Any]:
    """Writes words.json, {word: count}; returns how many bytes of text were sampled."""

    def make(folder: Path) -> dict[str, Any]:
        cleaned = CleanedPart.open(task.text.cleaned)
        chosen = task.text.kept(cleaned) & ~cleaned.held_out(task.text.held_out) & cleaned.sampled(task.share)
        words = count_words((document.text for _, document in cleaned.documents(chosen)), task.lowercase)
        (folder / "words.json").write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
        return {"bytes": int(cleaned.lengths[chosen, 1].sum())}

    return make_once(task.text.folder, task.text.made_of, make)


@dataclass
class _Split:
    """What a part collects for "train" or "held_out"; ids of sentences as bytes."""

    ids: list[bytes] = field(default_factory=list)
    sentences: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    read_bytes: int = 0
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_PLACES, np.int64))
    longest: int = 0
    longest_id: str = ""

    def add(self, document: Document, ids: list[bytes], item_bytes: int, read_bytes: int) -> None:
        lengths = [len(each) // item_bytes for each in ids]
        tokens = sum(lengths)
        assert max(lengths) <= LONGEST_SENTENCE
        self.ids += ids
        self.sentences += lengths
        self.documents.append(len(lengths))
        self.read_bytes += read_bytes
        self.histogram[tokens.bit_length()] += 1
        if tokens > self.longest:
            self.longest, self.longest_id = tokens, document.id


def tokenise_part(task: TokensTask) -> dict[str, Any]:
    """Makes the part's ids; returns tallies of what was dropped and changed, and figures of both splits."""

    def make(folder: Path) -> dict[str, Any]:
        tokenizer = _tokenizer(task.tokenizer, task.tokenizer_sha256)
        cleaned = CleanedPart.open(task.text.cleaned)
        kept, held_out = task.text.kept(cleaned), cleaned.held_out(task.text.held_out)
        splits, dropped, changed = {split: _Split() for split in SPLITS}, Tally(), Tally()
        _note_copies(cleaned, ~kept, dropped)
        item_bytes = token_dtype(tokenizer.size).itemsize
        for index, document, ids in _encoded(cleaned, kept, tokenizer, task.language, changed):
            read_bytes = int(cleaned.lengths[index, 2])
            if ids:
                splits["held_out" if held_out[index] else "train"].add(document, ids, item_bytes, read_bytes)
            else:
                dropped.note("nothing left after tokenising", 1, read_bytes, excerpt(document.id, document.text))
        figures = {name: _write(folder, name, split, tokenizer) for name, split in splits.items()}
        return {"dropped": dropped.to_json(), "changed": changed.to_json(), "splits": figures}

    return make_once(task.text.folder, task.text.made_of, make)


def _note_copies(cleaned: CleanedPart, copies: NDArray[np.bool_], dropped: Tally) -> None:
    shown = copies & (np.cumsum(copies) <= EXAMPLES)
    for _, document in cleaned.documents(shown):
        dropped.note(COPY, example=excerpt(document.id, document.text))
    unseen = copies & ~shown
    if copies.any():
        dropped.note(COPY, int(unseen.sum()), int(cleaned.lengths[copies, 2].sum()))


def _encoded(
    cleaned: CleanedPart, kept: NDArray[np.bool_], tokenizer: Tokenizer, language: str, changed: Tally
) -> Iterator[tuple[int, Document, list[bytes]]]:
    """Each kept document with the ids of its sentences, none empty; encoded some documents at once."""
    batch: list[tuple[int, Document, list[str]]] = []
    characters = 0

    def flush() -> Iterator[tuple[int, Document, list[bytes]]]:
        ids = iter(tokenizer.encode_bytes([sentence for _, _, sentences in batch for sentence in sentences]))
        for index, document, sentences in batch:
            encoded = [next(ids) for _ in sentences]
            filled = [each for each in encoded if each]
            if len(filled) < len(encoded):
                what = "sentences of characters that the tokenizer drops, left out"
                changed.note(what, len(encoded) - len(filled), example=document.id)
            yield index, document, filled

    for index, document in cleaned.documents(kept):
        batch.append((index, document, sentences_of(document.text, document.line_breaks, language, changed)))
        characters += len(document.text)
        if characters > _BATCH_CHARACTERS:
            yield from flush()
            batch, characters = [], 0
    yield from flush()


def _write(folder: Path, name: str, split: _Split, tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = np.frombuffer(b"".join(split.ids), dtype=token_dtype(tokenizer.size))
    arrays = (tokens, np.array(split.sentences, np.uint16), np.array(split.documents, np.uint32))
    write_shard(folder, name, arrays)
    counts = np.bincount(tokens, minlength=tokenizer.size).astype(np.int64)
    if name == "train":
        np.save(folder / "unigrams.npy", counts)
    return {
        "documents": len(split.documents),
        "bytes": split.read_bytes,
        "sentences": len(split.sentences),
        "tokens": len(tokens),
        "unknown": int(counts[tokenizer.special.unknown]),
        "words": int(counts[~tokenizer.is_continuation].sum()),
        "histogram": split.histogram.tolist(),
        "longest": [split.longest, split.longest_id],
    }


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, sha256: str) -> Tokenizer:
    """Kept from part to part, with the words it remembers."""
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.sha256 == sha256
    return tokenizer
