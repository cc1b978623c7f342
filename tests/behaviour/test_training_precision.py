"""Precision in a whole run: kept when it resumes, and fp16 that scales losses, skips, recovers, or stops by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from bertsmith.base import device, fp32_products, log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.processor import Processor
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training import pretrain as pretrain_module
from bertsmith.training import work as work_module
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from made_processors import WITH_AMX, WITHOUT_BF16
from made_runs import corpus, figures, small_recipe, stopped_after, weights

AUTO = small_recipe(precision="auto", device="auto", phase1__steps=3, phase2__steps=1)
FP16 = small_recipe(precision="fp16", phase1__steps=9, phase2__steps=2, log_every=3)


@pytest.mark.parametrize(
    ("at_first", "later", "precision"), [(WITHOUT_BF16, WITH_AMX, "fp32"), (WITH_AMX, WITHOUT_BF16, "bf16")]
)
def test_a_resumed_run_keeps_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_first: Processor, later: Processor, precision: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    runs_on(at_first, monkeypatch)
    unbroken = pretrain(AUTO, corpus(), tmp_path / "unbroken")
    stopped_after(1, monkeypatch, AUTO, tmp_path / "run")
    known = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    products = {"fp32_products": "default"} if precision == "fp32" else {}
    between = {"between_products": prepare_training(torch.float32)}
    cut = {"ranks": "1", "micro_batch_tokens": str(AUTO.micro_batch_tokens), "parallel": "replicate"}
    cut |= {"compiled": "false"}
    known["begun_on"].pop("start")  # random, of each start
    assert known["begun_on"] == {"device": "cpu", "precision": precision, **products, **between, **cut}
    runs_on(later, monkeypatch)
    resumed = pretrain(AUTO, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def runs_on(processor: Processor, patch: pytest.MonkeyPatch) -> None:
    for module in (device, fp32_products):
        patch.setattr(module, "this_processor", lambda: processor)


def losses(run: Run) -> list[float]:
    return [record["loss"] for record in run.metrics("train")]


def test_fp16_trains_as_fp32_does(tmp_path: Path) -> None:
    """Ten steps of a learning rate that moves the loss, and held-out figures; on a CPU too."""
    options = {"phase1__steps": 10, "phase2__steps": 0, "model__hidden_dropout": 0, "model__attention_dropout": 0}
    runs = [pretrain(small_recipe(precision=each, **options), corpus(), tmp_path / each) for each in ("fp32", "fp16")]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), rel=2e-3)
    assert max(losses(runs[0])) - min(losses(runs[0])) > 0.02
    assert losses(runs[1]) != losses(runs[0])
    assert {record["loss_scale"] for record in runs[1].metrics("train")} == {65536.0}
    assert "loss_scale" not in runs[0].metrics("train")[0]


def scaled_from(initial: float, patch: pytest.MonkeyPatch, **options: float) -> None:
    """Runs begin with this loss scale."""
    patch.setattr(work_module, "LossScale", partial(LossScale, initial=initial, **options))


def test_a_planted_overflow_is_skipped_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log.logger, "propagate", True)
    scaled_from(2.0**40, monkeypatch)
    # Large batches, whose largest gradients differ little from step to step.
    options = {"phase1__steps": 40, "phase1__global_batch": 32, "phase2__steps": 0, "log_every": 4}
    run = pretrain(small_recipe(precision="fp16", **options), corpus(), tmp_path / "run")
    records = run.metrics("train")
    skipped = [record["skipped_updates"] for record in records]
    assert [record["loss_scale"] for record in records] == [2.0 ** (40 - each) for each in skipped]
    assert skipped[0] == 4, "no scale near 2**40 can be held"
    assert 10 < skipped[-1] < 30
    assert skipped[-1] == skipped[-3], "it came to an end"
    assert all(math.isfinite(value) for record in records for value in record.values() if isinstance(value, float))
    assert ["gradient_norm" in record for record in records][:: len(records) - 1] == [False, True]
    assert run.is_finished()
    assert losses(run)[-1] < losses(run)[0]
    overflowed = "4 updates skipped up to step 4, because gradients overflowed fp16; the loss scale is now 6.87195e+10"
    assert overflowed in caplog.text
    told = {message for message in caplog.messages if "skipped up to" in message}
    assert len(told) == len(set(skipped)), "a line that skipped nothing more says nothing"


def test_a_run_that_cannot_recover_stops_at_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """A weight that overflows in the forward pass is beyond every scale: 4, 2 and 1 are tried, and that is all."""
    scaled_from(4.0, monkeypatch)
    made = pretrain_module.model_of

    def with_a_huge_weight(*arguments: object) -> PretrainingModel:
        model = made(*arguments)
        with torch.no_grad():
            model.encoder.layers[0].feed_forward.inner.weight[0, 0] = 60000.0
        return model

    monkeypatch.setattr(pretrain_module, "model_of", with_a_huge_weight)
    with pytest.raises(BertsmithError) as caught:
        pretrain(replace(FP16, log_every=1), corpus(), tmp_path / "run")
    assert "it is not finite, so the weights are too large for this precision" in said.text
    assert ["loss" in each for each in Run(tmp_path / "run").metrics("train")] == [False, False]
    assert "not finite (NaN or infinity) even at the lowest loss scale, 1" in caught.value.what
    assert "phase 1, step 3, rank 0, instances 16 to 23" in caught.value.where
    assert caught.value.fix.endswith("with a lower learning rate or --precision fp32")
    assert not step_folders(tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("after", [1, 5, 8])
def test_fp16_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """While the scale falls, after it, and when it grows again; figures tell of the scale and of what was skipped, and
    each skipped update is warned of once."""
    scaled_from(2.0**34, monkeypatch, grow_every=2, ceiling=2.0**50)
    unbroken = pretrain(FP16, corpus(), tmp_path / "unbroken")
    assert unbroken.metrics("train")[-1]["skipped_updates"] > 2
    stopped_after(after, monkeypatch, FP16, tmp_path / "run")
    resumed = pretrain(FP16, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    told, expected = (
        [line for line in (run.folder / "events.jsonl").read_text().splitlines() if "skipped up to" in line]
        for run in (resumed, unbroken)
    )
    assert told == expected != []


def test_gradient_checkpointing_changes_no_bit_and_may_be_switched_on_in_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"precision": "bf16", "phase1__steps": 4, "phase2__steps": 2, "model__layers": 3}
    plain = small_recipe(**options)
    assert plain.model.hidden_dropout == plain.model.attention_dropout == 0.1
    unbroken = pretrain(plain, corpus(), tmp_path / "plain")
    stopped_after(2, monkeypatch, plain, tmp_path / "run")
    resumed = pretrain(small_recipe(**options, gradient_checkpointing=True), corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
