"""Whether the other ranks of a run still live, by heartbeats through the store at which they met.

beat/R      a number that rank R's thread raises; "done" once the rank has finished
verdict     why all leave (`Verdict`); the first one that is written stands

The first rank looks at all beats and writes the verdict; the others look at the verdict and at the first rank's beat.
No two clocks are compared: a beat is judged by how long it has stood still for the one that looks, counted only while
that one ran itself, so a machine that slept, or a job that was suspended as a whole, accuses nobody when it wakes. A
thread that talks to the store may itself be stuck there, so a second one judges by when the first was last answered:
if the store's host cannot be reached, that is the verdict. A rank leaves by `os._exit`, because its main thread may be
in a collective that never ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bertsmith.base.errors import EXIT_RANK_LOST
from bertsmith.base.ranks.places import Place
from bertsmith.base.ranks.store import VERDICT, settled
from bertsmith.base.ranks.verdict import Verdict, silent, speaks

DONE = "done"
# Of the timeout: how long a beat may stand still, and how often it is sent. What is left is for the news to spread.
_STILL_SHARE, _BEATS = 0.7, 20
_LONGEST_BEAT = 5.0
_HURRY_SECONDS, _ORPHAN_LOOKS = 0.2, 5


class Stillness:
    """For how long values have stood still, in seconds in which the caller itself ran.

    most: the longest time between two looks that counts; a longer one means that this process was not running.
    """

    def __init__(self, most: float, now: float) -> None:
        self._most, self._last = most, now
        self._values: dict[int, str] = {}
        self._still: dict[int, float] = {}

    def look(self, now: float, values: Mapping[int, str]) -> dict[int, float]:
        """Seconds since each value changed; 0 for one that was not seen before."""
        passed, self._last = min(now - self._last, self._most), now
        for key, value in values.items():
            changed = self._values.get(key) != value
            self._still[key] = 0.0 if changed else self._still[key] + passed
            self._values[key] = value
        return {key: self._still[key] for key in values}


class Watch:
    """The watch of one rank.

    store: where the ranks met; the watch takes connections of its own. hosts: by rank. leave: ends the process; takes
    the status, the last words, and for how long to stay after them. orphaned: whether what started it is gone.
    """

    def __init__(
        self,
        store: Any,
        place: Place,
        hosts: Sequence[str],
        timeout_seconds: float,
        leave: Callable[[int, str, float], object],
        orphaned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._place, self._hosts, self._leave, self._orphaned = place, hosts, leave, orphaned
        self._limit = _STILL_SHARE * timeout_seconds
        self._interval = min(timeout_seconds / _BEATS, _LONGEST_BEAT)
        # One for the thread, which may be stuck in it, and one for who reports an error.
        self._store, self._reports = store.clone(), store.clone()
        for each in (self._store, self._reports):
            each.set_timeout(timedelta(seconds=timeout_seconds))
        watched = range(1, place.world_size) if place.rank == 0 else [0]
        self._watched = [rank for rank in watched if rank != place.rank]
        self._answers = 0
        self._finished, self._closed = threading.Event(), threading.Event()
        self._own_words: str | None = None
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._talk, self._judge)]

    def start(self) -> None:
        """Sends beats and watches, until `finish`."""
        for thread in self._threads:
            thread.start()

    def report(self, verdict: Verdict, words: str, after_seconds: float = 0.0) -> Verdict | None:
        """Writes a verdict, unless there is one within so many seconds: gives the one that stands, None where the store
        cannot be reached. From now on this rank leaves by itself, and not for the verdict of another.

        words: what it has to say, in case the store does not answer at all.
        """
        self._own_words = words
        return settled(self._reports, verdict, after_seconds)

    def wait_for_verdict(self) -> None:
        """Waits for as long as the watch takes to find which rank is lost; the watch then leaves."""
        time.sleep(self._limit + 4 * self._interval)

    def finish(self) -> None:
        """Says that this rank is done, and ends the watch; the first rank, which may hold the store, waits for all."""
        self._finished.set()
        self._threads[0].join()
        self._closed.set()

    @property
    def outlive_seconds(self) -> float:
        """For how long a rank that holds the store keeps it once it has written a verdict, for the others to read."""
        return 3 * self._interval + 1 if self._place.hosts_store else 0.0

    def _talk(self) -> None:
        still = Stillness(2 * self._interval, time.monotonic())
        number, rank, said_done = 0, self._place.rank, False
        try:
            while True:
                number += 1
                over = self._finished.is_set()
                self._store.set(f"beat/{rank}", DONE if over and rank else str(number))
                said_done = over and rank > 0
                verdict, *beats = self._store.multi_get([VERDICT, *(f"beat/{each}" for each in self._watched)])
                self._answers += 1
                seen = {each: beat.decode() for each, beat in zip(self._watched, beats, strict=True)}
                self._look(Verdict.read(verdict), still.look(time.monotonic(), seen), seen)
                if over and (rank or all(beat == DONE for beat in seen.values())):
                    return
                self._finished.wait(self._interval) if not over else time.sleep(min(_HURRY_SECONDS, self._interval))
        except RuntimeError as error:  # the connection to the store is gone
            if not said_done:  # once all are, the first rank may leave, with the store, before it has answered
                self._lost(f"cannot be reached ({str(error).splitlines()[0]})")

    def _look(self, verdict: Verdict | None, still: Mapping[int, float], seen: Mapping[int, str]) -> None:
        if verdict is not None:
            self._go(verdict)
        for rank, seconds in still.items():
            if seconds > self._limit and seen[rank] != DONE:
                found = silent(rank, self._hosts[rank], seconds)
                self._go(Verdict.read(self._store.compare_set(VERDICT, "", found.text())) or found)

    def _judge(self) -> None:
        still = Stillness(2 * self._interval, time.monotonic())
        while not self._closed.wait(self._interval):
            self._leave_if_orphaned()
            seconds = still.look(time.monotonic(), {0: str(self._answers)})[0]
            if seconds > self._limit:
                self._lost(f"has not answered for {seconds:.0f} s: it is dead, stopped or cut off")

    def _lost(self, what: str) -> None:
        """Leaves because the store does not answer, naming its host."""
        if self._closed.is_set():
            return
        for _ in range(_ORPHAN_LOOKS):  # a launcher that is killed closes its store a moment before it is gone
            self._leave_if_orphaned()
            time.sleep(_HURRY_SECONDS)
        place = self._place
        found = Verdict(0, self._hosts[0], f"with the store of the ranks, {place.address}:{place.port}, {what}")
        if self._own_words is not None:
            self._leave(found.status, f"{self._own_words}\n{found.line()}", 0.0)
        self._go(found)

    def _leave_if_orphaned(self) -> None:
        if self._orphaned():
            gone = "the process that started the ranks is gone; all ranks leave"
            self._leave(EXIT_RANK_LOST, "" if self._place.rank else gone, 0.0)

    def _go(self, verdict: Verdict) -> None:
        if self._own_words is not None:
            return
        place = self._place
        told = verdict.rank == place.rank or speaks(place.rank, self._hosts, verdict)
        self._leave(verdict.status, f"{opening(place.rank)}{verdict.line()}" if told else "", self.outlive_seconds)


def opening(rank: int) -> str:
    """How a message of a rank begins; the first one's has no name."""
    return f"rank {rank}: " if rank else ""
