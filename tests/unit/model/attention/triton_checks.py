"""What the Triton kernels must give; they run in processes of their own, which set Triton's switches."""

from __future__ import annotations

import copy
import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from bertsmith.base import device
from bertsmith.base.layout import Layout
from bertsmith.model import dropout as model_dropout
from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.attention import attend as model_attend
from bertsmith.model.attention.attend import attend
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.masks import scale_of
from bertsmith.model.layers import Block
from bertsmith.model.linear import Linear, activated
from bertsmith.model.triton import attention as triton_attention
from bertsmith.model.triton.dropout import BLOCK, _kept_bits, can_draw, kept_bits
from bertsmith.model.triton.gelu import GROUP, HOW, gelu_backward

# What PyTorch has for GPUs alone: a product of numbers in half precision in fp32.
WIDE_PRODUCTS = torch.library.Library("aten", "IMPL")
WIDE_PRODUCTS.impl("mm.dtype", lambda a, b, dtype: a.to(dtype) @ b.to(dtype), "CPU")

LENGTHS = [3, 70, 0, 12, 64, 1, 0]
HEADS, WIDTH = 2, 128
# Of heads as wide as BERT's: width, whether probabilities are dropped, and the generation of the card. Without dropout,
# as in every evaluation, a kernel is other code with registers and a pipeline of its own: of these the forward pass.
FEW_WAYS = [(64, True, 8), (64, True, 9), (64, True, 10)]
FEW_FORWARD_WAYS = [*FEW_WAYS, (64, False, 10)]


def drawn(
    dtype: torch.dtype = torch.float32, width: int = WIDTH, lengths: Sequence[int] = LENGTHS
) -> tuple[torch.Tensor, torch.Tensor, Packed]:
    """Queries, keys and values, the gradient of the output, and where the sequences lie."""
    packed = Packed(Layout.from_lengths(lengths))
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(packed.tokens, 3, HEADS * width, generator=generator)
    return qkv.to(dtype), torch.randn(packed.tokens, HEADS * width, generator=generator).to(dtype), packed


def kernel(qkv: torch.Tensor, packed: Packed, dropout: float, seed: int = 1) -> torch.Tensor:
    """The output, always of the same draw."""
    torch.manual_seed(seed)
    return triton_attention.varlen_attention(qkv, HEADS, packed.offsets, packed.longest, dropout)


def without_dropout() -> None:
    """Equal to the CPU's back-end, forward and backward, in fp32; near it in fp16. The interpreter has no bf16."""
    for dtype, close, width in ((torch.float16, 2e-3, WIDTH), (torch.float32, 2e-6, 16)):
        qkv, by_out, packed = drawn(dtype, width)
        ours, theirs = qkv.clone().requires_grad_(), qkv.float().requires_grad_()
        out, expected = kernel(ours, packed, 0.0), attend(theirs, HEADS, packed)
        out.backward(by_out)
        expected.backward(by_out.float())
        assert (out.float() - expected).norm() < close * expected.norm()
        assert (ours.grad.float() - theirs.grad).norm() < close * theirs.grad.norm()


def scores_far_below_zero() -> None:
    """Places behind the end of a sequence, whose scores are 0, are beyond fp32's range beside them."""
    qkv, by_out, packed = drawn(width=16)
    qkv[:, 0] += 40
    qkv[:, 1] -= 40
    ours, theirs = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    kernel(ours, packed, 0.0).backward(by_out)
    attend(theirs, HEADS, packed).backward(by_out.double())
    assert (ours.grad - theirs.grad).norm() < 1e-3 * theirs.grad.norm()


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
    assert not torch.equal(kernel(qkv, packed, dropout, seed=2), out)
    with mock.patch.object(triton_attention, "_generation", return_value=8):
        other = kernel(qkv, packed, dropout)
    assert (other - out).norm() < 2e-6 * out.norm(), "the same is dropped whatever the blocks are"
    with torch.no_grad():
        assert torch.equal(kernel(qkv, packed, dropout), out), "the same again, without the operator too"


def dropped(packed: Packed, dropout: float) -> list[torch.Tensor]:
    """What is kept of each sequence's probabilities, bool[N, length, length]: values are shown key by key."""
    masks = [torch.zeros(HEADS, length, length, dtype=torch.bool) for length in LENGTHS]
    qkv = torch.zeros(packed.tokens, 3, HEADS, WIDTH)
    starts = packed.layout.offsets[:-1]
    assert max(LENGTHS) <= WIDTH, "a value has a place for each key"
    for start, length in zip(starts, LENGTHS, strict=True):
        for key in range(length):
            qkv[start + key, 2, :, key] = 1
    shown = kernel(qkv.view(packed.tokens, 3, -1), packed, dropout).view(-1, HEADS, WIDTH)
    for start, length, mask in zip(starts, LENGTHS, masks, strict=True):
        mask[:] = (shown[start : start + length, :, :length] > 0).transpose(0, 1)
    return masks


