"""Cross entropy as a sum: torch's loss and gradient, whatever is ignored, however many chunks the scores take.

In bf16 also by the C++ kernel, which is held to float64 by itself too.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from bertsmith.base.errors import BertsmithError
from bertsmith.model import losses
from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.losses import IGNORED_LABEL, cross_entropy_sum
from made_kernels import threads


@given(
    rows=st.integers(0, 30),
    classes=st.integers(1, 20),
    chunk=st.integers(1, 200),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_equals_torch(rows: int, classes: int, chunk: int, ignored: float, seed: int) -> None:
    check_against_torch(rows, classes, chunk, ignored, seed, torch.float64)


@pytest.mark.usefixtures("both_ways", "marked_memory")
@given(
    rows=st.integers(0, 30),
    classes=st.integers(1, 20) | st.just(1000),
    chunk=st.integers(1, 200),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_equals_torch_in_bf16(rows: int, classes: int, chunk: int, ignored: float, seed: int) -> None:
    check_against_torch(rows, classes, chunk, ignored, seed, torch.bfloat16)


def check_against_torch(rows: int, classes: int, chunk: int, ignored: float, seed: int, dtype: torch.dtype) -> None:
    """Torch is given the same scores in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = (5 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).to(dtype)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < ignored] = IGNORED_LABEL
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_CHUNK_ELEMENTS", chunk)
        found = cross_entropy_sum(ours, labels)
    expected = cross_entropy(theirs, labels, reduction="sum", ignore_index=IGNORED_LABEL)
    is_wide = dtype == torch.float64
    assert found.loss.dtype == (torch.float64 if is_wide else torch.float32)
    close = 1e-12 if is_wide else 3e-6
    torch.testing.assert_close(found.loss.double(), expected, atol=close, rtol=close)
    assert int(found.count) == int((labels != IGNORED_LABEL).sum())
    assert int(found.right) == int((logits.argmax(-1) == labels).sum()) if rows else int(found.right) == 0
    (0.7 * found.loss).backward()
    (0.7 * expected).backward()
    # In bf16 the gradient is rounded before and after it is scaled.
    absolute, relative = (1e-14, 1e-12) if is_wide else (1e-6, 2**-7)
    torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=absolute, rtol=relative)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
def test_scores_without_a_gradient_are_read_only(both_ways: str, dtype: torch.dtype) -> None:
    logits, labels = torch.randn(4, 6).to(dtype), torch.tensor([1, 5, IGNORED_LABEL, 0])
    kept = logits.clone()
    found = cross_entropy_sum(logits, labels)
    assert torch.equal(logits, kept)
    assert not found.loss.requires_grad
    torch.testing.assert_close(found.loss, cross_entropy(logits.float(), labels, reduction="sum"))


@DTYPES
def test_huge_scores_do_not_overflow(both_ways: str, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, 3e38, 0.0]], dtype=dtype, requires_grad=True)
    found = cross_entropy_sum(logits, torch.tensor([0, 1]))
    found.loss.backward()
    assert float(found.loss.detach()) == 0
    assert bool(torch.isfinite(logits.grad).all())


def test_half_precision_scores_are_summed_in_fp32(both_ways: str) -> None:
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


def test_one_over_a_count_is_not_rounded_before_it_scales_half_precision(both_ways: str) -> None:
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
def test_a_label_that_is_no_class_is_refused(both_ways: str, wrong: int) -> None:
    # NVIDIA marks what is not asked with -1, which would else count as the first class.
    with pytest.raises(BertsmithError, match=f"label {wrong} is none of 7 classes"):
        cross_entropy_sum(torch.randn(3, 7).bfloat16(), torch.tensor([2, IGNORED_LABEL, wrong]))


