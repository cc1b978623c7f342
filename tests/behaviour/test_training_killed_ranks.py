"""Ranks killed with SIGKILL at random moments, in both phases, and resumed: the unbroken run, to the bit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from bertsmith.corpus.shards import Corpus
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from made_kills import Moment, Rename, drawing
from made_runs import figures, note_instances, noted_instances, ran, small_corpus, small_recipe, weights

# Dropout is that of BERT. A line of metrics comes every third step and a checkpoint every second one, so that most
# checkpoints are made between two lines.
PHASES = (10, 4)
RECIPE = small_recipe(
    phase1__steps=PHASES[0],
    phase1__global_batch=24,
    phase2__steps=PHASES[1],
    log_every=3,
    evaluate_every=5,
    save_every=2,
    micro_batch_tokens=512,
)


# In the order in which a run comes to them: it is claimed, and the shards and the index of its first epoch are drawn.
AT_ITS_START = ("run.json", "recipe.yaml", "epoch-0-*/*.npy", "order/epoch-0-*.npy")


def train(corpus: Path, run: Path, parallel: Literal["replicate", "shard"] = "replicate") -> None:
    assert RECIPE.model.hidden_dropout == RECIPE.model.attention_dropout == 0.1
    note_instances(run.with_name(f"{run.name}-instances"))
    pretrain(replace(RECIPE, parallel=parallel), Corpus.open(corpus), run, resume=True)


def check_equal(resumed: Path, unbroken: Path) -> None:
    """Two finished runs: what each rank trained on in each step, the metrics, the weights and the files."""
    instances = [noted_instances(run.with_name(f"{run.name}-instances")) for run in (resumed, unbroken)]
    assert {step for step, _, _ in instances[1]} == set(range(1, sum(PHASES) + 1))
    assert instances[0] == instances[1]
    assert figures(Run(resumed)) == figures(Run(unbroken))
    assert weights(Run(resumed)) == weights(Run(unbroken))
    left = {each.name for each in resumed.iterdir()} - {each.name for each in unbroken.iterdir()}
    assert not left, "nothing half written is left"


def check_killed_and_resumed(folder: Path, ranks: int, kills_per_phase: int, parallel: str = "replicate") -> None:
    """An unbroken run, and one that is killed so often in each phase: at random moments of steps, lines and saves."""
    draw, corpus = drawing(), small_corpus()
    ran(train, ranks, corpus, folder / "unbroken", parallel)
    first, both = PHASES[0], sum(PHASES)
    steps = sorted(draw.randint(1, first) for _ in range(kills_per_phase))
    steps += sorted(draw.randint(first + 1, both) for _ in range(kills_per_phase))
    for number, step in enumerate(steps):
        ran(train, ranks, corpus, folder / "run", parallel, kill=Moment(step, draw.random() * 0.05))
        assert number or not Run(folder / "run").is_finished(), "it was killed before its end"
    ran(train, ranks, corpus, folder / "run", parallel)
    check_equal(folder / "run", folder / "unbroken")


def test_two_ranks_killed_in_each_phase_and_resumed_are_unbroken(tmp_path: Path) -> None:
    check_killed_and_resumed(tmp_path, ranks=2, kills_per_phase=1)


@pytest.mark.slow
def test_two_ranks_that_share_the_weights_killed_in_each_phase_are_unbroken(tmp_path: Path) -> None:
    check_killed_and_resumed(tmp_path, ranks=2, kills_per_phase=1, parallel="shard")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_killed_again_and_again_and_resumed_are_unbroken(tmp_path: Path, ranks: int) -> None:
    check_killed_and_resumed(tmp_path, ranks, kills_per_phase=4)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two ranks."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    ran(train, 2, small_corpus(), run)
    return run


@pytest.mark.slow
def test_two_ranks_killed_after_every_step_are_unbroken(tmp_path: Path, unbroken: Path) -> None:
    """The last of each phase among them; neither logged nor saved, each is lost."""
    for step in range(1, sum(PHASES) + 1):
        ran(train, 2, small_corpus(), tmp_path / "run", kill=Moment(step, 0.0))
        assert not Run(tmp_path / "run").is_finished()
    ran(train, 2, small_corpus(), tmp_path / "run")
    check_equal(tmp_path / "run", unbroken)


def test_two_ranks_killed_while_the_run_starts_are_unbroken(tmp_path: Path, unbroken: Path) -> None:
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    shutil.copytree(small_corpus(), corpus, ignore=shutil.ignore_patterns("order"))
    for name in AT_ITS_START:
        ran(train, 2, corpus, run, kill=Rename(name))
        assert not noted_instances(tmp_path / "run-instances"), f"it was not killed before {name} was there"
    ran(train, 2, corpus, run)
    check_equal(run, unbroken)


def test_two_ranks_killed_while_the_run_is_resumed_are_unbroken(tmp_path: Path, unbroken: Path) -> None:
    corpus, run = small_corpus(), tmp_path / "run"
    ran(train, 2, corpus, run, kill=Moment(4, 0.0, saved=True))
    before = step_folders(run)
    for name in ("run.json", "recipe.yaml", "metrics.jsonl"):
        ran(train, 2, corpus, run, kill=Rename(name))
        assert step_folders(run) == before, f"it was not killed before {name} was there"
    ran(train, 2, corpus, run)
    check_equal(run, unbroken)
