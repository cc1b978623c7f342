"""Rows of transformers' steps, each beside the row of ours over the same batches.

The peer is alone on the GPU: together both would not fit into 80 GB. It goes over the same sets in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from bertsmith.base.log import size
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.process import SideFailed
from bertsmith.bench.step.plan import Match, Plan
from bertsmith.bench.step.results import Result
from bertsmith.bench.step.run import StepRun
from bertsmith.bench.table import Table

_START_SECONDS, _COMPILE_SECONDS, _SET_SECONDS = 15.0, 60.0, 5.0
"""Its graph is the whole model."""


def peer_parts(run: StepRun, plan: Plan, rows: Rows) -> tuple[list[Part], ...]:
    """Of the first model: with SDPA, without attention dropout and with it, and with flash attention; then of the other
    models."""
    matches = [match for match in plan.matches if match.peer is not None]
    first = [match for match in matches if match.model == plan.model]

    def drops(match: Match) -> bool:
        return bool(match.ours.model["attention_probs_dropout_prob"])

    groups = (
        [match for match in first if match.peer and not match.peer.flash and not drops(match)],
        [match for match in first if match.peer and not match.peer.flash and drops(match)],
        [match for match in first if match.peer and match.peer.flash],
        [match for match in matches if match.model != plan.model],
    )
    return tuple([_part(run, match, rows) for match in group] for group in groups)


def _part(run: StepRun, match: Match, rows: Rows) -> Part:
    peer = match.peer
    assert peer is not None
    sets = {match.peer_case(name): name for name in match.sets}
    ours = {match.peer_case(name): Match(match.model, match.ours, None, ()).case(name) for name in match.sets}

    def made(case: str, result: Result) -> None:
        theirs = result.row(run.peaks)
        own = rows.figure(ours[case], "ours")
        kept = ("peak_share", "sequences_per_second", "flop_per_second", "matrix_flop_per_second")
        rows.add(
            {
                "case": case,
                "peer": theirs["ours"],
                "ours": own,
                "ours_call": rows.figure(ours[case], "call"),
                "ratio": own / theirs["ours"] if own else None,
                **{name: theirs[name] for name in kept},
                "peer_memory_bytes": theirs["ours_memory_bytes"],
                "peer_seconds": theirs["ours_seconds"],
            }
        )

    def measure(names: Sequence[str], deadline: float) -> None:
        run.deadline = deadline
        if peer.flash and find_spec("flash_attn") is None:
            raise SideFailed("the package flash_attn is not installed")
        run.meet_peer(match, [sets[name] for name in names], made)

    compiled = _COMPILE_SECONDS if peer.compiled else 0.0
    return Part(tuple(sets), measure, _table, _START_SECONDS + compiled + _SET_SECONDS * len(sets))


def _table(found: Sequence[dict[str, Any]]) -> Table:
    shown = []
    for row in found:
        rates = [f"{row['peer']:,.0f}", f"{row['sequences_per_second']:,.1f}", f"{row['peak_share']:.1%}"]
        apart = "" if row.get("ours_call") == row.get("call") else ", ours of another call"
        ratio = f"{row['ratio']:.2f}x as fast{apart}" if row["ratio"] else "-"
        shown.append([row["case"], *rates, size(row["peer_memory_bytes"]), ratio])
    head = ["", "real tokens/s", "sequences/s", "of the matrix rate", "memory", "ours is"]
    return Table("The same steps by transformers", head, shown)
