"""uvicorn's connections with a limit of time on each thing that a client does, so that none is held for nothing."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.inference.server.limits import Limits


def connections(seconds: float = Limits.body_seconds) -> type[HttpToolsProtocol]:
    """A class of connections that are cut where the head of a request, the rest of a body that was refused, or the
    reading of an answer takes longer than so many seconds."""

    class Connection(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            super().connection_made(transport)
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

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
                self._watch_reader(0)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle.more_body:
                self._expect()
            else:
                self._watch_reader(0)

        def _watch_reader(self, before: int) -> None:
            """Cuts a connection whose client has read nothing of what waits for it since the last look."""
            waiting = self.transport.get_write_buffer_size()
            if waiting and waiting == before:
                self.transport.abort()
            elif waiting:
                self._stop()
                self._timer = self.loop.call_later(seconds, self._watch_reader, waiting)

        def _expect(self) -> None:
            self._stop()
            self._timer = self.loop.call_later(seconds, self._cut)

        def _cut(self) -> None:
            self.transport.abort()

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Connection
