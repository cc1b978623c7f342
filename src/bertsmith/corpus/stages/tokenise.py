"""Second pass: a part splits its documents into sentences and these into ids, or counts words for a vocabulary.

train.tokens.npy, train.sentences.npy, train.documents.npy, held_out...    arrays as a shard has them
unigrams.npy                                                              int64[V], pieces of the train documents
account.json                                                              what was dropped and changed, and figures
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.tally import Tally, excerpt
from bertsmith.corpus.documents import Document, batched
from bertsmith.corpus.engines.parts import Part, makes_part
from bertsmith.corpus.shards import LONGEST_SENTENCE, SPLITS, offsets_of, write_arrays
from bertsmith.corpus.stages.clean import CleanedPart
from bertsmith.corpus.stages.sentences import sentences_of
from bertsmith.corpus.stages.totals import keep_account
from bertsmith.tokens.bulk_ids import BulkEncoder, Ids, bulk_encoder
from bertsmith.tokens.special_ids import token_dtype
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.tokenizer_files import LONGEST_WORD
from bertsmith.tokens.vocabulary import count_words, long_words

_BATCH_CHARACTERS = 500_000
_COUNTED_AT_ONCE = 1 << 20
# A word that is too long may be shorter before it is normalised: a syllable of Korean becomes up to three characters.
_LONG_BEFORE = LONGEST_WORD // 3
# Neither ASCII's punctuation, nor Chinese, of which each character is a word to BERT: what may be one word.
_RUN = re.compile(rf"[^!-/:-@\[-`{{-~\u3001\u3002\u3400-\u4dbf\u4e00-\u9fff\uff0c]{{{_LONG_BEFORE},}}")
UNKNOWN_WORDS = f"words longer than {LONGEST_WORD} characters, of which each is one [UNK]"
# Documents of 2**(i-1) to 2**i - 1 tokens are counted in place i of a histogram.
HISTOGRAM_PLACES = 33


@dataclass(frozen=True)
class TextTask(Part):
    """One cleaned part. chosen: the folder of its selection. held_out: the share never trained on."""

    part: int
    cleaned: Path
    chosen: Path
    held_out: float

    def kept(self) -> NDArray[np.bool_]:
        """bool[N]: the documents that no search dropped."""
        return np.asarray(np.load(self.chosen / "kept.npy", allow_pickle=False), dtype=np.bool_)


@dataclass(frozen=True)
class WordsTask(TextTask):
    """Counts the words of a sample of a part."""

    share: float
    lowercase: bool

    def __str__(self) -> str:
        return f"counting words of part {self.part}"


@dataclass(frozen=True)
class TokensTask(TextTask):
    """Turns a part into ids by the tokenizer in the folder `tokenizer`, whose hash is `tokenizer_sha256`.

    library: what makes the ids, of `bulk_ids.choose_library`; the ids are the same by any.
    """

    tokenizer: Path
    tokenizer_sha256: str
    language: str
    library: str

    def __str__(self) -> str:
        return f"tokenising part {self.part}"


@makes_part
def count_part_words(task: WordsTask, folder: Path) -> dict[str, Any]:
    """Writes words.json, {word: count}; returns how many bytes of text were sampled, and a tally of words left out."""
    cleaned = CleanedPart.open(task.cleaned)
    chosen = task.kept() & ~cleaned.held_out(task.held_out) & cleaned.sampled(task.share)
    left_out = Tally()
    texts = (document.text for _, document in cleaned.documents(np.flatnonzero(chosen)))
    words = count_words(texts, task.lowercase, left_out)
    (folder / "words.json").write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    return {"bytes": int(cleaned.lengths[chosen, 1].sum()), "left_out": left_out.to_json()}


@dataclass(frozen=True)
class _SplitDocument:
    """A document and its sentences. index: its place in the part."""

    index: int
    document: Document
    sentences: list[str]


@dataclass(frozen=True)
class _Batch:
    """Some documents as ids. ids: [N]. sentences: int64[S], tokens of each, none empty. documents: int64[D], sentences
    of each. tokens: int64[D]. indexes: int64[D], their places in the part. names: their ids.
    """

    ids: Ids
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    tokens: NDArray[np.int64]
    indexes: NDArray[np.int64]
    names: list[str]


@dataclass
class _Split:
    """What a part collects for "train" or "held_out", a list of arrays each: see `corpus.shards.Shard`."""

    ids: list[Ids] = field(default_factory=list)
    sentences: list[NDArray[np.int64]] = field(default_factory=list)
    documents: list[NDArray[np.int64]] = field(default_factory=list)
    read_bytes: int = 0
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_PLACES, np.int64))
    longest: int = 0
    longest_id: str = ""

    def add(self, batch: _Batch, chosen: NDArray[np.bool_], read_bytes: int) -> None:
        """Takes the chosen documents (bool[D]) of a batch; `read_bytes` of text they were when read."""
        if not chosen.any():
            return
        sentences = np.repeat(chosen, batch.documents)
        self.ids.append(batch.ids if sentences.all() else batch.ids[np.repeat(sentences, batch.sentences)])
        self.sentences.append(batch.sentences[sentences])
        self.documents.append(batch.documents[chosen])
        self.read_bytes += read_bytes
        tokens = np.where(chosen, batch.tokens, 0)
        # The exponent of a whole number as a float is its bit length.
        self.histogram += np.bincount(np.frexp(tokens[chosen])[1], minlength=HISTOGRAM_PLACES)
        first = int(tokens.argmax())
        if tokens[first] > self.longest:
            self.longest, self.longest_id = int(tokens[first]), batch.names[first]


@makes_part
def tokenise_part(task: TokensTask, folder: Path) -> dict[str, Any]:
    """Makes the part's ids; returns counts of tokens, words and unknown pieces, the bytes of the kept text, and a tally
    of words that are too long. Its account stays there: see `totals`."""
    tokenizer, encoder = _tokenizer(task.tokenizer, task.tokenizer_sha256, task.library)
    cleaned = CleanedPart.open(task.cleaned)
    kept, held_out = task.kept(), cleaned.held_out(task.held_out)
    splits, dropped, changed, too_long = {split: _Split() for split in SPLITS}, Tally(), Tally(), Tally()
    read_bytes = cleaned.lengths[:, 2]
    split_up = _split_up(cleaned, kept, task.language, changed)
    for texts in batched(split_up, lambda each: len(each.document.text), _BATCH_CHARACTERS):
        batch = _encode(texts, encoder, changed)
        _note_long_words(texts, batch, tokenizer, too_long)
        empty = batch.documents == 0
        for place in np.flatnonzero(empty).tolist():
            document = texts[place].document
            example = excerpt(document.id, document.text)
            dropped.note("nothing left after tokenising", 1, int(read_bytes[texts[place].index]), example)
        for name, chosen in (("train", ~held_out[batch.indexes]), ("held_out", held_out[batch.indexes])):
            chosen &= ~empty
            splits[name].add(batch, chosen, int(read_bytes[batch.indexes[chosen]].sum()))
    changed.add(too_long)
    figures = {name: _write(folder, name, split, tokenizer) for name, split in splits.items()}
    keep_account(folder, {"dropped": dropped.to_json(), "changed": changed.to_json(), "splits": figures})
    return {
        "tokens": {name: split["tokens"] for name, split in figures.items()},
        "bytes": int(cleaned.lengths[kept, 1].sum()),
        "too_long": too_long.to_json(),
        **{name: sum(split[name] for split in figures.values()) for name in ("words", "unknown")},
    }


def _split_up(cleaned: CleanedPart, kept: NDArray[np.bool_], language: str, changed: Tally) -> Iterator[_SplitDocument]:
    """The kept documents with their sentences."""
    for index, document in cleaned.documents(np.flatnonzero(kept)):
        sentences = sentences_of(document.text, document.line_breaks, language, changed)
        yield _SplitDocument(index, document, sentences)


def _encode(texts: list[_SplitDocument], encoder: BulkEncoder, changed: Tally) -> _Batch:
    """Sentences that come to nothing are left out, and counted."""
    ids, lengths = encoder.encode([sentence for text in texts for sentence in text.sentences])
    assert lengths.max(initial=0) <= LONGEST_SENTENCE
    given = np.array([len(text.sentences) for text in texts])
    filled = _sums(lengths > 0, given)
    for place in np.flatnonzero(filled < given).tolist():
        what = "sentences of characters that the tokenizer drops, left out"
        changed.note(what, int(given[place] - filled[place]), example=texts[place].document.id)
    indexes, names = np.array([text.index for text in texts]), [text.document.id for text in texts]
    return _Batch(ids, lengths[lengths > 0], filled, _sums(lengths, given), indexes, names)


def _note_long_words(texts: list[_SplitDocument], batch: _Batch, tokenizer: Tokenizer, too_long: Tally) -> None:
    """Counts words that are too long for WordPiece, with their bytes: of text without spaces an [UNK] can be a page."""
    ends = np.cumsum(batch.tokens)
    holding = np.unique(np.searchsorted(ends, np.flatnonzero(batch.ids == tokenizer.special.unknown), side="right"))
    for place in holding.tolist():
        stretches = (each for sentence in texts[place].sentences for each in sentence.split())
        runs = (run for each in stretches if len(each) >= _LONG_BEFORE for run in _RUN.findall(each))
        found = [word for run in runs for word in long_words(run, tokenizer.normalizer)]
        if found:
            size_bytes = sum(size for size, _ in found)
            too_long.note(UNKNOWN_WORDS, len(found), size_bytes, f"{batch.names[place]}: {found[0][1]}")


def _sums(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[D]: the sums of stretches of `values`, of the given lengths, one after the other."""
    return np.diff(offsets_of(values)[offsets_of(lengths)])


