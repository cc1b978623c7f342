"""A preparation by the tasks of an array job: equal processes that share a folder and take parts by claims.

Every process runs the same stages. In each it makes the parts it can claim, and waits for those that others make; so
there is no coordinator to lose, and a task that died may be started again, or not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import alone_in, locked
from bertsmith.base.log import counted, log_choice
from bertsmith.corpus.engines.claims import Claims, all_inactive
from bertsmith.corpus.engines.local import Finished, LocalEngine
from bertsmith.corpus.engines.parts import WORK

Task = TypeVar("Task")
Result = TypeVar("Result")

# A process without a heartbeat for so long is taken for dead. File servers show changes within seconds.
LEASE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_HOLD_SECONDS = 20.0
_CLAIMED_A_WORKER = 2
_CLAIMS = "claims"


@dataclass(frozen=True)
class Seat:
    """Task `number` (from 1) of `count` of an array job."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "K/N". Raises BertsmithError."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            fix = "write K/N, the task and how many there are, with K from 1 to N, such as 3/8"
            raise BertsmithError(f"array-task is '{text}'", "options of prepare", fix)
        return cls(int(number), int(count))


class ArrayEngine:
    """Runs this process's share of the parts, and waits for those of the others.

    work: the folder that all share. plan: a hash of what is made, which all must agree on.
    """

    def __init__(self, work: Path, seat: Seat, plan: str, workers: int | None = None) -> None:
        self._folder, self._seat, self._plan = work / _CLAIMS, seat, plan
        self._claims = Claims(self._folder, seat.number, LEASE_SECONDS)
        self._local = LocalEngine(workers)
        self._stages = 0

    def __enter__(self) -> Self:
        workers = counted(self._local.workers, "worker")
        log_choice("array", f"task {self._seat.number} of {self._seat.count}", f"{workers} each")
        with ExitStack() as opened:
            opened.enter_context(self._local)
            opened.enter_context(self._claims.seated())
            self._agree()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _agree(self) -> None:
        plan = self._folder / f"plan-{self._plan}"
        plan.touch()
        if any(other != plan for other in self._folder.glob("plan-*")):
            plan.unlink()
            raise BertsmithError(
                "the other tasks of this array prepare something else: other sources, options, files or versions",
                self._folder.parent.parent,
                "give every task the same command or another --out; after an array was stopped, wait a minute",
            )

    def once(self, name: str, make: Callable[[], object]) -> None:
        """See Engine: by the first to claim it."""
        stage = f"once-{name}"
        while not self._claims.finished(stage):
            if self._claims.take(stage, 0):
                make()
                self._claims.finish(stage, 0, None)
            else:
                time.sleep(_LOOK_SECONDS)

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], finished: Finished = lambda number, _: None
    ) -> list[Result]:
        """See Engine. Raises claims.SessionOver where another task published the corpus meanwhile."""
        self._stages += 1
        stage = f"{self._stages:02d}-{function.__name__}"
        results: dict[int, Result] = {}
        # Each begins elsewhere, so that few try to claim the same part.
        first = (self._seat.number - 1) * len(tasks) // self._seat.count
        waiting = [*range(first, len(tasks)), *range(first)]
        while waiting:
            for number in self._claims.finished(stage) - results.keys():
                results[number] = self._claims.result(stage, number)
                finished(number, results[number])
            waiting = [number for number in waiting if number not in results]
            mine = self._claimed(stage, waiting)
            if mine:
                self._local.run(function, [tasks[number] for number in mine], partial(self._finish, stage, mine))
            elif waiting:
                time.sleep(_LOOK_SECONDS)
        return [results[number] for number in range(len(tasks))]

    def _claimed(self, stage: str, waiting: Sequence[int]) -> list[int]:
        """Some parts that this process is to make now."""
        most = 1 if self._local.workers == 1 else _CLAIMED_A_WORKER * self._local.workers
        return list(islice((number for number in waiting if self._claims.take(stage, number)), most))

    def _finish(self, stage: str, claimed: Sequence[int], place: int, result: Any) -> None:
        self._claims.finish(stage, claimed[place], result)


@contextmanager
def held_together(out: Path) -> Iterator[None]:
    """Holds the corpus folder with the other tasks of the array, against any other run.

    The first to start removes the claims of an array that ended long ago: whole parts are found by their marks, and
    their checksums compared.
    """
    claims = out / WORK / _CLAIMS
    with alone_in(out) as alone:
        if alone and all_inactive(claims, LEASE_SECONDS):
            shutil.rmtree(claims, ignore_errors=True)
    end = time.monotonic() + _HOLD_SECONDS
    with ExitStack() as holding:
        while True:  # another task that looks whether it is alone holds the folder for a moment
            try:
                holding.enter_context(locked(out, shared=True))
                break
            except BertsmithError:
                if time.monotonic() > end:
                    raise
                time.sleep(_LOOK_SECONDS)
        yield
