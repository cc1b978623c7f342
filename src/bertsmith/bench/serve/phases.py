"""What a server is put through: a request at a time, as many as it can answer, shares of that, the first share again
beside clients that misbehave, and ten times it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from bertsmith.bench.serve.client import Address
from bertsmith.bench.serve.faults import Faults
from bertsmith.bench.serve.load import MOST_A_SECOND, OK, PAUSE_SECONDS, Load, Sent, poisson_arrivals, run_load

UNLOADED, SATURATED, OVERLOAD = "unloaded", "saturated", "overload"
SHARES = (0.5, 0.7)
FAULTY = f"{SHARES[0]:.0%} beside faults"
OVERLOAD_TIMES = 10
_WARM_UP = 32
_IN_A_ROW = 5


@dataclass(frozen=True)
class Plan:
    """How long phases are. requests, seconds: the least of those that measure latencies, which take `most_seconds` at
    most. clients: that saturate a server. limit_seconds: after which a request is given up; at ten times the load
    `overload_limit_seconds`. recovery_seconds: for which a server is watched after that load."""

    requests: int = 300
    seconds: float = 15.0
    most_seconds: float = 40.0
    clients: int = 32
    overload_seconds: float = 30.0
    limit_seconds: float = 60.0
    overload_limit_seconds: float = 5.0
    recovery_seconds: float = 30.0


QUICK = Plan(
    requests=20, seconds=1.0, clients=8, overload_seconds=2.0, overload_limit_seconds=1.0, recovery_seconds=5.0
)


@dataclass(frozen=True)
class Phase:
    """What became of the requests of a phase. rate: that were due a second; None where clients waited for answers.
    seconds: in which requests were sent. wall_seconds: until all were answered or given up. cpu_seconds: of the
    generator, which is this process, in these. recovered: seconds, as of `recovery`. faults: how the requests of each
    kind of faulty client ended."""

    name: str
    requests: Sequence[Sent]
    rate: float | None
    seconds: float
    wall_seconds: float
    cpu_seconds: float
    recovered: float | None = None
    faults: Mapping[str, Mapping[str, int]] | None = None


class Phases:
    """The phases of one server. bodies: the requests' JSON, taken in turn."""

    def __init__(self, address: Address, bodies: Sequence[bytes], plan: Plan) -> None:
        self._address, self._bodies, self._plan = address, bodies, plan

    def warm_up(self) -> None:
        """Some texts, so that what depends on lengths is made."""
        self._closed(UNLOADED, 4, min(_WARM_UP, len(self._bodies)), 0.0)

    def unloaded(self) -> Phase:
        """One client."""
        return self._closed(UNLOADED, 1, self._plan.requests, self._plan.seconds)

    def saturated(self) -> Phase:
        """As many clients as keep the server busy all the time."""
        return self._closed(SATURATED, self._plan.clients, 0, self._plan.seconds)

    def at(self, share: float, rate: float, faulty: bool = False) -> Phase:
        """Open load of a share of the saturated rate (requests a second). faulty: beside clients that misbehave."""
        plan, wanted = self._plan, min(share * rate, MOST_A_SECOND)
        seconds = min(max(plan.seconds, plan.requests / wanted), plan.most_seconds)
        arrivals = poisson_arrivals(wanted, seconds, seed=round(100 * share))

        async def work(load: Load) -> list[Sent]:
            async with faults or nullcontext():
                await load.send(arrivals, plan.limit_seconds)
                return await load.rest()

        faults = Faults(self._address, self._bodies[0]) if faulty else None
        sent, wall, cpu = run_load(self._address, self._bodies, work)
        name = FAULTY if faults else f"{share:.0%}"
        ended = {kind: dict(counts) for kind, counts in faults.ended.items()} if faults else None
        return Phase(name, sent, wanted, seconds, wall, cpu, faults=ended)

    def overload(self, rate: float, usual_seconds: float) -> Phase:
        """Ten times the saturated rate, or as much as may be sent; then requests one at a time until the server is as
        fast as unloaded. usual_seconds: an unloaded latency that few exceed."""
        plan, wanted = self._plan, min(OVERLOAD_TIMES * rate, MOST_A_SECOND)
        arrivals = poisson_arrivals(wanted, plan.overload_seconds, seed=OVERLOAD_TIMES)

        async def work(load: Load) -> tuple[list[Sent], float | None]:
            await load.send(arrivals, plan.overload_limit_seconds)
            found = await recovery(load, usual_seconds, plan)
            return await load.rest(), found

        (sent, recovered), wall, cpu = run_load(self._address, self._bodies, work)
        return Phase(OVERLOAD, sent, wanted, plan.overload_seconds, wall, cpu, recovered)

    def _closed(self, name: str, clients: int, requests: int, seconds: float) -> Phase:
        """Until so many requests were sent, and so many seconds are over."""

        async def work(load: Load) -> list[Sent]:
            def wanted(count: int) -> bool:
                return (count < requests and load.now() < self._plan.most_seconds) or load.now() < seconds

            return await load.closed(clients, wanted, self._plan.limit_seconds)

        sent, wall, cpu = run_load(self._address, self._bodies, work)
        return Phase(name, sent, None, max(seconds, max(each.sent for each in sent)), wall, cpu)


async def recovery(load: Load, usual_seconds: float, plan: Plan) -> float | None:
    """Seconds from now to the first of five answers in a row that take at most `usual_seconds` each."""
    ended, row = load.now(), list[float]()
    while len(row) < _IN_A_ROW:
        if load.now() - ended > plan.recovery_seconds:
            return None
        one = await load.one(load.now(), plan.overload_limit_seconds)
        if one.status == OK and one.seconds <= usual_seconds:
            row.append(one.due - ended)
            continue
        row = []
        if one.status != OK:
            await asyncio.sleep(PAUSE_SECONDS)
    return row[0]
