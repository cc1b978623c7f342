"""Packed is padded, and the way into padded blocks and back loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import Layout
from bertsmith.model.attention.attend import attend, back_end
from bertsmith.model.attention.blocks import HeadBlocks, block_attention
from bertsmith.model.attention.packed import Packed
from made_models import distance, drawn_inputs, drawn_model, places, small_config

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)


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


@pytest.mark.parametrize("lengths", [[700, 0, 300, 1, 0, 600], [256], [0, 1024, 0]], ids=str)
def test_long_sequences_in_fp32_are_attended_one_by_one_with_the_result_of_blocks(lengths: list[int]) -> None:
    packed, heads = Packed(Layout.from_lengths(lengths)), 2
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(sum(lengths), 3, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    ours = wide.detach().float().requires_grad_()
    down = torch.randn(sum(lengths), 16, generator=generator)
    assert back_end(CPU, torch.float32, heads, 8, packed, 0.0) == "sequence by sequence"
    out, expected = attend(ours, heads, packed), block_attention(wide, heads, packed.head_blocks(heads), 0.0)
    out.backward(down)
    expected.backward(down.double())
    assert distance(out, expected) < 1e-6
    assert distance(ours.grad, wide.grad) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "dropout", "lengths"),
    [
        (torch.bfloat16, 0.0, [512]),
        (torch.float32, 0.1, [512]),
        (torch.float32, 0.0, [512, 1]),
        (torch.float32, 0.0, []),
    ],
    ids=["bf16", "dropout", "short", "none"],
)
def test_all_else_on_a_cpu_is_attended_in_blocks(dtype: torch.dtype, dropout: float, lengths: list[int]) -> None:
    lengths = lengths + [100] * (len(lengths) > 1)
    assert back_end(CPU, dtype, 2, 8, Packed(Layout.from_lengths(lengths)), dropout) == "padded blocks"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_passes_gradcheck(dropout: float) -> None:
    packed = Packed(Layout.from_lengths([3, 0, 5, 2, 1]))
    qkv = torch.randn(11, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)

    def repeatable(qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return attend(qkv, 2, packed, dropout)

    assert torch.autograd.gradcheck(repeatable, qkv)


# PyTorch's compiler writes C++ for a CPU, which a machine for prediction may have no compiler of.
IN_CPP = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("compiler", "dtype", "error"),
    [("aot_eager", torch.float32, 1e-5), pytest.param("inductor", torch.bfloat16, 1e-3, marks=IN_CPP)],
)
def test_in_a_compiled_loop_of_others_a_share_of_probabilities_is_dropped_and_gradients_match(
    compiler: str, dtype: torch.dtype, error: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With values of ones an output is the sum of the probabilities that are kept: 1 without dropout."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    packed = Packed(Layout.from_lengths([60, 0, 41]))
    qkv = torch.randn(101, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    qkv[:, 2] = 1.0
    qkv.requires_grad_()
    where = packed.head_blocks(2)

    @torch.compile(backend=compiler)
    def compiled(qkv: torch.Tensor) -> torch.Tensor:
        return block_attention(qkv, 2, where, 0.3)

    torch.manual_seed(1)
    # In scalars: what vectors the processor and the compiler have takes long to find out.
    with torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False}):
        out = compiled(qkv)
        out.sum().backward()
    assert qkv.grad is not None
    sums = out.detach().float()
    assert float(sums.mean()) == pytest.approx(1.0, abs=0.03)
    assert float(sums.std()) > 0.02
    # Each key's column of probabilities, as they were kept, is the gradient of its value.
    assert float(qkv.grad[:, 2].float().sum()) == pytest.approx(float(sums.sum()), rel=error)


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
