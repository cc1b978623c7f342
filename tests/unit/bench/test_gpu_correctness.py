"""Rows of correctness: what is exact is within, what is wrong is not, and a kernel that fails ends no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.bench.gpu import correctness_run
from bertsmith.bench.gpu.correctness import LIMITS, _part, _within
from bertsmith.bench.gpu.correctness_run import BLOCKS, FLASH, GRAPH, PADDED, RESIDUAL, ROWS, STEP, UPDATES, Worker
from bertsmith.bench.gpu.rows import Rows
from bertsmith.bench.step.plan import GpuSizes
from bertsmith.model.attention.padded import padded_attention
from bertsmith.model.residual import add_mapped
from bertsmith.optim.adamw import AdamW
from bertsmith.training.pretraining.compiled import CompiledStep

pytestmark = pytest.mark.usefixtures("forked_children")


@pytest.fixture
def worker() -> Worker:
    return Worker({"device": "cpu", "compiled": False, "tiny": True})


def is_within(worker: Worker, kernel: str, dropout: float = 0.0, dtype: str = "fp32") -> bool:
    return _within(worker.error(kernel, dtype, dropout), LIMITS[dtype])


def test_what_is_right_is_within(worker: Worker) -> None:
    for dropout in (0.0, 0.1, 0.5):
        assert is_within(worker, PADDED, dropout)
        assert is_within(worker, PADDED, dropout, "bf16")
        assert is_within(worker, BLOCKS, dropout)
    assert all(is_within(worker, kernel) for kernel in (ROWS, STEP, GRAPH, *UPDATES))
    assert is_within(worker, RESIDUAL, 0.1, "bf16")
    assert is_within(worker, RESIDUAL, 0.1)


class _HalfTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient / 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda *given: 1.0001 * padded_attention(*given),
        lambda qkv, *given: padded_attention(_HalfTheGradient.apply(qkv), *given),
        lambda qkv, heads, packed, dropout: padded_attention(qkv, heads, packed, 2 * dropout),
        lambda *given: padded_attention(*given) * float("nan"),
    ],
    ids=["forward", "backward", "more is dropped", "no number"],
)
def test_a_wrong_kernel_is_not(worker: Worker, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness_run, "padded_attention", wrong)
    assert not is_within(worker, PADDED, 0.3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, given, linear, norm, dropout: add_mapped(x, given, linear, norm, 2 * dropout),
        lambda x, given, linear, norm, dropout: add_mapped(x, given * (1 + dropout), linear, norm, dropout),
        lambda x, given, linear, norm, dropout: add_mapped(_HalfTheGradient.apply(x), given, linear, norm, dropout),
        lambda x, given, linear, norm, dropout: add_mapped(x, given, linear, norm, 0.0),
    ],
    ids=["more is dropped", "forward", "backward", "nothing is dropped"],
)
def test_a_wrong_sum_with_dropout_is_not(worker: Worker, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness_run, "add_mapped", wrong)
    assert not is_within(worker, RESIDUAL, 0.3, "bf16")


def test_a_wrong_update_is_not(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPDATES, "LAMB's update", AdamW)
    assert not is_within(worker, "LAMB's update")


def test_a_graph_that_is_not_taken_is_not_within(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is as exact then, by single launches."""

    def without_effect(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    def made(*given: Any, **known: Any) -> CompiledStep:
        return CompiledStep(*given, **known | {"capture": without_effect})

    monkeypatch.setattr(correctness_run, "CompiledStep", made)
    found = worker.error(GRAPH, "fp32", 0.0)
    assert "other gradients" in found["refused"]
    assert found["backward_error"] < LIMITS["fp32"]
    assert not _within(found, LIMITS["fp32"])


def test_a_kernel_that_fails_is_named_and_the_next_one_has_its_row(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.json", {}, {})
    part = _part([(FLASH, "fp32", 0.0), (ROWS, "fp32", 0.0)], GpuSizes("cpu"), tmp_path, rows, True, 1.0)
    part.measure(part.names, float("inf"))
    assert list(rows.failed) == [part.names[0]]
    assert [(row["case"], row["within"]) for row in rows.made] == [(part.names[1], True)]
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == ["0"], "one process for both"
