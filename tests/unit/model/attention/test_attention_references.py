"""The back-end of attention on a CPU, forward and backward, beside torch's attention and the formula in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertsmith.base.layout import Layout
from bertsmith.model.attention.attend import attend
from bertsmith.model.attention.packed import Packed
from bertsmith.model.cpu.masks import scale_of
from made_models import distance

# One huge sequence among many tiny ones, equal ones, and a length on either side of a block's border.
UNEVEN = [[200, *[1] * 40], [16] * 5, [15, 16, 17, 33], [0, 1, 0], [64, 51, 50, 13, 12], [1]]
LENGTHS = st.one_of(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any), st.sampled_from(UNEVEN))
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def drawn(lengths: list[int], width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries, keys and values [T, 3, H], and a gradient [T, H], both exact in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    shapes = ((tokens, 3, width), (tokens, width))
    qkv, down = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return qkv.requires_grad_(), down


def by_torch(qkv: Tensor, heads: int, lengths: list[int]) -> Tensor:
    """torch's attention, a sequence after the other."""
    out = []
    for part in qkv.split(lengths):
        q, k, v = part.view(len(part), 3, heads, qkv.shape[-1] // heads).permute(1, 2, 0, 3)
        out.append(scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(len(part), qkv.shape[-1]))
    return torch.cat(out)


def by_formula(qkv: Tensor, heads: int, lengths: list[int], factors: list[Tensor] | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v of one sequence after the other; factors [N, L, L] multiply the probabilities."""
    out = []
    for number, part in enumerate(qkv.split(lengths)):
        q, k, v = (
            part.view(len(part), 3, heads, -1).permute(1, 2, 0, 3) if len(part) else part.new_zeros(3, heads, 0, 1)
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
        weights = weights if factors is None else weights * factors[number]
        out.append((weights @ v).transpose(0, 1).reshape(len(part), qkv.shape[-1]))
    return torch.cat(out)


@given(
    lengths=LENGTHS, heads=st.sampled_from([1, 2, 3]), dtype=st.sampled_from(list(TOLERANCE)), seed=st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_forward_and_backward_are_those_of_torch_and_of_the_formula(
    lengths: list[int], heads: int, dtype: torch.dtype, seed: int
) -> None:
    ours, down = drawn(lengths, 12 * heads, dtype, seed)
    torchs = ours.detach().clone().requires_grad_()
    exact = ours.detach().double().requires_grad_()
    out = attend(ours, heads, Packed(Layout.from_lengths(lengths)))
    by_torch_, expected = by_torch(torchs, heads, lengths), by_formula(exact, heads, lengths)
    (out * down).sum().backward()
    (by_torch_ * down).sum().backward()
    (expected * down.double()).sum().backward()
    close = TOLERANCE[dtype]
    assert out.dtype == dtype
    assert distance(out.double(), expected) < close
    assert distance(out.double(), by_torch_.double()) < 2 * close
    if max(lengths) > 1:  # otherwise queries and keys have none, and values theirs to the bit
        assert distance(ours.grad.double(), exact.grad) < 2 * close
        assert distance(ours.grad.double(), torchs.grad.double()) < 4 * close
    else:
        assert torch.equal(ours.grad, torchs.grad)


def factors_of(lengths: list[int], heads: int, dropout: float, seed: int) -> list[Tensor]:
    """What dropout multiplies each probability by, [N, L, L] a sequence; read off by values that are unit rows."""
    longest = max(lengths)
    qkv = torch.zeros(sum(lengths), 3, heads, longest, dtype=torch.float64)
    places = torch.cat([torch.arange(length) for length in lengths])
    qkv[torch.arange(len(places)), 2, :, places] = 1
    torch.manual_seed(seed)
    out = attend(qkv.view(-1, 3, heads * longest), heads, Packed(Layout.from_lengths(lengths)), dropout)
    # Queries of zero attend evenly, so a probability is one over the length.
    seen = out.view(-1, heads, longest).split(lengths)
    return [part.transpose(0, 1)[..., :length] * length for part, length in zip(seen, lengths, strict=True)]


@given(lengths=LENGTHS, heads=st.sampled_from([1, 3]), dropout=st.sampled_from([0.1, 0.5]), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_same_mask_gives_the_same_result_and_gradient(
    lengths: list[int], heads: int, dropout: float, seed: int
) -> None:
    factors = factors_of(lengths, heads, dropout, seed)
    for part in factors:
        off = torch.minimum(part.abs(), (part - scale_of(dropout)).abs())
        assert not part.numel() or float(off.max()) < 1e-12, "a probability is dropped or scaled up"
    ours, down = drawn(lengths, 8 * heads, torch.float64, seed)
    exact = ours.detach().clone().requires_grad_()
    torch.manual_seed(seed)
    out = attend(ours, heads, Packed(Layout.from_lengths(lengths)), dropout)
    expected = by_formula(exact, heads, lengths, factors)
    (out * down).sum().backward()
    (expected * down).sum().backward()
    assert float((out - expected).detach().norm()) < 1e-13 * float(ours.detach().norm())
    assert float((ours.grad - exact.grad).norm()) < 1e-12 * float(down.norm())


@pytest.mark.parametrize("dropout", [0.1, 0.4])
def test_masks_differ_keep_their_share_and_average_to_no_dropout(dropout: float) -> None:
    lengths, heads, draws = [20, 33, 7], 2, 400
    kept = torch.cat(
        [torch.cat([each.flatten() for each in factors_of(lengths, heads, dropout, s)]) for s in range(20)]
    )
    assert float((kept > 0).double().mean()) == pytest.approx(1 - dropout, abs=0.005)
    packed = Packed(Layout.from_lengths(lengths))
    qkv = drawn(lengths, 16, torch.float64)[0].detach()
    torch.manual_seed(0)
    found = torch.stack([attend(qkv, heads, packed, dropout) for _ in range(draws)])
    assert not torch.equal(found[0], found[1])
    # The mean of so many is off by its standard error; its mean square, in those units, is 1.
    off = (found.mean(0) - attend(qkv, heads, packed)) / (found.std(0) / draws**0.5)
    assert float(off.square().mean()) == pytest.approx(1, abs=0.3)
