"""Claims on parts by processes that share nothing but a folder, on one machine or on many.

seats/K         "process beat": which process has seat K, and a heartbeat, a number that rises every few seconds
NAME/N.claim    "K process": which process makes part N of the stage NAME; created with O_EXCL, so one of several wins
NAME/N.json     the result of part N

A claim is void when its seat is taken by a later process, which is the same array task run again, or when the beat of
its seat has stood still for `lease_seconds` by the clock of the process that waits: clocks of different machines
are never compared. To take a live process for dead does no harm, for two that make one part leave one whole part.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError

_BEATS_A_LEASE = 10


class SessionOver(Exception):
    """The folder of the claims is gone: another process has published the corpus."""


class Claims:
    """This process's claims in `folder`, as the holder of `seat`."""

    def __init__(self, folder: Path, seat: int, lease_seconds: float) -> None:
        self._folder, self._lease_seconds = folder, lease_seconds
        self._seat = folder / "seats" / str(seat)
        self._process = secrets.token_hex(8)
        self._beat = 0
        self._mine: set[Path] = set()
        # holder of a claim -> (what its seat's file held, when we first saw it hold that)
        self._seen: dict[str, tuple[str, float]] = {}

    @contextmanager
    def seated(self) -> Iterator[None]:
        """Takes the seat, beats while the block runs, and gives up what is still claimed at its end."""
        self._seat.parent.mkdir(parents=True, exist_ok=True)
        _put(self._seat, f"{self._process} 0")
        stop = threading.Event()
        beating = threading.Thread(target=self._keep_beating, args=(stop,), daemon=True)
        beating.start()
        try:
            yield
        finally:
            stop.set()
            beating.join()
            for claim in self._mine:
                claim.unlink(missing_ok=True)

    def _keep_beating(self, stop: threading.Event) -> None:
        while not stop.wait(self._lease_seconds / _BEATS_A_LEASE):
            with suppress(OSError, BertsmithError, SessionOver):  # the next beat, or `check`, will say
                self.check()
                self._beat += 1
                _put(self._seat, f"{self._process} {self._beat}")

    def check(self) -> None:
        """Raises SessionOver when the work is done, BertsmithError when another process took this seat."""
        held = _text(self._seat)
        if held is None:
            raise SessionOver
        if held.split()[0] != self._process:
            what = f"another process runs as array task {self._seat.name}, so this one leaves the work to it"
            raise BertsmithError(what, self._folder, "start each task of the array once")

    def finished(self, stage: str) -> set[int]:
        """The parts of a stage whose results are there."""
        self.check()
        with suppress(FileNotFoundError):
            return {int(name[:-5]) for name in os.listdir(self._folder / stage) if name.endswith(".json")}
        return set()

    def result(self, stage: str, part: int) -> Any:
        """What `finish` was given."""
        text = _text(self._folder / stage / f"{part}.json")
        if text is None:
            raise SessionOver
        return json.loads(text)

    def finish(self, stage: str, part: int, result: Any) -> None:
        """Says that a part is made, and gives up the claim on it."""
        self.check()
        _put(self._folder / stage / f"{part}.json", json.dumps(result))
        claim = self._folder / stage / f"{part}.claim"
        claim.unlink(missing_ok=True)
        self._mine.discard(claim)

    def take(self, stage: str, part: int) -> bool:
        """Whether the part is this process's to make now: it was free, or its maker is dead."""
        self.check()
        claim = self._folder / stage / f"{part}.claim"
        claim.parent.mkdir(exist_ok=True)
        holder = _text(claim)
        if holder is not None:
            if not self._is_void(holder):
                return False
            claim.unlink(missing_ok=True)
        try:
            with open(claim, "x", encoding="utf-8") as file:
                file.write(f"{self._seat.name} {self._process}")
        except FileExistsError:
            return False
        self._mine.add(claim)
        return True

    def _is_void(self, holder: str) -> bool:
        seat, _, process = holder.partition(" ")
        # A claim without a process is being written, or was cut short: it is judged like a beat that stands still.
        held = (_text(self._seat.parent / seat) or "") if process else ""
        if process and held.partition(" ")[0] != process:
            return True
        now = time.monotonic()
        seen, since = self._seen.get(holder, (None, now))
        if seen != held:
            since = now
        self._seen[holder] = (held, since)
        return now - since > self._lease_seconds


def all_inactive(folder: Path, lease_seconds: float) -> bool:
    """Whether no process sent a heartbeat within a lease: by the folder's own clock, which may be a file server's."""
    if not (folder / "seats").is_dir():
        return True
    _put(folder / "now", "")
    now = (folder / "now").stat().st_mtime
    return all(now - seat.stat().st_mtime > lease_seconds for seat in (folder / "seats").iterdir())


def _put(path: Path, text: str) -> None:
    """Writes whole or not at all, by a name that no other machine uses."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _text(path: Path) -> str | None:
    """What a file holds, None where there is none. Opening asks a file server anew; looking at its time may not."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
