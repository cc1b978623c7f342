"""A fault of one rank ends all of them, within the time that was set, and names the rank: none waits for ever."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.ranks.store import this_host
from bertsmith.training import loop, step
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.run_folder import Run
from made_commands import Command
from made_ranks import (
    BERTSMITH,
    MARGIN,
    arguments,
    below,
    ended,
    environment,
    in_sessions,
    kill_all,
    launching,
    planted,
    processes,
    ranks_of,
    srun,
    started,
    tasks,
    wait_for_step,
)
from made_runs import figures, small_recipe, weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes where Linux lists them")
LONG = small_recipe(phase1__steps=4000, phase2__steps=2, save_every=100_000)
# The shorter one where a test waits until it is over.
TIMEOUT, SHORT_TIMEOUT = 20, 12
SILENT = "was not heard from"
HOST = this_host()
TIMED = ("--rank-timeout", str(TIMEOUT))


def run_of_two(folder: Path, workers: int = 0, timeout: int = TIMEOUT) -> tuple[Command, list[int]]:
    """A run that would take hours, started by us, and the processes of its ranks; its log is `log`."""
    call = arguments(replace(LONG, loader_workers=workers), folder, "--ranks", "2", "--rank-timeout", str(timeout))
    process = Command(*call, does=launching, log=folder / "log", environment=environment())
    wait_for_step(folder / "run", 3, process)
    return process, ranks_of(process)


def all_gone(run: Path | Sequence[int]) -> bool:
    """Whether no process of the run is left, when those that saw it end have ended too. run: the folder that marks its
    processes, or those that lead their sessions."""

    def left() -> list[int]:
        return processes(MARK=str(run)) if isinstance(run, Path) else in_sessions(run)

    end = time.monotonic() + 60
    while left() and time.monotonic() < end:
        time.sleep(0.2)
    return not left()


def raises_in_step_3() -> None:
    honest, calls = step.train_step, iter(range(1, 1000))

    def broken(*given: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise ValueError("planted in step 3")
        return honest(*given, **options)

    loop.train_step = broken


def test_a_rank_that_raises_ends_all_with_its_error(tmp_path: Path) -> None:
    recipe = replace(LONG, loader_workers=1)
    started_tasks = tasks(arguments(recipe, tmp_path, *TIMED), tmp_path, faults={1: raises_in_step_3})
    statuses, said = [ended(each) for each in started_tasks], (tmp_path / "log").read_text()
    assert statuses == [1, 1], said
    assert "rank 1: Traceback" in said
    assert SILENT not in said, "the others are told, and do not wait until the rank is taken for lost"
    assert said.count("ValueError: planted in step 3") == 1, "the first rank is on the same host, and says no more"
    assert "this is a bug in Bertsmith" in said
    assert all_gone([each.pid for each in started_tasks])


def test_a_loader_killed_on_one_rank_ends_all(tmp_path: Path) -> None:
    recipe = replace(LONG, loader_workers=1)
    started_tasks = tasks(arguments(recipe, tmp_path, *TIMED), tmp_path)
    wait_for_step(tmp_path / "run", 3, started_tasks[0])
    loaders = below(started_tasks[1].pid)
    assert loaders
    kill_all(*loaders)
    statuses, said = [ended(each) for each in started_tasks], (tmp_path / "log").read_text()
    assert statuses == [2, 2], said
    assert "rank 1: a process that builds batches was killed" in said
    assert SILENT not in said
    assert all_gone([each.pid for each in started_tasks])


def test_a_rank_that_is_killed_ends_all(tmp_path: Path) -> None:
    process, ranks = run_of_two(tmp_path, workers=1)
    assert len(below(*ranks)) >= 2, "the loaders too"
    kill_all(ranks[1])
    status, said = ended(process), (tmp_path / "log").read_text()
    assert status == 75, said
    assert f"rank 1 on {HOST} was killed by SIGKILL, as the system does when memory runs out; all ranks leave" in said
    assert SILENT not in said
    assert "Traceback" not in said
    assert all_gone(ranks)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_is_stopped_is_named_and_all_end(rank: int, tmp_path: Path) -> None:
    process, ranks = run_of_two(tmp_path, timeout=SHORT_TIMEOUT)
    os.kill(ranks[rank], signal.SIGSTOP)
    status, said = ended(process, "the stop of a rank", SHORT_TIMEOUT + MARGIN), (tmp_path / "log").read_text()
    assert status == 75, said
    silent = re.findall(rf"rank {rank} on {HOST} was not heard from for (\d+) s", said)
    assert len(silent) == 1
    assert int(silent[0]) <= SHORT_TIMEOUT, "what was waited for, whatever else ran on the machine"
    assert "Traceback" not in said
    assert all_gone(ranks), "the stopped one too"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_launcher_the_others_find_who_is_lost(rank: int, fault: signal.Signals, tmp_path: Path) -> None:
    """As with srun, where nobody tells a task of another's end; the first one holds the store, and may be the one."""
    call = arguments(replace(LONG, loader_workers=1), tmp_path, *TIMED)
    both = srun(call, tmp_path, MARK=str(tmp_path))
    wait_for_step(tmp_path / "run", 3, both[0])
    both[rank].send_signal(fault)
    status = ended(both[1 - rank], f"{fault.name} to a rank", TIMEOUT + MARGIN)
    said = (tmp_path / f"task-{1 - rank}.log").read_text()
    assert status == 75, said
    assert said.count(f"rank {rank} on {HOST} ") == 1
    assert "all ranks leave" in said
    if fault == signal.SIGSTOP:  # it wakes up, and the others are gone
        both[rank].send_signal(signal.SIGCONT)
        assert ended(both[rank]) == 75, (tmp_path / f"task-{rank}.log").read_text()
    assert all_gone(tmp_path)


