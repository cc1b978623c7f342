"""Load on a server: open, where requests come when they are due whatever has been answered, as users do; or closed,
where clients wait for each answer.

The wait of a request counts from when it was due, so that neither a slow server nor a slow generator can hide any of it
(the coordinated omission of load generators that wait for answers).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.serve.client import Address, Client

OK, REFUSED = 200, (429, 503)
NO_ANSWER, NOT_SENT, BROKEN = 0, -1, -2
"""In place of a status: not within its time, too many in flight, and no connection."""
PAUSE_SECONDS = 0.05
"""Before a client that waits for answers follows up one that failed."""
MOST_IN_FLIGHT, MOST_A_SECOND, MOST_REQUESTS, MOST_SECONDS = 800, 1500.0, 45_000, 300.0
"""The most requests are those of half a minute at the highest rate, which ten times the load of a fast server takes."""
T = TypeVar("T")


@dataclass(frozen=True)
class Sent:
    """A request. text: its number. due, sent, done: seconds since the load began; one that was not answered is done
    when it is given up. status: of HTTP, or one of those above."""

    text: int
    due: float
    sent: float
    done: float
    status: int

    @property
    def seconds(self) -> float:
        """Until its answer."""
        return self.done - self.due


def poisson_arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """When requests are due that come independently of each other, `rate` a second on average: float64[N], ascending.

    Raises BertsmithError beyond the bounds of a load.
    """
    if not 0 < rate <= MOST_A_SECOND or not 0 < seconds <= MOST_SECONDS or rate * seconds > MOST_REQUESTS:
        bounds = f"{MOST_A_SECOND:,.0f} requests a second, {MOST_SECONDS:g} s and {MOST_REQUESTS:,} requests"
        raise BertsmithError(f"{rate:g} requests a second for {seconds:g} s", "the load", f"at most {bounds} are sent")
    expected = rate * seconds
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(1 / rate, math.ceil(expected + 10 * math.sqrt(expected) + 10)))
    return np.asarray(times[times < seconds])


class Load:
    """Requests with the texts in turn. Its methods are called within one event loop."""

    def __init__(self, client: Client, requests: Sequence[bytes], most_in_flight: int = MOST_IN_FLIGHT) -> None:
        self._client, self._requests, self._most = client, requests, most_in_flight
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._count = 0
        self._tasks: list[asyncio.Task[Sent]] = []
        self._not_sent: list[Sent] = []
        self._in_flight = 0

    def now(self) -> float:
        """Seconds since the load began."""
        return self._loop.time() - self._began

    async def send(self, arrivals: Sequence[float] | NDArray[np.float64], limit_seconds: float) -> None:
        """Sends a request at each of these times, and waits for no answer. One that is not answered so many seconds
        after it was due is given up; one beyond the most in flight is not sent, and counted."""
        for due in map(float, arrivals):
            if (wait := due - self.now()) > 0:
                await asyncio.sleep(wait)
            if self._in_flight < self._most:
                self._tasks.append(asyncio.create_task(self._flight(due, limit_seconds)))
                self._in_flight += 1
            else:
                self._not_sent.append(Sent(self._next(), due, self.now(), self.now(), NOT_SENT))

    async def rest(self) -> list[Sent]:
        """What became of everything that was to be sent, once all is answered or given up; in order of their times."""
        found = [*await asyncio.gather(*self._tasks), *self._not_sent]
        return sorted(found, key=lambda each: each.due)

    async def one(self, due: float, limit_seconds: float) -> Sent:
        """Sends the next request and waits for its answer."""
        text, sent = self._next(), self.now()
        try:
            async with asyncio.timeout_at(self._began + due + limit_seconds):
                status, _ = await self._client.ask(self._requests[text])
        except TimeoutError:
            status = NO_ANSWER
        except OSError:
            status = BROKEN
        return Sent(text, due, sent, self.now(), status)

    async def closed(self, clients: int, wanted: Callable[[int], bool], limit_seconds: float) -> list[Sent]:
        """Clients that each send their next request once they have an answer, as long as `wanted` of how many
        were sent; all are answered at the end."""
        count = 0
        found: list[Sent] = []

        async def client() -> None:
            nonlocal count
            while wanted(count):
                count += 1
                found.append(await self.one(self.now(), limit_seconds))
                if found[-1].status != OK:
                    await asyncio.sleep(PAUSE_SECONDS)

        await asyncio.gather(*(client() for _ in range(clients)))
        return found

    async def _flight(self, due: float, limit_seconds: float) -> Sent:
        try:
            return await self.one(due, limit_seconds)
        finally:
            self._in_flight -= 1

    def _next(self) -> int:
        self._count += 1
        return (self._count - 1) % len(self._requests)


def run_load(address: Address, bodies: Sequence[bytes], work: Callable[[Load], Awaitable[T]]) -> tuple[T, float, float]:
    """What `work` gives, the seconds that it took, and the processor time of this process in them."""
    requests = [address.post(each) for each in bodies]

    async def inside() -> T:
        async with Client(address) as client:
            return await work(Load(client, requests))

    began, cpu = time.perf_counter(), time.process_time()
    found = asyncio.run(inside())
    return found, time.perf_counter() - began, time.process_time() - cpu