def _write(folder: Path, name: str, split: _Split, tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = _joined(split.ids, token_dtype(tokenizer.size))
    sentences, documents = _joined(split.sentences, np.dtype(np.uint16)), _joined(split.documents, np.dtype(np.uint32))
    write_arrays(folder, name, (tokens, sentences, documents))
    counts = _counted(tokens, tokenizer.size)
    if name == "train":
        np.save(folder / "unigrams.npy", counts)
    return {
        "documents": len(documents),
        "bytes": split.read_bytes,
        "sentences": len(sentences),
        "tokens": len(tokens),
        "unknown": int(counts[tokenizer.special.unknown]),
        "words": int(counts[~tokenizer.is_continuation].sum()),
        "histogram": split.histogram.tolist(),
        "longest": [split.longest, split.longest_id],
    }


def _counted(tokens: Ids, size: int) -> NDArray[np.int64]:
    """int64[size]: how often each id stands in `tokens`; some at a time, since numpy widens what it counts to int64."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(tokens), _COUNTED_AT_ONCE):
        counts += np.bincount(tokens[start : start + _COUNTED_AT_ONCE], minlength=size)
    return counts


def _joined(arrays: Sequence[NDArray[Any]], kind: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *arrays], dtype=kind, casting="unsafe")


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, sha256: str, library: str) -> tuple[Tokenizer, BulkEncoder]:
    """Kept from part to part, with the words that the encoder remembers."""
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.sha256 == sha256
    return tokenizer, bulk_encoder(tokenizer, library)
