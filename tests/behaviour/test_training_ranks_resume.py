"""Runs of several ranks: stopped by a signal that reaches one of them, resumed to the bit, refused by all together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.shared_stop import SharedStop
from bertsmith.base.stopping import StoppedAfterSaving, StopSignal
from bertsmith.corpus.shards import Corpus
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import Run, pretrain
from made_runs import corpus, figures, ran_by_ranks, signalled_after, small_recipe, weights

# A rank's part of each step is of several micro-batches.
RECIPE = small_recipe(
    **{"phase1__steps": 12, "phase1__global_batch": 8, "phase2__steps": 4, "micro_batch_tokens": 128},
    **{"log_every": 4, "evaluate_every": 6, "model__hidden_dropout": 0.1},
)


@contextmanager
def noting_drops(path: Path) -> Iterator[None]:
    """Keeps what dropout leaves of ones after each step, by this rank's generator as it then is."""
    left: list[torch.Tensor] = []
    advance = Trainer._advance

    def advanced(trainer: Trainer, step: Step) -> None:
        advance(trainer, step)
        with torch.random.fork_rng([]):
            left.append(torch.nn.functional.dropout(torch.ones(64), 0.5))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_advance", advanced)
        yield
    torch.save(torch.stack(left), path)


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    """An unbroken run; a run that one rank is told to stop, and its resumption; a run that is refused."""
    source, told = Corpus.open(made), []
    with noting_drops(folder / f"dropped-{rank}.pt"):
        pretrain(RECIPE, source, folder / "unbroken")
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            signalled_after(5, patch)
        try:
            pretrain(RECIPE, source, folder / "run")
        except StoppedAfterSaving as stopped:
            told.append(str(stopped))
    pretrain(RECIPE, source, folder / "run", resume=True)
    try:
        pretrain(RECIPE, source, folder / "run")
    except BertsmithError as error:
        told.append(error.what)
    signalled = StopSignal()
    signalled.requested = rank == 1
    stop = SharedStop(signalled)
    told += [str((stop.look(), stop.interrupted)) for _ in range(3)]
    stop.finish()
    told.append(ranks.by_first(lambda: f"said by {rank}"))
    (folder / f"told-{rank}.txt").write_text("\n".join(told), encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))


def test_a_signal_to_one_rank_stops_all_after_the_same_step(finished: Path) -> None:
    told = [(finished / f"told-{rank}.txt").read_text(encoding="utf-8").splitlines() for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0][0].startswith("stopped at step ")
    assert told[0][1] == "there is a run in this folder already", "all ranks hear what the first one found"
    assert told[0][2:] == ["(False, False)", "(True, False)", "(True, False)", "said by 0"]


def test_with_dropout_the_resumed_run_is_unbroken_to_the_bit(finished: Path) -> None:
    assert RECIPE.model.hidden_dropout == RECIPE.model.attention_dropout == 0.1
    resumed, unbroken = Run(finished / "run"), Run(finished / "unbroken")
    assert step_folders(resumed.folder)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_ranks_drop_different_units(finished: Path) -> None:
    first, second = (torch.load(finished / f"dropped-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert not (first == second).all(1).any()


def test_one_of_several_processes_that_are_not_joined_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(BertsmithError, match="one of 4 processes not joined") as caught:
        pretrain(RECIPE, corpus(), tmp_path / "run")
    assert "init_process_group" in caught.value.fix
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    ranks.check_joined()
