"""What the requests of a phase come to, and the tables of a serving bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.bench.serve.load import BROKEN, NO_ANSWER, NOT_SENT, OK, REFUSED
from bertsmith.bench.serve.phases import FAULTY, OVERLOAD, SATURATED, SHARES, UNLOADED, Phase
from bertsmith.bench.table import Table

Row = Mapping[str, Any]
LATENCY_PHASES = (UNLOADED, *(f"{share:.0%}" for share in SHARES))


def row_of(phase: Phase, tokens: Sequence[int], server_cpu_seconds: float) -> dict[str, Any]:
    """tokens: of each text. server_cpu_seconds: of the server while the phase lasted.

    Rates are of answers with status 200: of clients that wait for answers all of them, over the time until the last, as
    a server may work on many at once; of an open load those that came while requests were sent. A request that was
    given up counts in the percentiles with the time after which it was.
    """
    every = phase.requests
    seconds = phase.seconds if phase.rate is not None else max(each.done for each in every)
    in_time = [each for each in every if each.status == OK and each.done <= seconds]
    late = [each.sent - each.due for each in every if each.status != NOT_SENT]
    latencies = [each.seconds for each in every if each.status in (OK, NO_ANSWER)]
    refusals = [each.seconds for each in every if each.status in REFUSED]
    known = (OK, *REFUSED, NO_ANSWER, BROKEN, NOT_SENT)
    return {
        "phase": phase.name,
        "rate": phase.rate,
        "seconds": phase.seconds,
        "requests": len(every),
        "answered": sum(each.status == OK for each in every),
        "refused": len(refusals),
        "given_up": sum(each.status == NO_ANSWER for each in every),
        "no_connection": sum(each.status == BROKEN for each in every),
        "not_sent": sum(each.status == NOT_SENT for each in every),
        "other_status": sum(each.status not in known for each in every),
        "texts_per_second": len(in_time) / seconds,
        "tokens_per_second": sum(tokens[each.text] for each in in_time) / seconds,
        # All answers, whenever they came, as the processor time is that until the last of them.
        "tokens_per_cpu_second": sum(tokens[each.text] for each in every if each.status == OK)
        / max(1e-3, server_cpu_seconds),
        **{f"p{percent}_ms": _percentile_ms(latencies, percent) for percent in (50, 90, 99)},
        "refusal_p99_ms": _percentile_ms(refusals, 99),
        "late_p99_ms": _percentile_ms(late, 99),
        "late_most_ms": _percentile_ms(late, 100),
        "generator_cores": phase.cpu_seconds / phase.wall_seconds,
        "server_cores": server_cpu_seconds / phase.wall_seconds,
        "recovered_seconds": phase.recovered,
        "faults": phase.faults,
    }


def tables_of(rows: Sequence[Row]) -> list[Table]:
    """Throughput, latencies, faults, ten times the load, and the generator; those that there are rows for."""
    found = [_throughput(rows), _latencies(rows), _faulty(rows), _overload(rows), _generator(rows)]
    return [table for table in found if table.rows]


def _throughput(rows: Sequence[Row]) -> Table:
    head = [
        "", "texts/s", "tokens/s", "offline", "of offline", "tokens per CPU s", "offline", "of offline",
        "cores of the server",
    ]  # fmt: skip
    lines = [
        [
            row["side"],
            f"{row['texts_per_second']:,.1f}",
            *_beside(row["tokens_per_second"], row["offline_tokens_per_second"]),
            *_beside(row["tokens_per_cpu_second"], row["offline_tokens_per_cpu_second"]),
            f"{row['server_cores']:.2f}",
        ]
        for row in rows
        if row["phase"] == SATURATED
    ]
    return Table("Saturated: clients that wait for answers", head, lines)


def _beside(rate: float, offline: float | None) -> tuple[str, str, str]:
    """A rate, ours offline, and its share of that."""
    return f"{rate:,.0f}", _number(offline, "{:,.0f}"), _number(rate / offline if offline else None, "{:.0%}")


def _latencies(rows: Sequence[Row]) -> Table:
    head = ["", "requests/s", "p50 ms", "p90 ms", "p99 ms", "p99 over unloaded", "requests", "without an answer"]
    unloaded = {row["side"]: row["p99_ms"] for row in rows if row["phase"] == UNLOADED}
    lines = [
        [
            f"{row['side']}: {row['phase']}",
            _number(row["rate"] or row["texts_per_second"], "{:,.1f}"),
            *(_number(row[f"p{percent}_ms"], "{:,.0f}") for percent in (50, 90, 99)),
            f"{row['p99_ms'] / unloaded[row['side']]:.1f}" if row["p99_ms"] and unloaded.get(row["side"]) else "",
            f"{row['requests']:,}",
            f"{row['requests'] - row['answered']:,}",
        ]
        for row in rows
        if row["phase"] in LATENCY_PHASES
    ]
    return Table("Latency: a request at a time, and at shares of each server's own saturated rate", head, lines)


def _faulty(rows: Sequence[Row]) -> Table:
    head = [
        "",
        "p50 ms",
        "p99 ms",
        "without faults",
        "requests",
        "without an answer",
        "faulty requests and how they ended",
    ]
    usual = {row["side"]: row["p99_ms"] for row in rows if row["phase"] == LATENCY_PHASES[1]}
    lines = [
        [
            row["side"],
            *(_number(row[f"p{percent}_ms"], "{:,.0f}") for percent in (50, 99)),
            _number(usual.get(row["side"]), "{:,.0f}"),
            f"{row['requests']:,}",
            f"{row['requests'] - row['answered']:,}",
            "; ".join(f"{kind}: {_ends(ended)}" for kind, ended in row["faults"].items()),
        ]
        for row in rows
        if row["phase"] == FAULTY
    ]
    return Table(f"At {LATENCY_PHASES[1]} of the saturated rate beside clients that misbehave", head, lines)


def _ends(ended: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} x {end}" for end, count in sorted(ended.items())) or "none ended"


def _overload(rows: Sequence[Row]) -> Table:
    head = [
        "", "requests/s", "times saturated", "tokens/s in time", "of saturated", "refused", "refusal p99 ms",
        "given up", "no connection", "not sent", "recovered after s",
    ]  # fmt: skip
    saturated = {row["side"]: row for row in rows if row["phase"] == SATURATED}
    lines = []
    for row in rows:
        if row["phase"] == OVERLOAD:
            usual = saturated[row["side"]]
            lines.append([
                row["side"],
                f"{row['rate']:,.0f}",
                f"{row['rate'] / usual['texts_per_second']:.1f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['tokens_per_second'] / usual['tokens_per_second']:.0%}",
                f"{row['refused'] / row['requests']:.0%}",
                _number(row["refusal_p99_ms"], "{:,.0f}"),
                *(f"{row[each] / row['requests']:.0%}" for each in ("given_up", "no_connection", "not_sent")),
                _number(row["recovered_seconds"], "{:.1f}") or "not seen",
            ])  # fmt: skip
    return Table("Ten times the load", head, lines)


def _generator(rows: Sequence[Row]) -> Table:
    head = ["", "requests/s", "cores", "late p99 ms", "late most ms", "not sent"]
    lines = [
        [
            f"{row['side']}: {row['phase']}",
            f"{row['rate']:,.1f}",
            f"{row['generator_cores']:.2f}",
            *(_number(row[name], "{:,.1f}") for name in ("late_p99_ms", "late_most_ms")),
            f"{row['not_sent']:,}",
        ]
        for row in rows
        if row["rate"] is not None
    ]
    return Table("The generator: what it took itself, and how late it was, which latencies include", head, lines)


def _percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    return 1e3 * float(np.percentile(seconds, percent)) if seconds else None


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
