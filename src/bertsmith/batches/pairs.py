"""From documents to instances of two segments, as in Google's `create_pretraining_data.py`, one shard at a time; or to
instances of one segment, for masked words alone.

A document is cut into chunks of whole sentences that reach a target length. The start of a chunk is segment A. Segment
B is the rest of the chunk ("is next", label 0), or sentences from a random position in another document of the same
shard ("random", label 1); then the unused rest of the chunk is cut again. Pairs that are too long lose single tokens
from the longer segment. Two rules where the reference implementations differ:

- up to ten draws are made for a random document; if all ten give the document itself, the label is "is next", as in
  NVIDIA's code. In a shard of one document every draw does, so it is counted (`Account.same_document`).
- random documents come from the same shard, as in NVIDIA's and LDDL's preparation.

Instances of one segment lose nothing: a document is cut after the last sentence that fits, and what is left of a
sentence longer than an instance is in the next one. None holds text of two documents (RoBERTa's DOC-SENTENCES).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import streams
from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.shards import Shard

SPECIAL_PIECES = 3
SHORTEST_SEQUENCE = SPECIAL_PIECES + 2
LONGEST_SEQUENCE = 65_535
_TRIES = 10
# Numbers that are drawn at once.
_BUFFER = 4096
IS_NEXT, IS_RANDOM = 0, 1


@dataclass(frozen=True)
class PairSettings:
    """random_next: the probability of a random second segment. short_sequences: the share of documents that are cut to
    a random shorter target. single: instances have one segment, so that there are no second ones."""

    random_next: float = 0.5
    short_sequences: float = 0.1
    single: bool = False

    @property
    def special_pieces(self) -> int:
        """Of an instance: [CLS] and a [SEP] after each segment."""
        return SPECIAL_PIECES - self.single


@dataclass(frozen=True)
class Account:
    """What happened to the tokens of a shard, or of all shards of an epoch: visited = corpus - truncated + repeated.

    corpus: all tokens. visited: tokens in the instances. truncated: tokens cut off. repeated: tokens used once more, in
    random second segments. random: instances with label 1. same_document: instances whose second segment was drawn at
    random from the same document (label 0).
    """

    instances: int = 0
    corpus: int = 0
    visited: int = 0
    truncated: int = 0
    repeated: int = 0
    random: int = 0
    same_document: int = 0

    def __str__(self) -> str:
        line = (
            f"{self.instances:,} instances; tokens: {self.visited:,} visited = {self.corpus:,} of the corpus"
            f" - {self.truncated:,} truncated + {self.repeated:,} repeated as random second segments;"
            f" {self.random:,} pairs are random"
        )
        if self.same_document:
            line += (
                f"; {self.same_document:,} random second segments are from the same document and are labelled is-next"
            )
        return line


@dataclass(frozen=True)
class Instances:
    """The instances of a shard as positions in its tokens; n of them, in the order of the text.

    a_start, b_start: int64[n]. a_length, b_length: int32[n], without special pieces; b_length is 0 where there is no
    second segment. next_sentence_label: uint8[n], 0 is next, 1 random; without a meaning where there is none.
    """

    a_start: NDArray[np.int64]
    a_length: NDArray[np.int32]
    b_start: NDArray[np.int64]
    b_length: NDArray[np.int32]
    next_sentence_label: NDArray[np.uint8]
    account: Account

    def __len__(self) -> int:
        return len(self.a_start)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64[n]: as `slots_of`."""
        return slots_of(self.a_length, self.b_length)


