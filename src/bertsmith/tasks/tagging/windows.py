"""Long sentences in windows: each piece is read where most of the text around it is, and none is read nowhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith.tasks.sequences import Ints, Sequences
from bertsmith.tasks.tagging.align import NO_PIECE, Words
from bertsmith.tokens.special_ids import SpecialIds


@dataclass(frozen=True)
class WordSequences(Sequences):
    """Records as sequences [CLS] pieces [SEP]. words: [N], of each record. slots: [N], where the first piece of each
    word lies among the tokens of all sequences, or NO_PIECE; of the windows that have it, in the one with most
    context."""

    words: list[Words]
    slots: list[Ints]


def place(texts: list[Words], room: int, overlap: int, special: SpecialIds) -> WordSequences:
    """The sequences of texts, at most `room` pieces and two special ones each; see `windows`."""
    ids: list[Ints] = []
    rows: list[int] = []
    slots: list[Ints] = []
    begin = 0
    for row, words in enumerate(texts):
        spread = windows(len(words.pieces), room, overlap)
        ends = begin + np.cumsum(spread[:, 1] - spread[:, 0] + 2)
        at = home(words.first, spread)
        slot = ends[at] - 1 - (spread[at, 1] - words.first)
        slots.append(np.where(words.first == NO_PIECE, NO_PIECE, slot))
        ids += [np.array([special.cls, *words.pieces[start:end], special.sep], dtype=np.int64) for start, end in spread]
        rows += [row] * len(spread)
        begin = int(ends[-1])
    lengths = np.array([len(each) for each in ids], dtype=np.int64)
    return WordSequences(ids, lengths, np.zeros_like(lengths), np.array(rows, dtype=np.int64), texts, slots)


def windows(pieces: int, room: int, overlap: int) -> Ints:
    """Where the windows over so many pieces begin and end: int64[n, 2].

    A text that fits has one window. Others have as few as share at least `overlap` pieces (at most half of a window)
    with the one before, all full, spread evenly.
    """
    if pieces <= room:
        return np.array([[0, pieces]], dtype=np.int64)
    stride = room - min(overlap, room // 2)
    gaps = -(-(pieces - room) // stride)
    starts = np.arange(gaps + 1, dtype=np.int64) * (pieces - room) // gaps
    return np.stack([starts, starts + room], axis=1)


def home(places: Ints, spread: Ints) -> Ints:
    """The window of each piece at `places`: the one in which the fewer of its two sides' pieces are the most.

    As in SQuAD's maximum context (Google's run_squad.py): the window whose middle is nearest, of two the earlier.
    spread: of `windows`, int64[n, 2].
    """
    twice_middles = spread.sum(axis=1) - 1
    return np.searchsorted(twice_middles[:-1] + twice_middles[1:], 4 * places)
