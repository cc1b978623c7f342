"""uvicorn's connections, with a limit of their number, of what a request may send beside its body, and of time on each
thing that a client does, so that none is held for nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bertsmith.base.log import warn
from bertsmith.inference.server.guard import note
from bertsmith.inference.server.metrics import Account
from bertsmith.inference.server.refusals import Refusal
from bertsmith.inference.server.service import Service

HEAD_BYTES = 65_536
_A_BODY_BYTE = 8  # bytes that may come for it: a chunk of one byte has six
_WARN_SECONDS = 60.0


class _Parser(httptools.HttpRequestParser):
    """httptools' parser, but for the header Upgrade, which a server may ignore (RFC 9110, section 7.8): it takes what
    follows such a head for another protocol, a body too. Here the head is read again without that header."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begin()

    def _begin(self) -> None:
        super().__init__(self._connection)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def should_upgrade(self) -> bool:
        """Whether the head is read again. CONNECT, which httptools calls an upgrade too, is left to the routes."""
        return super().should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        rest = memoryview(data)
        while True:
            try:
                super().feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self.should_upgrade():
                    raise
                start = b"%s %s HTTP/%s" % (self.get_method(), self._connection.url, self.get_http_version().encode())
                kept = (b"%s: %s" % each for each in self._connection.headers if each[0] != b"upgrade")
                head = b"\r\n".join((start, *kept, b"", b""))
                rest = rest[upgrade.args[0] :]
                self._begin()  # the one that has read "Connection: close" takes no more
                super().feed_data(head)


class Connection(HttpToolsProtocol):
    """It is cut where the head of a request or the rest of a body that was refused takes longer than
    `limits.body_seconds`, where no more of an answer is read for so long, and where others need its place while it
    waits for its client.

    waiting: the connections whose clients have a request to send, or the rest of one, the oldest first.
    """

    service: ClassVar[Service]
    waiting: ClassVar[dict[Connection, None]]
    warned: ClassVar[float]
    url = b""
    _unfinished = False  # whether a request has come in part
    _beside = 0  # bytes of it that are not of its body
    _timer: asyncio.TimerHandle | None = None  # of a head or a body
    _reader_timer: asyncio.TimerHandle | None = None  # a next request on the connection does not end it

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.parser = _Parser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._expect()
        if len(self.connections) <= self.service.limits.connections or self._makes_room():
            self.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.waiting.pop(self, None)
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        super().data_received(data)
        self._beside = max(0, self._beside)  # a body gives no credit for what comes after it
        if self._unfinished and self._beside > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_too_long())

    def send_400_response(self, msg: str) -> None:
        if max(self._beside, len(self.url)) >= HEAD_BYTES:  # a path of so many is not parsed
            self._refuse(_too_long())
            return
        what = "this cannot be read as HTTP; in a path, for one, what is not ASCII must be percent-encoded"
        self._refuse(Refusal(400, what))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def on_message_begin(self) -> None:
        self._beside, self._unfinished = 0, True
        if self in self.waiting:  # it has not waited long for its client now
            del self.waiting[self]
            self.waiting[self] = None
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside -= _A_BODY_BYTE * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._unfinished = False
        self._stop()
        if self.cycle.response_complete:  # the rest of a body that was refused has come
            self._watch_reader()
        else:
            self.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if (self.cycle.response_complete or self.cycle.more_body) and not self.transport.is_closing():
            self.waiting[self] = None
        if self.cycle.more_body:
            self._expect()
        else:
            self._watch_reader()

    def _makes_room(self) -> bool:
        """Cuts the connection that has waited longest for its client, and still reads no answer. Where none waits, it
        refuses this one."""
        oldest = next((each for each in self.waiting if not each.transport.get_write_buffer_size()), None)
        if oldest is None:
            self._refuse(Refusal(503, "there is no room for another connection; try again", {"Retry-After": "1"}))
            return False
        del self.waiting[oldest]
        oldest.transport.abort()
        self.service.metrics.cut_connections.inc()
        if time.monotonic() > type(self).warned + _WARN_SECONDS:
            type(self).warned = time.monotonic()
            most = f"all {self.service.limits.connections:,} connections (--limits.connections) are taken"
            warn(f"{most}: those that have waited longest for their clients are cut, and counted in /metrics")
        return True

    def _refuse(self, refusal: Refusal) -> None:
        """Answers in place of the routes, and closes the connection; cuts it where this would be taken for the answer
        to an earlier request."""
        is_open = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (is_open and (self.cycle.response_started or not self.cycle.more_body)):
            self.transport.abort()
            return
        body = refusal.body("/")
        headers = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode() for name, value in (headers | refusal.headers).items()]
        self.transport.write(b"".join((STATUS_LINE[refusal.status], *lines, b"\r\n", body)))
        self.transport.close()
        if not is_open:  # otherwise the guard tells of this request
            note(self.service, Account("none", route="none", status=refusal.status))

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
            self._reader_timer = self._later(self._look_at_reader, waiting)

    def _expect(self) -> None:
        self._stop()
        self._timer = self._later(self.transport.abort)

    def _later(self, function: Callable[..., None], *values: int) -> asyncio.TimerHandle:
        return self.loop.call_later(self.service.limits.body_seconds, function, *values)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _too_long() -> Refusal:
    return Refusal(431, f"this request has more than {HEAD_BYTES:,} bytes beside its body")


def connections(service: Service) -> type[Connection]:
    """The class of the connections of a server."""
    return type("Connection", (Connection,), {"service": service, "waiting": {}, "warned": -_WARN_SECONDS})
