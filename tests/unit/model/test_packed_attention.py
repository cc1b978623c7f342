"""Packed is padded, neighbours do not matter, and the way into padded blocks and back loses nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import distance, drawn_inputs, drawn_model, places, small_config

from bertsmith.base.layout import Layout
from bertsmith.model.attention import attend
from bertsmith.model.block_attention import HeadBlocks
from bertsmith.model.packed import Packed

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)


def plain_attention(qkv: torch.Tensor, heads: int, lengths: list[int]) -> torch.Tensor:
    """Attention sequence by sequence and head by head, as the paper writes it."""
    tokens, _, width = qkv.shape
    out = torch.zeros(tokens, width, dtype=qkv.dtype)
    head, start = width // heads, 0
    for length in lengths:
        rows = slice(start, start + length)
        parts = []
        for number in range(heads):
            q, k, v = (qkv[rows, i, number * head : (number + 1) * head] for i in range(3))
            parts.append(torch.softmax(q @ k.T / head**0.5, dim=-1) @ v)
        out[rows] = torch.cat(parts, dim=1)
        start += length
    return out


@given(lengths=LENGTHS, heads=st.sampled_from([1, 2, 4]), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_attention_and_its_gradient_are_the_papers(lengths: list[int], heads: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layout = Layout.from_lengths(lengths)
    qkv = torch.randn(layout.tokens, 3, 8, generator=generator, dtype=torch.float64)
    weights = torch.randn(layout.tokens, 8, generator=generator, dtype=torch.float64)
    ours, theirs = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    out, expected = attend(ours, heads, Packed(layout)), plain_attention(theirs, heads, lengths)
    assert distance(out, expected) < 1e-13
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    assert distance(ours.grad, theirs.grad) < 1e-12


@given(lengths=LENGTHS, heads=st.sampled_from([1, 2, 3]))
@settings(max_examples=40, deadline=None)
def test_rows_of_heads_go_to_their_blocks_and_back(lengths: list[int], heads: int) -> None:
    layout = Layout.from_lengths(lengths)
    where = HeadBlocks.of(layout, heads, CPU)
    tokens, rows = layout.tokens, where.rows
    padded = torch.zeros(rows, dtype=torch.bool)
    padded[where.padding_rows] = True
    assert rows == sum(block.batch * block.longest for block in where.blocks)
    assert int((~padded).sum()) == tokens * heads
    # Out and in again is the identity; padding shows a row of its own sequence.
    x = torch.arange(tokens * heads)
    assert torch.equal(x[where.spread][where.restore], x)
    qkv = torch.arange(tokens * 3 * heads)
    assert torch.equal(qkv[where.gather][where.scatter.reshape(-1)], qkv)
    assert torch.equal(qkv[where.gather].view(3, rows)[1] - heads, qkv[where.gather].view(3, rows)[0])
    for block in where.blocks:
        part = slice(block.start, block.start + block.batch * block.longest)
        by_sequence = where.spread[part].view(block.batch, block.longest)
        sequence = torch.searchsorted(torch.from_numpy(layout.offsets), by_sequence // heads, right=True)
        assert bool((sequence == sequence[:, :1]).all()), "a row of a block is one head of one sequence"
        assert bool((by_sequence % heads == by_sequence[:, :1] % heads).all())
        found = padded[part].view(-1, heads, 1, block.longest)
        expected = block.padding if block.padding is not None else torch.zeros_like(found[:, :1])
        assert torch.equal(found, expected.expand_as(found))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_passes_gradcheck(dropout: float) -> None:
    packed = Packed(Layout.from_lengths([3, 0, 5, 2, 1]))
    qkv = torch.randn(11, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)

    def repeatable(qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return attend(qkv, 2, packed, dropout)

    assert torch.autograd.gradcheck(repeatable, qkv)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_attention_is_near_the_wide_one(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 12, 7, 12]
    wide = torch.randn(34, 3, 16, generator=generator).to(dtype).float().requires_grad_()
    narrow = wide.detach().to(dtype).requires_grad_()
    weights = torch.randn(34, 16, generator=generator)
    packed = Packed(Layout.from_lengths(lengths))
    out, expected = attend(narrow, 4, packed), attend(wide, 4, packed)
    (out.float() * weights).sum().backward()
    (expected * weights).sum().backward()
    assert out.dtype == dtype
    assert distance(out.float(), expected) < 0.01
    assert distance(narrow.grad.float(), wide.grad) < 0.02


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 1e-6)], ids=str)
def test_a_sequence_does_not_see_its_neighbours(dtype: torch.dtype, close: float) -> None:
    config = small_config()
    model = drawn_model(config, dtype=dtype).eval()
    batch = drawn_inputs(config, [7, 20, 7, 1, 0, 15])
    starts = batch.packed.layout.offsets
    with torch.no_grad():
        together = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
        for start, end in itertools.pairwise(starts):
            if start < end:
                part = slice(start, end)
                alone = model.encoder(
                    batch.input_ids[part],
                    batch.token_type_ids[part],
                    batch.position_ids[part],
                    Packed(Layout.from_lengths([end - start])),
                )
                assert distance(alone, together[part]) < close


def test_another_neighbour_changes_nothing() -> None:
    """The same sequence before a shorter, a like and a longer one, and so in blocks of other shapes."""
    config = small_config()
    model = drawn_model(config).eval()
    batch = drawn_inputs(config, [9, 20])
    found = []
    for other in (0, 3, 9, 20):
        part = slice(0, 9 + other)
        packed = Packed(Layout.from_lengths([9, other]))
        positions = torch.from_numpy(packed.layout.positions)
        with torch.no_grad():
            found.append(model.encoder(batch.input_ids[part], batch.token_type_ids[part], positions, packed)[:9])
    assert all(distance(each, found[0]) < 1e-13 for each in found)


def test_packed_is_padded() -> None:
    config, lengths = small_config(), [4, 13, 13, 1, 0, 8]
    model = drawn_model(config).eval()
    batch = drawn_inputs(config, lengths)
    rows, columns = places(lengths, 16)
    ids, kinds, mask = torch.zeros(3, len(lengths), 16, dtype=torch.int64)
    ids[rows, columns], kinds[rows, columns], mask[rows, columns] = batch.input_ids, batch.token_type_ids, 1
    with torch.no_grad():
        packed = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
        padded = model.encoder.encode_padded(ids, mask, kinds)
    assert distance(padded[rows, columns], packed) < 1e-13
