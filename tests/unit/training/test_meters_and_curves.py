"""Metrics on disk: lines, TensorBoard's events, and the picture drawn from them."""

from __future__ import annotations

import builtins
import json
import logging
import math
import os
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.training.checkpoints import Position
from bertsmith.training.pretrain import pretrain
from bertsmith.training.records.curves import draw_curves
from bertsmith.training.records.dllogger import DlloggerFile
from bertsmith.training.records.meters import Meter, MetricsFile, forget_after, read_metrics
from bertsmith.training.records.names import METRICS_FILE
from bertsmith.training.step import StepSums
from made_runs import corpus, small_recipe, stopped_after

CPU = torch.device("cpu")
PNG = b"\x89PNG\r\n\x1a\n"


def record(kind: str, step: int, phase: int = 1) -> dict[str, Any]:
    names = (
        *("masked_loss", "next_sentence_loss", "masked_accuracy", "learning_rate", "masked_accuracy_alphabetic"),
        *("unigram_loss", "most_frequent_accuracy"),
    )
    return {"kind": kind, "step": step, "phase": phase, **dict.fromkeys(names, 0.1 * step)}


RECORDS = [
    record("start", 0),
    *(record("train", step, 1 if step < 4 else 2) for step in range(1, 7)),
    record("evaluation", 3),
    record("evaluation", 6, 2),
    {"kind": "end", "step": 6, "phase": 2, "tokens": 10},
]


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator(str(folder), size_guidance={loader.SCALARS: 0})
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_loss_of_numbers_has_no_accuracy() -> None:
    meter = Meter(CPU, ("words", "numbers"))
    meter.add(StepSums(torch.tensor([4.0, 2.0, 1.0, 9.0, 3.0, -3.0])), torch.zeros(()))
    record = meter.read(0.0)
    assert (record["words_accuracy"], record["words_loss"], record["numbers_loss"]) == (0.5, 2, 3)
    assert "numbers_accuracy" not in record
    meter.add(StepSums(torch.tensor([4.0, 2.0, 0.0, 0.0, 0.0, 0.0])), torch.zeros(()))
    record = meter.read(0.0)
    assert (record["loss"], record["words_loss"], record["numbers_count"]) == (2, 2, 0)
    assert record["words_accuracy"] == 0, "none was right"
    assert "numbers_loss" not in record, "nothing counted in it"


def test_lines_and_tensorboard_say_the_same(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    for each in RECORDS:
        metrics.write(each)
    metrics.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == RECORDS
    found = points(tmp_path / "tensorboard")
    assert [step for step, _ in found["train/masked_loss"]] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in found["evaluation/unigram_loss"]] == pytest.approx([0.3, 0.6])
    assert "train/step" not in found


def test_a_file_in_place_of_the_folder_of_tensorboard_is_named(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(BertsmithError, match="a file is in the way of this folder") as caught:
        MetricsFile(tmp_path)
    assert caught.value.where == str(tmp_path / "tensorboard")


@pytest.mark.parametrize("later", [1, 0, -(10**12)])
def test_a_resumed_runs_curve_has_no_double_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int) -> None:
    """later: nanoseconds, by a clock that may stand or be put back between, as on another host."""
    for first, steps, now, process in ((0, range(1, 6), 2 * 10**18, 12), (4, range(4, 7), 2 * 10**18 + later, 1)):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        metrics = MetricsFile(tmp_path, first)
        for step in steps:
            metrics.write(record("train", step))
        metrics.close()
    assert [step for step, _ in points(tmp_path / "tensorboard")["train/masked_loss"]] == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_has_a_point_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe(phase1__steps=3, phase2__steps=0)
    stopped_after(2, monkeypatch, recipe, tmp_path / "run")
    run = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert [step for step, _ in points(run.folder / "tensorboard")["train/loss"]] == [1, 2, 3]


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tra', encoding="utf-8")
    assert read_metrics(path) == [{"kind": "train", "step": 1}]
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "train", "step": 2}', encoding="utf-8")
    assert [each["step"] for each in read_metrics(path)] == [1, 2], "the last line lacks its end alone"
    assert read_metrics(tmp_path / "nowhere.jsonl") == []
    for damaged in (b'{"kind": "tr\n', b"\xff\n"):
        path.write_bytes(b'{"kind": "train", "step": 1}\n' + damaged + b'{"kind": "train", "step": 3}\n')
        with pytest.raises(BertsmithError, match="line 2 is not JSON"):
            read_metrics(path)
    for other in (b"3\n", b"{}\n", b"[]\n", b"null\n", b'{"kind": "train", "step": "2"}\n'):
        path.write_bytes(b'{"kind": "train", "step": 1}\n' + other)
        with pytest.raises(BertsmithError, match="line 2 is no record"):
            read_metrics(path)


