"""How far a student is from its teacher, as sums with counts: scores, hidden states, and relations between tokens.

The teacher's side has no graph. Legend: N rows, C classes, L labels, T token slots, H and G the widths of student and
teacher, R relation heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import log_softmax, logsigmoid

from bertsmith.base.layout import Layout
from bertsmith.model.losses import LossSum


def soft_sum(scores: Tensor, teacher: Tensor, temperature: float) -> LossSum:
    """The Kullback-Leibler divergence of the student's probabilities from the teacher's, both at a temperature, times
    its square (Hinton et al., 2015), so that the gradient's size does not depend on it: the soft cross entropy less
    what no student can change.

    scores, teacher: [N, C]. The count is N; right are rows whose likeliest class is the teacher's.
    """
    ours, theirs = (log_softmax(_wide(each) / temperature, -1) for each in (scores, teacher))
    loss = (theirs.exp() * (theirs - ours)).sum() * temperature**2
    return LossSum(loss, _count(len(scores), scores), (scores.argmax(-1) == teacher.argmax(-1)).sum())


def soft_label_sum(scores: Tensor, teacher: Tensor, temperature: float) -> LossSum:
    """The same for labels of which a row has any number: [N, L], each with a probability of its own. The count is
    N * L; right are those that both give or both do not."""
    ours, theirs = _wide(scores) / temperature, _wide(teacher) / temperature
    yes = theirs.sigmoid()
    loss = yes * (logsigmoid(theirs) - logsigmoid(ours)) + (1 - yes) * (logsigmoid(-theirs) - logsigmoid(-ours))
    right = ((scores >= 0) == (teacher >= 0)).sum()
    return LossSum(loss.sum() * temperature**2, _count(scores.numel(), scores), right)


def squared_sum(numbers: Tensor, teacher: Tensor) -> LossSum:
    """The squared differences of numbers [N]; the count is N."""
    return LossSum(
        ((_wide(numbers) - _wide(teacher)) ** 2).sum(), _count(len(numbers), numbers), _count(-len(numbers), numbers)
    )


def hidden_sum(
    student: Sequence[Tensor], teacher: Sequence[Tensor], maps: nn.ModuleList | None, tokens: int
) -> LossSum:
    """The mean squared difference of hidden states, over the width and the pairs of layers, summed over tokens.

    student: of each pair [T, H]. teacher: of each pair [T, G]. maps: of `hidden_maps`. tokens: the real ones, which
    come first; the count.
    """
    total = student[0].new_zeros(())
    for number, (ours, theirs) in enumerate(zip(student, teacher, strict=True)):
        ours = ours[:tokens] if maps is None else maps[number](ours[:tokens])
        total = total + ((_wide(ours) - _wide(theirs[:tokens])) ** 2).sum() / theirs.shape[-1]
    return LossSum(total / len(student), _count(tokens, total), _count(-tokens, total))


def relation_sum(student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], heads: int, layout: Layout) -> LossSum:
    """How far the student's relations between the tokens of a sequence are from the teacher's: the divergence of
    softmax(a b^T / sqrt(width)), row by row, the mean over R heads and summed over tokens (Wang et al., 2020 and 2021).

    student: a and b, [T, H] each, such as queries and keys, or twice the values. teacher: [T, G] each. heads: R, which
    divides both widths, whatever heads the two attend with. layout: of the real tokens, which come first; the count.
    """
    loss: Tensor = _Relations.apply(*student, *teacher, heads, layout)  # type: ignore[no-untyped-call]
    return LossSum(loss / heads, _count(layout.tokens, loss), _count(-layout.tokens, loss))


class _Relations(torch.autograd.Function):
    """Loss and gradient in one visit to each block of sequences: kept are gradients [T, H], no relation [L, L]."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, their_a: Tensor, their_b: Tensor, heads: int, layout: Layout) -> Tensor:
        wide = torch.promote_types(a.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=a.device)
        grad_a, grad_b = torch.zeros_like(a, dtype=wide), torch.zeros_like(b, dtype=wide)
        blocks, start = layout.blocks, 0
        for rows, columns in blocks.shapes:
            places = slice(start, start + rows * columns)
            start = places.stop
            slots, real = (torch.from_numpy(each[places]).to(a.device) for each in (blocks.slots, blocks.real))
            real = real.view(rows, 1, columns)
            ours = _by_head(a, slots, heads, columns), _by_head(b, slots, heads, columns)
            theirs = _by_head(their_a, slots, heads, columns), _by_head(their_b, slots, heads, columns)
            scale = ours[0].shape[-1] ** -0.5
            student, teacher = (_log_relations(a, b, real[:, None]) for a, b in (ours, theirs))
            probabilities = teacher.exp()
            seen = real.transpose(1, 2)[:, None] & real[:, None]
            loss += torch.where(seen, probabilities * (teacher - student), 0.0).sum()
            change = torch.where(seen, student.exp() - probabilities, 0.0) * scale
            kept = slots[real.flatten()]
            for into, grad in ((grad_a, change @ ours[1]), (grad_b, change.transpose(-1, -2) @ ours[0])):
                flat = grad.transpose(1, 2).reshape(rows * columns, -1)
                into.index_copy_(0, kept, flat[real.flatten()])
        ctx.gradients = grad_a.to(a.dtype), grad_b.to(b.dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_a, grad_b = ((each * grad_loss).to(each.dtype) for each in ctx.gradients)
        return grad_a, grad_b, None, None, None, None


def _by_head(x: Tensor, slots: Tensor, heads: int, columns: int) -> Tensor:
    """[T, H] -> [rows, R, columns, H / R], in fp32 or wider."""
    return _wide(x[slots]).view(-1, columns, heads, x.shape[-1] // heads).transpose(1, 2)


def _log_relations(a: Tensor, b: Tensor, real: Tensor) -> Tensor:
    """The logarithm of each token's relations to the real tokens of its sequence."""
    scores = a @ b.transpose(-1, -2) * a.shape[-1] ** -0.5
    # Finite, so that a place that is not real gives no NaN before it is left out.
    return log_softmax(scores.masked_fill(~real, torch.finfo(scores.dtype).min / 4), -1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _count(number: int, like: Tensor) -> Tensor:
    return torch.full((), number, dtype=torch.int64, device=like.device)
