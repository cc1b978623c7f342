"""A process that is killed while it writes a checkpoint leaves the one before it whole, wherever the kill falls."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.lamb import Lamb
from bertsmith.training.checkpoints import Best, Position, load_best, step_folders
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.run_folder import RunFacts, claim
from made_checkpoints import loaded, made
from made_commands import Command


def saves_steps(run: Path, first: int, model: PretrainingModel, optimizer: Lamb) -> NoReturn:
    """Saves one step after another."""
    with torch.no_grad(), Saver(run, keep=2) as saver:
        for step in range(first, 10_000):
            for parameter in model.parameters():
                parameter.fill_(step)
            best = step - step % 3
            saver.save(Position(step, 1, step, best=Best(0.5, best) if best else None), model, optimizer)
    os._exit(0)


def kills_saving_children(runs: Path, wanted: int, seed: int) -> None:
    """Kills a child while a folder is being written, until so many kills have counted: those that left one half
    written, or came between two renames."""
    torch.set_num_threads(1)  # a process forked from one that has used OpenMP's threads may wait for them for ever
    draw = random.Random(seed)
    model, optimizer = made(hidden=256, layers=2)
    best_model, _ = made(hidden=256, layers=2)
    in_saves = attempt = 0
    run, first = runs / "run", 1
    while in_saves < wanted:
        attempt += 1
        assert attempt < 20 * wanted, f"only {in_saves} of {attempt} kills fell into a save"
        child = os.fork()
        if not child:
            saves_steps(run, first, model, optimizer)
        before = max((int(each.name[5:]) for each in step_folders(run)), default=0)
        while len(step_folders(run)) < 2 or int(step_folders(run)[-1].name[5:]) < before + 1:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child ended by itself"
            time.sleep(0.0005)
        while not list(run.glob(".*.part")):
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child ended by itself"
        time.sleep(draw.random() * 0.03)
        there = step_folders(run)[-1]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        in_saves += any(each.name.startswith(".") for each in run.iterdir())
        position = loaded(run, model, optimizer)
        assert position.step >= int(there.name[5:]), (position, there)
        assert all(float(each.min()) == float(each.max()) == position.step for each in model.parameters())
        if position.best is not None:
            load_best(run, position.best, best_model)
            assert all(float(each.min()) == position.best.step for each in best_model.parameters())
        assert not list(run.glob("damaged-*"))
        claim(run, RunFacts({}, "", {}), position)
        assert not [each for each in run.iterdir() if each.name.startswith(".")]
        first = position.step + 1
    print(in_saves, attempt, first - 1)


def kills_in_saves(count: int, folder: Path) -> tuple[int, int, int]:
    """(kills that fell into a save, kills, steps saved)."""
    seed = int.from_bytes(os.urandom(3))
    with Command(does=partial(kills_saving_children, folder, count, seed)) as process:
        said, errors = process.communicate()
        assert process.wait() == 0, f"seed {seed}: {errors}"
    in_saves, kills, steps = map(int, said.split())
    return in_saves, kills, steps


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_five_kills_in_saves_never_cost_the_checkpoint_before(tmp_path: Path) -> None:
    in_saves, _, steps = kills_in_saves(5, tmp_path)
    assert in_saves == 5
    assert steps > 5


@needs_fork
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_kills_in_saves_never_cost_the_checkpoint_before(tmp_path: Path) -> None:
    in_saves, kills, steps = kills_in_saves(50, tmp_path)
    print(f"{in_saves} of {kills} kills fell into a save; {steps} steps were saved")
    assert in_saves == 50
