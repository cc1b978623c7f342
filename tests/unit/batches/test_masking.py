"""Masks: how many, where, what with, and that they belong to the instance and not to the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.layout import Ints, Layout
from bertsmith.batches.masking import MaskingSettings, choose_slots, choose_words, mask
from made_shards import SPECIAL

MASKING = MaskingSettings()


WORDS = MaskingSettings(rate=0.3, whole_words=True)
CONTINUES = np.random.default_rng(0).random(SPECIAL.vocabulary_size) < 0.4


def masked(
    lengths: list[int], keys: Ints, settings: MaskingSettings = MASKING
) -> tuple[Layout, Ints, Ints, Ints, Ints]:
    """Layout, ids before and after, positions and labels; [CLS] first, [SEP] in the middle and last."""
    layout = Layout.from_lengths(lengths)
    ids = 100 + (layout.positions * 61 + np.repeat(keys, layout.lengths) * 7919) % 30_000
    hideable = np.ones(layout.tokens, dtype=np.bool_)
    middles = layout.first_slots + layout.lengths // 2
    hideable[layout.first_slots] = hideable[middles] = hideable[layout.offsets[1:] - 1] = False
    ids[~hideable] = SPECIAL.sep
    ids[layout.first_slots] = SPECIAL.cls
    seen, positions, labels = mask(ids, hideable, layout, keys.astype(np.uint64), settings, SPECIAL, CONTINUES)
    return layout, ids, seen, positions, labels


def test_half_rounds_to_even_as_python_does() -> None:
    lengths = np.arange(5, 600)
    expected = [min(length - 3, max(1, round(length * 0.15))) for length in lengths.tolist()]
    assert MaskingSettings().predictions(lengths).tolist() == expected
    assert MaskingSettings().predictions(np.array([10, 30])).tolist() == [2, 4]  # 1.5 and 4.5
    assert MaskingSettings().predictions(np.array([5, 128, 512])).tolist() == [1, 19, 77]  # Google's


@given(st.integers(5, 4096), st.floats(0.01, 0.99))
def test_predictions_never_pass_the_room_that_google_and_nvidia_have_for_them(length: int, rate: float) -> None:
    """ceil(128 x rate) per 128 slots: 20 of 128 and 80 of 512 at a rate of 0.15."""
    room = max(1, math.ceil(length * math.ceil(128 * rate) / 128))
    assert 1 <= MaskingSettings(rate=rate).predictions(np.array([length]))[0] <= room


@given(st.lists(st.integers(5, 200), min_size=1, max_size=20), st.integers(0, 2**40))
def test_exact_counts_original_labels_and_no_special_position(lengths: list[int], key: int) -> None:
    layout, ids, seen, positions, labels = masked(lengths, key + np.arange(len(lengths)))
    rows = np.searchsorted(layout.offsets, positions, side="right") - 1
    assert np.bincount(rows, minlength=len(lengths)).tolist() == MaskingSettings().predictions(layout.lengths).tolist()
    assert (np.diff(positions) > 0).all()
    assert np.array_equal(labels, ids[positions])
    assert not np.isin(labels, [SPECIAL.cls, SPECIAL.sep]).any()
    untouched = np.setdiff1d(np.arange(layout.tokens), positions)
    assert np.array_equal(seen[untouched], ids[untouched])


def test_eighty_ten_ten_and_random_pieces_from_the_whole_vocabulary() -> None:
    _, _, seen, positions, labels = masked([128] * 4000, np.arange(4000))
    shown = seen[positions]
    count = len(shown)
    hidden, kept = shown == SPECIAL.mask, shown == labels
    drawn = shown[~hidden & ~kept]
    for part, share in ((hidden.sum(), 0.8), (kept.sum(), 0.1), (len(drawn), 0.1)):
        assert abs(part / count - share) < 4 * np.sqrt(share * (1 - share) / count)
    assert abs(drawn.mean() / SPECIAL.vocabulary_size - 0.5) < 0.02
    few = MaskingSettings(mask_share=0.0, random_share=1.0)
    small = type(SPECIAL)(0, 1, 2, 3, 4, vocabulary_size=8)
    layout = Layout.from_lengths([100] * 50)
    pieces, places, _ = mask(np.full(5000, 7), np.ones(5000, bool), layout, np.arange(50, dtype=np.uint64), few, small)
    assert set(pieces[places].tolist()) == set(range(8)), "special pieces are drawn too, as Google draws them"


def test_masking_off_by_shares_keeps_every_piece() -> None:
    _, ids, seen, positions, _ = masked([128] * 20, np.arange(20), MaskingSettings(mask_share=0.0, random_share=0.0))
    assert np.array_equal(seen, ids)
    assert len(positions) == 20 * 19


def test_every_place_is_as_likely_as_any_other() -> None:
    layout, _, _, positions, _ = masked([64] * 20_000, np.arange(20_000))
    counts = np.bincount(layout.positions[positions], minlength=64)
    places = np.delete(counts, [0, 32, 63])
    expected = 20_000 * 10 / 61
    assert counts[[0, 32, 63]].sum() == 0
    chi_square = ((places - expected) ** 2 / expected).sum()
    assert chi_square < 61 + 5 * np.sqrt(2 * 61)


def chosen_one_by_one(words: list[list[int]], count: int) -> list[int]:
    """Of words in the order of their priorities, those that still fit, and the rest from the first other one."""
    chosen: list[int] = []
    for word in words:
        chosen += word if len(chosen) + len(word) <= count else []
    other = next((word for word in words if word[0] not in chosen), [])
    return sorted(chosen + other[: count - len(chosen)])


@given(st.data())
def test_whole_words_are_those_chosen_one_by_one(data: st.DataObject) -> None:
    sequences = data.draw(st.lists(st.lists(st.booleans(), max_size=40), min_size=1, max_size=4))
    gaps = [data.draw(st.integers(0, len(each))) for each in sequences]  # a slot in between that is no candidate
    counts = np.array([data.draw(st.integers(0, len(each) + 1)) for each in sequences])
    rows = np.repeat(np.arange(len(sequences)), [len(each) for each in sequences])
    at = zip(sequences, gaps, strict=True)
    places = np.concatenate([[1 + n + (n >= gap) for n in range(len(each))] for each, gap in at]).astype(np.int64)
    drawn = np.array(data.draw(st.permutations(range(len(rows)))), np.uint64) // np.uint64(2)  # with ties
    found = choose_words(rows, places, drawn, counts, np.concatenate(sequences).astype(np.bool_))
    expected = []
    for row, (each, gap) in enumerate(zip(sequences, gaps, strict=True)):
        first = int(np.searchsorted(rows, row))
        words: list[list[int]] = []
        for number, continues in enumerate(each):
            if continues and number not in (0, gap):
                words[-1].append(first + number)
            else:
                words.append([first + number])
        words.sort(key=lambda word: (drawn[word[0]], word[0]))
        expected += chosen_one_by_one(words, int(counts[row]))
    assert found.tolist() == expected


def test_a_word_as_long_as_the_share_is_hidden_when_it_comes_first() -> None:
    rows, places, counts = np.zeros(4, np.int64), np.arange(1, 5), np.array([2])
    continues = np.array([False, True, False, False])
    assert choose_words(rows, places, np.arange(4, dtype=np.uint64), counts, continues).tolist() == [0, 1]


def test_words_are_hidden_whole_and_counts_are_exact() -> None:
    layout, ids, _, positions, _ = masked([128] * 500, np.arange(500), WORDS)
    assert len(positions) == 500 * 38
    hidden = np.zeros(layout.tokens, np.bool_)
    hidden[positions] = True
    inside = CONTINUES[ids] & (ids != SPECIAL.sep) & (ids != SPECIAL.cls)
    joined = np.flatnonzero(inside[1:] & ~np.isin(ids[:-1], [SPECIAL.sep, SPECIAL.cls]))
    cut = joined[hidden[joined] != hidden[joined + 1]]
    assert len(joined) > 10_000
    rows = cut // 128
    assert len(rows) == len(set(rows.tolist())) < 150, "at most one word of an instance, and of few instances"


def test_slots_are_chosen_in_the_last_of_a_million_sequences() -> None:
    sequences = (1 << 20) - 1
    layout, counts = Layout.from_lengths(np.ones(sequences)), np.zeros(sequences, np.int64)
    rows = np.array([1, sequences // 2, sequences - 1])
    counts[rows] = 1
    chosen = choose_slots(layout, rows, np.zeros(3, np.int64), np.arange(3, dtype=np.uint64), counts)
    assert chosen.tolist() == rows.tolist()


@pytest.mark.parametrize(("first", "number", "rate"), [(0, 0, 0.3), (0, 50, 0.225), (60, 40, 0.15)])
def test_the_rate_moves_in_a_straight_line_over_the_run(first: int, number: int, rate: float) -> None:
    moving = MaskingSettings(rate=0.3, final_rate=0.15, first_step=first, run_steps=101)
    assert moving.of_step(number).rate == pytest.approx(rate)
    assert moving.densest().rate == MaskingSettings(rate=0.15, final_rate=0.3).densest().rate == 0.3
    assert MASKING.of_step(7) is MASKING


@pytest.mark.parametrize("settings", [MASKING, WORDS])
@given(order=st.permutations(list(range(8))))
def test_an_instance_is_masked_alike_in_any_batch(settings: MaskingSettings, order: list[int]) -> None:
    lengths, keys = np.array([128, 5, 40, 77, 128, 19, 64, 33]), np.arange(8) * 977
    layout = Layout.from_lengths(lengths)
    alone = []
    for length, key in zip(lengths.tolist(), keys, strict=True):
        _, _, seen, positions, _ = masked([length], np.array([key]), settings)
        alone.append((positions.tolist(), (seen == SPECIAL.mask).tolist()))
    layout, _, seen, positions, _ = masked(lengths[order].tolist(), keys[order], settings)
    for row, number in enumerate(order):
        begin, end = layout.offsets[row : row + 2]
        inside = positions[(positions >= begin) & (positions < end)] - begin
        assert (inside.tolist(), (seen[begin:end] == SPECIAL.mask).tolist()) == alone[number]