@pytest.mark.parametrize("value", ['"ten"', "null", "1e999", "-Infinity", "NaN", "1" + "0" * 400])
def test_a_line_whose_counts_are_no_finite_numbers_is_no_record(tmp_path: Path, value: str) -> None:
    path = tmp_path / "metrics.jsonl"
    for kind in ("train", "evaluation", "start", "before", "final", "end"):
        for name in ("steps", "sequences", "seconds_per_step", "phase", "phase_step", "seed_step"):
            path.write_text(f'{{"kind": "{kind}", "step": 1, "{name}": {value}}}\n', encoding="utf-8")
            with pytest.raises(BertsmithError, match=f"line 1 is no record: its {name} is not a finite number"):
                read_metrics(path)


def test_a_figure_of_a_line_may_be_nan_but_no_text(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "final", "step": 1, "loss": null}\n', encoding="utf-8")
    (found,) = read_metrics(path)
    assert math.isnan(found["loss"])
    for value in ('"ten"', "[1]", "{}", "1" + "0" * 400):
        path.write_text(f'{{"kind": "final", "step": 1, "loss": {value}}}\n', encoding="utf-8")
        with pytest.raises(BertsmithError, match="line 1 is no record: its loss is not a number"):
            read_metrics(path)


def test_a_log_that_is_gone_is_warned_of_when_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("bertsmith"), "propagate", True)
    assert [forget_after(tmp_path / "metrics.jsonl", step) for step in (-1, 0)] == [0, 0]
    assert not caplog.records, "a run that begins has none"
    assert forget_after(tmp_path / "metrics.jsonl", 460) == 0
    assert "metrics.jsonl is not there: what was logged up to step 460 is lost" in caplog.text


