"""uvicorn's connections with a limit of time on each thing that a client does, so that none is held for nothing."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.inference.server.limits import Limits


class Connection(HttpToolsProtocol):
    """It is cut where the head of a request or the rest of a body that was refused takes longer than `seconds`, and
    where no more of an answer is read for so long."""

    seconds: ClassVar[float] = Limits.body_seconds
    _timer: asyncio.TimerHandle | None = None  # of a head or a body
    _reader_timer: asyncio.TimerHandle | None = None  # a next request on the connection does not end it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def on_message_begin(self) -> None:
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:  # the rest of a body that was refused has come
            self._stop()
            self._watch_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body:
            self._expect()
        else:
            self._watch_reader()

    def _watch_reader(self) -> None:
        if self._reader_timer is None:
            self._look_at_reader(0)

    def _look_at_reader(self, before: int) -> None:
        """Cuts a connection whose client has read nothing of what waits for it since the last look."""
        self._reader_timer = None
        waiting = self.transport.get_write_buffer_size()
        if waiting and waiting == before:
            self.transport.abort()
        elif waiting:
            self._reader_timer = self.loop.call_later(self.seconds, self._look_at_reader, waiting)

    def _expect(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(self.seconds, self._cut)

    def _cut(self) -> None:
        self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def connections(seconds: float) -> type[Connection]:
    """The class of connections with this limit."""
    return type("Connection", (Connection,), {"seconds": seconds})
