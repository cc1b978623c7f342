"""Rows made of training rows by replacing words with what a masked-word model proposes in their place.

As in TinyBERT (Jiao et al., 2020), one word is masked at a time, so the model sees all others. A word of several pieces
is masked as one piece. So all proposals are whole words of one piece; they are letters only, as the words are that they
replace, and never the word itself. Every draw is keyed by seed, row and number, whatever else is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, counted, say
from bertsmith.base.ranks.together import together
from bertsmith.base.streams import generator, stream_key
from bertsmith.tasks.kinds.masked_words import WordModel
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Ints, Sequences, by_length, pack
from bertsmith.tasks.task import Runner
from bertsmith.tokens.tokenizer import EncodedPair, Tokenizer

# Rows whose proposals are in memory at once, and after which ranks meet: few enough that this takes no minutes.
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Word:
    """first, end: of its pieces in the sequence. segment: 0 in the text, 1 in the second one. characters: its place
    there, start and end."""

    first: int
    end: int
    segment: int
    characters: tuple[int, int]


@dataclass(frozen=True)
class Making:
    """count: rows to make of each. share: the probability that a word is replaced. top: proposals for a word."""

    count: int
    share: float
    top: int
    seed: int
    max_length: int


@dataclass
class Made:
    """Rows that were made: the number of the row that each is made of, and its text or texts. masked: words that were
    proposed for. several: those of them that have several pieces. wordless: rows that have no word to replace. equal:
    rows left out because another made of the same row is equal."""

    rows: list[tuple[int, str, str | None]] = field(default_factory=list)
    masked: int = 0
    several: int = 0
    wordless: int = 0
    equal: int = 0

    def add(self, other: Made) -> None:
        """Takes in what was made of later rows."""
        for each in fields(self):
            value = getattr(self, each.name)
            value += getattr(other, each.name)  # a list in place: a new one would be a copy of all rows before
            setattr(self, each.name, value)

    def line(self, of: int) -> str:
        """All of that in words. of: the rows that there were."""
        return (
            f"{counted(len(self.rows), 'augmented row')} made from {of:,} by replacing words; proposals for "
            f"{counted(self.masked, 'word')}, {self.several:,} of them of several pieces that were masked as one; "
            f"{self.equal:,} dropped as duplicates of another made from the same row; "
            f"{counted(self.wordless, 'row')} without a word to replace"
        )


@dataclass(frozen=True)
class Proposer:
    """A masked-word model with its tokenizer. The model must be in evaluation mode."""

    model: WordModel
    tokenizer: Tokenizer
    runner: Runner

    @torch.no_grad()
    def proposals(self, sequences: Sequences, itself: Ints, top: int) -> NDArray[np.int64]:
        """The likeliest words for the one [MASK] of each sequence, the likeliest first: int64[S, top].

        itself: int64[S], the piece that stood there, which is no proposal; -1 where it was not one piece.
        """
        device, special = self.runner.device, self.tokenizer.special
        banned = torch.from_numpy(~self.words()).to(device)
        found = np.empty((len(sequences.ids), top), dtype=np.int64)
        for members in by_length(sequences, self.runner.budget_tokens):
            inputs = pack(sequences, members, device)
            slots = (inputs.input_ids[: inputs.asked.tokens] == special.mask).nonzero()[:, 0]
            logits = self.model.piece_scores(inputs, slots)[:, : self.tokenizer.size].float()
            logits = logits.masked_fill(banned, -torch.inf)
            own = torch.from_numpy(itself[members]).to(device)
            rows = (own >= 0).nonzero()[:, 0]
            logits[rows, own[rows]] = -torch.inf
            found[members] = logits.topk(top).indices.cpu().numpy()
        return found

    def words(self) -> NDArray[np.bool_]:
        """bool[V]: pieces that are words of letters by themselves."""
        return self.tokenizer.is_alphabetic & ~self.tokenizer.is_continuation


def words_of(pair: EncodedPair, tokenizer: Tokenizer) -> list[Word]:
    """The words of a row that are letters only and have no unknown piece, in their order."""
    found: list[Word] = []
    ids, length = pair.ids, len(pair.ids)
    starts = [
        place for place in range(length) if pair.segments[place] >= 0 and not tokenizer.is_continuation[ids[place]]
    ]
    for first in starts:
        end = first + 1
        while end < length and pair.segments[end] >= 0 and tokenizer.is_continuation[ids[end]]:
            end += 1
        pieces = ids[first:end]
        if tokenizer.is_alphabetic[pieces].all() and tokenizer.special.unknown not in pieces:
            characters = int(pair.offsets[first, 0]), int(pair.offsets[end - 1, 1])
            found.append(Word(first, end, int(pair.segments[first]), characters))
    return found


def make_rows(
    records: Sequence[Record],
    proposer: Proposer,
    making: Making,
    earlier: Mapping[int, Made] = MappingProxyType({}),
    keep: Callable[[int, Made], None] = lambda end, made: None,
) -> Made:
    """At most `making.count` rows of each record, in their order. Each replaces one word at least.

    All ranks call it, with the same records, and share them; all get all rows. Batches are those of one rank, so the
    rows are the same. earlier: what `keep` was given by a call before. keep: the first rank calls it with what was made
    of further records, and the number of the next one.
    Says where there are fewer proposals than `making.top`. Raises BertsmithError where there is none.
    """
    words = int(proposer.words().sum())
    top = min(making.top, words - 1)  # a word is not its own proposal
    if top < 1:
        what = f"the vocabulary has {words} words of letters that are one piece, so there is nothing to replace by"
        raise BertsmithError(what, "augment_model", "name a model whose vocabulary has whole words")
    if top < making.top:
        say(f"a word is replaced by one of {top:,} proposals, not {making.top:,}: there are {words:,} whole words")
    making = replace(making, top=top)
    made = _summed(earlier.values())
    done = max(earlier, default=0)
    at_once = _ROWS_AT_ONCE * ranks.world_size()
    with Progress("making rows", len(records), "rows") as progress:
        progress.skip(done)
        for start in range(done, len(records), at_once):
            first = start + _ROWS_AT_ONCE * ranks.rank()
            some = list(enumerate(records[first : first + _ROWS_AT_ONCE], first))
            further = _summed(ranks.gathered(together(partial(_made_of, some, proposer, making))))
            end = min(start + at_once, len(records))
            ranks.by_first(partial(keep, end, further))
            made.add(further)
            progress.advance(end - start)
    return made


def _summed(parts: Iterable[Made]) -> Made:
    made = Made()
    for each in parts:
        made.add(each)
    return made


def _made_of(records: list[tuple[int, Record]], proposer: Proposer, making: Making) -> Made:
    """Rows made of some records, each with its number."""
    made = Made()
    drawn: list[tuple[int, Record, list[Word], list[dict[int, int]]]] = []
    masked: dict[tuple[int, int], int] = {}
    sequences: list[tuple[EncodedPair, Word]] = []
    for number, record in records:
        pair = proposer.tokenizer.encode_pair(record.text, record.text_b, making.max_length)
        words = words_of(pair, proposer.tokenizer)
        if not words:
            made.wordless += 1
            continue
        draws = [_drawn(len(words), making, number, copy) for copy in range(making.count)]
        for place in sorted({place for each in draws for place in each}):
            masked[number, place] = len(sequences)
            sequences.append((pair, words[place]))
            made.several += words[place].end - words[place].first > 1
        drawn.append((number, record, words, draws))
    made.masked += len(sequences)
    if not sequences:
        return made
    itself = np.array([int(pair.ids[word.first]) if word.end - word.first == 1 else -1 for pair, word in sequences])
    found = proposer.proposals(_masked(sequences, proposer.tokenizer), itself, making.top)
    pieces = proposer.tokenizer.pieces
    for number, record, words, draws in drawn:
        chosen = ({place: pieces[found[masked[number, place], rank]] for place, rank in each.items()} for each in draws)
        texts = list(_replaced(record, words, chosen))
        different = list(dict.fromkeys(texts))
        made.equal += len(texts) - len(different)
        made.rows += [(number, *each) for each in different]
    return made


def _drawn(words: int, making: Making, row: int, copy: int) -> dict[int, int]:
    """Which words of a copy are replaced, and by which of their proposals."""
    draw = generator(stream_key(making.seed, "augment", row, copy))
    chosen = np.flatnonzero(draw.random(words) < making.share)
    if not len(chosen):
        chosen = draw.integers(words, size=1)
    return {int(place): int(draw.integers(making.top)) for place in chosen}


def _masked(sequences: Sequence[tuple[EncodedPair, Word]], tokenizer: Tokenizer) -> Sequences:
    """A sequence for each word, with one [MASK] in its place."""
    mask = np.array([tokenizer.special.mask])
    ids = [np.concatenate((pair.ids[: word.first], mask, pair.ids[word.end :])) for pair, word in sequences]
    firsts = [
        int((pair.type_ids == 0).sum()) - (word.end - word.first - 1 if word.segment == 0 else 0)
        for pair, word in sequences
    ]
    rows = np.arange(len(ids))
    return Sequences(ids, np.array(firsts, dtype=np.int64), np.zeros(len(ids), dtype=np.int64), rows)


def _replaced(
    record: Record, words: Sequence[Word], chosen: Iterator[dict[int, str]]
) -> Iterator[tuple[str, str | None]]:
    """The text or texts of a record with words replaced, once for each of `chosen`."""
    for each in chosen:
        texts = [record.text, record.text_b or ""]
        for place in sorted(each, reverse=True):  # from the end, so that earlier places stay where they are
            word = words[place]
            start, end = word.characters
            text = texts[word.segment]
            texts[word.segment] = text[:start] + each[place] + text[end:]
        yield texts[0], None if record.text_b is None else texts[1]
