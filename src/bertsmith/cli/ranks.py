"""The flags of every run: over how many devices it trains, and whether it is resumed; and how its ranks come about."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, size, warn
from bertsmith.base.processes import default_workers, usable_memory
from bertsmith.cli.ending import tell
from bertsmith.cli.verb import Call, import_torch

if TYPE_CHECKING:
    from bertsmith.base.ranks.places import Place

_ALL = "all"
# A year: clocks of the system and of PyTorch hold no more than some centuries.
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 5.0, 31_536_000.0
# Bytes of a process that has loaded PyTorch and no model yet.
_LEAST_MEMORY = 150_000_000


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Flags of every verb that trains."""

    gpus: str | None = None
    """Train on so many GPUs of this machine, or on all: a process for each, which share the work."""
    ranks: int | None = None
    """Train in so many processes on this machine's CPU, which share the work and its cores."""
    rank_timeout: float = 300.0
    """Seconds after which a process of several that is not heard from is taken for lost, and the others leave."""
    resume: bool = False
    """Continue from the newest checkpoint in the run folder."""


@contextmanager
def said_once_a_host() -> Iterator[None]:
    """Around reading what all ranks of a host have alike, as flags and files: of what is wrong there, one rank of each
    host gives the message, and the others end with the same status."""
    try:
        yield
    except BertsmithError as error:
        if (os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0") != "0":
            raise SystemExit(error.status) from None
        raise


def over_ranks(call: Call, flags: RunFlags, device: str, work: Callable[[str], Path]) -> int:
    """Does the work in the processes that the flags ask for, or that torchrun or srun has started, and prints the
    folder that it gives, once; gives the exit status.

    device: as the user has set it; `work` takes that of a rank. Raises BertsmithError for flags that do not fit the
    machine or each other.
    """
    import_torch()
    from bertsmith.base.ranks.places import place

    with said_once_a_host():
        _check(flags)
        device = _device(flags, device)
    here = place()
    if here is not None:
        _take_part(call, flags, here, device, work)
    count = _wanted(flags)
    if count > 1:
        from bertsmith.base.device import rank_threads
        from bertsmith.base.ranks.launcher import launch

        verb = call.prog.split()[-1]
        command = [sys.executable, "-m", "bertsmith", verb, *call.args, *call.everywhere]
        return launch(command, count, rank_threads(count), flags.rank_timeout)
    print(work(device))
    return 0


def _take_part(call: Call, flags: RunFlags, here: Place, device: str, work: Callable[[str], Path]) -> None:
    from bertsmith.base.ranks.join import Joining, take_part

    if here.started_by != "bertsmith" and (flags.gpus is not None or flags.ranks is not None):
        name = "--gpus" if flags.gpus is not None else "--ranks"
        what = f"{here.started_by} has started {here.world_size} processes already, and {name} would start more in each"
        raise BertsmithError(what, name, f"leave out {name}, or {here.started_by}")

    def once() -> None:
        made = work(device)
        with suppress(BrokenPipeError):  # the reader has gone; the work is done
            if not here.rank:
                print(made, flush=True)

    telling = partial(tell, debug="--debug" in call.everywhere)
    take_part(Joining(here, device, flags.rank_timeout, telling), once)


def _check(flags: RunFlags) -> None:
    if flags.gpus is not None and flags.ranks is not None:
        fix = "use --gpus for GPUs, or --ranks for processes on the CPU"
        raise BertsmithError("--gpus and --ranks are given together", "--ranks", fix)
    if flags.gpus not in (None, _ALL) and not re.fullmatch(r"0*[1-9]\d{0,8}", str(flags.gpus)):
        raise BertsmithError(f"--gpus is '{flags.gpus}'", "--gpus", f"give a number from 1, or {_ALL}")
    if flags.ranks is not None and flags.ranks < 1:
        raise BertsmithError(f"--ranks is {flags.ranks}", "--ranks", "give a number from 1")
    if not _SHORTEST_TIMEOUT <= flags.rank_timeout <= _LONGEST_TIMEOUT:
        range_ = f"{_SHORTEST_TIMEOUT:g} to {_LONGEST_TIMEOUT:,.0f} seconds"
        fix = f"give {range_}: a busy machine may not run a process for a second or two"
        raise BertsmithError(f"--rank-timeout is {flags.rank_timeout:g}", "--rank-timeout", fix)


def _device(flags: RunFlags, device: str) -> str:
    """The device that the flags mean, where the user has set none. Raises BertsmithError where they contradict it."""
    name, meant = ("--gpus", "cuda") if flags.gpus is not None else ("--ranks", "cpu")
    if flags.gpus is None and flags.ranks is None:
        return device
    if device not in ("auto", meant):
        fix = "leave out one of them"
        raise BertsmithError(f"{name} trains on {meant}, and the device is set to {device}", "--device", fix)
    return meant


def _wanted(flags: RunFlags) -> int:
    """How many processes to train in."""
    if flags.gpus is None:
        return _fitting(flags.ranks or 1)
    import torch

    found = torch.cuda.device_count()
    if not found:
        fix = "use --ranks for several processes on the CPU, or no flag for one"
        raise BertsmithError("no GPU was found that PyTorch can use", "--gpus", fix)
    wanted = found if flags.gpus == _ALL else int(flags.gpus)
    if wanted > found:
        what = f"{wanted} GPUs are asked for, and this machine has {found}"
        raise BertsmithError(what, "--gpus", f"use --gpus {found}, or --gpus {_ALL}")
    return wanted


def _fitting(ranks: int) -> int:
    """The number of processes on the CPU. Warns of more than there are cores, and raises BertsmithError for more than
    memory could hold, which would take the machine down with them."""
    cores = default_workers()
    needed, there = ranks * _LEAST_MEMORY, usable_memory() if hasattr(os, "sysconf") else math.inf
    if ranks > 1 and needed > there:
        taken = f"{ranks:,} processes take {size(needed)} of memory before they have a model"
        most = max(1, min(cores, int(there // _LEAST_MEMORY)))
        fix = f"use at most --ranks {most}: the memory of the model comes on top"
        raise BertsmithError(f"{taken}, and {size(there)} are there", "--ranks", fix)
    if ranks > cores:
        warn(f"--ranks {ranks} are more processes than the {counted(cores, 'core')} here, so they wait for each other")
    return ranks
