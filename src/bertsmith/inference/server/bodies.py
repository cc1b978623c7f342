"""The bodies of requests as they come: how long, how slow, and how many bytes together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.refusals import Refusal


@dataclass(eq=False)
class _Body:
    """size: bytes that are counted for it."""

    deadline: asyncio.Timeout
    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    began: float = field(default_factory=time.monotonic)
    is_cut: bool = False

    def bytes_per_second(self) -> float:
        return self.size / max(time.monotonic() - self.began, 1e-6)


class Bodies:
    """All that are read or answered. Bytes count as they come: what a client announces costs nothing."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = 0
        self._unfinished: set[_Body] = set()  # those of which a byte has come

    @asynccontextmanager
    async def read(self, receive: Any) -> AsyncIterator[bytes | None]:
        """The whole body, which counts until the block ends; None where the client went away.

        Raises Refusal: 408 after `body_seconds`, 413 as soon as it is too long, 429 where there is no room for it.
        """
        body = _Body(asyncio.timeout(self._limits.body_seconds))
        try:
            try:
                async with body.deadline:
                    whole = await self._whole(receive, body)
            except TimeoutError:
                raise self._full() if body.is_cut else self._late() from None
            finally:
                self._unfinished.discard(body)
            yield whole
        finally:
            self._bytes -= body.size

    async def _whole(self, receive: Any, body: _Body) -> bytes | None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            if body.is_cut:
                raise self._full()
            self._add(body, message.get("body", b""), ended := not message.get("more_body"))
            if ended:
                whole = bytes(body.data)
                body.data.clear()
                return whole

    def _add(self, body: _Body, part: bytes, ended: bool) -> None:
        """Makes room for what has come: the unfinished bodies that come slowest are cut, and where there are none, or
        it is this one's turn, it is refused."""
        body.data += part
        body.size += len(part)
        self._bytes += len(part)
        if body.size > self._limits.body_bytes:
            raise too_long(self._limits.body_bytes)
        if ended:
            self._unfinished.discard(body)
        elif part:
            self._unfinished.add(body)
        while self._bytes > self._limits.bodies_bytes:
            if not self._unfinished:
                raise self._full()
            self._cut(slowest := min(self._unfinished, key=_Body.bytes_per_second))
            if slowest is body:
                raise self._full()

    def _cut(self, body: _Body) -> None:
        self._unfinished.remove(body)
        self._bytes -= body.size
        body.size, body.is_cut = 0, True
        body.data.clear()
        body.deadline.reschedule(0)

    def _full(self) -> Refusal:
        what = f"the bodies of all requests have more than {self._limits.bodies_bytes:,} bytes together"
        headers = {"Retry-After": "1", "Connection": "close"}
        return Refusal(429, f"{what}, and those that come slowest are cut; try again in 1 s", headers)

    def _late(self) -> Refusal:
        what = f"the body did not arrive within {self._limits.body_seconds:g} s"
        return Refusal(408, what, {"Connection": "close"})


def too_long(most: int) -> Refusal:
    """413."""
    return Refusal(413, f"the body is longer than {most:,} bytes; send fewer rows at a time")
