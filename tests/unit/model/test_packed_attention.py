"""Packed is padded, neighbours do not matter, and the way to blocks and back loses nothing, gradients included."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import distance, drawn_inputs, drawn_model, places, small_config

from bertsmith.base.layout import Layout
from bertsmith.model.attention import attend
from bertsmith.model.packed import Packed, from_blocks, to_blocks

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


@given(lengths=LENGTHS)
@settings(max_examples=40, deadline=None)
def test_blocks_and_back_is_the_identity(lengths: list[int]) -> None:
    packed = Packed(Layout.from_lengths(lengths))
    x = torch.randn(packed.layout.tokens, 3)
    blocks = to_blocks(x, packed)
    assert torch.equal(from_blocks(blocks, packed), x)
    real = torch.from_numpy(packed.layout.blocks.real)
    assert torch.equal(blocks, x[packed.slots])
    assert int(real.sum()) == packed.layout.tokens
    assert torch.equal(real.logical_not().nonzero()[:, 0], packed.padding_places)


@given(lengths=LENGTHS, seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_gradients_of_blocks_are_those_of_plain_indexing(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    packed = Packed(Layout.from_lengths(lengths))
    x = torch.randn(packed.layout.tokens, 2, generator=generator, dtype=torch.float64)
    weights = torch.randn(len(packed.slots), 2, generator=generator, dtype=torch.float64)
    real = torch.from_numpy(packed.layout.blocks.real).double()[:, None]
    ours, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    (to_blocks(ours, packed) * weights * real).sum().backward()
    (plain[packed.slots] * weights * real).sum().backward()
    assert torch.allclose(ours.grad, plain.grad, atol=1e-13)

    blocks = to_blocks(x, packed)
    ours, plain = blocks.clone().requires_grad_(), blocks.clone().requires_grad_()
    down = torch.randn(packed.layout.tokens, 2, generator=generator, dtype=torch.float64)
    (from_blocks(ours, packed) * down).sum().backward()
    (plain[packed.places] * down).sum().backward()
    assert torch.equal(ours.grad, plain.grad)


def test_block_functions_pass_gradcheck() -> None:
    packed = Packed(Layout.from_lengths([3, 0, 5, 2]))
    real = torch.from_numpy(packed.layout.blocks.real).double()[:, None]
    x = torch.randn(10, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: to_blocks(x, packed) * real, x)
    blocks = torch.randn(len(packed.slots), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda blocks: from_blocks(blocks, packed), blocks)
    qkv = torch.randn(10, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda qkv: attend(qkv, 2, packed), qkv)


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
