"""Kernels in C++ for what stands between the matrix products of a step in bf16 on a CPU: `cpu_kernels.cpp`.

PyTorch's operators visit memory once each; these do all that stands between two products in one visit. Training asks
for them by `prepare_training`. Where they are not there, as without a compiler, the callers of this module use
PyTorch's operators, whose figures differ in rounding, and in which places dropout draws.

Legend: T token slots, H width, B blocks (sequences x heads), L slots of a padded sequence.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.base.allocator import keep_freed_memory
from bertsmith.base.compiled_cpp import NotCompiledError, load_cpp
from bertsmith.base.log import choose, warn
from bertsmith.model.dropout import draw_key, scale_of, threshold_of

_SOURCE = Path(__file__).with_suffix(".cpp")
_at, _count, _real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_key, _threshold = ctypes.c_uint64, ctypes.c_uint32
_SIGNATURES = {
    "add_normalise": (*[_at] * 8, _count, _count, _real, _key, _threshold, _real),
    "add_normalise_back": (*[_at] * 9, _count, _count, _key, _threshold, _real),
    "softmax": (_at, _at, _at, _count, _count, _count, _key, _threshold),
    "softmax_back": (_at, _at, _count, _count),
    "turn": (_at, _at, _count, _count),
}
_WHAT, _WITHOUT = "what stands between a CPU's products", "PyTorch's operators"
_library: ctypes.CDLL | None = None


def prepare_training(compute: torch.dtype, may_compile: bool = True) -> str:
    """What training on a CPU does first: memory that is freed is kept, and products in bf16 get the kernels.

    Says each choice and its reason. compute: the dtype of products. may_compile: whether a compiler may be run.
    Returns what stands between the products, which decides the last bits of a run: "kernels", "operators", or "" where
    there is no choice.
    """
    global _library
    keep_freed_memory()
    if compute != torch.bfloat16:
        return ""
    if may_compile:
        return "kernels" if load() else "operators"
    _library = None
    choose(_WHAT, _WITHOUT, "nothing is to be compiled")
    return "operators"


def load() -> bool:
    """Compiles and loads the kernels, once a process; whether they are there. It takes a second or two on a machine's
    first time."""
    global _library
    if _library is None:
        try:
            _library = load_cpp(_SOURCE, _SIGNATURES)
        except NotCompiledError as why:
            choose(_WHAT, _WITHOUT, str(why))
            return False
        if not _are_right():
            _library = None
            warn("the C++ kernels compute something else here than PyTorch does; they are not used")
            return False
        choose(_WHAT, "C++ kernels, compiled here", "one visit to memory instead of several")
    return True


def can_take(narrow: Tensor, *others: Tensor) -> bool:
    """Whether the kernels are there and these are tensors for them: on the CPU, laid whole, the first one bf16."""
    if torch.compiler.is_compiling() or _library is None or narrow.dtype != torch.bfloat16:
        return False
    return all(each.device.type == "cpu" and each.is_contiguous() for each in (narrow, *others))


@dataclass(frozen=True)
class Dropped:
    """Which places are dropped: a function of the key and of their row and column. threshold: of 2^16; 0 drops none."""

    key: int
    threshold: int
    scale: float

    @classmethod
    def draw(cls, probability: float) -> Dropped:
        """With a key from PyTorch's default generator, if there is something to drop."""
        if not probability:
            return cls(0, 0, 1.0)
        return cls(draw_key(), threshold_of(probability), scale_of(probability))


class Normalised(NamedTuple):
    """sum, out: fp32[T, H]. narrow: `out` in bf16. moments: fp32[T, 2], mean and one over the deviation."""

    sum: Tensor
    out: Tensor
    narrow: Tensor
    moments: Tensor


def add_normalise(x: Tensor, y: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropped: Dropped) -> Normalised:
    """LayerNorm of x + dropout(y): x fp32[T, H], y bf16[T, H], weight and shift fp32[H]."""
    rows, columns = x.shape
    made = Normalised(torch.empty_like(x), torch.empty_like(x), torch.empty_like(y), x.new_empty(rows, 2))
    given = [_address(each) for each in (x, y, weight, shift, made.sum, made.out, made.narrow, made.moments)]
    _kernels().add_normalise(*given, rows, columns, epsilon, dropped.key, dropped.threshold, dropped.scale)
    return made


