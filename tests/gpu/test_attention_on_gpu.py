"""Every attention back-end on a card, beside the CPU's own in float64: forward, backward, with and without dropout."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from bertsmith.base.layout import Layout
from bertsmith.model.attention.attend import attend, flash_attention, settle
from bertsmith.model.attention.blocks import block_attention
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.attention.padded import padded_attention
from bertsmith.model.triton import attention as triton_attention

LENGTHS = [3, 70, 0, 128, 64, 1, 0, 97]
HEADS, HIDDEN = 4, 256
HAS_TRITON = importlib.util.find_spec("triton") is not None


def drawn(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, Packed]:
    """Queries, keys and values, the gradient of the output, and where the sequences lie."""
    layout = Layout.from_lengths(LENGTHS, longest=128)
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(layout.tokens, 3, HIDDEN, generator=generator)
    by_out = torch.randn(layout.tokens, HIDDEN, generator=generator)
    return qkv.to(device, dtype), by_out.to(device, dtype), Packed(layout, device)


def run(name: str, qkv: torch.Tensor, packed: Packed, dropout: float) -> torch.Tensor:
    if name == "Triton varlen":
        return triton_attention.varlen_attention(qkv, HEADS, packed.offsets, packed.longest, dropout)
    if name == "padded rows":
        return padded_attention(qkv, HEADS, packed, dropout)
    if name == "padded blocks":
        return block_attention(qkv, HEADS, packed.head_blocks(HEADS), dropout)
    settle("flash varlen", qkv.device)
    return flash_attention(qkv, HEADS, packed)


def check_card(name: str, dtype: torch.dtype) -> None:
    capability = torch.cuda.get_device_capability()
    if not name.startswith("padded") and capability < (8, 0):
        pytest.skip(f"{name} needs a card of compute capability 8.0, and this one has {capability}")
    if name == "Triton varlen" and not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("the card has no bf16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["flash varlen", "Triton varlen", "padded rows", "padded blocks"])
def test_it_equals_the_cpu(cuda, name, dtype):
    check_card(name, dtype)
    if name == "flash varlen" and dtype == torch.float32:
        pytest.skip("flash attention has no fp32")
    qkv, by_out, packed = drawn(dtype, cuda)
    qkv.requires_grad_()
    out = run(name, qkv, packed, 0.0)
    out.backward(by_out)
    expected_of = qkv.detach().cpu().double().requires_grad_()
    expected = attend(expected_of, HEADS, Packed(packed.layout))
    expected.backward(by_out.cpu().double())
    close = 1e-5 if dtype == torch.float32 else 2e-2
    for found, wanted in ((out, expected), (qkv.grad, expected_of.grad)):
        assert (found.cpu().double() - wanted).norm() < close * wanted.norm()


@pytest.mark.parametrize("name", ["Triton varlen", "padded rows", "padded blocks"])
def test_dropout_drops_the_share_it_should_and_the_same_way_back(cuda, name):
    """Along any direction the slope that backward gives is that of the output, with the same draw."""
    check_card(name, torch.float32)
    qkv, by_out, packed = drawn(torch.float32, cuda)
    plain = run(name, qkv, packed, 0.0)

    def draw(qkv: torch.Tensor, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return run(name, qkv, packed, 0.2)

    mean = torch.stack([draw(qkv, seed) for seed in range(400)]).mean(0)
    assert (mean - plain).norm() < 0.1 * plain.norm(), "kept probabilities are scaled up"
    assert torch.equal(draw(qkv, 1), draw(qkv, 1))
    assert (draw(qkv, 1) - draw(qkv, 2)).norm() > 0.1 * plain.norm()
    qkv.requires_grad_()
    (draw(qkv, 1) * by_out).sum().backward()
    direction = torch.randn(qkv.shape, generator=torch.Generator().manual_seed(3)).to(cuda)
    with torch.no_grad():
        ahead, behind = (draw(qkv + step * direction, 1) for step in (1e-2, -1e-2))
        slope = ((ahead - behind).double() * by_out).sum() / 2e-2
    assert float((qkv.grad * direction).double().sum()) == pytest.approx(float(slope), rel=2e-2)


@pytest.mark.parametrize(("dtype", "dropout"), [(torch.bfloat16, 0.0), (torch.bfloat16, 0.1), (torch.float32, 0.1)])
def test_it_is_whole_in_a_compiled_graph_and_asks_the_host_nothing(cuda, dtype, dropout):
    check_card("padded rows", dtype)
    qkv, by_out, packed = drawn(dtype, cuda)
    qkv.requires_grad_()

    def work(qkv: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return (attend(qkv, HEADS, Offsets(offsets, len(by_out), 128), dropout) * by_out).sum()

    compiled = torch.compile(work, fullgraph=True, dynamic=False)
    compiled(qkv, packed.offsets).backward()
    found = qkv.grad.clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        qkv.grad = None
        compiled(qkv, packed.offsets).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(qkv.grad).all()
    if not dropout:
        assert (qkv.grad - found).norm() < 1e-2 * found.norm()
