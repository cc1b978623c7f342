"""How sequences lie in a batch: blocks lose no slot, and dealing is complete and even."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import Layout, bin_numbers, deal_within, members_of, round_up

lengths_of_batches = st.lists(st.integers(0, 40), max_size=30)


@given(lengths_of_batches)
def test_offsets_lengths_and_positions_agree(lengths):
    layout = Layout.from_lengths(lengths)
    assert layout.lengths.tolist() == lengths
    assert layout.tokens == sum(lengths)
    assert layout.sequences == len(lengths)
    assert layout.longest == max(lengths, default=0)
    assert layout.positions.tolist() == [place for length in lengths for place in range(length)]


def test_a_sequence_longer_than_the_bound_is_refused():
    assert Layout.from_lengths([3, 5], longest=8).longest == 8
    with pytest.raises(ValueError, match="9 slots is longer than 8"):
        Layout.from_lengths([3, 9], longest=8)


@given(lengths_of_batches)
def test_blocks_are_a_bijection_of_the_slots(lengths):
    layout = Layout.from_lengths(lengths)
    blocks = layout.blocks
    assert sum(rows * longest for rows, longest in blocks.shapes) == len(blocks.slots) == len(blocks.real)
    shown = blocks.slots[blocks.real]
    assert sorted(shown.tolist()) == list(range(layout.tokens))


@given(lengths_of_batches)
def test_a_row_of_a_block_is_one_sequence_and_little_of_it_is_padding(lengths):
    layout = Layout.from_lengths(lengths)
    sequence = np.repeat(np.arange(layout.sequences), layout.lengths)
    start = 0
    for rows, longest in layout.blocks.shapes:
        block = slice(start, start + rows * longest)
        slots, real = (part[block].reshape(rows, longest) for part in (layout.blocks.slots, layout.blocks.real))
        start = block.stop
        for row, inside in zip(slots, real, strict=True):
            assert len(set(sequence[row].tolist())) == 1, "padding shows its own sequence, never a neighbour"
            assert np.array_equal(row[inside], row[0] + np.arange(inside.sum()))
            assert longest % 16 == 0, "columns are rounded up to what a CPU computes fastest"
            assert inside.sum() >= 0.8 * (longest - 15)
    assert start == len(layout.blocks.slots)


@given(st.lists(st.integers(0, 100), max_size=30))
def test_no_two_blocks_have_the_same_columns(lengths):
    """As one they cost no more padding, and half of the calls."""
    columns = [longest for _, longest in Layout.from_lengths(lengths).blocks.shapes]
    assert columns == sorted(set(columns), reverse=True)


@given(lengths_of_batches, st.integers(1, 8))
def test_dealing_covers_every_sequence_once_and_evenly(lengths, bins):
    dealt = members_of(bin_numbers(lengths, bins), bins)
    assert len(dealt) == bins
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(lengths)))
    assert all(np.array_equal(each, np.sort(each)) for each in dealt)
    loads = [sum(lengths[index] for index in each) for each in dealt]
    # The bin that ends heaviest was the lightest when it got its last sequence.
    assert max(loads) - min(loads) <= max(lengths, default=0)


def dealt_by_heap(lengths, bins):
    """What dealing means, a sequence at a time: the longest that is left goes to the least filled bin."""
    heap = [(0, number) for number in range(bins)]
    members = [[] for _ in range(bins)]
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        load, number = heapq.heappop(heap)
        members[number].append(index)
        heapq.heappush(heap, (load + lengths[index], number))
    return [sorted(each) for each in members]


# Few lengths, each of them often, as real steps have; and any, with gaps between them.
few_lengths = st.lists(st.sampled_from([0, 1, 2, 5, 40, 41, 128]), max_size=200)
any_lengths = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 70_000)), max_size=60)


@settings(max_examples=400)
@given(st.one_of(few_lengths, any_lengths), st.integers(1, 30))
def test_dealing_all_of_a_length_at_once_is_dealing_one_after_the_other(lengths, bins):
    dealt = members_of(bin_numbers(lengths, bins), bins)
    assert [each.tolist() for each in dealt] == dealt_by_heap(lengths, bins)
    assert {each.dtype for each in dealt} == {np.dtype(np.int64)}


@pytest.mark.parametrize("longest", [128, 512])
@pytest.mark.parametrize("bins", [1, 8, 440])
def test_a_large_step_is_dealt_as_by_the_heap(longest, bins):
    """65,536 sequences, most of them full."""
    draw = np.random.default_rng(bins)
    lengths = np.where(draw.random(1 << 16) < 0.75, longest, draw.integers(5, longest + 1, 1 << 16))
    dealt = members_of(bin_numbers(lengths, bins), bins)
    assert [each.tolist() for each in dealt] == dealt_by_heap(lengths.tolist(), bins)


@given(st.lists(st.integers(1, 300), max_size=80), st.integers(1, 4), st.integers(1, 600))
def test_dealing_within_a_budget_takes_the_fewest_bins_that_fit(lengths, ranks, budget):
    bins = deal_within(lengths, ranks, budget)
    assert len(bins) % ranks == 0
    assert sorted(np.concatenate(bins).tolist()) == list(range(len(lengths)))

    def fits(each):
        return all(len(own) < 2 or sum(lengths[index] for index in own) <= budget for own in each)

    assert fits(bins)
    most = min(max(1, -(-sum(lengths) // (budget * ranks))), -(-len(lengths) // ranks))
    fewer = range(ranks * max(1, most), len(bins), ranks)
    assert not any(fits(dealt_by_heap(lengths, count)) for count in fewer)


def test_dealing_is_close_to_even_on_real_lengths():
    lengths = np.random.default_rng(0).integers(8, 129, 512)
    loads = [int(lengths[each].sum()) for each in members_of(bin_numbers(lengths, 8), 8)]
    assert max(loads) <= 1.005 * min(loads)


def test_a_sequence_longer_than_the_budget_goes_alone() -> None:
    bins = deal_within(np.array([90, 10, 80, 10]), 1, 50)
    assert [members.tolist() for members in bins if len(members) > 1] in ([], [[1, 3]])
    assert sorted(np.concatenate(bins).tolist()) == [0, 1, 2, 3]


def test_no_bin_passes_the_budget_where_the_tokens_alone_would_ask_for_fewer_bins() -> None:
    assert [len(members) for members in deal_within([100, 100, 100], 1, 150)] == [1, 1, 1]


def test_sequences_longer_than_the_budget_ask_for_no_empty_bins() -> None:
    assert [len(members) for members in deal_within([500, 10], 1, 50)] == [1, 1]
    assert [len(members) for members in deal_within([], 1, 50)] == [0]


@given(st.integers(0, 1 << 20))
def test_round_sizes_are_few_and_little_larger(count):
    size = round_up(count)
    assert count <= size <= max(count + 15, count * 33 / 32)
    assert round_up(size) == size, "a round size stays as it is"


def test_round_sizes_are_few():
    assert len({round_up(count) for count in range(2000, 4000)}) <= 40


@given(lengths=st.lists(st.integers(0, 200), max_size=40))
def test_a_filled_layout_is_round_and_begins_as_it_was(lengths: list[int]) -> None:
    layout = Layout.from_lengths(lengths)
    filled = layout.filled()
    assert filled.tokens == (round_up(layout.tokens) if layout.tokens else 0)
    assert filled.lengths[: layout.sequences].tolist() == lengths
    assert filled.longest == layout.longest
