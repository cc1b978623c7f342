"""Two sides of a step bench against each other: each in its own process, in turns, so that noise hits both alike."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.step.side import OURS, StepSide

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
# `bertsmith.model`, which a peer's process imports too, would set what costs it 2%; empty is as good as unset.
_AS_SHIPPED = {"MKL_CBWR": ""}

FEWEST_ROUNDS, MOST_ROUNDS = 3, 9


class OutOfTime(Exception):
    """The bench's time is over before a side was done."""


class SideFailed(Exception):
    """A side cannot do this here; the message says why, as a table shows it: "out of memory"."""


def environment(side: StepSide) -> dict[str, str]:
    """What a side's process finds in its environment: a peer must not feel what `bertsmith` asks libraries for."""
    return {**os.environ, **_OFFLINE, **({} if side.side == OURS else _AS_SHIPPED)}


class SideProcess:
    """A side in a process of its own; `ask` it, and `close` it. It ends with this process, too."""

    def __init__(self, side: StepSide, sets: Mapping[str, Path], folder: Path, deadline: float) -> None:
        """sets: files of batches by name. folder: an empty one. deadline: of time.monotonic()."""
        self.side, self._deadline = side, deadline
        folder.mkdir(parents=True)
        spec, self._said = folder / "spec.json", folder / "said.log"
        told = {"side": side.as_json(), "sets": {name: str(path) for name, path in sets.items()}}
        spec.write_text(json.dumps(told), encoding="utf-8")
        with open(self._said, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bertsmith.bench.step.worker", str(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=environment(side),
                start_new_session=True,
            )
        self._rest = b""
        self._ready: dict[str, Any] = {}

    def ready(self) -> dict[str, Any]:
        """Waits until it is, and returns what it runs on. SideFailed where it cannot run here."""
        self._ready = self._ready or self._answer()
        return _done(self._ready)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Waits until it is ready, asks, and waits for the answer.

        SideFailed where it cannot be done, OutOfTime past the deadline, BertsmithError where the process ends.
        """
        self.ready()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then the answer says why
            self._process.stdin.write((json.dumps({"do": do, **more}) + "\n").encode())
        return _done(self._answer())

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left = max(0.0, self._deadline - time.monotonic())
            timeout = None if left == float("inf") else left
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                raise OutOfTime
            more = self._process.stdout.read(1 << 16)
            if not more:
                raise self._ended()
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> Exception:
        status = self._process.wait()
        if status == -signal.SIGKILL:  # nobody else kills it
            return SideFailed("killed by the system, as it does when memory runs out")
        last = self._said.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        return BertsmithError(f"the side '{self.side.side}: {self.side.said}' ended with status {status}:\n{last}")

    def close(self) -> None:
        """Ends the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _done(answer: dict[str, Any]) -> dict[str, Any]:
    if "failed" in answer:
        raise SideFailed(answer["failed"])
    return answer


@dataclass(frozen=True)
class Race:
    """Seconds of each turn, ours and the peer's in pairs; a peer that was not asked or failed has none, and `failed`
    says why it did."""

    ours: tuple[float, ...]
    peer: tuple[float, ...] = ()
    failed: str = ""

    @property
    def median_round(self) -> int:
        """The round whose ratio (without a peer: whose time) is the median of all; their number is odd."""
        keys = [p / o for o, p in zip(self.ours, self.peer, strict=True)] if self.peer else list(self.ours)
        return sorted(range(len(keys)), key=keys.__getitem__)[len(keys) // 2]


def race(ours: SideProcess, peer: SideProcess | None, name: str, passes: int, seconds: float) -> Race:
    """A turn of each side to warm up, and then 3 to 9 rounds, as many as `seconds` allow, in which both sides step over
    the batches of set `name` `passes` times; who begins changes from round to round. A peer that fails in any of them
    leaves ours to be raced alone; SideFailed where ours does."""
    sides = [ours, *([peer] if peer else [])]
    found: dict[SideProcess, list[float]] = {side: [] for side in sides}

    def turn(side: SideProcess) -> float:
        return float(side.ask("turn", name=name, passes=passes)["seconds"])

    try:
        for side in sides:
            turn(side)
        began = time.monotonic()
        while goes_on(len(found[ours]), time.monotonic() - began, seconds):
            for side in sides[:: -1 if len(found[ours]) % 2 else 1]:
                found[side].append(turn(side))
    except SideFailed as why:
        if side is ours:
            raise
        return Race(race(ours, None, name, passes, seconds).ours, failed=str(why))
    return Race(tuple(found[ours]), tuple(found[peer]) if peer else ())


def goes_on(rounds: int, spent: float, seconds: float) -> bool:
    """Whether another round is due: their number is odd in the end, so that there is a median one."""
    return rounds < FEWEST_ROUNDS or rounds % 2 == 0 or (rounds < MOST_ROUNDS and spent < seconds)
