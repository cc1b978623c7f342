"""Which rank a process is, by the variables of what started it: torchrun, our own launcher, or Slurm's srun."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.host_lists import hosts
from bertsmith.base.stopping import LAUNCHER as LAUNCHER

# Open MPI's; that of MPICH and Intel MPI.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Unprivileged ports outside of what Linux gives to outgoing connections by default (from 32768).
_FIRST_PORT, _PORTS = 20000, 12000
_LAST_PORT = 65535
_START = "start it with torchrun or srun, or once with --gpus or --ranks"


@dataclass(frozen=True)
class Place:
    """A process's rank, and where the ranks meet. hosts_store: whether this rank holds the store at that address, and
    not what started it; run: which ranks are those of one run, where two runs come to one port; attempt: how often
    torchrun or Slurm has started the ranks again."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    started_by: str
    hosts_store: bool
    attempt: str = "0"
    run: str = ""

    def variables(self) -> dict[str, str]:
        """What torchrun would have set."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place among several, or None for a process of its own: started by hand, or as a Slurm step's only
    task. Raises BertsmithError for one of several that cannot join the others: each would be the first rank.
    """
    if any(name in environ for name in ("RANK", "WORLD_SIZE")):
        return _by_torchrun(environ)
    for name in _MPI_SIZES:
        others = _number(environ, name) or 1
        # srun sets those of PMI beside its own, for as many tasks.
        if others > 1 and (name != "PMI_SIZE" or others != _slurm_tasks(environ)):
            raise BertsmithError(f"mpirun started {others} processes, and does not say where they meet", name, _START)
    return _by_slurm(environ)


def started_together(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes were started together with this one, by the variables of what started it; 1 if none."""
    told = (_number(environ, name) for name in ("WORLD_SIZE", *_MPI_SIZES))
    return next((number for number in told if number), 0) or _slurm_tasks(environ)


def _by_torchrun(environ: Mapping[str, str]) -> Place | None:
    missing = [name for name in _TORCHRUN if not environ.get(name)]
    if missing and _number(environ, "WORLD_SIZE") == 1 and not _number(environ, "RANK"):
        return None
    if missing:
        what = f"this is one of several processes, and cannot join the others, as it lacks {', '.join(missing)}"
        raise BertsmithError(what, "environment", _START)
    size = _needed(environ, "WORLD_SIZE", least=1)
    rank = _needed(environ, "RANK", most=size - 1)
    # Who sets the variables by hand may leave these two out.
    here = _needed(environ, "LOCAL_WORLD_SIZE", 1, size) if environ.get("LOCAL_WORLD_SIZE") else None
    local_rank = _needed(environ, "LOCAL_RANK", most=(here or size) - 1) if environ.get("LOCAL_RANK") else 0
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(
        rank=rank,
        world_size=size,
        local_rank=local_rank,
        local_world_size=here or 1,
        address=environ["MASTER_ADDR"],
        port=_needed(environ, "MASTER_PORT", least=1, most=_LAST_PORT),
        started_by="bertsmith" if LAUNCHER in environ else "torchrun",
        hosts_store=rank == 0 and not agent,
        attempt=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        run=_torchrun_id(environ) or f"{size}-{_folder(sys.argv)}",
    )


def _by_slurm(environ: Mapping[str, str]) -> Place | None:
    tasks = _slurm_tasks(environ)
    rank = _needed(environ, "SLURM_PROCID", most=tasks - 1) if _in_step(environ) else 0
    if tasks == 1:
        return None
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    address = environ.get("MASTER_ADDR") or (next(hosts(nodes)) if nodes else "")
    if not address:
        what = f"this is one of {tasks} Slurm tasks, and Slurm does not say on which hosts they are"
        raise BertsmithError(what, "SLURM_STEP_NODELIST", _START)
    return Place(
        rank=rank,
        world_size=tasks,
        local_rank=_needed(environ, "SLURM_LOCALID"),
        local_world_size=_tasks_here(environ),
        address=address,
        port=_needed(environ, "MASTER_PORT", 1, _LAST_PORT) if environ.get("MASTER_PORT") else _port(environ),
        started_by="srun",
        hosts_store=rank == 0,
        attempt=environ.get("SLURM_RESTART_COUNT", "0"),
        run=_step(environ) or f"{tasks}-{_folder(sys.argv)}",
    )


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """Tasks of the Slurm step that this process belongs to. A batch script is one process, however many tasks its job
    has: Slurm gives it a rank too, and no number of its step."""
    if not _in_step(environ):
        return 1
    return _number(environ, "SLURM_STEP_NUM_TASKS") or _needed(environ, "SLURM_NTASKS", least=1)


def _in_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task of a step, by older versions of Slurm too, which do not number it."""
    if "SLURM_STEP_ID" in environ or "SLURM_STEP_NUM_TASKS" in environ:
        return True
    number = environ.get("SLURM_PROCID")
    if number is None or environ.get("ENVIRONMENT") == "BATCH":
        return False
    # 0 without a number of tasks may be that of a batch script that has set ENVIRONMENT itself.
    return number != "0" or "SLURM_NTASKS" in environ


def _tasks_here(environ: Mapping[str, str]) -> int:
    """Tasks on this node, from a list such as 4(x2),3 with one number for each node; 1 where Slurm gives none."""
    told = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    counts: list[int] = []
    for each in told.split(","):
        count, _, times = each.partition("(x")
        if count.isdecimal():
            counts += [int(count)] * int(times.rstrip(")") or 1)
    node = _number(environ, "SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else 1


def _port(environ: Mapping[str, str]) -> int:
    """The same for all tasks of a step, and most likely another one for another job or step."""
    return _FIRST_PORT + int(_digest(_step(environ)), 16) % _PORTS


def _step(environ: Mapping[str, str]) -> str:
    """The Slurm step; "" where Slurm does not say."""
    job = environ.get("SLURM_JOB_ID", "")
    return f"{job}.{environ.get('SLURM_STEP_ID', '0')}" if job else ""


def _torchrun_id(environ: Mapping[str, str]) -> str:
    """What --rdzv-id names; "" without: torchrun then calls every run "none"."""
    name = environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def _folder(command: Sequence[str]) -> str:
    """A number made from the run folder that a command line names, which no two runs share; ranks may differ in other
    flags."""
    named = [after for flag, after in pairwise(command) if flag == "--out"]
    named += [each for each in command if each.startswith("--out=")]
    return _digest(named[-1].removeprefix("--out=") if named else " ".join(command[1:]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _needed(environ: Mapping[str, str], name: str, least: int = 0, most: int | None = None) -> int:
    found = _number(environ, name)
    if found is None or found < least or (most is not None and found > most):
        told = f"is '{environ[name]}'" if name in environ else "is missing"
        range_ = f"from {least} to {most}" if most is not None else f"from {least}"
        what = f"{name} {told} and should be a number {range_}, so this process cannot join the others"
        raise BertsmithError(what, "environment", _START)
    return found
