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
from torch.profiler import record_function

from bertsmith.base.allocator import keep_freed_memory
from bertsmith.base.compiled_cpp import NotCompiledError, load_cpp
from bertsmith.base.log import log_choice, warn
from bertsmith.model.cpu import weight_gradients
from bertsmith.model.cpu.dropout import draw_key, scale_of, threshold_of

_SOURCE = Path(__file__).with_suffix(".cpp")
_at, _count, _real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_key, _threshold = ctypes.c_uint64, ctypes.c_uint32
_SIGNATURES = {
    "add_normalise": (*[_at] * 9, _count, _count, _real, _key, _threshold, _real),
    "add_normalise_back": (*[_at] * 8, _count, _count, _key, _threshold, _real),
    "softmax": (_at, _at, _at, _count, _count, _count, _key, _threshold),
    "softmax_back": (_at, _at, _at, _count, _count),
    "activation_back": (*[_at] * 5, _count, _count),
    "cross_entropy": (*[_at] * 5, _count, _count),
    "turn": (_at, _at, _count, _count),
}
_WHAT, _WITHOUT = "what stands between a CPU's products", "PyTorch's operators"
_library: ctypes.CDLL | None = None


def prepare_training(compute: torch.dtype, may_compile: bool = True) -> str:
    """What training on a CPU does first: memory that is freed is kept, and products in bf16 get the kernels.

    Says each choice and its reason. compute: the dtype of products. may_compile: whether a compiler may be run.
    Returns what the last bits of a run depend on: "kernels", "kernels and matrix units", "operators", or "" where there
    is no choice.
    """
    keep_freed_memory()
    if compute != torch.bfloat16:
        return ""
    if may_compile:
        if not load():
            return "operators"
        return "kernels and matrix units" if weight_gradients.is_loaded() else "kernels"
    unload()
    log_choice(_WHAT, _WITHOUT, "nothing is to be compiled")
    return "operators"


def load() -> bool:
    """Compiles and loads the kernels, and the product for gradients of weights, once a process; whether the kernels are
    there. It takes a few seconds on a machine's first time."""
    global _library
    if _library is None:
        try:
            _library = load_cpp(_SOURCE, _SIGNATURES)
        except NotCompiledError as why:
            log_choice(_WHAT, _WITHOUT, str(why))
            return False
        if not _are_right():
            _library = None
            warn("the C++ kernels compute something else here than PyTorch does; they are not used")
            return False
        log_choice(_WHAT, "C++ kernels, compiled here", "one visit to memory instead of several")
        weight_gradients.load()
    return True


def unload() -> None:
    """Leaves all to PyTorch's operators from now on."""
    global _library
    _library = None
    weight_gradients.unload()


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


def add_normalise(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropped: Dropped
) -> Normalised:
    """LayerNorm of x + dropout(y + bias): x fp32[T, H], y bf16[T, H], bias, weight and shift fp32[H]."""
    rows, columns = x.shape
    made = Normalised(torch.empty_like(x), torch.empty_like(x), torch.empty_like(y), x.new_empty(rows, 2))
    given = [_address(each) for each in (x, y, bias, weight, shift, *made)]
    _kernels().add_normalise(*given, rows, columns, epsilon, dropped.key, dropped.threshold, dropped.scale)
    return made


def add_normalise_back(
    by_out: Tensor | None, by_narrow: Tensor | None, sums: Tensor, moments: Tensor, weight: Tensor, dropped: Dropped
) -> tuple[Tensor, ...]:
    """The way back, from the gradients of `out` and `narrow`, of which one may be None.

    Returns the gradients of x, y, bias, weight and shift.

    sums, moments, dropped: those of the way forth.
    """
    rows, columns = sums.shape
    by_x, by_y = torch.empty_like(sums), sums.new_empty(rows, columns, dtype=torch.bfloat16)
    by_vectors = sums.new_empty(3, columns)
    tensors = (by_out, by_narrow, sums, moments, weight, by_x, by_y, by_vectors)
    given = [_address(each) for each in tensors]
    _kernels().add_normalise_back(*given, rows, columns, dropped.key, dropped.threshold, dropped.scale)
    return by_x, by_y, *by_vectors.unbind()


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


