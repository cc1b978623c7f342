"""How long pairs of Wikipedia are: for machines without text, where a measurement needs only lengths."""

from __future__ import annotations

_TAIL_128 = (6, 37, 46, 53, 60, 66, 73, 80, 89, 98, 108, 118)
_TAIL_512 = (7, 41, 53, 63, 73, 87, 102, 120, 137, 159, 185, 212, 244, 274, 301, 335, 373, 408, 445, 482)

PERCENTILES = {128: (*_TAIL_128, *[128] * 39), 512: (*_TAIL_512, *[512] * 31)}
"""Every second percentile, from 0 to 100, of the lengths of an epoch's pairs, in pieces of bert-base-uncased. Those of
60 MB of English Wikipedia (2015) gave it by

    lengths = Epochs(corpus, seed=0, phase=1, sequence_length=length).index(0).lengths
    np.rint(np.percentile(lengths, np.arange(0, 101, 2))).astype(np.int64)
"""
