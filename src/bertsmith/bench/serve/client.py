"""HTTP requests to a server on this machine over kept connections, at little cost: the client has the same cores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httptools

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """Where requests go, on this machine."""

    port: int
    path: str

    def post(self, body: bytes) -> bytes:
        """A whole request with this JSON."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {HOST}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class _Connection(asyncio.Protocol):
    """One request at a time. idle: where it waits between two."""

    transport: asyncio.Transport
    _answered: asyncio.Future[tuple[int, bytes]] | None = None

    def __init__(self, idle: list[_Connection]) -> None:
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            return await self._answered
        except BaseException:
            self.transport.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._parser.should_keep_alive():
            self._idle.append(self)
        else:
            self.transport.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result((self._parser.get_status_code(), body))

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionResetError("the server closed the connection"))


class Client:
    """The connections to one server; used as a context, they are closed at the end."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_Connection] = []

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError where there is no connection, or none any more."""
        if self._idle:
            try:
                return await self._idle.pop().ask(request)
            except ConnectionError:
                pass  # servers close connections that were idle for a while
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: _Connection(self._idle), HOST, self._address.port)
        return await made.ask(request)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        for each in [*self._idle]:
            each.transport.abort()
        await asyncio.sleep(0)  # in which they are closed


def ask_once(address: Address, body: bytes, seconds: float) -> tuple[int, bytes]:
    """Status and body of one answer. Raises OSError, also after so many seconds (TimeoutError)."""

    async def asked() -> tuple[int, bytes]:
        async with asyncio.timeout(seconds), Client(address) as client:
            return await client.ask(address.post(body))

    return asyncio.run(asked())
