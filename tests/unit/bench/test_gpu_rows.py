"""Rows of a check of a GPU: their calls, the gains of rungs, and what ends a process of inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.gpu import inference, products
from bertsmith.bench.gpu.inference import inference_parts
from bertsmith.bench.gpu.peers import _table
from bertsmith.bench.gpu.plan import CheckSizes, check_parts, ladder
from bertsmith.bench.gpu.rows import Part, Rows, calls_of
from bertsmith.bench.step.matrix_rate import step_shapes
from bertsmith.bench.step.plan import GpuSizes
from bertsmith.bench.step.run import LADDER, StepRun
from bertsmith.bench.table import Table


class Process:
    """Of the worker: one question of the second case ends it, which takes a while to be seen."""

    started = 0

    def __init__(self, *_: Any) -> None:
        Process.started += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, _: str, case: dict[str, Any], **__: Any) -> dict[str, Any]:
        if (case["batch"], case["length"]) == (8, 128):
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


def test_gains_are_over_the_rungs_below_whatever_was_measured_first() -> None:
    found = [rung("ladder: c", 60.0), rung("ladder: a", 10.0), rung("ladder: e", 90.0), rung("ladder: b", 20.0)]
    table = ladder(found, [f"ladder: {name}" for name in "abcde"], "tiny")
    assert [row[:1] + row[2:4] for row in table.rows] == [
        ["a", "1.00x", "1.00x"],
        ["b", "2.00x", "2.00x"],
        ["c", "3.00x", "6.00x"],
        ["e", "-", "9.00x"],
    ]


def test_a_rung_that_is_among_the_steps_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    climbed: list[str] = []
    monkeypatch.setattr(StepRun, "climb", lambda self, rung: climbed.append(rung.what))
    rows = Rows(tmp_path / "rows.json", {}, {}, call=2)
    parts, run = check_parts(CheckSizes.tiny_on("cpu"), tmp_path, rows, lambda deadline: {"ended": "passed"})
    last = run.plan.ladder[-1]
    (part,) = [part for part in parts if part.names == (f"{LADDER} {last.what}",)]
    (same,) = [match.case(last.set) for match in run.plan.matches if match.ours == last.side and last.set in match.sets]
    for call in (1, 2):
        rows.made = [rung(same, 7.0) | {"call": call}]
        part.measure(part.names, float("inf"))
    assert climbed == [last.what], "a row of another call may be of other code"
    assert rows.made[-1]["ours"] == 7.0
    assert (rows.made[-1]["case"], rows.made[-1]["call"]) == (*part.names, 2)


def rung(case: str, ours: float) -> dict[str, Any]:
    return {"case": case, "ours": ours, "peak_share": 0.5, "ours_memory_bytes": 1}


def test_a_ratio_says_where_ours_is_of_another_call() -> None:
    row = {"case": "", "peer": 1.0, "sequences_per_second": 1.0, "peak_share": 0.5, "peer_memory_bytes": 1}
    rows = [row | {"ratio": 2.0, "ours_call": call, "call": 2} for call in (1, 2)]
    assert [line[-1] for line in _table(rows).rows] == ["2.00x as fast, ours of another call", "2.00x as fast"]


def test_products_stand_by_how_even_their_slots_are() -> None:
    rates = {kind: [4.0, 2.0, 6.0, 8.0] for kind in (*products._KINDS, "all")}
    row = {"case": "products of a layer: tiny, bf16", "slots": [384, 640, 1024, 512], **rates}
    assert [line[1:3] + line[-3:] for line in products._table([row]).rows] == [
        ["128", "2", "3.0", "2.0", "640"],
        ["512", "1", "8.0", "8.0", "512"],
        ["1,024", "1", "6.0", "6.0", "1,024"],
    ]


def test_products_are_those_of_a_layer_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                a, b = args[-2:]
                sizes.append((len(a), a.shape[1], b.shape[1]))
            return func(*args, **kwargs or {})

    worker = products.Worker({"device": "cpu", "slots": 256, "hidden": 32, "wide": 128})
    with Counting():
        found = worker.sweep([128, 256])
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in found.values())
    wanted = {tuple(shape[each] for each in (0, 2, 1)) for shape in step_shapes(32, 128, 0, 256, 0) if 0 not in shape}
    assert {each for each in sizes if 256 in each} == wanted
    assert len(sizes) == 2 * 3 * 4 * (1 + products._TIMES)


def test_gradients_of_weights_are_timed_as_a_compiled_step_on_a_gpu_has_them() -> None:
    """In fp32, which is another kernel of cuBLAS."""
    with FakeTensorMode():
        x, weight, gradient = (torch.empty(*each, device="cuda").bfloat16() for each in ((256, 8), (16, 8), (256, 16)))
        found = products._KINDS["of weights"](x, weight, gradient)
    assert (found.shape, found.dtype) == (weight.shape, torch.float32)


def test_parts_are_cut_into_calls_by_the_seconds_that_they_are_expected_to_take() -> None:
    parts = [
        Part((str(number),), lambda names, deadline: None, lambda rows: Table("", [], []), seconds)
        for number, seconds in enumerate([5, 3, 4])
    ]
    assert [[part.names for part in call] for call in calls_of(parts, 8)] == [[("0",), ("1",)], [("2",)]]
