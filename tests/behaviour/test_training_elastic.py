"""A run that is resumed on other ranks, or with other micro-batches, takes the steps that it would have taken."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.schema import Recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from made_kills import Moment
from made_runs import (
    OF_THE_CLOCK,
    corpus,
    figures,
    note_instances,
    noted_instances,
    ran,
    small_corpus,
    small_recipe,
    stopped_after,
    weights,
)

# 18 steps in two phases without dropout: more than 12 of them after the first change.
STEPS = (10, 8)
RECIPE = small_recipe(
    phase1__steps=STEPS[0], phase1__global_batch=16, phase2__steps=STEPS[1], phase2__global_batch=12, log_every=1,
    evaluate_every=7, save_every=2, model__hidden_dropout=0, model__attention_dropout=0,
)  # fmt: skip
CLOSE = 1e-5
# What a step holds, which no cut changes.
OF_THE_STEP = (
    *("kind", "step", "phase", "learning_rate", "steps", "tokens", "masked_count", "next_sentence_count"),
    *("sequences", "masked_words"),
)


def train(recipe: Recipe, made: Path, run: Path) -> None:
    note_instances(run.with_name("instances"))
    pretrain(recipe, Corpus.open(made), run, resume=True)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = tmp_path_factory.mktemp("unbroken") / "run"
    ran(train, 1, RECIPE, small_corpus(), run)
    return Run(run)


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on_4_2_and_1_ranks(RECIPE, tmp_path_factory.mktemp("elastic") / "run")


def on_4_2_and_1_ranks(recipe: Recipe, run: Path) -> Run:
    """Begun on four ranks, killed, resumed on two with sharded weights, killed, and resumed on one with larger
    micro-batches."""
    ran(train, 4, recipe, small_corpus(), run, kill=Moment(4, 0.0, saved=True))
    ran(train, 2, replace(recipe, parallel="shard"), small_corpus(), run, kill=Moment(11, 0.0, saved=True))
    assert not Run(run).is_finished()
    ran(train, 1, replace(recipe, micro_batch_tokens=1000), small_corpus(), run)
    return Run(run)


def content(run: Run) -> list[dict[str, Any]]:
    return [{name: each[name] for name in OF_THE_STEP if name in each} for each in run.metrics()]


def test_every_step_has_the_same_content(elastic: Run, unbroken: Run) -> None:
    assert [each["step"] for each in elastic.metrics("train")] == list(range(1, sum(STEPS) + 1))
    assert content(elastic) == content(unbroken)


def instances_of_steps(run: Run) -> dict[tuple[int, int], list[str]]:
    """By step and world size, of those that all ranks took, the sequences of all ranks together."""
    noted = noted_instances(run.folder.with_name("instances"))
    whole = {(step, size) for step, size, _ in noted if all((step, size, rank) in noted for rank in range(size))}
    return {
        (step, size): sorted(each for rank in range(size) for each in chain(*noted[step, size, rank]))
        for step, size in whole
    }


def test_every_step_has_the_same_instances(elastic: Run, unbroken: Run) -> None:
    expected, found = instances_of_steps(unbroken), instances_of_steps(elastic)
    assert {step for step, _ in found} == {step for step, _ in expected} == set(range(1, sum(STEPS) + 1))
    assert {size for _, size in found} == {4, 2, 1}
    for step, size in found:
        assert found[step, size] == expected[step, 1], f"step {step} on {size} ranks"


def test_losses_stay_within_1e_5(elastic: Run, unbroken: Run) -> None:
    for ours, theirs in zip(elastic.metrics(), unbroken.metrics(), strict=True):
        for name in [each for each in theirs if each.endswith("loss")]:
            assert ours[name] == pytest.approx(theirs[name], rel=CLOSE), (theirs["step"], name)


def check_within_seeds(resumed: Run, unbroken: Run, recipe: Recipe, folder: Path) -> None:
    """With dropout: the held-out losses of the finished models differ, and by less than those of three seeds. unbroken:
    of the recipe's own."""
    others = [pretrain(replace(recipe, seed=seed), corpus(), folder / f"seed-{seed}") for seed in (1, 2)]
    found, *of_seeds = (
        [each["masked_loss"] + each["next_sentence_loss"] for each in run.metrics("final")]
        for run in (resumed, unbroken, *others)
    )
    for length, ours in enumerate(found):
        seeds = [each[length] for each in of_seeds]
        assert 0 < abs(ours - seeds[0]) < max(seeds) - min(seeds)