def written_out(qkv: torch.Tensor, packed: Packed, masks: list[torch.Tensor], dropout: float) -> torch.Tensor:
    """Attention sequence by sequence, with these probabilities kept."""
    outs = []
    for start, length, mask in zip(packed.layout.offsets[:-1], LENGTHS, masks, strict=True):
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
        patch.setattr(bench, "SETS", {"few": ("full", 1, 64)})
        patch.setattr(bench, "HEADS", 1)
        patch.setattr(bench, "WAYS", [(64, 64, 4, 3), (32, 64, 4, 2)])
        patch.setattr(bench, "WHOLE_WAYS", [(64, 32, 4, 1), (32, 32, 4, 1)])
        patch.setattr(bench, "microseconds", once)
        patch.setattr(bench, "flash_attention", attend)
        rows = [row for dropout in (0.0, 0.1) for row in bench.rows_of("few", dropout, "cpu", torch.float32)]
    assert [row["kernel"] for row in rows if not row["dropout"]].count("flash forward") == 1
    assert len(rows) == 2 + 2 * (2 + 3 * 2 + 1), "32 rows are not all of 64"
    assert len(bench.table(rows)) == 1 + 2 + 2 * (2 + 4)


def keys_with_queries_or_alone() -> None:
    """The gradients of keys and values by the kernel of queries, and by one of their own, with and without dropout,
    where nothing is drawn."""
    from bertsmith.model.triton import kernels as triton_kernels

    qkv, by_out, packed = drawn(width=16, lengths=[70, 0, 128])
    for dropout, drawing in ((0.0, None), (0.3, triton_kernels._kept)):
        ways = []
        for generation in (8, 9):
            with (
                mock.patch.object(triton_attention, "_generation", return_value=generation),
                mock.patch.object(triton_kernels, "_kept", drawing),
            ):
                own = qkv.clone().requires_grad_()
                kernel(own, packed, dropout).backward(by_out)
                ways.append(own.grad)
        assert 0 < (ways[0] - ways[1]).norm() < 2e-6 * ways[0].norm()