def softmax_back_(by_odds: Tensor, odds: Tensor, has_dropped: bool) -> Tensor:
    """Turns the gradient of the odds that went on into that of the scores, in place. odds: of `softmax_`.

    Returns the odds that went on, as `softmax_` did. has_dropped: whether some may have been dropped.
    """
    went_on = torch.empty_like(odds) if has_dropped else odds
    given = (_address(by_odds), _address(odds), _address(went_on) if has_dropped else None)
    _kernels().softmax_back(*given, odds.shape[0] * odds.shape[1], odds.shape[2])
    return went_on


def activation_back(by: Tensor, x: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """The way back through an activation of x bf16[T, H]: by_x from `by`, bf16 both, and what by_x adds up to, fp32[H].

    slopes: the derivative at each number of bf16, by its bits, fp32[2^16].
    """
    rows, columns = x.shape
    by_x, by_bias = torch.empty_like(x), slopes.new_empty(columns)
    _kernels().activation_back(*[_address(each) for each in (by, x, slopes, by_x, by_bias)], rows, columns)
    return by_x, by_bias


def cross_entropy(scores: Tensor, labels: Tensor, learns: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of scores bf16[N, C] against labels int64[N], of which negative ones do not count.

    The sum, fp32; how many labels have the highest score, int64; and the gradient of the sum, bf16[N, C], if it learns.
    """
    rows, columns = scores.shape
    loss, right = scores.new_zeros((), dtype=torch.float64), scores.new_zeros((), dtype=torch.int64)
    by_scores = torch.empty_like(scores) if learns else None
    _kernels().cross_entropy(*[_address(each) for each in (scores, labels, by_scores, loss, right)], rows, columns)
    return loss.float(), right, by_scores


def turned(x: Tensor) -> Tensor:
    """x bf16[T, H] as [H, T], copied."""
    out = x.new_empty(x.shape[1], x.shape[0])
    with record_function("turned"):  # for a profiler, which knows PyTorch's operators alone
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
    pairs = [(turned(odd), odd.t()), *_activation_both_ways(draw), *_cross_entropy_both_ways(draw)]
    for dropped in (Dropped(0, 0, 1.0), Dropped(1, threshold_of(0.5), scale_of(0.5))):
        pairs += [*_normalised_both_ways(draw, dropped), *_softmax_both_ways(draw, dropped)]
    return all(torch.allclose(ours.float(), theirs.float(), rtol=1e-2, atol=1e-2) for ours, theirs in pairs)


def _normalised_both_ways(draw: torch.Generator, dropped: Dropped) -> list[tuple[Tensor, Tensor]]:
    """What the kernels and PyTorch make of a sum and its gradients; then the share of places kept and that wanted."""
    x, by_out = torch.randn(2, 37, 50, generator=draw)
    y, by_narrow = torch.randn(2, 37, 50, generator=draw).bfloat16()
    bias, weight, shift = torch.randn(3, 50, generator=draw)
    made = add_normalise(x, y, bias, weight, shift, 1e-12, dropped)
    kept = (made.sum != x).float()
    inputs = [each.clone().requires_grad_() for each in (x, y.float(), bias, weight, shift)]
    summed = inputs[0] + (inputs[1] + inputs[2]) * kept * dropped.scale
    normal = functional.layer_norm(summed, (50,), inputs[3], inputs[4], 1e-12)
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
    again = softmax_back_(by, scores, dropped.threshold > 0)
    return [(out, expected), (again, expected), (by, functional.pad(expected_back, (0, 16)))]


def _activation_both_ways(draw: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    by, x = torch.randn(2, 37, 50, generator=draw).bfloat16()
    by_x, by_bias = activation_back(by, x, torch.arange(1 << 16) / 2**16)
    expected = by.float() * x.view(torch.uint16).float() / 2**16
    return [(by_x, expected), (by_bias, expected.sum(0))]


def _cross_entropy_both_ways(draw: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    scores, labels = torch.randn(37, 50, generator=draw).bfloat16(), torch.arange(37)
    labels[30:] = -100
    scores[3, 1] = scores[3, 3] = 9.0  # the first of equals counts
    inputs = scores.float().requires_grad_()
    loss = functional.cross_entropy(inputs, labels, reduction="sum")
    found, right, by_scores = cross_entropy(scores, labels, True)
    assert by_scores is not None
    expected = (loss, (scores.argmax(-1) == labels).sum(), *torch.autograd.grad(loss, inputs))
    return list(zip((found, right, by_scores), expected, strict=True))
