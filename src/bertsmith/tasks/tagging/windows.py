"""Long sentences in windows: each piece is read where most of the text around it is, and none is read nowhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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
