"""Runs of several ranks as a user or a scheduler starts them, and faults planted in one of their processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bertsmith.base.ranks import launcher
from bertsmith.base.ranks.places import LAUNCHER
from bertsmith.recipes.schema import Recipe
from made_commands import Command, bertsmith
from made_runs import PATIENCE, save_recipe, small_corpus

# For what a busy machine does between the end of a rank's patience and the end of all ranks.
MARGIN = 120.0
BERTSMITH = [sys.executable, "-m", "bertsmith"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
# Numbers for Slurm's jobs, each used once, so that a task that a failed test left meets none of the next test's.
_jobs = itertools.count(os.getpid() * 1000)


def arguments(recipe: Recipe, folder: Path, *more: str) -> list[str]:
    """Of `pretrain`, on the small corpus, into `run` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_recipe(recipe, folder / "recipe.yaml")
    named = [str(folder / "recipe.yaml"), "--corpus", str(small_corpus()), "--out", str(folder / "run")]
    return ["pretrain", *named, *more]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what a scheduler or an earlier test may have left there."""
    names = ("SLURM", "OMPI", "PMI", "TORCHELASTIC", "MASTER", "RANK", "WORLD", "LOCAL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0", **more}


def started(command: list[str], log: Path, **more: str) -> subprocess.Popen[bytes]:
    """The process of a command, which writes both its outputs into a file. more: of its environment."""
    with open(log, "wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment(**more))


def slurm(rank: int, ranks: int, job: int) -> dict[str, str]:
    """What srun sets for a task of a step of one node."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": str(ranks),
        "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(ranks),
    }


def srun(arguments: list[str], folder: Path, ranks: int = 2, **more: str) -> list[subprocess.Popen[bytes]]:
    """The tasks of a faked srun; task R writes into `task-R.log`."""
    job = next(_jobs)
    return [
        started([*BERTSMITH, *arguments], folder / f"task-{rank}.log", **slurm(rank, ranks, job), **more)
        for rank in range(ranks)
    ]


def tasks(
    arguments: list[str],
    folder: Path,
    ranks: int = 2,
    by: str = "launcher",
    faults: dict[int, Callable[[], object]] | None = None,
) -> list[Command]:
    """Ranks as our launcher ("launcher") or srun starts them, but forked from a process that has loaded PyTorch, which
    takes each new one seconds, and without the launcher's process: nobody passes signals on or ends the others. All
    write into `log`, by srun rank R into `log-R`. faults: by rank, what a rank calls first."""
    made: list[Command] = []
    store, job = None, next(_jobs)
    if by == "launcher":
        store, port = launcher.serve("127.0.0.1", PATIENCE, launcher._run())
        common = launcher._environment(port, ranks, 1)
        del common[LAUNCHER]  # it is no parent of theirs
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        variables = {**common, **own} if by == "launcher" else environment(**slurm(rank, ranks, job))
        log = folder / ("log" if by == "launcher" else f"log-{rank}")
        does = partial(_after, faults[rank]) if faults and rank in faults else bertsmith
        made.append(Command(*arguments, does=does, own_group=True, log=log, environment=variables))
        made[-1].keeps = store
    return made


def _after(fault: Callable[[], object], *arguments: str) -> int:
    fault()
    return bertsmith(*arguments)


def launching(*arguments: str) -> int:
    """The command line, where it starts two ranks: for `does` of a `Command`. The ranks are forked from its process,
    which has loaded PyTorch, before it does anything; else they are started, signalled and waited for as always. It is
    for `--ranks 2`, and no other number."""
    forked: list[_Forked] = []
    while len(forked) < 2:
        forked.append(_Forked(forked))
    waiting = iter(forked)

    def start(command: list[str], env: dict[str, str], start_new_session: bool) -> _Forked:
        assert start_new_session
        return next(waiting).start(command, env)

    launcher.subprocess = SimpleNamespace(Popen=start)
    return bertsmith(*arguments)


class _Forked:
    """What a launcher asks of a rank's subprocess.Popen. The process waits until it is told what to do, or until nobody
    can tell it any more. others: made before it, to which it has no pipe."""

    def __init__(self, others: Iterable[_Forked]) -> None:
        self.returncode: int | None = None
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            for each in (*others, self):
                os.close(each._writing)
            with os.fdopen(reading) as pipe:
                if not (line := pipe.readline()):
                    os._exit(1)
            command, variables = json.loads(line)
            os.setsid()
            os.environ.clear()
            os.environ.update(variables)
            os._exit(bertsmith(*command[len(BERTSMITH) :]))
        os.close(reading)

    def start(self, command: list[str], env: dict[str, str]) -> _Forked:
        assert command[: len(BERTSMITH)] == BERTSMITH
        with os.fdopen(self._writing, "w") as pipe:
            pipe.write(json.dumps([command, env]) + "\n")
        return self

    def poll(self) -> int | None:
        return self._noted(os.WNOHANG)

    def wait(self) -> int | None:
        return self._noted(0)

    def _noted(self, options: int) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, options))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def ranks_of(launched: Command) -> list[int]:
    """The processes that a command with `launching` has started, in order (Linux)."""
    return [int(each) for each in Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()]


def in_sessions(leaders: Iterable[int]) -> list[int]:
    """The processes of these sessions that run: those that lead them, what they have started, and so on (Linux)."""
    found, wanted = [], {*leaders}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                state, _, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(session) in wanted and state not in "ZX":
                found.append(int(path.name))
    return found


def below(*leaders: int) -> list[int]:
    """Of these sessions, without those that lead them."""
    return [each for each in in_sessions(leaders) if each not in leaders]


def ended(process: subprocess.Popen[Any] | Command, since: str = "", within: float = PATIENCE) -> int:
    """The exit status of a process, which must end within so many seconds. since: what happened just now."""
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not ended {within:.0f} s after {since or 'it was waited for'}") from None
    finally:
        process.kill()


def wait_for_step(run: Path, step: int, process: subprocess.Popen[Any] | Command) -> None:
    """Returns once the metrics of a run that is under way tell of a step."""
    path, end = run / "metrics.jsonl", time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if any(json.loads(line)["step"] >= step for line in lines if line.endswith("}")):
            return
        time.sleep(0.05)
    status = process.poll()
    process.kill()
    raise AssertionError(f"no step {step}: {status}")


def processes(**variables: str) -> list[int]:
    """The processes with these variables in their environment (Linux), oldest first."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if wanted <= set((path / "environ").read_bytes().split(b"\0")):
                    found.append((float((path / "stat").read_text().rpartition(")")[2].split()[19]), int(path.name)))
            except OSError:
                continue
    return [number for _, number in sorted(found)]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and no zombie of it."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_all(*numbers: int) -> None:
    """Kills processes, some of which may have ended."""
    for number in numbers:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue


def planted(folder: Path, rank: int, fault: str) -> str:
    """A PYTHONPATH whose rank runs the Python text `fault` when its interpreter starts."""
    place = folder / "planted"
    place.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"    {line}" for line in fault.strip().splitlines())
    text = f"import os, sys\nif os.environ.get('RANK') == '{rank}' and 'pretrain' in sys.orig_argv:\n{lines}\n"
    (place / "sitecustomize.py").write_text(text, encoding="utf-8")
    return str(place)
