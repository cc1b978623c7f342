"""The results of a step bench as rows for programs and tables for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.base.log import size
from bertsmith.bench.step.profile import GROUPS, IDLE, KERNELS, PYTHON, REST
from bertsmith.bench.step.race import Race
from bertsmith.bench.table import Table


@dataclass(frozen=True)
class Work:
    """What a turn goes through: real tokens, sequences, and operations by `step_flop`."""

    tokens: int
    sequences: int
    flop: float


@dataclass(frozen=True)
class Result:
    """A race over a set. precision: ours. memory_bytes, peer_memory_bytes: the most that each side held, of the GPU or,
    on a CPU, of the process; None without a peer. loaded: of `Worker.loaded`, where that was asked for. kernels: of
    `Worker.kernels`, likewise."""

    case: str
    precision: str
    work: Work
    race: Race
    memory_bytes: int
    peer_memory_bytes: int | None = None
    loaded: Mapping[str, float | None] = field(default_factory=dict)
    kernels: Mapping[str, Any] | None = None

    def row(self, peaks: Mapping[str, float]) -> dict[str, Any]:
        """As JSON can hold it; the figures are those of the median round, so that ratio = ours / peer.

        ours, peer: real tokens a second. peaks: the best matrix product of the run in FLOP/s, by precision.
        """
        at = self.race.median_round
        ours = self.work.tokens / self.race.ours[at]
        peer = self.work.tokens / self.race.peer[at] if self.race.peer else None
        peak = peaks[self.precision]
        return {
            "case": self.case,
            "ours": ours,
            "peer": peer,
            "ratio": ours / peer if peer else None,
            "peak_share": self.work.flop / self.race.ours[at] / peak,
            "sequences_per_second": self.work.sequences / self.race.ours[at],
            "flop_per_second": self.work.flop / self.race.ours[at],
            "matrix_flop_per_second": peak,
            "ours_memory_bytes": self.memory_bytes,
            "peer_memory_bytes": self.peer_memory_bytes,
            "ours_seconds": self.race.ours,
            "peer_seconds": self.race.peer,
            **self.loaded,
            **({"kernels": self.kernels} if self.kernels else {}),
            "note": self.race.failed,
        }


def steps_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The matches."""
    head = ["", "ours: real tokens/s", "sequences/s", "of the matrix rate", "memory"]
    loaded = ["data wait", "recompiled"] if any("data_wait_share" in row for row in rows) else []
    head += [*loaded, "peer: real tokens/s", "memory", "ours is", "rounds"]
    shown = []
    for row in rows:
        peer = [f"{row['peer']:,.0f}", size(row["peer_memory_bytes"])] if row["peer"] else [row["note"] or "-", "-"]
        ratio = f"{row['ratio']:.2f}x as fast" if row["ratio"] else "-"
        ours = [f"{row['ours']:,.0f}", f"{row['sequences_per_second']:,.1f}", f"{row['peak_share']:.1%}"]
        ours += [size(row["ours_memory_bytes"]), *(_loaded(row) if loaded else [])]
        shown.append([row["case"], *ours, *peer, ratio, str(len(row["ours_seconds"]))])
    return Table("A pre-training step", head, shown)


def _loaded(row: Mapping[str, Any]) -> list[str]:
    share, again = row.get("data_wait_share"), row.get("recompilations")
    return ["-" if share is None else f"{share:.1%}", "-" if again is None else str(again)]


def with_gains(rungs: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a ladder from the bottom, with the gain of each: `gain` over the one below, `gain_in_all` over the
    lowest; None over one that is not there. names: of all rungs, in order."""
    by_name = {row["case"]: row for row in rungs}

    def over(row: dict[str, Any], other: str) -> float | None:
        return row["ours"] / by_name[other]["ours"] if other in by_name else None

    return [
        row | {"gain": over(row, names[max(place - 1, 0)]), "gain_in_all": over(row, names[0])}
        for place, name in enumerate(names)
        if (row := by_name.get(name))
    ]


def ladder_table(rows: Sequence[dict[str, Any]], model: str) -> Table:
    """The ladder, from the bottom."""
    head = ["", "real tokens/s", "gain", "in all", "of the matrix rate", "memory"]
    shown = [
        [
            row["case"].partition(": ")[2],
            f"{row['ours']:,.0f}",
            f"{row['gain']:.2f}x" if row["gain"] else "-",
            f"{row['gain_in_all']:.2f}x" if row["gain_in_all"] else "-",
            f"{row['peak_share']:.1%}",
            size(row["ours_memory_bytes"]),
        ]
        for row in rows
    ]
    return Table(f"What each thing gives: {model}, ours, AdamW", head, shown)


def time_groups() -> list[str]:
    """All groups of profiles, in the order in which tables have them."""
    return [*dict.fromkeys(group for group, _ in (*GROUPS, *KERNELS)), REST, PYTHON, IDLE]


def time_table(profiles: Mapping[str, dict[str, Any]], what: str) -> Table:
    """Where the time goes: a column for each set of batches, its shares of the step."""
    there = [group for group in time_groups() if any(group in found["groups"] for found in profiles.values())]
    rows = []
    for group in there:
        cells = [found["groups"].get(group, 0.0) / sum(found["groups"].values()) for found in profiles.values()]
        rows.append([group, *(f"{share:.1%}" for share in cells)])
    seconds = [f"{found['seconds']:.3f} s" for found in profiles.values()]
    return Table(
        f"Where the time goes: {what}", ["", *profiles], [*rows, ["the clock, with the profiler on", *seconds]]
    )
