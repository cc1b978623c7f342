"""Cross entropy as a sum: torch's loss and gradient, whatever is ignored, however many chunks the scores take."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from bertsmith.base.errors import BertsmithError
from bertsmith.model import losses
from bertsmith.model.losses import IGNORED_LABEL, cross_entropy_sum


@given(
    rows=st.integers(0, 30),
    classes=st.integers(1, 20),
    chunk=st.integers(1, 200),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_equals_torch(rows: int, classes: int, chunk: int, ignored: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < ignored] = IGNORED_LABEL
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_CHUNK_ELEMENTS", chunk)
        found = cross_entropy_sum(ours, labels)
    expected = cross_entropy(theirs, labels, reduction="sum", ignore_index=IGNORED_LABEL)
    torch.testing.assert_close(found.loss, expected, atol=1e-12, rtol=1e-12)
    assert int(found.count) == int((labels != IGNORED_LABEL).sum())
    assert int(found.right) == int((logits.argmax(-1) == labels).sum()) if rows else int(found.right) == 0
    (0.7 * found.loss).backward()
    (0.7 * expected).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-14, rtol=1e-12)


def test_scores_without_a_gradient_are_read_only() -> None:
    logits, labels = torch.randn(4, 6), torch.tensor([1, 5, IGNORED_LABEL, 0])
    kept = logits.clone()
    found = cross_entropy_sum(logits, labels)
    assert torch.equal(logits, kept)
    assert not found.loss.requires_grad
    torch.testing.assert_close(found.loss, cross_entropy(logits, labels, reduction="sum"))


def test_huge_scores_do_not_overflow() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, 3e38, 0.0]], requires_grad=True)
    found = cross_entropy_sum(logits, torch.tensor([0, 1]))
    found.loss.backward()
    assert float(found.loss.detach()) == 0
    assert bool(torch.isfinite(logits.grad).all())


def test_half_precision_scores_are_summed_in_fp32() -> None:
    """The loss is that of the rounded scores; the gradient has their dtype, and no bias from the divisor's rounding."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(400, 1000, generator=generator)
    labels = torch.randint(0, 1000, (400,), generator=generator)
    narrow = wide.bfloat16().requires_grad_()
    reference = narrow.detach().double().requires_grad_()
    found = cross_entropy_sum(narrow, labels)
    expected = cross_entropy(reference, labels, reduction="sum")
    assert found.loss.dtype == torch.float32
    assert abs(found.loss.item() - expected.item()) < 1e-5 * expected.item()
    (found.loss / 177).backward()
    (expected / 177).backward()
    assert narrow.grad.dtype == torch.bfloat16
    ours = narrow.grad.double()
    assert float((ours - reference.grad).norm() / reference.grad.norm()) < 3e-3
    scale = float((ours * reference.grad).sum() / reference.grad.square().sum())
    assert abs(scale - 1) < 1e-3


def test_one_over_a_count_is_not_rounded_before_it_scales_half_precision() -> None:
    """1 / 413 in bf16 is 0.2% off. The products are rounded, each its own way, so over many of them nothing is left."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(500, 400, generator=generator).bfloat16()
    labels = torch.randint(0, 400, (500,), generator=generator)
    gradients = []
    for count in (1, 413):
        leaf = scores.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(losses, "_CHUNK_ELEMENTS", 3000)  # more chunks than one
            (cross_entropy_sum(leaf, labels).loss / count).backward()
        gradients.append(leaf.grad.double())
    # Where the label stands the gradient is close to -1 in every row: those are alike, and rounded alike.
    whole, scaled = (each.scatter(1, labels[:, None], 0.0) for each in gradients)
    factor = float((scaled * whole).sum() / whole.square().sum())
    assert abs(413 * factor - 1) < 2e-4


@pytest.mark.parametrize("wrong", [-1, -99, 7, 30_000])
def test_a_label_that_is_no_class_is_refused(wrong: int) -> None:
    # NVIDIA marks what is not asked with -1, which would else count as the first class.
    with pytest.raises(BertsmithError, match=f"label {wrong} is none of 7 classes"):
        cross_entropy_sum(torch.randn(3, 7), torch.tensor([2, IGNORED_LABEL, wrong]))