def add_normalise_back(
    by_out: Tensor | None, by_narrow: Tensor | None, sums: Tensor, moments: Tensor, weight: Tensor, dropped: Dropped
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The way back, from the gradients of `out` and `narrow`, of which one may be None, to x, y, weight and shift.

    sums, moments, dropped: those of the way forth.
    """
    rows, columns = sums.shape
    by_x, by_y = torch.empty_like(sums), sums.new_empty(rows, columns, dtype=torch.bfloat16)
    by_weight, by_shift = torch.empty_like(weight), torch.empty_like(weight)
    tensors = (by_out, by_narrow, sums, moments, weight, by_x, by_y, by_weight, by_shift)
    given = [_address(each) for each in tensors]
    _kernels().add_normalise_back(*given, rows, columns, dropped.key, dropped.threshold, dropped.scale)
    return by_x, by_y, by_weight, by_shift


def softmax_(scores: Tensor, lengths: Tensor, dropped: Dropped) -> Tensor:
    """Turns scores bf16[B, L, L] into odds, in place; those of columns past a sequence's length are 0.

    lengths: int64[sequences], of which B is a multiple. Returns the odds with 0 for what is dropped, unscaled; in
    `scores` the sign of such odds is turned, for `softmax_back_`.
    """
    sequences, longest = len(lengths), scores.shape[-1]
    out = torch.empty_like(scores) if dropped.threshold else scores
    given = (_address(scores), _address(out) if dropped.threshold else None, _address(lengths))
    heads = len(scores) // max(sequences, 1)
    _kernels().softmax(*given, sequences, heads, longest, dropped.key, dropped.threshold)
    return out


def softmax_back_(by_odds: Tensor, odds: Tensor) -> Tensor:
    """Turns the gradient of the odds that are not dropped into that of the scores, in place. odds: of `softmax_`."""
    _kernels().softmax_back(_address(by_odds), _address(odds), odds.shape[0] * odds.shape[1], odds.shape[2])
    return by_odds


def turned(x: Tensor) -> Tensor:
    """x bf16[T, H] as [H, T], copied."""
    out = x.new_empty(x.shape[1], x.shape[0])
    _kernels().turn(_address(x), _address(out), *x.shape)
    return out


def _kernels() -> ctypes.CDLL:
    assert _library is not None, "can_take was not asked"
    return _library


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _are_right() -> bool:
    """Whether the kernels say what PyTorch says, with and without dropout: a compiler is a program like others."""
    draw = torch.Generator().manual_seed(0)
    odd = torch.randn(67, 35, generator=draw).bfloat16()
    pairs = [(turned(odd), odd.t())]
    for dropped in (Dropped(0, 0, 1.0), Dropped(1, threshold_of(0.5), scale_of(0.5))):
        pairs += [*_normalised_both_ways(draw, dropped), *_softmax_both_ways(draw, dropped)]
    return all(torch.allclose(ours.float(), theirs.float(), rtol=1e-2, atol=1e-2) for ours, theirs in pairs)


def _normalised_both_ways(draw: torch.Generator, dropped: Dropped) -> list[tuple[Tensor, Tensor]]:
    """What the kernels and PyTorch make of a sum and its gradients; then the share of places kept and that wanted."""
    x, by_out = torch.randn(2, 37, 50, generator=draw)
    y, by_narrow = torch.randn(2, 37, 50, generator=draw).bfloat16()
    weight, shift = torch.randn(2, 50, generator=draw)
    made = add_normalise(x, y, weight, shift, 1e-12, dropped)
    kept = (made.sum != x).float()
    inputs = [each.clone().requires_grad_() for each in (x, y.float(), weight, shift)]
    summed = inputs[0] + inputs[1] * kept * dropped.scale
    normal = functional.layer_norm(summed, (50,), inputs[2], inputs[3], 1e-12)
    expected = torch.autograd.grad(normal, inputs, by_out + by_narrow)
    back = add_normalise_back(by_out, by_narrow, made.sum, made.moments, weight, dropped)
    # A tenth, since a share of a few places is not exact.
    shares = (kept.mean() / 10, torch.tensor(1 / dropped.scale / 10))
    return [*zip(back, expected, strict=True), (made.out, normal), (made.narrow, normal), shares]


def _softmax_both_ways(draw: torch.Generator, dropped: Dropped) -> list[tuple[Tensor, Tensor]]:
    """What the kernels and PyTorch make of scores of two heads with padding, and of the gradient of the odds."""
    scores, by = torch.randn(2, 2, 36, 36, generator=draw).bfloat16()
    inputs = scores[..., :20].float().requires_grad_()
    out = softmax_(scores, torch.tensor([20]), dropped)
    expected = functional.pad(inputs.softmax(-1), (0, 16)) * ~scores.signbit()
    (expected_back,) = torch.autograd.grad(expected, inputs, by.float())
    return [(out, expected), (softmax_back_(by, scores), functional.pad(expected_back, (0, 16)))]
