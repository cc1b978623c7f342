"""What the Triton kernels must give; each check runs in a process of its own, which sets Triton's switches."""

from __future__ import annotations

import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from bertsmith.base.layout import Layout
from bertsmith.model.attention.attend import attend
from bertsmith.model.attention.packed import Packed
from bertsmith.model.triton import attention as triton_attention

LENGTHS = [3, 70, 0, 12, 64, 1, 0]
HEADS, WIDTH = 2, 16


def drawn(dtype: torch.dtype = torch.float32, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, Packed]:
    """Queries, keys and values, the gradient of the output, and where the sequences lie."""
    packed = Packed(Layout.from_lengths(LENGTHS))
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(packed.tokens, 3, HEADS * width, generator=generator)
    return qkv.to(dtype), torch.randn(packed.tokens, HEADS * width, generator=generator).to(dtype), packed


def kernel(qkv: torch.Tensor, packed: Packed, dropout: float, seed: int = 1) -> torch.Tensor:
    """The output, always of the same draw."""
    torch.manual_seed(seed)
    return triton_attention.varlen_attention(qkv, HEADS, packed.offsets, packed.longest, dropout)


def without_dropout() -> None:
    """Equal to the CPU's back-end, forward and backward, in fp32; near it in fp16. The interpreter has no bf16."""
    for dtype, close, width in ((torch.float32, 2e-6, 16), (torch.float16, 2e-3, 16), (torch.float32, 2e-6, 128)):
        qkv, by_out, packed = drawn(dtype, width)
        ours, theirs = qkv.clone().requires_grad_(), qkv.float().requires_grad_()
        out, expected = kernel(ours, packed, 0.0), attend(theirs, HEADS, packed)
        out.backward(by_out)
        expected.backward(by_out.float())
        assert (out.float() - expected).norm() < close * expected.norm()
        assert (ours.grad.float() - theirs.grad).norm() < close * theirs.grad.norm()


def with_dropout() -> None:
    """Equal to attention written out, with the probabilities dropped that the kernel dropped."""
    dropout = round(0.3 * 65536) / 65536  # what the kernels take 0.3 as
    qkv, by_out, packed = drawn()
    masks = dropped(packed, dropout)
    kept = torch.cat([mask.flatten() for mask in masks]).float().mean()
    assert abs(kept - (1 - dropout)) < 0.01, "about that share is kept"
    long = masks[LENGTHS.index(64)].flatten(0, 1).float() - (1 - dropout)
    assert long.view(-1, 8, 8).mean((0, 1)).abs().max() < 0.05, "and of each of the eight that one draw decides on"
    together = (long.T @ long) / len(long) / (dropout * (1 - dropout))
    assert (together - torch.diag(together.diagonal())).abs().max() < 0.45, "each by itself"
    by_row = (long @ long.T) / 64 / (dropout * (1 - dropout))
    assert (by_row - torch.diag(by_row.diagonal())).abs().max() < 0.75, "and each row"
    wide = masks[LENGTHS.index(70)].transpose(0, 1).reshape(-1, 70)  # in the order of draws: slot, head
    assert (wide[:-1, 64:] == wide[1:, :6]).float().mean() < 0.8, "keys behind the last eight have draws of their own"
    ours, theirs = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    out, expected = kernel(ours, packed, dropout), written_out(theirs, packed, masks, dropout)
    out.backward(by_out)
    expected.backward(by_out)
    assert (out - expected).norm() < 2e-6 * expected.norm()
    assert (ours.grad - theirs.grad).norm() < 2e-6 * theirs.grad.norm()
    assert torch.equal(kernel(qkv, packed, dropout), out)
    assert not torch.equal(kernel(qkv, packed, dropout, seed=2), out)
    with mock.patch.object(triton_attention, "_generation", return_value=8):
        other = kernel(qkv, packed, dropout)
    assert (other - out).norm() < 2e-6 * out.norm(), "the same is dropped whatever the blocks are"
    with torch.no_grad():
        assert torch.equal(kernel(qkv, packed, dropout), out), "without the operator too"


def dropped(packed: Packed, dropout: float) -> list[torch.Tensor]:
    """What is kept of each sequence's probabilities, bool[N, length, length]: values are shown key by key."""
    masks = [torch.zeros(HEADS, length, length, dtype=torch.bool) for length in LENGTHS]
    qkv = torch.zeros(packed.tokens, 3, HEADS, WIDTH)
    starts = packed.layout.offsets
    for first in range(0, max(LENGTHS), WIDTH):
        qkv[:, 2] = 0
        for start, length in zip(starts, LENGTHS, strict=False):
            for key in range(first, min(first + WIDTH, length)):
                qkv[start + key, 2, :, key - first] = 1
        shown = kernel(qkv.view(packed.tokens, 3, -1), packed, dropout).view(-1, HEADS, WIDTH)
        for start, length, mask in zip(starts, LENGTHS, masks, strict=False):
            keys = max(min(WIDTH, length - first), 0)
            mask[:, :, first : first + keys] = (shown[start : start + length, :, :keys] > 0).transpose(0, 1)
    return masks


