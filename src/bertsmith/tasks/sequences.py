"""Records as token sequences, and sequences as packed batches.

A record has one sequence, or several: one for each of its texts or choices, and several for a long text that is read in
windows. Legend: N records, G texts of all records, S sequences, T token slots, U units (what a step of training
counts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Layout, ranges
from bertsmith.base.log import log_choice
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.tasks.reading.records import Record, Truncated
from bertsmith.tokens.special_ids import SpecialIds
from bertsmith.tokens.tokenizer import Tokenizer, truncated_lengths
from bertsmith.tokens.tokenizer_files import keeps_end
from bertsmith.tokens.word_cache import FEW_WORDS

Ints = NDArray[np.int64]
Cut = Callable[[int, int, int], tuple[int, int]]
"""The lengths of two texts, and how many tokens there is room for -> how many of each are kept."""


@dataclass(frozen=True)
class Fit:
    """What becomes of texts that are too long.

    They lose tokens at the end of the longer one, one by one, as in Google's run_classifier.py. overlap: a single text,
    or the longer of two, is read in windows that share so many tokens. cut: another rule for how much each of two texts
    loses. keep_end: whether they lose their beginnings instead; None for what the tokenizer's folder says.
    """

    overlap: int | None = None
    cut: Cut = truncated_lengths
    keep_end: bool | None = None


USUAL = Fit()
_NO_TOKEN = "a text without any token"
_UNKNOWN = "a text of which the vocabulary has nothing ([UNK] alone)"


@dataclass(frozen=True)
class Sequences:
    """S sequences of tokens.

    ids: int64[length] each, [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. first_segments: int64[S], the tokens up to and with
    the first [SEP], whose token type is 0. lost_tokens: int64[S], how many were cut from each. rows: int64[S], the
    record that each belongs to, ascending from 0 without gaps. texts: int64[S], which text of its record each is, or is
    a window of, ascending from 0; None where a record has one.
    """

    ids: list[Ints]
    first_segments: Ints
    lost_tokens: Ints
    rows: Ints
    texts: Ints | None = field(default=None, kw_only=True)

    @cached_property
    def lengths(self) -> Ints:
        """int64[S]."""
        return np.array([len(each) for each in self.ids], dtype=np.int64)

    @cached_property
    def row_offsets(self) -> Ints:
        """int64[N + 1]: record n has the sequences row_offsets[n] to row_offsets[n + 1]."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.rows)))).astype(np.int64)

    @cached_property
    def text_starts(self) -> Ints:
        """int64[G]: the first sequence of each text of each record."""
        return self.row_offsets[:-1] if self.texts is None else np.flatnonzero(begins(self.rows, self.texts))

    @cached_property
    def text_offsets(self) -> Ints:
        """int64[N + 1]: record n has the texts text_offsets[n] to text_offsets[n + 1]."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.rows[self.text_starts])))).astype(np.int64)

    @property
    def row_lost_tokens(self) -> Ints:
        """int64[N]: how many tokens of each record no sequence has."""
        return np.bincount(self.rows, self.lost_tokens).astype(np.int64)

    def empty_rows(self, special: SpecialIds) -> dict[str, Ints]:
        """The records, ascending, with a text of which the normaliser leaves nothing, such as one of control characters
        alone, and the others with one of which the vocabulary has nothing, such as emoji alone; each kind by what such
        a text is in words. Both texts of a pair count; of one that is read in windows, all of them together."""
        empty = (self.first_segments == 2) | (self.lengths == self.first_segments + 1)
        known = ~np.isin(np.concatenate(self.ids), (special.cls, special.sep, special.unknown))
        before, ends = np.concatenate(([0], np.cumsum(known))), np.cumsum(self.lengths)
        middles = ends - self.lengths + self.first_segments
        counts = np.stack((before[middles] - before[ends - self.lengths], before[ends] - before[middles]), axis=1)
        counts[self.lengths == self.first_segments, 1] = 1  # where there is no second text, none is unknown
        unknown = (np.add.reduceat(counts, self.text_starts) == 0).any(axis=1)
        without = np.unique(self.rows[empty])
        return {_NO_TOKEN: without, _UNKNOWN: np.setdiff1d(self.rows[self.text_starts][unknown], without)}

    @property
    def truncated(self) -> Truncated:
        """How much was cut."""
        return self.truncated_of(slice(None))

    def truncated_of(self, records: slice) -> Truncated:
        """How much of some of the records was cut."""
        lost = self.row_lost_tokens[records]
        return Truncated(int(np.count_nonzero(lost)), int(lost.sum()))

    @property
    def lost_share(self) -> float:
        """The share of the tokens that was cut."""
        lost = self.truncated.tokens
        return lost / max(1, lost + int(self.lengths.sum()))

    def truncation(self) -> str:
        """What was cut, in words."""
        rows = f"{self.truncated.rows:,} of {len(self.row_offsets) - 1:,} rows"
        return f"{rows} truncated, {self.lost_share:.1%} of the tokens lost"


@dataclass(frozen=True)
class Ragged:
    """U units with different numbers of values: unit u has values[offsets[u]:offsets[u + 1]]."""

    values: NDArray[Any]
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, units: Ints) -> NDArray[Any]:
        """The values of some units, one unit after the other."""
        return np.asarray(self.values[slots_of(self.offsets, units)])


Targets = NDArray[Any] | Ragged
"""What the model should give for each of U units; `targets[units]` are those of some."""


def all_of(targets: Targets) -> NDArray[Any]:
    """Those of all units."""
    return np.asarray(targets[np.arange(len(targets))])


def slots_of(offsets: Ints, members: Ints) -> Ints:
    """The slots from offsets[m] to offsets[m + 1] of each of the members, one after the other: int64."""
    return ranges(offsets[members], offsets[members + 1] - offsets[members])


def begins(rows: Ints, texts: Ints) -> NDArray[np.bool_]:
    """bool[S]: where another text begins, of sequences in order. rows, texts: int64[S]."""
    return np.concatenate(([True], (np.diff(rows) != 0) | (np.diff(texts) != 0)))[: len(rows)]


@dataclass(frozen=True)
class BatchTexts:
    """The texts of a batch. of: int64[S], that of each sequence, ascending from 0. unit, place: int64[G], the unit of
    each, ascending from 0, and which of its texts it is, from 0."""

    of: Tensor
    unit: Tensor
    place: Tensor


@dataclass(frozen=True)
class Inputs:
    """A packed batch on the device. input_ids, token_type_ids, position_ids: int64[T].

    asked: the layout of the sequences asked for; behind them may lie some that fill the batch to a round size. units:
    U. texts: of the sequences asked for.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    packed: Packed
    asked: Layout
    units: int
    texts: BatchTexts


def load_tokenizer(folder: Path, config: BertConfig) -> Tokenizer:
    """The tokenizer of a model folder, with the side at which it cuts texts. Raises BertsmithError where it has pieces
    that the model has no embedding of."""
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > config.vocab_size:
        what = f"the tokenizer has {tokenizer.size:,} pieces and the model {config.vocab_size:,}"
        raise BertsmithError(what, folder, "use the tokenizer that the model was trained with")
    tokenizer.most_words = FEW_WORDS
    tokenizer.keep_end = keeps_end(folder)
    if tokenizer.keep_end:
        log_choice("texts that are too long", "lose their beginning", f"truncation_side of {folder} is left")
    return tokenizer


def encode(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    max_length: int,
    fit: Fit = USUAL,
    literal_specials: bool = False,
    groups: Ints | None = None,
) -> Sequences:
    """The sequences of records, at most `max_length` tokens each.

    literal_specials: "[MASK]" in a text becomes the mask's id. groups: int64[N], ascending from 0; of the records of a
    group, the longest texts decide which one is the longer.
    """
    fit = fit if fit.keep_end is not None else replace(fit, keep_end=tokenizer.keep_end)
    firsts = tokenizer.encode_ids([record.text for record in records], literal_specials)
    texts_b = [record.text_b for record in records if record.text_b is not None]
    given = iter(tokenizer.encode_ids(texts_b, literal_specials))
    seconds = [None if record.text_b is None else next(given) for record in records]
    in_first = [False] * len(firsts) if fit.overlap is None else _longer_is_first(firsts, seconds, groups)
    cls, sep = np.array([tokenizer.special.cls]), np.array([tokenizer.special.sep])
    ids: list[Ints] = []
    counts: list[tuple[int, int, int]] = []
    for row, (first, second, windowed) in enumerate(zip(firsts, seconds, in_first, strict=True)):
        parts = [first] if second is None else [first, second]
        for kept, lost in _sequences_of(parts, max_length, fit, windowed):
            ids.append(np.concatenate((cls, *(each for part in kept for each in (part, sep))), dtype=np.int64))
            counts.append((len(kept[0]) + 2, lost, row))
    first_segments, lost_tokens, rows = np.array(counts, dtype=np.int64).reshape(-1, 3).T.copy()
    return Sequences(ids, first_segments, lost_tokens, rows)


def encode_several(
    records: Sequence[Sequence[Record]], tokenizer: Tokenizer, max_length: int, overlap: int | None = None
) -> Sequences:
    """The sequences of records that have several texts, or pairs of texts, each given as a record of its own: as of
    `encode`, with the `texts` that they are of. All pairs of a record have their windows in the same text, the first or
    the second."""
    counts = np.array([len(record) for record in records], dtype=np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    every = [text for record in records for text in record]
    found = encode(every, tokenizer, max_length, Fit(overlap), groups=rows)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return replace(found, rows=rows[found.rows], texts=places[found.rows])


Ids = NDArray[np.unsignedinteger[Any]]


def _longer_is_first(firsts: Sequence[Ids], seconds: Sequence[Ids | None], groups: Ints | None) -> list[bool]:
    lengths = np.array(
        [(len(a), 0 if b is None else len(b)) for a, b in zip(firsts, seconds, strict=True)], dtype=np.int64
    ).reshape(-1, 2)
    if groups is not None and len(groups):
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        lengths = np.maximum.reduceat(lengths, starts)[groups]
    return [bool(first > second) for first, second in lengths]


def _sequences_of(parts: list[Ids], max_length: int, fit: Fit, in_first: bool) -> list[tuple[list[Ids], int]]:
    """The sequences of a record of one or two texts, with the tokens that each has lost. in_first: whether it is the
    first of two that is read in windows, if any is."""
    lengths, room = [len(part) for part in parts], max_length - 1 - len(parts)

    def kept(sizes: Sequence[int]) -> list[Ids]:
        pairs = zip(parts, sizes, strict=True)
        return [part[len(part) - size :] if fit.keep_end else part[:size] for part, size in pairs]

    if fit.overlap is None or sum(lengths) <= room:
        sizes = fit.cut(lengths[0], sum(lengths[1:]), room)[: len(parts)]
        return [(kept(sizes), sum(lengths) - sum(sizes))]
    place = 0 if in_first else len(parts) - 1
    # The other of two texts is in every window; where it takes more than half of the room, it is cut.
    whole = kept([length if each == place else min(length, room // 2) for each, length in enumerate(lengths)])
    lost, others = sum(lengths) - sum(map(len, whole)), sum(map(len, whole)) - lengths[place]
    windows_of_it = [whole[place][start:end] for start, end in spread(lengths[place], room - others, fit.overlap)]
    return [
        ([*whole[:place], window, *whole[place + 1 :]], 0 if number else lost)
        for number, window in enumerate(windows_of_it)
    ]


def spread(length: int, most: int, overlap: int) -> list[tuple[int, int]]:
    """Windows of at most `most` tokens over a text of `length`, each sharing `overlap` tokens with the one before it,
    at most half of a window: (start, end)."""
    starts = beginnings(length, most, most - min(overlap, most // 2))
    return [(start, min(start + most, length)) for start in starts]


def beginnings(length: int, most: int, stride: int) -> range:
    """Where windows of at most `most` tokens begin that cover all of a text of `length`; 0 alone for an empty one."""
    stride = min(most, stride)
    return range(0, max(1, length - most + stride), stride)


def pack(sequences: Sequences, members: Ints, device: torch.device, unit: Ints | None = None) -> Inputs:
    """The sequences `members` (int64[S]) one after another, without padding; on a CPU filled to a round size.

    unit: int64[S], the unit of each, ascending from 0; by default each is one.
    """
    unit = np.arange(len(members)) if unit is None else unit
    place = np.zeros_like(members) if sequences.texts is None else sequences.texts[members]
    new = begins(unit, place)
    asked = Layout.from_lengths(sequences.lengths[members])
    layout = asked.filled() if device.type == "cpu" else asked
    filling = layout.tokens - asked.tokens
    kinds = asked.positions >= np.repeat(sequences.first_segments[members], asked.lengths)
    ids = [sequences.ids[member] for member in members]

    def tensor(values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(device, non_blocking=True)

    return Inputs(
        input_ids=tensor(np.concatenate((*ids, np.zeros(filling, np.int64)))),
        token_type_ids=tensor(np.concatenate((kinds.astype(np.int64), np.zeros(filling, np.int64)))),
        position_ids=tensor(layout.positions),
        packed=Packed(layout, device),
        asked=asked,
        units=int(unit[-1]) + 1 if len(unit) else 0,
        texts=BatchTexts(tensor(np.cumsum(new) - 1), tensor(unit[new]), tensor(place[new])),
    )


def by_length(sequences: Sequences, budget_tokens: int) -> Iterator[Ints]:
    """Batches for a pass without training: sequences of like lengths together, longest first, within a token budget.

    Yields int64[S] indices; a sequence that is longer than the budget goes alone.
    """
    batch: list[int] = []
    tokens = 0
    for index in np.argsort(-sequences.lengths, kind="stable"):
        length = int(sequences.lengths[index])
        if batch and tokens + length > budget_tokens:
            yield np.array(batch, dtype=np.int64)
            batch, tokens = [], 0
        batch.append(int(index))
        tokens += length
    if batch:
        yield np.array(batch, dtype=np.int64)


def batch_window_means(scores: Tensor, inputs: Inputs) -> Tensor:
    """The scores of each text of a batch, [G, C]: the mean of those of its windows, of [S, C]."""
    of, count = inputs.texts.of, len(inputs.texts.unit)
    if count == len(scores):
        return scores
    return segment_means(scores, torch.searchsorted(of, torch.arange(count + 1, device=of.device)))


def segment_means(values: Tensor, offsets: Tensor) -> Tensor:
    """The means of the rows of each segment: [N, C] -> [K, C]. offsets: int64[K + 1], where each one begins."""
    # Not by adding at an index, which has no fixed order on a GPU. `unsafe` leaves out a check that would wait for it.
    return torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True) / offsets.diff()[:, None]


def window_means(scores: NDArray[np.float32], sequences: Sequences) -> NDArray[np.float32]:
    """The scores of each text of all records, float32[G, C]: the mean of those of its windows, of [S, C]."""
    starts = sequences.text_starts
    if len(starts) == len(scores):
        return scores
    sums = np.add.reduceat(scores, starts, dtype=np.float64)
    return (sums / np.diff(starts, append=len(scores))[:, None]).astype(np.float32)


def rows_ended(left: Ints, rows: Ints) -> int:
    """How many records have no sequence left after some more of them. left: int64[N], the sequences that each record
    has left, which is changed. rows: int64[S], the record of each sequence that is done."""
    touched, counts = np.unique(rows, return_counts=True)
    left[touched] -= counts
    return int(np.count_nonzero(left[touched] == 0))
