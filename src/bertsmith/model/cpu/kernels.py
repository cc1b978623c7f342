"""C++ kernels for what a step computes around its matrix products on a CPU, in bf16 and fp32: `kernels.cpp`.

PyTorch's operators visit memory once each; a kernel does the work of several in one visit. `prepare.py` loads the
kernels for training. Where they are missing, as without a compiler, the callers of this module use PyTorch's operators,
which round differently and drop other places. `library.can_take` says whether the kernels can be called.

Legend: T token slots, H width, B blocks (sequences x heads), L slots of a padded sequence. "Narrow" tensors have the
dtype of matrix products, bf16 or fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bertsmith.model.cpu.library import call
from bertsmith.model.cpu.masks import Dropped

# What the activations of a configuration are called here.
_BACKWARD = {
    "gelu": "gelu_backward",
    "gelu_new": "gelu_tanh_backward",
    "gelu_pytorch_tanh": "gelu_tanh_backward",
    "relu": "relu_backward",
}


class Normalised(NamedTuple):
    """sum, out: fp32[T, H]. narrow: `out` in the dtype of products, the same tensor in fp32. moments: fp32[T, 2], mean
    and one over the deviation."""

    sum: Tensor
    out: Tensor
    narrow: Tensor
    moments: Tensor


def add_normalise(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropped: Dropped
) -> Normalised:
    """LayerNorm of x + dropout(y + bias): x fp32[T, H], y narrow [T, H], bias, weight and shift fp32[H]."""
    rows, columns = x.shape
    sums, out, moments = torch.empty_like(x), torch.empty_like(x), x.new_empty(rows, 2)
    narrow = out if y.dtype == out.dtype else torch.empty_like(y)
    made = (sums, out, None if narrow is out else narrow, moments)
    rest = (rows, columns, epsilon, dropped.key, dropped.threshold, dropped.scale)
    call("add_normalise", y.dtype, x, y, bias, weight, shift, *made, *rest)
    return Normalised(sums, out, narrow, moments)


class Gradients(NamedTuple):
    """Of what: `out` fp32[T, H], `narrow` in the dtype of products; one of them may be None."""

    out: Tensor | None
    narrow: Tensor | None


def add_normalise_backward(
    given: Gradients, dtype: torch.dtype, sums: Tensor, moments: Tensor, weight: Tensor, dropped: Dropped
) -> tuple[Tensor, ...]:
    """The gradients of x, y, bias, weight and shift. dtype: of y. sums, moments, dropped: of `add_normalise`."""
    rows, columns = sums.shape
    grad_x, grad_y = torch.empty_like(sums), torch.empty_like(sums, dtype=dtype)
    grad_vectors = sums.new_empty(3, columns)
    tensors = (*given, sums, moments, weight, grad_x, grad_y, grad_vectors)
    rest = (rows, columns, dropped.key, dropped.threshold, dropped.scale)
    call("add_normalise_backward", dtype, *tensors, *rest)
    return grad_x, grad_y, *grad_vectors.unbind()


def drop(x: Tensor, dropped: Dropped) -> Tensor:
    """Dropout of x narrow [..., H]."""
    out = torch.empty_like(x)
    columns = x.shape[-1]
    rest = (x.numel() // columns, columns, dropped.key, dropped.threshold, dropped.scale)
    call("drop", x.dtype, x, out, *rest)
    return out


def softmax_(scores: Tensor, lengths: Tensor, dropped: Dropped) -> Tensor:
    """Turns scores narrow [B, L, L] into probabilities, in place; those of columns past a sequence's length are 0.

    lengths: int64[sequences], of which B is a multiple. Returns the probabilities with 0 for what is dropped, unscaled;
    in `scores` those are negative, for `softmax_backward_`.
    """
    sequences, longest = len(lengths), scores.shape[-1]
    out = torch.empty_like(scores) if dropped.threshold else scores
    heads = len(scores) // max(sequences, 1)
    rest = (sequences, heads, longest, dropped.key, dropped.threshold)
    call("softmax", scores.dtype, scores, out if dropped.threshold else None, lengths, *rest)
    return out


def softmax_backward_(gradient: Tensor, probabilities: Tensor, has_dropped: bool) -> Tensor:
    """Turns the gradient of what `softmax_` returned into that of the scores, in place.

    probabilities: what `softmax_` left in `scores`. has_dropped: whether some may have been dropped. Returns again what
    `softmax_` returned.
    """
    dropped = torch.empty_like(probabilities) if has_dropped else None
    rows = probabilities.shape[0] * probabilities.shape[1]
    call("softmax_backward", gradient.dtype, gradient, probabilities, dropped, rows, probabilities.shape[2])
    return probabilities if dropped is None else dropped


def activation_backward(gradient: Tensor, x: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """From the gradient of activation(x), both narrow [T, H], to that of x, and its sums over T, fp32[H].

    activation: a name of `activations.FUNCTIONS`.
    """
    rows, columns = x.shape
    grad_x, grad_bias = torch.empty_like(x), x.new_empty(columns, dtype=torch.float32)
    call(_BACKWARD[activation], x.dtype, gradient, x, grad_x, grad_bias, rows, columns)
    return grad_x, grad_bias


def cross_entropy(scores: Tensor, labels: Tensor, requires_grad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of scores narrow [N, C] against labels int64[N], of which negative ones do not count.

    Returns the sum, fp32; how many labels have the highest score, int64; and the gradient of the sum, narrow [N, C], if
    it is wanted.
    """
    rows, columns = scores.shape
    loss, right = scores.new_zeros((), dtype=torch.float64), scores.new_zeros((), dtype=torch.int64)
    gradient = torch.empty_like(scores) if requires_grad else None
    call("cross_entropy", scores.dtype, scores, labels, gradient, loss, right, rows, columns)
    return loss.float(), right, gradient
