"""Ranks killed with SIGKILL at random moments, in both phases, and resumed: the unbroken run, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from bertsmith.corpus.shards import Corpus
from bertsmith.training.pretrain import Run, pretrain
from made_kills import Moment, drawing, ran
from made_runs import figures, small_corpus, small_recipe, weights

# Dropout is that of BERT. A line of metrics comes every third step and a checkpoint every second one, so that most
# checkpoints are made between two lines.
PHASES = (12, 6)
RECIPE = small_recipe(
    phase1__steps=PHASES[0],
    phase1__global_batch=24,
    phase2__steps=PHASES[1],
    log_every=3,
    evaluate_every=5,
    save_every=2,
)


def train(corpus: Path, run: Path, parallel: Literal["replicate", "shard"]) -> None:
    assert RECIPE.model.hidden_dropout == RECIPE.model.attention_dropout == 0.1
    pretrain(replace(RECIPE, parallel=parallel), Corpus.open(corpus), run, resume=True)


def check_killed_and_resumed(folder: Path, ranks: int, kills_per_phase: int, parallel: str = "replicate") -> None:
    """An unbroken run, and one that is killed so often in each phase: at random moments of steps, lines and saves."""
    draw, corpus = drawing(), small_corpus()
    ran(train, ranks, corpus, folder / "unbroken", parallel)
    first, both = PHASES[0], sum(PHASES)
    steps = sorted(draw.randint(1, first - 2) for _ in range(kills_per_phase))
    steps += sorted(draw.randint(first + 1, both - 2) for _ in range(kills_per_phase))
    for number, step in enumerate(steps):
        ran(train, ranks, corpus, folder / "run", parallel, kill=Moment(step, draw.random() * 0.05))
        assert number or not Run(folder / "run").is_finished(), "it was killed before its end"
    ran(train, ranks, corpus, folder / "run", parallel)
    resumed, unbroken = Run(folder / "run"), Run(folder / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    left = {each.name for each in resumed.folder.iterdir()} - {each.name for each in unbroken.folder.iterdir()}
    assert not left, "nothing half written is left"


def test_two_ranks_killed_in_each_phase_and_resumed_are_unbroken(tmp_path: Path) -> None:
    check_killed_and_resumed(tmp_path, ranks=2, kills_per_phase=1)


@pytest.mark.slow
def test_two_ranks_that_share_the_weights_killed_in_each_phase_are_unbroken(tmp_path: Path) -> None:
    check_killed_and_resumed(tmp_path, ranks=2, kills_per_phase=1, parallel="shard")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_killed_again_and_again_and_resumed_are_unbroken(tmp_path: Path, ranks: int) -> None:
    check_killed_and_resumed(tmp_path, ranks, kills_per_phase=4)