def test_the_kernel_is_asked_for_scores_that_it_can_read(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, kernel = [], cpu_kernels.cross_entropy

    def counted(scores: Tensor, labels: Tensor, requires_grad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        asked.append((scores.requires_grad, requires_grad))
        return kernel(scores, labels, requires_grad)

    monkeypatch.setattr(cpu_kernels, "cross_entropy", counted)
    scores, labels = torch.randn(6, 6).bfloat16(), torch.tensor([1, 5, IGNORED_LABEL, 0, 2, 2])
    for other, its_labels in ((scores.double(), labels), (scores.t(), labels), (scores, labels.repeat(2)[::2])):
        found = cross_entropy_sum(other, its_labels)
        exact = cross_entropy(other.double(), its_labels, reduction="sum")
        torch.testing.assert_close(found.loss.double(), exact, rtol=1e-5, atol=1e-5)
    assert not asked
    cross_entropy_sum(scores, labels)
    cross_entropy_sum(scores.requires_grad_(), labels)
    cross_entropy_sum(scores.detach().float(), labels)
    assert [requires_grad for _, requires_grad in asked] == [False, True, False]


def by_kernel(
    scores: Tensor, labels: Tensor, requires_grad: bool = True, count: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    with threads(count):
        return cpu_kernels.cross_entropy(scores, labels, requires_grad)


@pytest.mark.usefixtures("kernels", "marked_memory")
@given(
    rows=st.sampled_from([0, 1, 2, 3, 7, 20]),
    classes=st.integers(1, 70) | st.sampled_from([128, 131, 1000]),
    count=st.integers(1, 3),
    sizes=st.sampled_from([(1.0, 0.0), (3.0, 0.5), (1e4, 0.0), (1e4, 1e4)]),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    without=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_the_kernel_gives_loss_and_gradient_of_float64(
    rows: int, classes: int, count: int, sizes: tuple[float, float], ignored: float, without: float, seed: int
) -> None:
    """sizes: of the scores, and of the steps between them, by which many share the highest. without: share at -inf."""
    generator, (size, step) = torch.Generator().manual_seed(seed), sizes
    scores = size * torch.randn(rows, classes, generator=generator)
    scores = ((scores / step).round() * step if step else scores).bfloat16()
    scores[torch.rand(rows, classes, generator=generator) < without] = -math.inf
    labels = torch.randint(classes, (rows,), generator=generator)
    counted = torch.rand(rows, generator=generator) >= ignored
    labels[~counted] = IGNORED_LABEL
    loss, right, gradient = by_kernel(scores, labels, count=count)
    wide = scores.double()
    exact = cross_entropy(wide, labels, reduction="sum")
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=2e-6 * rows, equal_nan=True)
    assert int(right) == sum(int(wide[row].argmax()) == int(labels[row]) for row in range(rows))
    wanted = torch.where(counted[:, None], wide.softmax(-1) - one_hot(labels.clamp(min=0), classes), 0.0)
    torch.testing.assert_close(gradient.double(), wanted, rtol=2**-8, atol=1e-6, equal_nan=True)
    summed = gradient.double()[~gradient.isnan().any(-1)]
    assert bool((summed.sum(-1).abs() <= 2**-8 * summed.abs().sum(-1) + 1e-5).all())
    assert [each.dtype for each in (loss, right, gradient)] == [torch.float32, torch.int64, torch.bfloat16]
    again, again_right, none = by_kernel(scores, labels, requires_grad=False, count=count)
    assert none is None
    torch.testing.assert_close((again, again_right), (loss, right), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "scores", [[0.0, 0.0, 0.0], [1.5, 1.5, 1.5], [-0.0, 0.0, 0.0], [0.0, -0.0, 0.0], [-math.inf] * 3], ids=str
)
def test_of_labels_that_share_the_highest_score_the_first_is_right(kernels: None, scores: list[float]) -> None:
    given_ = torch.tensor([scores]).bfloat16()
    assert [int(by_kernel(given_, torch.tensor([label]))[1]) for label in range(3)] == [1, 0, 0]


@pytest.mark.usefixtures("kernels", "marked_memory")
def test_what_is_no_number_makes_the_loss_none_where_it_counts() -> None:
    for place in range(7):
        scores, labels = torch.randn(3, 7).bfloat16(), torch.tensor([2, 3, IGNORED_LABEL])
        scores[2, place] = math.nan
        loss, _, gradient = by_kernel(scores, labels)
        assert bool(loss.isfinite())
        assert bool(gradient.isfinite().all())
        assert not gradient[2].any()
        scores[1, place] = math.nan
        loss, _, gradient = by_kernel(scores, labels)
        assert bool(loss.isnan())
        assert gradient.isnan().all(1).tolist() == gradient.isnan().any(1).tolist() == [False, True, False]
