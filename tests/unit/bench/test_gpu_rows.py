"""Rows of a check of a GPU: their calls, the gains of rungs, and what ends a process of inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.gpu import inference
from bertsmith.bench.gpu.inference import inference_parts
from bertsmith.bench.gpu.plan import CheckSizes, check_parts
from bertsmith.bench.gpu.rows import Part, Rows, calls_of
from bertsmith.bench.step.plan import GpuSizes
from bertsmith.bench.table import Table


class Process:
    """Of the worker: one question of the second case ends it."""

    started = 0

    def __init__(self, *_: Any) -> None:
        Process.started += 1
        self.is_alive = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_alive = False

    def ask(self, _: str, case: dict[str, Any], **__: Any) -> dict[str, Any]:
        if (case["batch"], case["length"]) == (8, 128):
            self.is_alive = False
            raise BertsmithError("a process of the bench ended with status 1")
        return {"seconds": [0.1, 0.2, 0.3], "bytes": 1}


def test_a_row_that_ends_its_process_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "Child", Process)
    rows = Rows(tmp_path / "rows.json", {}, {})
    (part,) = inference_parts(GpuSizes("cpu", ("tiny",)), tmp_path, rows, calls=3, seconds=0.0)
    part.measure(part.names, float("inf"))
    assert list(rows.failed) == ["inference: tiny, 8 x 128, bf16"]
    assert rows.names == set(part.names) - rows.failed.keys()
    assert Process.started == 3, "for bf16 twice, and for tf32"


def test_the_gains_of_a_rung_are_over_rungs_of_earlier_calls_too(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.json", {}, {})
    _, run = check_parts(CheckSizes.tiny_on("cpu"), tmp_path, rows, lambda deadline: "passed")
    rows.made = [{"case": "ladder: fp32, padded", "ours": 10.0, "call": 1}, {"case": "other", "ours": 1.0, "call": 1}]
    run.made({"case": "ladder: tf32", "ours": 30.0})
    run.made({"case": "ladder: bf16", "ours": 60.0})
    assert [(row.get("gain"), row.get("gain_in_all")) for row in rows.made[2:]] == [(3.0, 3.0), (2.0, 6.0)]


def test_parts_are_cut_into_calls_by_the_seconds_that_they_are_expected_to_take() -> None:
    parts = [
        Part((str(number),), lambda names, deadline: None, lambda rows: Table("", [], []), seconds)
        for number, seconds in enumerate([5, 3, 4])
    ]
    assert [[part.names for part in call] for call in calls_of(parts, 8)] == [[("0",), ("1",)], [("2",)]]
