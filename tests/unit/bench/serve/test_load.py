"""The generator of load: when requests are due, what counts as their wait, and that it stays within its bounds."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httptools
import numpy as np
import pytest
from scipy import stats

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.serve.client import HOST, Address, Client
from bertsmith.bench.serve.load import (
    BROKEN,
    MOST_A_SECOND,
    MOST_SECONDS,
    NO_ANSWER,
    NOT_SENT,
    OK,
    Load,
    poisson_arrivals,
)  # fmt: skip
from bertsmith.bench.serve.phases import OVERLOAD_TIMES, QUICK, Phases, Plan, recovery

LONG = 100.0
"""Seconds in which every answer comes, on a busy machine too."""


@dataclass
class Made:
    """A server of a test. answer: the status for the n-th request, from 1; None closes the connection. bodies: of all
    requests. connections: that were made."""

    answer: Callable[[int], Awaitable[int | None]]
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        done: list[None] = []

        class Handler:
            def on_body(_, body: bytes) -> None:
                self.bodies.append(body)

            def on_message_complete(_) -> None:
                done.append(None)

        parser = httptools.HttpRequestParser(Handler())
        while data := await reader.read(1 << 16):
            parser.feed_data(data)
            while done:
                done.pop()
                status = await self.answer(len(self.bodies))
                if status is None:
                    writer.close()
                    return
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % status)


@asynccontextmanager
async def made_server(answer: Callable[[int], Awaitable[int | None]]) -> Any:
    made = Made(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        for writer in made.writers:
            writer.close()
        server.close()


def loaded(
    answer: Callable[[int], Awaitable[int | None]],
    work: Callable[[Load, Made], Awaitable[Any]],
    most_in_flight: int = 100,
) -> Any:
    """What `work` gives with a load on a server that answers so; its three bodies are a, b and c."""

    async def inside() -> Any:
        async with made_server(answer) as made:
            address = Address(made.port, "/predict")
            async with Client(address) as client:
                bodies = [address.post(each) for each in (b"a", b"b", b"c")]
                return await work(Load(client, bodies, most_in_flight), made)

    return asyncio.run(inside())


async def ok(number: int) -> int:
    return OK


@pytest.mark.parametrize("seed", range(10))
def test_arrivals_are_poisson(seed: int) -> None:
    """Gaps are exponential and independent, and the counts of windows have the variance of their mean."""
    arrivals = poisson_arrivals(50.0, 200.0, seed)
    gaps = np.diff(arrivals, prepend=0.0)
    assert stats.kstest(gaps, "expon", args=(0, 1 / 50)).pvalue > 1e-3
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4 / np.sqrt(len(gaps))
    counts = np.histogram(arrivals, bins=200, range=(0, 200))[0]
    dispersion = counts.var(ddof=1) / counts.mean()
    assert stats.chi2.ppf(1e-4, 199) / 199 < dispersion < stats.chi2.ppf(1 - 1e-4, 199) / 199
    assert arrivals[0] > 0
    assert arrivals[-1] < 200


def test_a_seed_gives_the_same_arrivals_again() -> None:
    assert np.array_equal(poisson_arrivals(10.0, 9.0, 1), poisson_arrivals(10.0, 9.0, 1))
    assert not np.array_equal(poisson_arrivals(10.0, 9.0, 1)[:5], poisson_arrivals(10.0, 9.0, 2)[:5])


@pytest.mark.parametrize(
    ("rate", "seconds"), [(2 * MOST_A_SECOND, 1.0), (1.0, 2 * MOST_SECONDS), (MOST_A_SECOND, 250.0), (0.0, 1.0)]
)
def test_a_load_beyond_its_bounds_is_refused(rate: float, seconds: float) -> None:
    with pytest.raises(BertsmithError, match="requests a second for"):
        poisson_arrivals(rate, seconds, 0)


@pytest.mark.parametrize("rate", [30.0, 150.0, 5000.0])
def test_ten_times_the_load_of_a_fast_server_is_within_the_bounds(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.bench.serve.phases.run_load", lambda *_: (([], None), 1.0, 1.0))
    found = Phases(Address(80, "/"), [b""], Plan()).overload(rate, 1.0)
    assert found.rate == min(OVERLOAD_TIMES * rate, MOST_A_SECOND)


def test_only_this_machine_is_put_under_load() -> None:
    assert ipaddress.ip_address(HOST).is_loopback
    assert f"Host: {HOST}:80\r\n".encode() in Address(80, "/").post(b"")


def test_requests_are_sent_when_due_whatever_has_been_answered() -> None:
    """The server answers nobody before it has all of them, which clients that wait for answers would never send."""
    count = 30

    async def work(load: Load, made: Made) -> None:
        await load.send([0.001 * number for number in range(count)], LONG)
        found = await load.rest()
        assert [each.status for each in found] == [OK] * count
        assert [each.due for each in found] == sorted(each.due for each in found)
        assert [each.text for each in found] == [number % 3 for number in range(count)]
        assert sorted(made.bodies) == sorted([b"a", b"b", b"c"] * 10)

    all_here = asyncio.Event()

    async def answer(number: int) -> int:
        if number == count:
            all_here.set()
        await all_here.wait()
        return OK

    loaded(answer, work)


def test_a_wait_counts_from_when_a_request_was_due() -> None:
    """A generator that was held up for a second has not made the server faster by that."""

    async def work(load: Load, made: Made) -> None:
        load._began -= 1.0
        await load.send([0.0, 0.5], LONG)
        for each in await load.rest():
            assert each.sent - each.due >= 0.5
            assert each.seconds >= each.sent - each.due

    loaded(ok, work)


def test_what_exceeds_the_most_in_flight_is_not_sent_and_counted() -> None:
    async def work(load: Load, made: Made) -> None:
        await load.send([0.0] * 10, LONG)
        async with asyncio.timeout(LONG):
            while len(made.bodies) < 3:
                await asyncio.sleep(0.001)
        release.set()
        found = await load.rest()
        assert sorted(each.status for each in found) == [NOT_SENT] * 7 + [OK] * 3
        assert len(made.bodies) == 3
        await load.send([0.0] * 2, LONG)
        assert [each.status for each in await load.rest()].count(OK) == 5

    release = asyncio.Event()

    async def answer(number: int) -> int:
        await release.wait()
        return OK

    loaded(answer, work, most_in_flight=3)


def test_what_is_not_answered_in_time_is_given_up_and_its_connection_is_left() -> None:
    async def work(load: Load, made: Made) -> None:
        assert (await load.one(load.now(), LONG)).status == OK
        may_answer.clear()
        await load.send([load.now()], 0.05)
        (one,) = await load.rest()
        assert one.status == NO_ANSWER
        may_answer.set()
        assert (await load.one(load.now(), LONG)).status == OK
        assert made.connections == 2

    may_answer = asyncio.Event()
    may_answer.set()

    async def answer(number: int) -> int:
        await may_answer.wait()
        return OK

    loaded(answer, work)


def test_a_connection_that_breaks_is_no_answer() -> None:
    async def work(load: Load, made: Made) -> None:
        assert (await load.one(0.0, LONG)).status == BROKEN
        assert (await load.one(0.0, LONG)).status == OK

    loaded(lambda number: _each([None, OK], number), work)


def test_connections_are_kept_and_replaced_where_the_server_closes_them() -> None:
    async def work(load: Load, made: Made) -> None:
        assert [(await load.one(0.0, LONG)).status for _ in range(4)] == [OK] * 4
        assert made.connections == 1
        assert (await load.one(0.0, LONG)).status == OK  # the fifth is closed in place of an answer, and sent again
        assert made.connections == 2
        assert len(made.bodies) == 6

    loaded(lambda number: _each([OK] * 4 + [None, OK], number), work)


def test_clients_that_wait_have_one_request_each_in_flight() -> None:
    most = at_once = 0

    async def answer(number: int) -> int:
        nonlocal most, at_once
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)
        at_once -= 1
        return OK

    async def work(load: Load, made: Made) -> None:
        found = await load.closed(4, lambda count: count < 50, LONG)
        assert [each.status for each in found] == [OK] * 50

    loaded(answer, work)
    assert most == 4


def test_a_server_has_recovered_at_the_first_of_five_quick_answers_in_a_row() -> None:
    """Refused twice, then one answer before the last refusal."""
    statuses = [429, 429, OK, 503, *[OK] * 5]

    async def work(load: Load, made: Made) -> None:
        before = load.now()
        found = await recovery(load, LONG, replace(QUICK, recovery_seconds=LONG, overload_limit_seconds=LONG))
        assert found is not None
        assert 0 < found < load.now() - before
        assert len(made.bodies) == len(statuses)

    loaded(lambda number: _each(statuses, number), work)


def test_a_server_that_stays_slow_is_not_said_to_have_recovered() -> None:
    async def work(load: Load, made: Made) -> None:
        assert await recovery(load, 0.0, replace(QUICK, recovery_seconds=0.1)) is None

    loaded(ok, work)


async def _each(statuses: list[int | None] | list[int], number: int) -> int | None:
    return statuses[number - 1]