def written_out(qkv: torch.Tensor, packed: Packed, masks: list[torch.Tensor], dropout: float) -> torch.Tensor:
    """Attention sequence by sequence, with these probabilities kept."""
    outs = []
    for start, length, mask in zip(packed.layout.offsets, LENGTHS, masks, strict=False):
        q, k, v = qkv[start : start + length].view(length, 3, HEADS, WIDTH).permute(1, 2, 0, 3)
        odds = (q @ k.transpose(1, 2) / WIDTH**0.5).softmax(-1) * mask / (1 - dropout)
        outs.append((odds @ v).transpose(0, 1).reshape(length, HEADS * WIDTH))
    return torch.cat(outs)


def the_benchmark() -> None:
    """Of attention on a GPU, in small and without a clock: each way of each kernel has a row, and a table."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks"))
    bench = importlib.import_module("attention_on_gpu")

    def once(work: Callable[[], object]) -> float:
        work()
        return 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "SETS", {"few": ("full", 2, 128)})
        patch.setattr(bench, "HEADS", 1)
        patch.setattr(bench, "WAYS", [(64, 64, 4, 3), (32, 64, 4, 2)])
        patch.setattr(bench, "microseconds", once)
        patch.setattr(bench, "flash_attention", attend)
        rows = [row for dropout in (0.0, 0.1) for row in bench.rows_of("few", dropout, "cpu", torch.float32)]
    assert [row["kernel"] for row in rows if not row["dropout"]].count("flash forward") == 1
    assert len(rows) == 2 + 2 * (2 + 3 * 2)
    assert len(bench.table(rows)) == 1 + 2 + 2 * (2 + 3)


def in_a_graph() -> None:
    """The operators are whole for PyTorch's compiler, which takes them into one graph."""
    qkv, by_out, packed = drawn()
    qkv.requires_grad_()
    arguments = (qkv, HEADS, packed.offsets, packed.longest, 0.1, torch.tensor([5]))
    torch.library.opcheck(triton_attention._attention, arguments, test_utils=("test_schema", "test_faketensor"))

    def work(qkv: torch.Tensor) -> torch.Tensor:
        out, _ = triton_attention._attention(qkv, *arguments[1:])
        return (out * by_out).sum()

    work(qkv).backward()
    expected, qkv.grad = qkv.grad, None
    torch.compile(work, backend="aot_eager", fullgraph=True)(qkv).backward()
    assert torch.equal(qkv.grad, expected)


def compiles(folder: Path) -> None:
    """Each kernel becomes machine code of three generations of cards."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from bertsmith.model.triton import kernels as triton_kernels

    known = {"lse": "*fp32", "delta": "*fp32", "offsets": "*i32", "seed": "*i64", "dropped": "i32", "LONGEST": "i32"}
    code, tool = folder / "cubin", Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    cases = itertools.product(("forward", "backward_of_keys", "backward_of_queries"), (64, 128), (False, True))
    for (name, width, drops), generation in itertools.product(cases, (8, 9, 10, 12)):
        function = getattr(triton_kernels, name)
        options = triton_attention.how_to_run(width, torch.bfloat16, generation)
        shape = {"HEADS": 16, "D": width, "DROPS": drops, "Q": options.pop("Q"), "K": options.pop("K")}
        signature = {each: "constexpr" if each in shape else known.get(each, "*bf16") for each in function.arg_names}
        # As Triton sees them in a run: PyTorch's tensors start at multiples of 16 bytes, so loads are wide and early.
        numbers = enumerate(function.arg_names)
        aligned = {(at,): [["tt.divisibility", 16]] for at, each in numbers if signature[each].startswith("*")}
        source = ASTSource(fn=function, signature=signature, constexprs=shape, attrs=aligned)
        made = triton.compile(source, target=GPUTarget("cuda", 10 * generation, 32), options=options)
        code.write_bytes(made.asm["cubin"])
        assert made.metadata.shared <= (200_000 if generation in (9, 10) else 101_376)
        used = subprocess.run([tool, "-res-usage", code], capture_output=True, text=True, check=True).stdout
        assert f"Function {name}" in used
        spilled = max(int(each) for each in re.findall(r"STACK:(\d+)", used))
        assert spilled <= ((32 if generation == 12 else 0) if width == 64 else 300), (
            name,
            width,
            drops,
            generation,
            used,
        )
        assert made.asm["ptx"].count("mul.hi") < (100 if drops else 1), "one Philox call for eight keys"