def spoils_the_gradient_of_step_4() -> None:
    honest, calls = step.train_step, iter(range(1, 1000))

    def broken(objective: Any, *given: Any, **options: Any) -> Any:
        if next(calls) == 4:
            weight = next(iter(objective.model.parameters()))
            weight.register_hook(lambda gradient: gradient * float("nan"))
        return honest(objective, *given, **options)

    loop.train_step = broken


def test_a_gradient_that_is_not_finite_on_one_rank_stops_all_before_the_update(tmp_path: Path) -> None:
    recipe = small_recipe(phase1__steps=40, phase2__steps=2, save_every=2)
    call = arguments(recipe, tmp_path, *TIMED)
    started_tasks = tasks(call, tmp_path, faults={1: spoils_the_gradient_of_step_4})
    statuses, said = [ended(each) for each in started_tasks], (tmp_path / "log").read_text()
    assert statuses == [2, 2], said
    assert said.count("the gradient is not finite (NaN or infinity), so its update was skipped") == 1
    assert "phase 1, step 4, rank 1, instances " in said
    assert SILENT not in said
    assert "Traceback" not in said
    assert [each.name for each in step_folders(tmp_path / "run")] == ["step-00000002"], "nothing is saved after it"


@pytest.mark.slow
def test_another_rank_s_old_listing_of_a_shared_disk_decides_nothing(tmp_path: Path) -> None:
    """On the second rank the run folder looks as it did before the run, with no step folder and no `run.json`; and the
    step folder that the first one names is there some seconds later only."""
    recipe = small_recipe(phase1__steps=8, phase2__steps=2, save_every=3)
    fault = f"""
import pathlib, time
run, looks = {str(tmp_path / "run")!r}, []
def is_there(path):
    if run + "/step-" in str(path):
        looks.append(time.monotonic())
        return looks[-1] - looks[0] > 3
    return str(path) not in (run, run + "/run.json")
for name in ("glob", "iterdir", "rglob"):
    def of(honest):
        def stale(self, *given, **options):
            return iter(()) if str(self) == run else honest(self, *given, **options)
        return stale
    setattr(pathlib.Path, name, of(getattr(pathlib.Path, name)))
exists, read_text = pathlib.Path.exists, pathlib.Path.read_text
pathlib.Path.exists = lambda self: is_there(self) and exists(self)
def read(self, *given, **options):
    if not is_there(self):
        raise FileNotFoundError(2, "planted", str(self))
    return read_text(self, *given, **options)
pathlib.Path.read_text = read
"""
    for folder, more in ((tmp_path / "a", {}), (tmp_path, {"PYTHONPATH": planted(tmp_path, 1, fault)})):
        first = started([*BERTSMITH, *arguments(recipe, folder, "--ranks", "2")], folder / "log")
        wait_for_step(folder / "run", 6, first)
        first.send_signal(signal.SIGTERM)
        assert ended(first) in (0, 143), (folder / "log").read_text()
        call = arguments(recipe, folder, "--ranks", "2", "--resume")
        again = started([*BERTSMITH, *call], folder / "log", **more)
        assert ended(again) == 0, (folder / "log").read_text()
    stale, fresh = Run(tmp_path / "run"), Run(tmp_path / "a" / "run")
    assert figures(stale) == figures(fresh)
    assert weights(stale) == weights(fresh)