def slots_of(a_length: NDArray[np.integer[Any]], b_length: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """int64[n]: the slots of instances with these segments in a batch, with [CLS] and a [SEP] after each segment."""
    special = np.where(b_length > 0, SPECIAL_PIECES, SPECIAL_PIECES - 1)
    return a_length.astype(np.int64) + b_length + special


class Draws(Protocol):
    """Random draws, in the order of Google's `create_pretraining_data.py`, whose generator a test uses."""

    def uniform(self) -> float:
        """A number in [0, 1)."""

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""

    def tosses(self, count: int) -> int:
        """`count` fair coin tosses: bit i of the result is toss i. Bits from `count` on are undefined."""


class KeyedDraws:
    """The draws of one stream: equal keys give equal draws. Numbers are drawn in batches of a few thousand."""

    def __init__(self, key: int) -> None:
        self._generator = streams.generator(key)
        self._uniforms = iter(list[float]())
        self._words = iter(list[int]())

    def uniform(self) -> float:
        for number in self._uniforms:
            return number
        self._uniforms = iter(self._generator.random(_BUFFER).tolist())
        return next(self._uniforms)

    def integer(self, low: int, high: int) -> int:
        return low + int(self.uniform() * (high - low + 1))

    def tosses(self, count: int) -> int:
        coins = self._word()
        for shift in range(64, count, 64):
            coins |= self._word() << shift
        return coins

    def _word(self) -> int:
        for word in self._words:
            return word
        self._words = iter(self._generator.integers(0, 2**64, size=_BUFFER, dtype="uint64").tolist())
        return next(self._words)


def draw_pairs(
    shard: Shard, key: int, sequence_length: int, settings: PairSettings, draws: Draws | None = None
) -> Instances:
    """Cuts a shard into instances of at most `sequence_length` slots; a pure function of the shard and the key.

    draws: used instead of those of the key (tests use Google's generator). Raises BertsmithError for a length too
    short for a pair.
    """
    check_sequence_length(sequence_length)
    limit = sequence_length - settings.special_pieces
    cutter = _Cutter(shard, draws or KeyedDraws(key), limit, settings.random_next)
    cut = cutter.cut_single if settings.single else cutter.cut
    for document in range(len(cutter.documents) - 1):
        target = limit
        if cutter.draws.uniform() < settings.short_sequences:
            target = cutter.draws.integer(2, limit)
        cut(document, target)
    return cutter.instances()


def check_sequence_length(sequence_length: int, where: str = "sequence_length") -> None:
    """Raises BertsmithError for a sequence length that is impossible for pairs. where: it was given."""
    if not SHORTEST_SEQUENCE <= sequence_length <= LONGEST_SEQUENCE:
        raise BertsmithError(
            f"sequence length {sequence_length} is not possible for pairs",
            where,
            f"use a number from {SHORTEST_SEQUENCE} to {LONGEST_SEQUENCE}: [CLS] A [SEP] B [SEP] needs at least five",
        )


class _Cutter:
    """Cuts one document after another, on plain lists by bisection: a few microseconds per instance of any length."""

    def __init__(self, shard: Shard, draws: Draws, limit: int, random_next: float) -> None:
        self.sentences: list[int] = shard.sentence_offsets.tolist()
        self.documents: list[int] = shard.document_offsets.tolist()
        self.draws, self.limit, self.random_next = draws, limit, random_next
        # a_start, a_end, b_start, b_end before and after truncation, drawn at random or not, label
        self.rows: list[tuple[int, int, int, int, int, int, int, int, bool, int]] = []

    def cut(self, document: int, target: int) -> None:
        """Adds the instances of a document, each with a target of `target` tokens."""
        sentences, draws = self.sentences, self.draws
        sentence, last = self.documents[document], self.documents[document + 1]
        while sentence < last:
            end = bisect_left(sentences, sentences[sentence] + target, sentence + 1, last)
            count = end - sentence
            split = sentence + (1 if count == 1 else draws.integer(1, count - 1))
            a_start, a_end = sentences[sentence], sentences[split]
            drawn = count == 1 or draws.uniform() < self.random_next
            label = IS_NEXT
            if drawn:
                b_start, b_end, other = self._random_second(document, target - (a_end - a_start))
                label = IS_NEXT if other == document else IS_RANDOM
                sentence = split
            else:
                b_start, b_end = a_end, sentences[end]
                sentence = end
            kept = (a_start, a_end, b_start, b_end)
            if a_end - a_start + b_end - b_start > self.limit:
                kept = truncated(a_start, a_end, b_start, b_end, self.limit, draws)
            self.rows.append((a_start, a_end, b_start, b_end, *kept, drawn, label))

    def cut_single(self, document: int, target: int) -> None:
        """Adds the instances of a document, of one segment each: whole sentences that reach `target` tokens, or as many
        as fit, or what fits of a sentence."""
        edges = self.sentences[self.documents[document] : self.documents[document + 1] + 1]
        start = edges[0]
        while start < edges[-1]:
            end = edges[min(bisect_left(edges, start + target), len(edges) - 1)]
            if end - start > self.limit:
                end = edges[bisect_right(edges, start + self.limit) - 1]
            if end <= start:
                end = start + self.limit
            self.rows.append((start, end, end, end, start, end, end, end, False, IS_NEXT))
            start = end

    def _random_second(self, document: int, target: int) -> tuple[int, int, int]:
        """First and last token of whole sentences of another document that reach `target` tokens, and its number."""
        for _ in range(_TRIES):
            other = self.draws.integer(0, len(self.documents) - 2)
            if other != document:
                break
        begin, last = self.documents[other], self.documents[other + 1]
        first = begin + self.draws.integer(0, last - begin - 1)
        start = self.sentences[first]
        return start, self.sentences[bisect_left(self.sentences, start + target, first + 1, last)], other

    def instances(self) -> Instances:
        """All instances that were cut, with their account."""
        columns = np.array(self.rows, dtype=np.int64).reshape(-1, 10).T
        whole_a, whole_b = columns[1] - columns[0], columns[3] - columns[2]
        a_length, b_length = columns[5] - columns[4], columns[7] - columns[6]
        drawn, label = columns[8] == 1, columns[9].astype(np.uint8)
        account = Account(
            instances=len(label),
            corpus=self.sentences[-1],
            visited=int(a_length.sum() + b_length.sum()),
            truncated=int((whole_a - a_length).sum() + (whole_b - b_length)[~drawn].sum()),
            repeated=int(b_length[drawn].sum()),
            random=int((label == IS_RANDOM).sum()),
            same_document=int((drawn & (label == IS_NEXT)).sum()),
        )
        a_start, b_start = np.ascontiguousarray(columns[4]), np.ascontiguousarray(columns[6])
        return Instances(a_start, a_length.astype(np.int32), b_start, b_length.astype(np.int32), label, account)


def truncated(
    a_start: int, a_end: int, b_start: int, b_end: int, limit: int, draws: Draws
) -> tuple[int, int, int, int]:
    """Removes single tokens from the longer segment (from B if equal), from its start or end by a coin toss each.

    Which segment loses a token depends on the lengths alone: first the longer one, down to the other's length, then B
    and A in turn. So all coins can be tossed at once and counted. A set bit removes from the start.
    """
    a_length, b_length = a_end - a_start, b_end - b_start
    excess = a_length + b_length - limit
    from_longer = min(abs(a_length - b_length), excess)
    in_turn = excess - from_longer
    from_a, from_b = in_turn // 2, in_turn - in_turn // 2
    coins = draws.tosses(excess)
    longer_front = (coins & ((1 << from_longer) - 1)).bit_count()
    turns = coins >> from_longer & ((1 << in_turn) - 1)
    odd_places = int.from_bytes(b"\xaa" * (in_turn // 8 + 1))
    a_front = (turns & odd_places).bit_count()
    b_front = turns.bit_count() - a_front
    if a_length > b_length:
        from_a, a_front = from_a + from_longer, a_front + longer_front
    else:
        from_b, b_front = from_b + from_longer, b_front + longer_front
    return a_start + a_front, a_end - (from_a - a_front), b_start + b_front, b_end - (from_b - b_front)
