"""Masks: how many, where, what with, and that they belong to the instance and not to the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Ints, Layout
from bertsmith.batches.masking import MaskingSettings, mask
from made_shards import SPECIAL

MASKING = MaskingSettings()


def masked(
    lengths: list[int], keys: Ints, settings: MaskingSettings = MASKING
) -> tuple[Layout, Ints, Ints, Ints, Ints]:
    """Layout, ids before and after, positions and labels; [CLS] first, [SEP] in the middle and last."""
    layout = Layout.from_lengths(lengths)
    ids = 100 + np.arange(layout.tokens) % 50_000
    hideable = np.ones(layout.tokens, dtype=np.bool_)
    middles = layout.first_slots + layout.lengths // 2
    hideable[layout.first_slots] = hideable[middles] = hideable[layout.offsets[1:] - 1] = False
    ids[~hideable] = SPECIAL.sep
    ids[layout.first_slots] = SPECIAL.cls
    seen, positions, labels = mask(ids, hideable, layout, keys.astype(np.uint64), settings, SPECIAL)
    return layout, ids, seen, positions, labels


@pytest.mark.parametrize(("length", "predictions", "room"), [(128, 19, 20), (512, 77, 80), (5, 1, 1), (10, 2, 2)])
def test_googles_counts(length: int, predictions: int, room: int) -> None:
    settings = MaskingSettings()
    assert settings.predictions(np.array([length])).tolist() == [predictions]
    assert settings.max_predictions(length) == room


def test_half_rounds_to_even_as_python_does() -> None:
    lengths = np.arange(5, 600)
    expected = [min(length - 3, max(1, round(length * 0.15))) for length in lengths.tolist()]
    assert MaskingSettings().predictions(lengths).tolist() == expected
    assert MaskingSettings().predictions(np.array([10, 30])).tolist() == [2, 4]  # 1.5 and 4.5


@given(st.integers(5, 4096), st.floats(0.01, 0.99))
def test_predictions_never_pass_the_room_for_them(length: int, rate: float) -> None:
    settings = MaskingSettings(rate=rate)
    assert 1 <= settings.predictions(np.array([length]))[0] <= settings.max_predictions(length)


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


@given(st.permutations(list(range(8))))
def test_an_instance_is_masked_alike_in_any_batch(order: list[int]) -> None:
    lengths, keys = np.array([128, 5, 40, 77, 128, 19, 64, 33]), np.arange(8) * 977
    layout = Layout.from_lengths(lengths)
    alone = []
    for length, key in zip(lengths.tolist(), keys, strict=True):
        _, _, seen, positions, _ = masked([length], np.array([key]))
        alone.append((positions.tolist(), (seen == SPECIAL.mask).tolist()))
    layout, _, seen, positions, _ = masked(lengths[order].tolist(), keys[order])
    for row, number in enumerate(order):
        begin, end = layout.offsets[row : row + 2]
        inside = positions[(positions >= begin) & (positions < end)] - begin
        assert (inside.tolist(), (seen[begin:end] == SPECIAL.mask).tolist()) == alone[number]


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": 1.0}, {"mask_share": 0.95}, {"random_share": -0.1}])
def test_settings_out_of_range_are_said(wrong: dict[str, float]) -> None:
    with pytest.raises(BertsmithError, match=next(iter(wrong))):
        MaskingSettings(**wrong)
