"""A process that is killed while it writes a checkpoint leaves the one before it whole, wherever the kill falls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Steps are saved one after another in a child, which is killed while a folder is being written; what counts is a kill
# that left one half written, or between two renames.
KILLED = """
import os, random, signal, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
import torch
torch.set_num_threads(1)
from bertsmith.training.checkpoints import Best, Position, load_best, step_folders
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.run_folder import RunFacts, claim
from made_checkpoints import made, loaded

runs, wanted, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
model, optimizer = made(hidden=256, layers=2)
best_model, _ = made(hidden=256, layers=2)
def steps(run, first):
    with torch.no_grad(), Saver(run, keep=2) as saver:
        for step in range(first, 10_000):
            for parameter in model.parameters():
                parameter.fill_(step)
            best = step - step % 3
            saver.save(Position(step, 1, step, best=Best(0.5, best) if best else None), model, optimizer)

in_saves = attempt = 0
run, first = runs / "run", 1
while in_saves < wanted:
    attempt += 1
    assert attempt < 20 * wanted, f"only {{in_saves}} of {{attempt}} kills fell into a save"
    child = os.fork()
    if not child:
        steps(run, first)
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
    half = [each.name for each in run.iterdir() if each.name.startswith(".")]
    in_saves += bool(half)
    position = loaded(run, model, optimizer)
    assert position.step >= int(there.name[5:]), (position, there)
    assert all(float(each.min()) == float(each.max()) == position.step for each in model.parameters())
    if position.best is not None:
        load_best(run, position.best, best_model)
        assert all(float(each.min()) == position.best.step for each in best_model.parameters())
    assert not list(run.glob("damaged-*"))
    claim(run, RunFacts({{}}, "", {{}}), position)
    assert not [each for each in run.iterdir() if each.name.startswith(".")]
    first = position.step + 1
print(in_saves, attempt, first - 1)
"""


def kills_in_saves(count: int, folder: Path, seed: int) -> tuple[int, int, int]:
    """(kills that fell into a save, kills, steps saved)."""
    (folder / "saves.py").write_text(KILLED.format(path=sys.path), encoding="utf-8")
    call = [sys.executable, str(folder / "saves.py"), str(folder), str(count), str(seed)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    in_saves, kills, steps = map(int, done.stdout.split())
    return in_saves, kills, steps


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_five_kills_in_saves_never_cost_the_checkpoint_before(tmp_path: Path) -> None:
    in_saves, _, steps = kills_in_saves(5, tmp_path, seed=int.from_bytes(os.urandom(3)))
    assert in_saves == 5
    assert steps > 5


@needs_fork
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_kills_in_saves_never_cost_the_checkpoint_before(tmp_path: Path) -> None:
    in_saves, kills, steps = kills_in_saves(50, tmp_path, seed=int.from_bytes(os.urandom(3)))
    print(f"{in_saves} of {kills} kills fell into a save; {steps} steps were saved")
    assert in_saves == 50
