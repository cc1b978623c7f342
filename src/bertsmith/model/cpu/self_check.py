"""Whether the C++ kernels compute what PyTorch's operators do, looked at once in every process that loads them: a
compiler is a program like others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import SUFFIXES
from bertsmith.model.cpu.masks import Dropped, scale_of, threshold_of

Pairs = Iterator[tuple[Tensor, Tensor]]
"""What a kernel gave, and what PyTorch's operators give in fp32."""

# Relative and absolute. Rounding to the nearest in bf16 is off by a 256th at most.
_CLOSE = {torch.bfloat16: (4e-3, 2e-3), torch.float32: (1e-5, 1e-5)}
# More rows than a block of threads.h has, and more columns than a vector.
_ROWS, _COLUMNS = 37, 50


def are_right() -> bool:
    """Whether all kernels say what PyTorch says, with and without dropout."""
    return all(
        torch.allclose(ours.float(), theirs.float(), *_CLOSE[dtype])
        for dtype in SUFFIXES
        for ours, theirs in _pairs(dtype, torch.Generator().manual_seed(0))
    )


def _pairs(dtype: torch.dtype, draw: torch.Generator) -> Pairs:
    yield from _activations(dtype, draw)
    yield from _cross_entropies(dtype, draw)
    for dropped in (Dropped(0, 0, 1.0), Dropped(1, threshold_of(0.5), scale_of(0.5))):
        yield from _sums(dtype, draw, dropped)
        yield from _softmaxes(dtype, draw, dropped)
        yield from _dropouts(dtype, draw, dropped)


def _sums(dtype: torch.dtype, draw: torch.Generator, dropped: Dropped) -> Pairs:
    x, grad_out = torch.randn(2, _ROWS, _COLUMNS, generator=draw)
    y, grad_narrow = torch.randn(2, _ROWS, _COLUMNS, generator=draw).to(dtype)
    bias, weight, shift = torch.randn(3, _COLUMNS, generator=draw)
    made = kernels.add_normalise(x, y, bias, weight, shift, 1e-12, dropped)
    kept = (made.sum != x).float()
    inputs = [each.clone().requires_grad_() for each in (x, y.float(), bias, weight, shift)]
    summed = inputs[0] + (inputs[1] + inputs[2]) * kept * dropped.scale
    normal = functional.layer_norm(summed, (_COLUMNS,), inputs[3], inputs[4], 1e-12)
    expected = _gradients(normal, grad_out + grad_narrow, inputs)
    given = kernels.Gradients(grad_out, grad_narrow)
    found = kernels.add_normalise_backward(given, dtype, made.sum, made.moments, weight, dropped)
    yield from zip(found, expected, strict=True)
    yield made.out, normal
    yield made.narrow, normal
    yield _close_to(kept.mean(), 1 / dropped.scale)


def _softmaxes(dtype: torch.dtype, draw: torch.Generator, dropped: Dropped) -> Pairs:
    """Of scores of two heads with padding."""
    scores, gradient = torch.randn(2, 2, 36, 36, generator=draw).to(dtype)
    inputs = scores[..., :20].float().clone().requires_grad_()  # the kernel writes to the scores
    out = kernels.softmax_(scores, torch.tensor([20]), dropped)
    expected = functional.pad(inputs.softmax(-1), (0, 16)) * ~scores.signbit()
    (expected_grad,) = _gradients(expected, gradient, [inputs])
    yield out, expected
    yield kernels.softmax_backward_(gradient, scores, dropped.threshold > 0), expected
    yield gradient, functional.pad(expected_grad, (0, 16))


def _dropouts(dtype: torch.dtype, draw: torch.Generator, dropped: Dropped) -> Pairs:
    x = torch.randn(_ROWS, _COLUMNS, generator=draw).to(dtype)
    found = kernels.drop(x, dropped)
    kept = (found != 0).float()
    yield found, x.float() * kept * dropped.scale
    yield _close_to(kept.mean(), 1 / dropped.scale)


def _activations(dtype: torch.dtype, draw: torch.Generator) -> Pairs:
    gradient, x = torch.randn(2, _ROWS, _COLUMNS, generator=draw).to(dtype)
    for name, function in FUNCTIONS.items():
        inputs = x.float().requires_grad_()
        (expected,) = _gradients(function(inputs), gradient, [inputs])
        grad_x, grad_bias = kernels.activation_backward(gradient, x, name)
        yield grad_x, expected
        yield grad_bias, expected.sum(0)


def _cross_entropies(dtype: torch.dtype, draw: torch.Generator) -> Pairs:
    scores, labels = torch.randn(_ROWS, _COLUMNS, generator=draw).to(dtype), torch.arange(_ROWS)
    labels[30:] = -100
    scores[3, 1] = scores[3, 3] = 9.0  # the first of equals counts
    inputs = scores.float().requires_grad_()
    loss = functional.cross_entropy(inputs, labels, reduction="sum")
    (expected,) = torch.autograd.grad(loss, inputs)
    found, right, gradient = kernels.cross_entropy(scores, labels, True)
    assert gradient is not None
    yield found, loss.detach()
    yield right, (scores.argmax(-1) == labels).sum()
    yield gradient, expected


def _gradients(out: Tensor, gradient: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of the inputs, by that of the output. Not as `grad_outputs`: to compare shapes, PyTorch would import sympy, which
    takes half a second."""
    return torch.autograd.grad((out * gradient).sum(), inputs)


def _close_to(share: Tensor, wanted: float) -> tuple[Tensor, Tensor]:
    """Equal if the share of a few places is not far off."""
    return (share - wanted).abs() < 0.1, torch.ones(())
