"""Distances between a student and its teacher, held to scipy, to plain words of their formulas, and to their laws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit, rel_entr, softmax
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.distillation.losses import (
    hidden_sum,
    relation_sum,
    soft_label_sum,
    soft_sum,
    squared_sum,
)
from bertsmith.model.distillation.maps import hidden_maps

scores = arrays(np.float64, (4, 3), elements=st.floats(-20, 20))


@given(scores, scores, st.floats(0.5, 8))
def test_soft_scores_are_the_divergence_of_probabilities_times_the_squared_temperature(ours, theirs, temperature):
    found = soft_sum(torch.from_numpy(ours), torch.from_numpy(theirs), temperature)
    p, q = (softmax(each / temperature, axis=1) for each in (theirs, ours))
    assert float(found.loss) == pytest.approx(rel_entr(p, q).sum() * temperature**2, rel=1e-6, abs=1e-9)
    assert int(found.count) == 4
    assert int(found.right) == (ours.argmax(1) == theirs.argmax(1)).sum()


@given(scores, scores, st.floats(0.5, 8))
def test_labels_by_themselves_are_each_a_divergence_of_two_probabilities(ours, theirs, temperature):
    found = soft_label_sum(torch.from_numpy(ours), torch.from_numpy(theirs), temperature)
    x, y = theirs / temperature, ours / temperature
    expected = (rel_entr(expit(x), expit(y)) + rel_entr(expit(-x), expit(-y))).sum() * temperature**2
    assert float(found.loss) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert int(found.count) == 12
    assert int(found.right) == ((ours >= 0) == (theirs >= 0)).sum()


@given(scores, st.floats(0.5, 8))
def test_a_student_like_its_teacher_is_at_distance_zero(ours, temperature):
    x = torch.from_numpy(ours)
    assert float(soft_sum(x, x, temperature).loss) == 0
    assert float(soft_label_sum(x, x, temperature).loss) == 0
    assert float(squared_sum(x[:, 0], x[:, 0]).loss) == 0
    assert float(hidden_sum([x, x], [x, x], None, 4).loss) == 0


def test_numbers_are_compared_by_squares() -> None:
    found = squared_sum(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 1.0]))
    assert (float(found.loss), int(found.count), int(found.right)) == (10.0, 2, -2)


def test_hidden_states_are_a_mean_over_width_and_pairs_without_the_filling() -> None:
    draw = torch.Generator().manual_seed(0)
    ours, theirs = ([torch.randn(7, 4, generator=draw, dtype=torch.float64) for _ in range(2)] for _ in range(2))
    found = hidden_sum(ours, theirs, None, 5)
    expected = np.mean([((a[:5] - b[:5]) ** 2).numpy().mean(1).sum() for a, b in zip(ours, theirs, strict=True)])
    assert float(found.loss) == pytest.approx(expected)
    assert (int(found.count), int(found.right)) == (5, -5), "no prediction is right or wrong"
    wide = [torch.randn(7, 6, generator=draw, dtype=torch.float64) for _ in range(2)]
    maps = hidden_maps(2, 4, 6)
    assert maps is not None
    maps.double()
    found = hidden_sum(ours, wide, maps, 5)
    mapped = [each @ linear.weight.T + linear.bias for each, linear in zip(ours, maps, strict=True)]
    assert found.loss.item() == pytest.approx(hidden_sum(mapped, wide, None, 5).loss.item())
    found.loss.backward()
    assert all(float(linear.weight.grad.abs().sum()) > 0 for linear in maps)
    assert hidden_maps(2, 4, 4) is None


def by_hand(student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], heads: int, lengths: list[int]) -> Tensor:
    """The relations of each sequence and head by themselves, by autograd."""
    total, start = student[0].new_zeros(()), 0
    for length in lengths:
        place = slice(start, start + length)
        start += length
        for head in range(heads):
            logs = []
            for a, b in (student, teacher):
                width = a.shape[1] // heads
                mine = slice(head * width, (head + 1) * width)
                logs.append(torch.log_softmax(a[place, mine] @ b[place, mine].T / math.sqrt(width), -1))
            total = total + (logs[1].exp() * (logs[1] - logs[0])).sum()
    return total / heads


@pytest.mark.parametrize("lengths", [[1], [5, 3], [40, 2, 17, 17, 1, 33]])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_relations_and_their_gradients_are_those_of_each_sequence_alone(lengths: list[int], heads: int) -> None:
    draw, slots = torch.Generator().manual_seed(1), sum(lengths) + 3  # the last three fill up

    def drawn(width: int) -> Tensor:
        return torch.randn(slots, width, generator=draw, dtype=torch.float64)

    student, teacher = (drawn(8).requires_grad_(), drawn(8).requires_grad_()), (drawn(12), drawn(12))
    found = relation_sum(student, teacher, heads, Layout.from_lengths(lengths))
    expected = by_hand(student, teacher, heads, lengths)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-10)
    assert (int(found.count), int(found.right)) == (sum(lengths), -sum(lengths))
    ours, theirs = (torch.autograd.grad(3 * each, student) for each in (found.loss, expected))
    for mine, his in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, his, rtol=1e-9, atol=1e-12)


def test_relations_of_values_with_themselves_add_both_gradients() -> None:
    values = torch.randn(9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    theirs = torch.randn(9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = relation_sum((values, values), (theirs, theirs), 2, Layout.from_lengths([6, 3]))
    expected = by_hand((values, values), (theirs, theirs), 2, [6, 3])
    ours, his = (torch.autograd.grad(each, [values])[0] for each in (found.loss, expected))
    torch.testing.assert_close(ours, his, rtol=1e-9, atol=1e-12)
    same = relation_sum((values, values), (values.detach(), values.detach()), 2, Layout.from_lengths([6, 3]))
    assert same.loss.item() == 0
    assert not torch.autograd.grad(same.loss, [values])[0].any()
