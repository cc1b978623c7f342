"""Clients that misbehave beside a load, whose requests are to be answered as if these were not there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from bertsmith.bench.serve.client import HOST, Address

_LARGE_BYTES, _PART_BYTES = 100_000_000, 1_000_000
_SLOW_BYTES, _BYTE_SECONDS = 100, 0.5
_GONE_SECONDS = 0.05
_MOST_SECONDS = 60.0
CLOSED = "closed"
"""In place of a status: the connection ended without an answer."""
UNDER_WAY = "under way at the end"


@dataclass(frozen=True)
class Kind:
    """clients: how many at a time. pause_seconds: between two requests of a client."""

    name: str
    clients: int
    pause_seconds: float


KINDS = (
    Kind("slow", 100, 0.0),
    Kind("half-closed", 1, 0.5),
    Kind("gone", 1, 0.5),
    Kind("no JSON", 1, 0.1),
    Kind("100 MB", 1, 2.0),
)


class Faults:
    """The clients, which misbehave inside the context. ended: of each kind, how its requests ended: "408", "closed"."""

    def __init__(self, address: Address, body: bytes) -> None:
        """body: of a request that would be answered."""
        self._address, self._body = address, body
        self.ended: dict[str, Counter[str]] = {kind.name: Counter() for kind in KINDS}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        ways = (self._slow, self._half_closed, self._gone, self._broken, self._large)
        for kind, way in zip(KINDS, ways, strict=True):
            self._tasks += [asyncio.create_task(self._repeat(kind, way)) for _ in range(kind.clients)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, kind: Kind, way: Callable[[_Line], Awaitable[str]]) -> None:
        while True:
            try:
                async with asyncio.timeout(_MOST_SECONDS):
                    reader, writer = await asyncio.open_connection(HOST, self._address.port)
                    try:
                        ended = await way(_Line(reader, writer))
                    finally:
                        writer.transport.abort()
            except TimeoutError:
                ended = f"open after {_MOST_SECONDS:g} s"
            except OSError:
                ended = CLOSED
            except asyncio.CancelledError:
                self.ended[kind.name][UNDER_WAY] += 1
                raise
            self.ended[kind.name][ended] += 1
            await asyncio.sleep(kind.pause_seconds)

    async def _slow(self, line: _Line) -> str:
        """The end of the body comes byte by byte, and the last one never."""
        request = self._address.post(self._body)
        ends = max(len(request) - _SLOW_BYTES, len(request) - len(self._body) + 1)
        line.writer.write(request[:ends])
        for byte in request[ends:-1]:
            with suppress(TimeoutError):
                async with asyncio.timeout(_BYTE_SECONDS):
                    return await line.ending()
            line.writer.write(bytes([byte]))
        return await line.ending()

    async def _half_closed(self, line: _Line) -> str:
        """A whole request, behind which the sending side is closed."""
        line.writer.write(self._address.post(self._body))
        line.writer.write_eof()
        return await line.ending()

    async def _gone(self, line: _Line) -> str:
        """A whole request, whose client does not wait for the answer."""
        line.writer.write(self._address.post(self._body))
        await asyncio.sleep(_GONE_SECONDS)
        return "not awaited"

    async def _broken(self, line: _Line) -> str:
        line.writer.write(self._address.post(self._body[:-1]))
        return await line.ending()

    async def _large(self, line: _Line) -> str:
        request = self._address.post(self._body)
        head = request[: len(request) - len(self._body)]
        line.writer.write(head.replace(b"Length: %d" % len(self._body), b"Length: %d" % _LARGE_BYTES))
        with suppress(ConnectionError):  # what the server has answered can still be read
            for _ in range(_LARGE_BYTES // _PART_BYTES):
                line.writer.write(b"x" * _PART_BYTES)
                await line.writer.drain()
        return await line.ending()


@dataclass(frozen=True)
class _Line:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ending(self) -> str:
        """The status of the answer, or "closed"."""
        first = await self.reader.readline()
        return first.split()[1].decode() if first.startswith(b"HTTP/1.1 ") else CLOSED
