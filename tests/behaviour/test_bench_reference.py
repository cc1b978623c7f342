"""`bertsmith bench reference` at a tiny size: every task, trained and run, with its rates and latencies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.base.device import Device, choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.reference.bench import LENGTHS, PERCENTILES, Case, bench_reference, cases_of
from bertsmith.bench.reference.worker import Worker, fine_tuning, pretraining
from bertsmith.bench.step.plan import shape
from bertsmith.cli import main
from bertsmith.model.config import BertConfig

pytestmark = pytest.mark.usefixtures("forked_children")
CONFIG = BertConfig(**shape("tiny", 100))


def cpu() -> Device:
    return choose_device("cpu", "fp32")


def test_quick_gives_a_row_and_a_table_of_each_mode(tmp_path: Path, capsys: Any) -> None:
    to = tmp_path / "rows.json"
    flags = ["--quick", "--device", "cpu", "--only", "384, fp32", "--json", str(to), "--markdown"]
    assert main(["bench", "reference", *flags]) == 0
    found = json.loads(to.read_text())
    assert [row["case"] for row in found["rows"]] == [
        "SQuAD training, 5 x 384, fp32",
        "SQuAD inference, 1 x 384, fp32",
        "SQuAD inference, 8 x 384, fp32",
    ]
    for row in found["rows"]:
        assert row["steps"] >= 3
        assert row["sequences_per_second"] == pytest.approx(1e3 * row["batch"] / row["mean_ms"])
        latencies = [row[f"p{percent}_ms"] for percent in PERCENTILES]
        assert latencies == sorted(latencies)
    assert "warm-up: 1 steps or calls that are not counted; then at least 3" in "\n".join(found["about"])
    assert "**Training**" in (printed := capsys.readouterr().out)
    assert "**Inference**" in printed


@pytest.mark.parametrize("task", LENGTHS)
def test_training_changes_the_weights_and_inference_does_not(task: Any) -> None:
    work = pretraining if task == "pre-training" else fine_tuning
    sums = {}
    for mode in ("training", "inference"):
        made = work(Case(task, mode, 2, 16, "fp32"), CONFIG, cpu())
        with torch.set_grad_enabled(mode == "training"):
            first, second = made(), made()
        if mode == "training":
            sums = {first.figures.sum().item(), second.figures.sum().item()}
        elif task == "pre-training":
            assert [each.loss.item() for each in first.losses.values()] == [
                each.loss.item() for each in second.losses.values()
            ]
        else:
            assert first.shape == ((2 * 16, 2) if task == "SQuAD" else (2, 2))
            assert (first == second).all()
    assert len(sums) == 2


def test_the_steps_of_the_warm_up_are_not_counted() -> None:
    worker = Worker(Case("GLUE", "inference", 2, 16, "fp32"), CONFIG, cpu())
    assert len(worker.run(warmup=2, steps=4, seconds=0.0)["seconds"]) == 4


def test_every_task_is_trained_and_run_in_every_precision() -> None:
    for is_cpu in (True, False):
        cases = cases_of(("bf16", "fp32"), is_cpu)
        assert len({case.name for case in cases}) == len(cases)
        for task, lengths in LENGTHS.items():
            for mode in ("training", "inference"):
                found = {(case.length, case.precision) for case in cases if (case.task, case.mode) == (task, mode)}
                assert found == {(length, each) for length in lengths for each in ("bf16", "fp32")}


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="no case contains 'BERT'"):
        bench_reference(BenchOptions(only="BERT"), tmp_path)
    with pytest.raises(BertsmithError, match="nothing was measured: GLUE inference, 1 x 128, fp32: no time was left"):
        bench_reference(
            BenchOptions(quick=True, device="cpu", only="GLUE inference, 1 x 128, fp32", minutes=0), tmp_path
        )
