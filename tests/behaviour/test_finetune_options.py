"""Promises of fine-tuning's options: when a seed ends, whose model is kept, which weights learn, and what tells how far
to trust a score."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.finetuning.trials import trials
from bertsmith.tasks.nvidia_results import summary
from bertsmith.tasks.objective import TaskObjective
from bertsmith.tasks.results import kept_seed
from bertsmith.training.run_folder import Run
from made_rows import QUICK, made_model, rows
from made_runs import figures, signalled_after

LAYERS = 1
TRAIN, DEV, TEST = rows(160, 1), rows(60, 2), rows(60, 3)
LATENCY = "infer:latency(ms):"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder of two layers."""
    return made_model(tmp_path_factory.mktemp("deep"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def tune(
    model: Path, out: Path | None, resume: bool = False, **settings: object
) -> bertsmith.tasks.results.FinetuneResult:
    made = replace(QUICK, **settings)
    return bertsmith.finetune("classify", model, TRAIN, DEV, out, settings=made, resume=resume)


def test_measurements_come_between_epochs_too_and_steps_are_bounded(
    model: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    result = tune(model, tmp_path / "run", epochs=3, evaluate_every=4, max_steps=17)
    (seed,) = result.seeds
    assert [each.epoch for each in seed.epochs] == [0.4, 0.8, 1.0, 1.2, 1.6, 1.7], "10 steps an epoch, 17 in all"
    best = max(range(6), key=lambda place: seed.epochs[place].dev["accuracy"])
    assert seed.best_epoch == seed.epochs[best].epoch
    rates = [each["learning_rate"] for each in Run(tmp_path / "run").metrics("train")]
    assert rates[-1] < rates[-2] < QUICK.learning_rate, "the rate falls over the steps that there are"
    seventh = tune(model, None, epochs=1, batch=23, max_steps=1)  # of the 160 rows, so 1/7 of an epoch
    assert "seed 42, epoch 0.1429: dev accuracy" in said.text
    assert "epoch 0.1429: " in seventh.line()


@pytest.mark.parametrize("windows", [False, True])
def test_measuring_says_how_many_rows_of_how_many_are_done(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture, windows: bool
) -> None:
    monkeypatch.setattr("bertsmith.tasks.task.Progress", partial(Progress, every_seconds=0.0))
    long = [{**row, "text": f"{row['text']} {row['text']}"} for row in DEV]
    overlap = {"windows": True, "window_overlap": 2} if windows else {}
    settings = replace(QUICK, epochs=1, max_length=12, micro_batch_tokens=100, **overlap)
    bertsmith.finetune("classify", model, TRAIN, long, tmp_path / "run", settings=settings)
    predictor = Predictor(tmp_path / "run", "cpu", precision="fp32", budget_tokens=100)
    predictor.evaluate(predictor.examples(long))
    for what in ("measuring dev", "measuring"):
        done = [int(each) for each in re.findall(rf"  {what}: (\d+)/60 rows", said.text)]
        assert len(done) > 5
        assert 60 in done
        assert all(0 <= each <= 60 for each in done)


def test_patience_ends_a_seed_and_the_next_one_begins_as_it_would_alone(model: Path, tmp_path: Path) -> None:
    settings = {"epochs": 6, "patience": 2, "evaluate_every": 5, "dropout": 0.2}
    result = tune(model, tmp_path / "run", seeds=2, **settings)
    for seed in result.seeds:
        scores = [each.dev["accuracy"] for each in seed.epochs]
        best = scores.index(max(scores))
        assert len(scores) == best + 3 < 12, "two measurements behind the best one"
    alone = tune(model, None, seed=43, **settings)
    assert alone.seeds[0] == result.seeds[1]


def scored(patch: pytest.MonkeyPatch, scores: Iterable[float]) -> None:
    """Has measurements of the dev rows give these scores, one after the other."""
    evaluate, given = TaskObjective.evaluate, iter(scores)
    patch.setattr(TaskObjective, "evaluate", lambda *rest: {**evaluate(*rest), "accuracy": next(given)})


def test_patience_counts_measurements_behind_the_best_one_and_an_equal_one_is_no_better(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [0.5, 0.5, 0.6, 0.4, 0.6, 0.5, 0.9, 0.9]
    scored(monkeypatch, scores)
    (seed,) = tune(model, None, epochs=8, batch=160, patience=3).seeds
    assert [each.dev["accuracy"] for each in seed.epochs] == scores[:6]
    assert (seed.best_epoch, seed.score) == (3, 0.6)


def test_the_model_is_the_best_seeds_whichever_that_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, [0.6, 0.9, 0.7, 0.1])
    assert tune(model, tmp_path / "run", epochs=1, batch=80, seeds=3).kept.seed == 43
    tune(model, tmp_path / "alone", epochs=1, batch=80, seed=43)
    found, expected = weights(tmp_path / "run" / "model"), weights(tmp_path / "alone" / "model")
    assert all(torch.equal(found[name], each) for name, each in expected.items())


def test_a_seed_that_ran_out_of_patience_is_not_resumed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"epochs": 6, "patience": 1, "seeds": 2, "save_every": 3, "dropout": 0.2}
    unbroken = tune(model, tmp_path / "unbroken", **settings)
    steps = [round(10 * seed.epochs[-1].epoch) for seed in unbroken.seeds]
    assert steps[0] < 60
    for step in (steps[0] - 1, steps[0], steps[0] + 1):
        run = tmp_path / f"run-{step}"
        with monkeypatch.context() as patch:
            signalled_after(step, patch)
            with pytest.raises(StoppedAfterSaving):
                tune(model, run, **settings)
        assert tune(model, run, resume=True, **settings).seeds == unbroken.seeds
        assert (run / "model" / "model.safetensors").read_bytes() == (
            tmp_path / "unbroken" / "model" / "model.safetensors"
        ).read_bytes()


def test_the_kept_seed_is_the_best_the_middle_or_the_last() -> None:
    scores = [0.7, 0.9, 0.8, 0.9, 0.6]
    assert [kept_seed(name, scores) for name in ("best", "median", "last")] == [1, 2, 4]
    assert [kept_seed("median", scores[:count]) for count in range(1, 5)] == [0, 0, 2, 2]
    for count in range(1, 5):
        assert {kept_seed(name, [0.5] * count) for name in ("best", "median")} == {0}, "the first of equals"
    for some in itertools.permutations([0.5, 0.5, 0.6, 0.7]):
        assert [some[kept_seed(name, some)] for name in ("best", "median")] == [0.7, 0.5], "whatever the order"


@pytest.mark.parametrize("keep", ["median", "last"])
def test_the_model_is_that_of_the_seed_that_was_asked_for(model: Path, tmp_path: Path, keep: str) -> None:
    settings = {"epochs": 2, "learning_rate": 1.5e-3, "dropout": 0.2}
    result = tune(model, tmp_path / "run", seeds=3, keep_seed=keep, **settings)
    assert result.kept == result.seeds[kept_seed(keep, result.scores)]
    answers = Predictor(tmp_path / "run", "cpu", precision="fp32")(DEV)
    right = sum(each["label"] == row["label"] for each, row in zip(answers, DEV, strict=True)) / len(DEV)
    assert right == pytest.approx(result.kept_epoch.dev["accuracy"])
    if keep == "last":
        assert result.kept_epoch == result.seeds[-1].epochs[-1]
    alone = tune(
        model, tmp_path / "alone", seed=result.kept.seed, keep_seed="last" if keep == "last" else "best", **settings
    )
    assert alone.seeds[0] == result.kept
    found, expected = weights(tmp_path / "run" / "model"), weights(tmp_path / "alone" / "model")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not list((tmp_path / "run").glob("best-*"))


def test_frozen_layers_stay_and_the_others_learn(deep: Path, tmp_path: Path) -> None:
    tune(deep, tmp_path / "run", epochs=1, frozen_layers=1)
    before, after = weights(deep), weights(tmp_path / "run" / "model")
    same = {name for name in before.keys() & after.keys() if torch.equal(before[name], after[name])}
    assert {name for name in same if ".embeddings." in name or ".layer.0." in name} == {
        name for name in before if ".embeddings." in name or ".layer.0." in name
    }
    assert not [name for name in same if ".layer.1." in name]
    with pytest.raises(BertsmithError, match="frozen_layers is 9"):
        tune(deep, None, frozen_layers=9)


def test_frozen_layers_with_random_weights_are_warned_of(deep: Path, said: pytest.LogCaptureFixture) -> None:
    told = "the frozen layers have random weights, and keep them"
    tune(deep, None, epochs=1, max_steps=1, frozen_layers=1)
    assert told not in said.text
    tune(deep, None, epochs=1, max_steps=1, frozen_layers=1, from_scratch=True)
    assert told in said.text


def test_reinitialised_layers_begin_at_random_and_the_others_at_the_models(deep: Path, tmp_path: Path) -> None:
    tune(deep, tmp_path / "run", epochs=1, reinitialised_layers=1, learning_rate=1e-12)
    before, after = weights(deep), weights(tmp_path / "run" / "model")
    for name in before.keys() & after.keys():
        if ".layer." in name and name.endswith("query.weight"):
            assert torch.allclose(before[name], after[name], atol=1e-6) == (".layer.0." in name)
    tune(deep, tmp_path / "both", epochs=1, max_steps=1, reinitialised_layers=2, learning_rate=1e-12)
    low, high = (each for name, each in weights(tmp_path / "both" / "model").items() if name.endswith("query.weight"))
    assert not torch.allclose(low, high, atol=1e-3), "each layer is drawn by itself"


def test_rates_fall_with_depth(deep: Path, tmp_path: Path) -> None:
    """Adam's first update moves every weight by the learning rate, whatever its gradient."""
    plain = {"weight_decay": 0.0, "warmup": 0.0, "learning_rate": 1e-3}
    tune(deep, tmp_path / "run", epochs=1, max_steps=1, layer_decay=0.5, **plain)
    before, after = weights(deep), weights(tmp_path / "run" / "model")

    def moved(part: str) -> float:
        name = next(each for each in sorted(before) if part in each and each.endswith("weight") and "Norm" not in each)
        return float((before[name] - after[name]).abs().max())

    assert moved(".layer.1.") == pytest.approx(0.5e-3, rel=0.02)
    assert moved(".layer.0.") == pytest.approx(0.25e-3, rel=0.02)
    assert moved("word_embeddings") == pytest.approx(0.125e-3, rel=0.02)


def test_folds_measure_every_row_once_and_shares_lie_within_one_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    held = []

    def noting(work):  # type: ignore[no-untyped-def]
        found = trials(work)
        held.append(found)
        return found

    monkeypatch.setattr("bertsmith.tasks.finetuning.start.trials", noting)
    result = tune(model, tmp_path / "run", folds=3, learning_curve=True, epochs=8, learning_rate=5e-3)
    (made,) = held
    for line in ("share 30, epoch 8: dev accuracy", "fold 3, epoch 8: out-of-fold accuracy", "seed 42, epoch 8: dev"):
        assert line in said.text
    assert [(each.kind, each.label) for each in made] == [
        ("share", 10), ("share", 30), *(("fold", number) for number in range(1, 4)), ("seed", 42),
    ]  # fmt: skip
    folds = [each.fold for each in made if each.kind == "fold"]
    assert sorted(row for fold in folds for row in fold) == list(range(160))
    assert {len(fold) for fold in folds} <= {52, 53, 54, 55}
    for each in made:
        if each.kind == "fold":
            assert sorted([*each.rows, *each.fold]) == list(range(160))
    small, large = (set(each.rows) for each in made if each.kind == "share")
    assert small < large
    assert abs(len(small) - 16) <= 1 >= abs(len(large) - 48)
    assert set(result.folds) == {"1", "2", "3"}
    assert set(result.shares) == {"10", "30"}
    assert np.mean([each["accuracy"] for each in result.folds.values()]) > 0.8
    assert tune(model, None, epochs=8, learning_rate=5e-3).seeds == result.seeds, (
        "they change nothing in what comes after them"
    )
    assert "3 folds" in result.line()
    assert "10% " in result.line()


def test_likely_label_errors_are_found_by_models_that_did_not_train_on_them(deep: Path, tmp_path: Path) -> None:
    wrong = {3, 50, 77}
    other = {"praise": "blame", "blame": "praise"}
    train = [{**row, "label": other[row["label"]]} if place in wrong else row for place, row in enumerate(TRAIN)]
    settings = replace(QUICK, folds=3, report=True, epochs=6, learning_rate=6e-3)
    bertsmith.finetune("classify", deep, train, DEV, tmp_path / "run", settings=settings)
    report = json.loads((tmp_path / "run" / "report" / "folds" / "likely_label_errors.json").read_text())
    assert report["count"] == 160
    found = [each["where"] for each in report["likely_label_errors"]]
    assert {f"row {place + 1}" for place in wrong} <= set(found[:5])
    assert not (tmp_path / "run" / "folds").exists()


def test_a_run_of_folds_resumes_to_the_bit(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"epochs": 1, "folds": 3, "save_every": 2, "dropout": 0.2}
    unbroken = tune(model, tmp_path / "unbroken", **settings)
    with monkeypatch.context() as patch:
        signalled_after(11, patch)
        with pytest.raises(StoppedAfterSaving):
            tune(model, tmp_path / "run", **settings)
    resumed = tune(model, tmp_path / "run", resume=True, **settings)
    assert (resumed.folds, resumed.seeds) == (unbroken.folds, unbroken.seeds)
    assert figures(Run(tmp_path / "run")) == figures(Run(tmp_path / "unbroken"))


def test_scores_of_folds_that_are_lost_cost_the_report_and_not_the_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"epochs": 1, "folds": 3, "report": True}
    unbroken = tune(model, tmp_path / "unbroken", **settings)
    with monkeypatch.context() as patch:
        signalled_after(27, patch)  # in the training of the seed
        with pytest.raises(StoppedAfterSaving):
            tune(model, tmp_path / "run", **settings)
    (tmp_path / "run" / "folds" / "fold-2.npy").write_bytes(b"")
    with pytest.raises(BertsmithError, match="scores of this fold are missing or damaged") as caught:
        tune(model, tmp_path / "run", resume=True, **settings)
    assert "--resume --no-report" in caught.value.fix
    resumed = tune(model, tmp_path / "run", resume=True, **{**settings, "report": False})
    assert (resumed.folds, resumed.seeds) == (unbroken.folds, unbroken.seeds)
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_too_few_rows_for_folds_are_named(model: Path) -> None:
    few = [next(row for row in TRAIN if row["label"] == label) for label in ("praise", "blame")]
    for train, folds in ((few, 5), (TRAIN, 150)):
        with pytest.raises(BertsmithError, match="too few") as caught:
            bertsmith.finetune("classify", model, train, DEV, None, settings=replace(QUICK, folds=folds))
        assert "--folds" in str(caught.value)
        assert "dev_share" not in str(caught.value)


def test_evaluate_gives_the_figures_of_the_run_in_another_process(model: Path, tmp_path: Path, capsys) -> None:
    result = tune(model, tmp_path / "run", epochs=1)
    data = tmp_path / "dev.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in DEV))
    call = ["evaluate", str(tmp_path / "run"), "--data", str(data), "--json", str(tmp_path / "figures.json")]
    assert main([*call, "--device", "cpu", "--precision", "fp32"]) == 0
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["figures"] == pytest.approx(result.tuned["dev"])
    assert f"accuracy   {result.tuned['dev']['accuracy']:.4f}" in capsys.readouterr().out
    data.write_text('{"text": "a", "label": "neither"}\n')
    assert main(call) == 2
    assert "no label 'neither'" in capsys.readouterr().err
    assert main(["evaluate", str(model), "--data", str(data)]) == 2
    said = capsys.readouterr().err
    assert "not fine-tuned on labels" in said
    assert "--minimal-pairs" in said


def test_results_come_under_nvidias_names_where_asked(model: Path, tmp_path: Path) -> None:
    result = tune(model, tmp_path / "run", epochs=1, nvidia_results=True)
    written = json.loads((tmp_path / "run" / "nvidia-results.json").read_text())
    assert written["exact_match"] == result.tuned["dev"]["accuracy"]
    assert written["F1"] == result.tuned["dev"]["binary_f1"]
    assert written["training_sequences_per_second"] > 160 / written["e2e_train_time"], "measuring is not training"
    latencies = {name.removeprefix(LATENCY): value for name, value in written.items() if name.startswith(LATENCY)}
    assert list(latencies) == ["50%", "90%", "95%", "99%", "100%", "avg", "std", "sum"]
    assert 0 < latencies["50%"] <= latencies["100%"] <= latencies["sum"]


def test_nvidias_percentiles_are_latencies_that_were_measured() -> None:
    """As run_glue.py takes them: of ten sorted ones the fifth, the ninth, the ninth, the ninth and the last."""
    found = summary([10.0, *map(float, range(1, 10))])
    assert list(found.values())[:5] == [5.0, 9.0, 9.0, 9.0, 10.0]
    assert (found["avg"], found["sum"]) == (5.5, 55.0)
    assert summary([3.0])["50%"] == 3.0


def test_nvidias_results_need_a_folder(model: Path) -> None:
    with pytest.raises(BertsmithError, match="there is no folder for it"):
        bertsmith.finetune("classify", model, TRAIN, DEV, settings=replace(QUICK, nvidia_results=True))


def test_nvidias_rate_is_of_all_calls_of_a_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that has one step left would else have taken the rows of all steps in its own seconds. The last step of an
    epoch has fewer rows than the others."""
    settings = replace(QUICK, epochs=2, batch=48, max_steps=5, save_every=1, nvidia_results=True)
    with monkeypatch.context() as patch:
        signalled_after(4, patch)
        with pytest.raises(StoppedAfterSaving):
            bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=settings)
    bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=settings, resume=True)
    steps = Run(tmp_path / "run").metrics("train")
    seconds = sum(each["steps"] * each["seconds_per_step"] for each in steps)
    written = json.loads((tmp_path / "run" / "nvidia-results.json").read_text())
    assert written["training_sequences_per_second"] == pytest.approx((160 + 48) / seconds)