def test_a_log_that_ends_before_the_checkpoint_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that was copied before the checkpoint, or put back from a copy."""
    monkeypatch.setattr(logging.getLogger("bertsmith"), "propagate", True)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record("train", step)) + "\n" for step in (10, 20, 30)), encoding="utf-8")
    assert forget_after(path, 20) == 30
    assert forget_after(path, 23, pending=3) == 20
    told = [record("train", 10), record("evaluation", 10), record("train", 20), record("evaluation", 20)]
    ends = [{"kind": kind, "step": 20, "loss": 1.0} for kind in ("final", "end")]
    for unmeasured in (False, True):
        path.write_text("".join(json.dumps(each) + "\n" for each in (*told, *ends)), encoding="utf-8")
        assert forget_after(path, 20, unmeasured) == 20
        assert read_metrics(path) == told[: len(told) - unmeasured], "what comes again does not stand there twice"
    assert not caplog.records
    forget_after(path, 63, pending=3)
    assert "what was logged of steps 21 to 60 is lost" in caplog.text


def test_lines_that_were_deleted_from_the_middle_are_warned_of(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(record("train", step) | {"steps": float(step - before)}) for before, step in
             ((0, 10), (10, 20), (20, 25), (25, 35), (35, 45))]  # fmt: skip
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    forget_after(path, 45)
    assert not said.records
    path.write_text("\n".join([lines[1], lines[4], ""]), encoding="utf-8")
    forget_after(path, 45)
    (warning,) = said.messages
    assert "metrics.jsonl lacks lines: what was logged of steps 1 to 10, 21 to 35 is lost" in warning
    said.clear()
    path.write_text("\n".join([*lines, lines[1], lines[4], ""]), encoding="utf-8")
    forget_after(path, 45)
    (warning,) = said.messages
    assert "metrics.jsonl has 2 lines of steps that a line before tells of" in warning


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As where a package is not installed."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.split(".")[0] in packages:
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_missing_extras_are_said_in_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("bertsmith"), "propagate", True)
    caplog.set_level(logging.INFO, logger="bertsmith")
    without(monkeypatch, "tensorboard", "matplotlib")
    metrics = MetricsFile(tmp_path)
    metrics.write(RECORDS[1])
    metrics.close()
    assert not (tmp_path / "tensorboard").exists()
    assert draw_curves(RECORDS, tmp_path / "curves.png") is False
    assert not (tmp_path / "curves.png").exists()
    assert "pip install 'bertsmith[tensorboard]'" in caplog.text
    assert "pip install 'bertsmith[plots]'" in caplog.text
    assert read_metrics(tmp_path / "metrics.jsonl") == [RECORDS[1]]


@pytest.mark.parametrize("records", [RECORDS, [each for each in RECORDS if each["kind"] != "evaluation"]])
def test_curves_are_a_picture(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    pytest.importorskip("matplotlib")
    assert draw_curves(records, tmp_path / "curves.png") is True
    content = (tmp_path / "curves.png").read_bytes()
    assert content.startswith(PNG)
    width, height = struct.unpack(">II", content[16:24])
    assert width > 600
    assert height > 600
    assert len(set(content)) > 200, "not an empty sheet"


NAMES = ("masked", "next_sentence")


def sums(masked: float, count: int, right: int, tokens: int, places: int) -> StepSums:
    return StepSums(torch.tensor([masked, count, right, 1.4, 2, 1]), tokens=tokens, attention_places=places)


def test_a_meter_gives_means_of_sums_and_begins_anew() -> None:
    meter = Meter(CPU, NAMES)
    meter.add(sums(30.0, 10, 5, 90, 100), torch.tensor(1.0))
    meter.add(sums(10.0, 30, 5, 80, 100), torch.tensor(2.0))
    found = meter.read(0.0)
    assert found["masked_loss"] == pytest.approx(1.0), "a mean over all words, not of the steps' means"
    assert found["masked_accuracy"] == pytest.approx(0.25)
    assert found["next_sentence_loss"] == pytest.approx(0.7)
    assert found["gradient_norm"] == 2.0
    assert (found["steps"], found["tokens"]) == (2, 170)
    assert found["step_loss"] == pytest.approx(10 / 30 + 0.7), "of the last step"
    assert found["padding_share"] == pytest.approx(0.15)
    meter.add(sums(8.0, 4, 4, 10, 10), torch.tensor(3.0))
    assert meter.read(0.0)["masked_loss"] == pytest.approx(2.0)


def test_what_overflowed_in_a_skipped_step_enters_no_mean() -> None:
    meter = Meter(CPU, NAMES)
    meter.add(sums(30.0, 10, 5, 90, 100), torch.tensor(1.0))
    meter.add(sums(float("nan"), 30, 5, 80, 100), torch.tensor(float("inf")))
    found = meter.read(0.0)
    assert (found["masked_loss"], found["masked_accuracy"], found["next_sentence_loss"]) == (
        3.0,
        0.5,
        pytest.approx(0.7),
    )
    assert (found["steps"], found["tokens"]) == (2, 170), "the work was done"
    assert not {"gradient_norm", "step_loss"} & found.keys()


@pytest.mark.parametrize("names", [("classify",), ("masked", "next_sentence")])
def test_steps_that_all_overflowed_have_no_loss(tmp_path: Path, names: tuple[str, ...]) -> None:
    meter = Meter(CPU, names)
    meter.add(StepSums(torch.full((3 * len(names),), torch.inf)), torch.tensor(torch.inf))
    found = meter.read(0.0)
    assert not [name for name in found if name.endswith(("loss", "accuracy"))]
    assert [value for name, value in found.items() if name.endswith("count")] == [0.0] * len(names)
    path = tmp_path / "dllogger.json"
    file = DlloggerFile(path, 0)
    file.write({"kind": "train", "step": 1, "learning_rate": 1.0, "seconds_per_step": 1.0, **found})
    file.write({"kind": "end", "step": 1})
    file.close()
    first, last = (json.loads(line.removeprefix("DLLL "))["data"] for line in path.read_text().splitlines())
    assert (first, last["final_loss"]) == ({"learning_rate": 1.0}, None)


def test_a_dllogger_file_keeps_the_line_of_the_step_that_a_run_is_resumed_after(tmp_path: Path) -> None:
    file = DlloggerFile(tmp_path / "dllogger.json", 0)
    for step in (5, 6):
        file.log([1, step], {"average_loss": 1.0})
    file.close()
    DlloggerFile(tmp_path / "dllogger.json", 5).close()
    (line,) = (tmp_path / "dllogger.json").read_text().splitlines()
    assert json.loads(line.removeprefix("DLLL "))["step"] == [1, 5]


def test_a_figure_that_is_not_finite_is_null_in_a_line_and_nan_when_it_is_read(tmp_path: Path) -> None:
    with MetricsFile(tmp_path) as metrics:
        for step in (1, 2):
            metrics.write({"kind": "evaluation", "step": step, "masked_loss": math.nan, "rmse": math.inf})
    path = tmp_path / METRICS_FILE
    path.write_text(path.read_text().rstrip())
    for last in (2, 1):
        lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
        assert [each["masked_loss"] for each in lines] == [None] * last
        assert [each["step"] for each in read_metrics(path) if math.isnan(each["rmse"])] == [*range(1, last + 1)]
        forget_after(path, 1)


def test_a_meter_goes_on_from_its_state() -> None:
    whole, first, second = Meter(CPU, NAMES), Meter(CPU, NAMES), Meter(CPU, NAMES)
    for meter in (whole, first):
        meter.add(sums(30.0, 10, 5, 90, 100), torch.tensor(1.0))
    second.restore(state := first.state(0.25))
    assert Position(since_log=state).pending == 1
    for meter in (whole, second):
        meter.add(sums(0.1, 3, 2, 50, 70), torch.tensor(2.0))
    clock = {"tokens_per_second", "flop_per_second", "seconds_per_step", "data_wait_share", "memory_bytes"}
    one, other = whole.read(0.5), second.read(0.25)
    assert {name: one[name] for name in one.keys() - clock} == {name: other[name] for name in other.keys() - clock}
    seconds = other["tokens"] / other["tokens_per_second"]
    assert other["data_wait_share"] * seconds == pytest.approx(0.5), "what the state had, and what came since"


def test_the_share_of_a_peak_is_reported_where_one_is_known_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for peak in (None, 1e12):
        meter = Meter(CPU, NAMES, peak)
        step = sums(30.0, 10, 5, 90, 100)
        step.flop = 3e9
        meter.add(step, torch.tensor(1.0))
        found = meter.read(0.0)
        assert found["flop_per_second"] == pytest.approx(3e9 / found["seconds_per_step"], rel=0.01)
        assert ("peak_share" in found) == (peak is not None)
    assert found["peak_share"] == pytest.approx(found["flop_per_second"] / 1e12)
    monkeypatch.setattr("bertsmith.training.records.meters.world_size", lambda: 4)
    meter.add(step, torch.tensor(1.0))
    found = meter.read(0.0)
    assert found["peak_share"] == pytest.approx(found["flop_per_second"] / 4e12), "of each of 4 devices"


@pytest.mark.parametrize("lacking", [1, 2])
def test_a_meter_takes_the_state_of_a_version_that_did_not_count_operations_or_sequences(lacking: int) -> None:
    old = Meter(CPU, NAMES)
    old.add(sums(30.0, 10, 5, 90, 100), torch.tensor(1.0), sequences=8)
    *values, flop, sequences, steps, seconds, waited = old.state(0.0)
    assert (flop, sequences) == (0, 8)
    meter = Meter(CPU, NAMES)
    known = [*values, flop][: len(values) + 2 - lacking]
    meter.restore([*known, steps, seconds, waited])
    meter.add(sums(30.0, 10, 5, 90, 100), torch.tensor(1.0), sequences=8)
    (again := Meter(CPU, NAMES)).restore(meter.state(0.0))
    for each in (meter, again):
        record = each.read(0.0)
        assert record["masked_loss"] == 3.0
        assert "sequences" not in record, "of how many the first step had is not known"
    meter.add(sums(30.0, 10, 5, 90, 100), torch.tensor(1.0), sequences=8)
    assert meter.read(0.0)["sequences"] == 8


def test_a_single_loss_has_no_prefix() -> None:
    meter = Meter(CPU, ("classify",))
    meter.add(StepSums(torch.tensor([6.0, 4, 3]), tokens=10, attention_places=10), torch.tensor(1.0))
    found = meter.read(0.0)
    assert (found["loss"], found["accuracy"], found["count"]) == (1.5, 0.75, 4)


def test_a_pause_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bertsmith.training.records.meters.time", SimpleNamespace(perf_counter=lambda: now[0]))
    meter = Meter(CPU, NAMES)
    meter.add(sums(1.0, 1, 1, 1000, 1000), torch.tensor(1.0))
    with meter.paused():
        now[0] = 0.15
    now[0] = 0.2
    assert meter.read(0.0)["seconds_per_step"] == pytest.approx(0.05)
