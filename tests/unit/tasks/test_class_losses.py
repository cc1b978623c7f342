"""Weighted, focal and smoothed losses: torch's functional forms in float64, and sums that may be cut anywhere."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from bertsmith.tasks.losses import (
    Rarity,
    balanced_label_weights,
    balanced_weights,
    multi_label_sum,
    single_label_sum,
)

utils = pytest.importorskip("sklearn.utils.class_weight")

shapes = st.tuples(st.integers(1, 12), st.integers(2, 5), st.integers(0, 2**31))
rarities = st.tuples(st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.sampled_from([0.0, 0.1, 0.3]))


def single(shape, dtype=torch.float64):
    rows, classes, seed = shape
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits.to(dtype).requires_grad_(), torch.randint(0, classes, (rows,), generator=generator)


def multi(shape, dtype=torch.float64):
    rows, labels, seed = shape
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, labels, generator=generator, dtype=torch.float64)
    return logits.to(dtype).requires_grad_(), (torch.rand(rows, labels, generator=generator) < 0.3).to(torch.int64)


def grad(loss, logits):
    return torch.autograd.grad(loss, logits)[0]


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def sizes(classes):
    return tuple(0.5 + each / 3 for each in range(classes))


@given(shapes, rarities)
@settings(max_examples=60)
def test_single_label_losses_equal_torchs(shape, drawn):
    weighted, gamma, smoothing = drawn
    logits, labels = single(shape)
    weights = sizes(shape[1]) if weighted else None
    wide = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    smooth = single_label_sum(logits, labels, Rarity(weights, 0.0, smoothing))
    expected = functional.cross_entropy(logits, labels, wide, reduction="sum", label_smoothing=smoothing)
    close(smooth.loss, expected)
    close(grad(smooth.loss, logits), grad(expected, logits))
    focal = single_label_sum(logits, labels, Rarity(weights, gamma, 0.0))
    p = functional.softmax(logits, -1).gather(1, labels[:, None])[:, 0]
    own = torch.ones_like(p) if wide is None else wide[labels]
    expected = (own * (1 - p) ** gamma * -p.log()).sum()
    close(focal.loss, expected)
    close(grad(focal.loss, logits), grad(expected, logits))
    for found in (smooth, focal):
        assert int(found.count) == len(labels)
        assert int(found.right) == int((logits.argmax(1) == labels).sum())


@given(shapes, rarities)
@settings(max_examples=60)
def test_multi_label_losses_equal_torchs(shape, drawn):
    weighted, gamma, smoothing = drawn
    logits, labels = multi(shape)
    weights = tuple((0.5 + each, 2.0 + each) for each in range(shape[1])) if weighted else None
    sides = torch.ones(shape[1], 2) if weights is None else torch.tensor(weights)
    own = torch.where(labels > 0, sides[:, 1].double(), sides[:, 0].double())
    smooth = multi_label_sum(logits, labels, Rarity(weights, 0.0, smoothing))
    targets = labels.double() * (1 - smoothing) + smoothing / 2
    expected = functional.binary_cross_entropy_with_logits(logits, targets, own, reduction="sum")
    close(smooth.loss, expected)
    close(grad(smooth.loss, logits), grad(expected, logits))
    focal = multi_label_sum(logits, labels, Rarity(weights, gamma, 0.0))
    p = torch.where(labels > 0, torch.sigmoid(logits), torch.sigmoid(-logits))
    expected = (own * (1 - p) ** gamma * -p.log()).sum()
    close(focal.loss, expected)
    close(grad(focal.loss, logits), grad(expected, logits))
    for found in (smooth, focal):
        assert int(found.count) == labels.numel()
        assert int(found.right) == int(((logits >= 0) == (labels > 0)).sum())


@given(shapes, rarities.filter(lambda drawn: not (drawn[1] and drawn[2])), st.integers(0, 12))
@settings(max_examples=40)
def test_a_step_may_be_cut_anywhere(shape, drawn, cut):
    weighted, gamma, smoothing = drawn
    label_sizes = tuple((0.5 + each, 2.0) for each in range(shape[1]))
    for make, loss_sum, weights in (
        (single, single_label_sum, sizes(shape[1])),
        (multi, multi_label_sum, label_sizes),
    ):
        logits, labels = make(shape)
        rarity = Rarity(weights if weighted else None, gamma, smoothing)
        whole = loss_sum(logits, labels, rarity)
        parts = [loss_sum(logits[part], labels[part], rarity) for part in (slice(cut), slice(cut, None))]
        close(sum(each.loss for each in parts), whole.loss)
        close(grad(sum(each.loss for each in parts), logits), grad(whole.loss, logits))
        assert sum(int(each.count) for each in parts) == int(whole.count)


@pytest.mark.parametrize("rarity", [Rarity(gamma=2.0), Rarity(smoothing=0.1), Rarity(sizes(3))])
def test_ignored_labels_count_for_nothing(rarity):
    logits, labels = single((6, 3, 1))
    labels[::2] = -100
    found = single_label_sum(logits, labels, rarity)
    kept = single_label_sum(logits[1::2], labels[1::2], rarity)
    close(found.loss, kept.loss)
    assert int(found.count) == int(kept.count) == 3
    assert int(found.right) == int(kept.right)
    assert bool((grad(found.loss, logits)[::2] == 0).all())


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_focal_loss_has_finite_gradients_where_a_model_is_sure(gamma, dtype):
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    found = single_label_sum(logits, torch.tensor([0, 0, 0]), Rarity(gamma=gamma))
    assert found.loss.dtype == torch.float32
    assert bool(torch.isfinite(grad(found.loss, logits)).all())
    found = multi_label_sum(logits, torch.tensor([[1, 0], [0, 0], [1, 0]]), Rarity(gamma=gamma))
    assert bool(torch.isfinite(grad(found.loss, logits)).all())


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6))
def test_balanced_weights_are_scikit_learns_and_average_one(counts):
    rows = np.repeat(np.arange(len(counts)), counts)
    found = balanced_weights(np.array(counts))
    assert found == pytest.approx(
        utils.compute_class_weight("balanced", classes=np.arange(len(counts)), y=rows).tolist()
    )
    assert np.array(found)[rows].mean() == pytest.approx(1)


def test_a_class_without_rows_has_weight_one_and_changes_no_other():
    assert balanced_weights(np.array([2, 0, 6])) == pytest.approx((2, 1, 2 / 3))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_weights_of_labels_are_those_of_two_classes(counts):
    for (absent, present), count in zip(balanced_label_weights(np.array(counts), 20), counts, strict=True):
        if 0 < count < 20:
            assert (absent, present) == pytest.approx(balanced_weights(np.array([20 - count, count])))
        else:
            assert absent == present == 1
