"""The script of `make gpu-check` with a GPU that it is made to find, and parts in the place of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.bench.gpu.plan import CheckSizes, check_parts
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.step.run import StepRun
from bertsmith.bench.table import Table

SECONDS = 40.0
"""That each of these parts is expected to take."""


def found_check(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which finds a GPU."""
    module = script("gpu_check")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU 80GB")
    monkeypatch.setattr(module.log, "configure", lambda: None)
    return module


def table(rows: Sequence[dict[str, Any]]) -> Table:
    return Table("Some rows", ["", "figure"], [[row["case"], str(row["figure"])] for row in rows])


def made_parts(*measures: Callable[[Rows, str, float], None]) -> Callable[..., Any]:
    """What takes the place of `check_parts`: a part for each measurement, whose row has its name."""

    def parts(
        sizes: CheckSizes, folder: Path, rows: Rows, tests: Callable[[float], dict[str, Any]]
    ) -> tuple[list[Part], StepRun]:
        def part(measure: Callable[[Rows, str, float], None]) -> Part:
            name = measure.__name__
            return Part((name,), lambda names, deadline: measure(rows, name, deadline), table, SECONDS)

        _, run = check_parts(CheckSizes.tiny_on("cpu"), folder, rows, tests)
        return [part(measure) for measure in measures], run

    return parts


def fine(rows: Rows, name: str, deadline: float) -> None:
    rows.add({"case": name, "figure": 1.0})
