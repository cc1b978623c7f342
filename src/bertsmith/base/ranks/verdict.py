"""Why all ranks of a run leave: which rank is at fault, on which host, and its error where it is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bertsmith.base.errors import EXIT_RANK_LOST

_LONGEST = 500


@dataclass(frozen=True)
class Verdict:
    """rank, host: at fault. what: as it continues a sentence about the rank, such as "failed: ...". status: with which
    all leave. told: whether the rank's own process, or what started it, has printed the error on that host."""

    rank: int
    host: str
    what: str
    status: int = EXIT_RANK_LOST
    told: bool = False

    def text(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes | str) -> Verdict | None:
        """From the store; None for none."""
        return cls(**json.loads(text)) if text else None

    def line(self) -> str:
        """The message of a rank that leaves for it."""
        return f"rank {self.rank} on {self.host} {self.what}; all ranks leave"


def failed(rank: int, host: str, error: BaseException, status: int) -> Verdict:
    """The verdict on a rank that raised an error, which it prints itself."""
    words = " ".join(str(error).split())[:_LONGEST]
    return Verdict(rank, host, f"failed: {type(error).__name__}: {words}", status, told=True)


def silent(rank: int, host: str, seconds: float) -> Verdict:
    """The verdict on a rank whose heartbeat stands still."""
    return Verdict(rank, host, f"was not heard from for {seconds:.0f} s: it is dead, stopped or cut off")


def speaks(rank: int, hosts: Sequence[str], verdict: Verdict) -> bool:
    """Whether a rank prints the verdict as it leaves: one of each host does, unless it was printed there already.

    hosts: by rank."""
    here = [each for each, host in enumerate(hosts) if host == hosts[rank]]
    if verdict.rank in here and verdict.told:
        return False
    return rank == next((each for each in here if each != verdict.rank), rank)