@pytest.mark.slow
def test_with_dropout_other_ranks_move_the_loss_less_than_other_seeds(tmp_path: Path) -> None:
    recipe = replace(RECIPE, model=replace(RECIPE.model, hidden_dropout=0.1, attention_dropout=0.1))
    elastic = on_4_2_and_1_ranks(recipe, tmp_path / "run")
    check_within_seeds(elastic, pretrain(recipe, corpus(), tmp_path / "unbroken"), recipe, tmp_path)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_line_of_metrics_may_be_of_steps_on_different_ranks(tmp_path: Path, before: int, after: int) -> None:
    """What was added up between two lines is in the checkpoint, for all ranks together."""
    recipe = replace(RECIPE, log_every=5, evaluate_every=1000, phase2=replace(RECIPE.phase2, steps=0))
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    ran(train, before, recipe, small_corpus(), tmp_path / "run", kill=Moment(8, 0.0, saved=True))
    newest = step_folders(tmp_path / "run")[-1]
    position = json.loads((newest / "position.json").read_text(encoding="utf-8"))
    *_, steps, _, _ = position["since_log"]
    assert (position["step"], steps) == (6, 1), "it was killed between two lines"
    ran(train, after, recipe, small_corpus(), tmp_path / "run")
    resumed = Run(tmp_path / "run")
    assert content(resumed) == content(unbroken)
    for ours, theirs in zip(resumed.metrics(), unbroken.metrics(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs.keys() - OF_THE_CLOCK - {"kind", "fill", "padding_share"}:
            assert ours[name] == pytest.approx(theirs[name], rel=CLOSE), (theirs["kind"], theirs["step"], name)


def test_the_run_folder_says_how_steps_were_cut_up(elastic: Run, unbroken: Run) -> None:
    known = {run: json.loads((run.folder / "run.json").read_text(encoding="utf-8")) for run in (elastic, unbroken)}
    assert known[unbroken]["begun_on"]["ranks"] == "1"
    assert known[unbroken]["begun_on"]["micro_batch_tokens"] == "256"
    assert known[elastic]["begun_on"]["ranks"] == "4, 2, 1"
    assert known[elastic]["begun_on"]["micro_batch_tokens"] == "256, 1000"
    assert known[elastic]["begun_on"]["parallel"] == "replicate, shard, replicate"
    for each in known.values():
        del each["begun_on"]
    assert known[elastic] == known[unbroken], "they are the same run"


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_other_micro_batches_are_taken_and_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture, dropout: float
) -> None:
    recipe = small_recipe(model__hidden_dropout=0, model__attention_dropout=dropout)
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    stopped_after(3, monkeypatch, recipe, tmp_path / "run")
    said.clear()
    resumed = pretrain(replace(recipe, micro_batch_tokens=96), corpus(), tmp_path / "run", resume=True)
    (warning,) = [each.message for each in said.records if "cut up" in each.message]
    assert "micro_batch_tokens was 256 and is 96" in warning
    assert "not equal to the bit" in warning
    assert ("within the spread of seeds" in warning) == (dropout > 0)
    assert content(resumed) == content(unbroken)
    if dropout:
        return check_within_seeds(resumed, unbroken, recipe, tmp_path)
    for ours, theirs in zip(resumed.metrics("train"), unbroken.metrics("train"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=CLOSE)


def test_a_run_that_saved_nothing_yet_starts_anew_on_other_ranks(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """No step of it was cut up otherwise, so there is nothing to warn about."""
    recipe = small_recipe()
    ran(train, 2, recipe, small_corpus(), tmp_path / "run", kill=Moment(1, 0.0))
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert not [each for each in said.messages if "cut up" in each]
    assert json.loads((resumed.folder / "run.json").read_text(encoding="utf-8"))["begun_on"]["ranks"] == "1"
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_a_run_of_a_version_that_fixed_the_micro_batches_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """It has them in its identity, and no record of its ranks."""
    recipe = small_recipe()
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    stopped_after(3, monkeypatch, recipe, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    del known["begun_on"]["ranks"], known["begun_on"]["micro_batch_tokens"]
    path.write_text(json.dumps({**known, "recipe.micro_batch_tokens": 256}), encoding="utf-8")
    said.clear()
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert not [each for each in said.messages if "cut up" in each]
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    begun_on = json.loads(path.read_text(encoding="utf-8"))["begun_on"]
    assert (begun_on["ranks"], begun_on["micro_batch_tokens"]) == ("1", "256")
