"""The results of a fine-tuning bench as rows for programs and a table for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.base.log import size
from bertsmith.bench.finetune.rows import Prepared
from bertsmith.bench.finetune.side import Case, Side
from bertsmith.bench.step.race import Race
from bertsmith.bench.table import Table
from bertsmith.bench.turns import Turns


def row_of(
    case: Case, prepared: Prepared, turns: Turns[Side], memory: Mapping[Side, int], padding: Mapping[Side, float]
) -> dict[str, Any]:
    """A case as JSON can hold it. memory: the most bytes that a side held. padding: of a peer's batches, the share of
    their slots.

    ours, peer: examples a second, of the round whose ratio is the median of all, so that ratio = ours / peer.
    """
    task, seconds, failed = prepared.task, turns.seconds, turns.failed
    race = Race(tuple(seconds.get(case.ours, ())), tuple(seconds.get(case.peer, ())) if case.peer else ())
    examples = task.steps * task.settings.batch
    at = race.median_round if race.ours else 0
    ours, peer = (examples / each[at] if each else None for each in (race.ours, race.peer))
    return {
        "case": case.name,
        "ours": ours,
        "peer": peer,
        "ratio": ours / peer if ours and peer else None,
        "ours_tokens_per_second": ours * prepared.tokens / prepared.examples if ours else None,
        **_of_questions(prepared, ours, peer),
        "peer_padding_share": padding.get(case.peer) if case.peer else None,
        "ours_memory_bytes": memory.get(case.ours),
        "peer_memory_bytes": memory.get(case.peer) if case.peer else None,
        "examples_of_a_turn": examples,
        "ours_seconds": race.ours,
        "peer_seconds": race.peer,
        "note": "; ".join(f"{side.label}: {failed[side]}" for side in (case.ours, case.peer) if side in failed),
    }


def _of_questions(prepared: Prepared, ours: float | None, peer: float | None) -> dict[str, float | None]:
    """Questions a second, where examples are windows on their contexts."""
    if prepared.task.kind != "qa":
        return {}
    share = prepared.records / prepared.examples
    rates = {"ours_questions_per_second": ours, "peer_questions_per_second": peer}
    return {name: rate * share if rate else None for name, rate in rates.items()}


def speed_table(rows: Sequence[dict[str, Any]]) -> Table:
    """All cases."""
    head = ["", "ours: examples/s", "tokens/s", "memory", "peer: examples/s", "padding", "memory", "ours is", "rounds"]
    shown = []
    for row in rows:
        ours = ["-", "-", "-"]
        if row["ours"]:
            ours = [_both(row, "ours"), f"{row['ours_tokens_per_second']:,.0f}", size(row["ours_memory_bytes"])]
        peer = [row["note"] or "-", "-", "-"]
        if row["peer"]:
            peer = [_both(row, "peer"), f"{row['peer_padding_share']:.0%}", size(row["peer_memory_bytes"])]
        ratio = f"{row['ratio']:.2f}x as fast{_range(row)}" if row["ratio"] else "-"
        shown.append([row["case"], *ours, *peer, ratio, str(len(row["ours_seconds"]))])
    return Table("Fine-tuning steps", head, shown)


def _range(row: dict[str, Any]) -> str:
    """The lowest and the highest ratio of a round."""
    ratios = [peer / ours for ours, peer in zip(row["ours_seconds"], row["peer_seconds"], strict=True)]
    return f" ({min(ratios):.2f} to {max(ratios):.2f})"


def _both(row: dict[str, Any], side: str) -> str:
    questions = row.get(f"{side}_questions_per_second")
    return f"{row[side]:,.1f}" + (f" ({questions:,.1f} questions)" if questions else "")