def on_a_gpu(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same, traced as if tensors were there and their places many."""

    def patched(*arguments: object) -> Any:
        with (
            mock.patch.object(model_dropout, "MANY", 1),
            mock.patch.object(device, "is_on_gpu", lambda x: len(x) > 0),
        ):
            return run(*arguments)

    return patched


def in_a_graph() -> None:
    """The operators are whole for PyTorch's compiler, which takes them into one graph."""
    qkv, by_out, packed = drawn(lengths=(3, 0, 12))
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


def activations_and_their_biases() -> None:
    """The activation of a map with a bias in a compiled step on a GPU: outputs and gradients beside float64, whatever
    is learnt. In half precision the gradient of the weight leaves its product in fp32, which PyTorch has for GPUs
    alone."""
    rows, width, inner = 2 * GROUP, 8, 300
    for name, dtype, close, frozen in (
        ("relu", torch.float32, 1e-6, "b"),
        ("gelu", torch.float32, 1e-6, ""),
        ("gelu_new", torch.float32, 1e-6, "b"),
        ("gelu_pytorch_tanh", torch.float16, 1e-3, ""),
        ("gelu", torch.float16, 1e-3, "xw"),
        ("gelu_new", torch.float16, 1e-3, "b"),
    ):
        torch.manual_seed(0)
        linear, x = Linear(width, inner), (3 * torch.randn(rows, width)).to(dtype)
        down = torch.randn(rows, inner).to(dtype)
        leaves = {"x": x, "w": linear.weight, "b": linear.bias}
        exact_of = [each.detach().double().requires_grad_(key not in frozen) for key, each in leaves.items()]
        for key, each in leaves.items():
            each.requires_grad_(key not in frozen)
        compiled = torch.compile(activated, backend="aot_eager", fullgraph=True, dynamic=False)
        out = on_a_gpu(compiled)(x, linear, name)
        exact = FUNCTIONS[name](torch.nn.functional.linear(*exact_of))
        out.backward(down)
        exact.backward(down.double())
        learnt = [pair for pair in zip(leaves.values(), exact_of, strict=True) if pair[1].requires_grad]
        for found, wanted in ((out, exact), *((ours.grad, theirs.grad) for ours, theirs in learnt)):
            assert (found - wanted).norm() < close * wanted.norm(), (name, dtype, frozen)
    torch.library.opcheck(gelu_backward, (down, down, True), test_utils=("test_schema", "test_faketensor"))


def a_block_in_a_graph() -> None:
    """A block as a compiled step on a GPU has it, with all operators of ours: its gradients beside those in float64."""
    config = BertConfig(hidden_size=64, num_attention_heads=2, intermediate_size=192, hidden_act="gelu_pytorch_tanh")
    torch.manual_seed(0)
    block, layout = Block(config), Layout.from_lengths([128, 100, 0, 28])
    for each in block.parameters():
        torch.nn.init.normal_(each, std=0.1)
    for norm in (block.attention_norm, block.feed_forward_norm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.1)
    exact_block = copy.deepcopy(block).double().eval()
    x, by_wide, by_narrow = torch.randn(3, layout.tokens, 64).unbind()
    packed = Packed(layout)
    where = Offsets(packed.offsets, packed.tokens, packed.longest)
    block.dropout = block.attention.dropout = 0.0

    def work(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return block(x, x.half(), where)

    def chosen(*_: object) -> str:
        return "Triton varlen"

    ours = x.clone().requires_grad_()
    with mock.patch.object(model_attend, "back_end", chosen):
        outs = on_a_gpu(torch.compile(work, backend="aot_eager", fullgraph=True, dynamic=False))(ours)
    torch.autograd.backward(outs, (by_wide, by_narrow.half()))
    theirs = x.double().requires_grad_()
    exact = exact_block(theirs, theirs, packed)
    torch.autograd.backward(exact, (by_wide.double(), by_narrow.double()))
    pairs = [*zip(outs, exact, strict=True), (ours.grad, theirs.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(block.parameters(), exact_block.parameters(), strict=True)]
    keys = [name for name, _ in block.named_parameters()].index("attention.key.bias") + 3
    for number, (found, wanted) in enumerate(pairs):
        if number != keys:  # nothing but rounding
            assert (found - wanted).norm() < 5e-3 * wanted.norm(), number


def bits_of_dropout() -> None:
    """A share of places is kept, each by itself; the same by the same seed, whatever the number of rows."""
    rows, hidden, dropped = 700, 64, round(0.3 * 65536)
    torch.manual_seed(1)
    bits = kept_bits(torch.empty(rows, hidden), dropped)
    assert (bits.dtype, bits.shape, bits.numel() % BLOCK != 0) == (torch.uint8, (rows, hidden // 8), True)
    kept = unpacked(bits)
    share = 1 - dropped / 65536
    deviation = (share * (1 - share) / rows) ** 0.5
    assert abs(kept.mean() - share) < 4 * deviation / hidden**0.5
    assert (kept.mean(0) - share).abs().max() < 4.5 * deviation, "of each of the eight that one draw decides on"
    scaled = (kept - share) / (share * (1 - share)) ** 0.5
    for together, draws in ((scaled.T @ scaled / rows, rows), (scaled @ scaled.T / hidden, hidden)):
        others = together - torch.diag(together.diagonal())
        assert others.abs().max() < 6 / draws**0.5, "each column and each row by itself"
    seed, other = torch.tensor([5]), torch.tensor([5 + (1 << 40)])
    few, more = (_kept_bits(seed, [count, 3], dropped) for count in (40, 700))
    assert torch.equal(few, more[:40])
    assert not torch.equal(few, _kept_bits(other, [40, 3], dropped)), "all bits of the seed count"
    assert unpacked(_kept_bits(seed, [40, 3], 0)).all()
    assert [can_draw(shape) for shape in ((2, 8), (2, 12), (0, 8), (2**17, 2**17))] == [True, False, False, False]
    torch.library.opcheck(_kept_bits, (seed, [40, 3], dropped), test_utils=("test_schema", "test_faketensor"))


def unpacked(bits: torch.Tensor) -> torch.Tensor:
    """0 or 1 for each place: [.., 8 x columns]."""
    return ((bits[..., None].int() >> torch.arange(8)) & 1).flatten(-2).float()


def dropout_in_a_graph() -> None:
    """As dropout in a compiled step on a GPU: out and gradient are dropped in the same places and scaled; what is kept
    for the backward pass is the bits."""
    generator = torch.Generator().manual_seed(0)
    x, down = torch.randn(2, 256, 64, generator=generator).unbind()
    y = torch.randn(256, 64, generator=generator).half().requires_grad_()
    compiled = torch.compile(model_dropout.add_dropped, backend="aot_eager", fullgraph=True)
    torch.manual_seed(3)
    out = on_a_gpu(compiled)(x, y, 0.1, True)
    kept = [each for each in out.grad_fn.saved_tensors if each.dtype == torch.uint8]
    assert [each.shape for each in kept] == [(256, 8)]
    assert sum(each.numel() for each in out.grad_fn.saved_tensors) == kept[0].numel(), "and nothing else"
    out.backward(down)
    factors = unpacked(kept[0]) * scale_of(0.1)
    assert 0.88 < factors.bool().float().mean() < 0.92
    assert torch.equal(out, x + y.float() * factors)
    assert torch.equal(y.grad, (down * factors).half())
    # With gradient checkpointing the same bits are drawn again.
    expected, y.grad = y.grad, None

    def work(y: torch.Tensor) -> torch.Tensor:
        return checkpoint(model_dropout.add_dropped, x, y, 0.1, True, use_reentrant=False)

    torch.manual_seed(3)
    on_a_gpu(torch.compile(work, backend="aot_eager", fullgraph=True))(y).backward(down)
    assert torch.equal(y.grad, expected)


def machine_code(
    function: Any, signature: dict[str, str], shape: dict[str, Any], generation: int, options: Any, folder: Path
) -> tuple[Any, int, str]:
    """What a kernel becomes for a generation of cards, the bytes that it spills, and all that it uses."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # As Triton sees them in a run: PyTorch's tensors start at multiples of 16 bytes, so loads are wide and early.
    wide = [at for at, each in enumerate(function.arg_names) if signature[each].startswith("*") or each == "WIDTH"]
    aligned = {(at,): [["tt.divisibility", 16]] for at in wide}
    source = ASTSource(fn=function, signature=signature, constexprs=shape, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 10 * generation, 32), options=options)
    code, tool = folder / "cubin", Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    code.write_bytes(made.asm["cubin"])
    used = subprocess.run([tool, "-res-usage", code], capture_output=True, text=True, check=True).stdout
    assert f"Function {function.__name__}" in used
    return made, max(int(each) for each in re.findall(r"STACK:(\d+)", used)), used


def compiles(folder: Path, whole: bool) -> None:
    """Each kernel becomes machine code of three generations of cards. whole: for both widths, with and without dropout,
    and for a fourth generation; else in FEW_WAYS, or FEW_FORWARD_WAYS."""
    from bertsmith.model.triton import kernels as triton_kernels

    known = {"lse": "*fp32", "delta": "*fp32", "offsets": "*i32", "seed": "*i64", "dropped": "i32", "LONGEST": "i32"}
    all_ways = [*itertools.product((64, 128), (False, True), (8, 9, 10, 12))]
    names = [("forward", 512), ("backward_of_keys", 512), ("backward_of_queries", 512), ("backward_of_queries", 128)]
    ways = {name: all_ways if whole else FEW_WAYS for name, _ in names}
    if not whole:
        ways["forward"] = FEW_FORWARD_WAYS
    for name, longest, width, drops, generation in ((*each, *way) for each in names for way in ways[each[0]]):
        function = getattr(triton_kernels, name)
        options = triton_attention.how_to_run(name, width, torch.bfloat16, generation, longest)
        shape = {"HEADS": 16, "D": width, "DROPS": drops, "Q": options.pop("Q"), "K": options.pop("K")}
        shape |= {"WHOLE": options.pop("WHOLE")} if "WHOLE" in options else {}
        signature = {each: "constexpr" if each in shape else known.get(each, "*bf16") for each in function.arg_names}
        made, spilled, used = machine_code(function, signature, shape, generation, options, folder)
        assert made.metadata.shared <= (200_000 if generation in (9, 10) else 101_376)
        # With half the registers some spill, and yet two blocks side by side were 1.2 to 1.4 times as fast as one.
        few = 160 if "maxnreg" in options else 32 if generation == 12 else 0
        assert spilled <= (few if width == 64 else 300), (
            name,
            width,
            drops,
            generation,
            used,
        )
        assert made.asm["ptx"].count("mul.hi") < (100 if drops else 1), "one Philox call for eight keys"
    signature = {"out": "*u8", "seed": "*i64", "dropped": "i32", "COUNT": "i32", "R": "constexpr"}
    for generation in (8, 9, 10, 12) if whole else (8, 9, 10):
        options = {"num_warps": 4}
        made, *_ = machine_code(triton_kernels.kept_bits, signature, {"R": BLOCK}, generation, options, folder)
        assert made.metadata.shared == 0
        draws = BLOCK // (4 * 32)
        assert made.asm["ptx"].count("mul.hi") <= 2 * 7 * draws, "one Philox call, of seven rounds, for eight places"
    kinds = {"sums": "*fp32", "WIDTH": "i32"}
    for generation, by_tanh in itertools.product((8, 9, 10, 12) if whole else (8, 9, 10), (False, True)):
        shape = {"GROUP": GROUP, "TANH": by_tanh, **HOW}
        options = {"num_warps": shape.pop("num_warps")}
        function = triton_kernels.gelu_backward
        signature = {each: "constexpr" if each in shape else kinds.get(each, "*bf16") for each in function.arg_names}
        _, spilled, used = machine_code(function, signature, shape, generation, options, folder)
        assert spilled == 0, (generation, by_tanh, used)
