"""What stands before the routes: the token, whether there is room, the size and pace of bodies, clients that go away.

A request that the server cannot take is refused here, before its body is parsed: under load that costs least.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Collection
from typing import Any

from bertsmith.base.log import say, warn
from bertsmith.inference.server.bodies import Bodies, too_long
from bertsmith.inference.server.metrics import Account
from bertsmith.inference.server.refusals import Refusal, server_failed
from bertsmith.inference.server.service import Service, raised_in

Message = dict[str, Any]
# What a browser or a probe reads before it can send a token; nothing of the models is in it.
OPEN_PATHS = ("/health", "/", "/page.css", "/page.js")


class Guard:
    """An ASGI application around the one that has the routes."""

    def __init__(self, app: Any, service: Service) -> None:
        self._app, self._service = app, service
        self._bodies = Bodies(service.limits)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, started = time.perf_counter(), False
        # Until the body is asked for: the client then gets the word to send it.
        holds_body_back = dict(scope["headers"]).get(b"expect", b"").lower() == b"100-continue"
        # HEAD is answered as GET, without the body; and clients write a folder's name with a slash after it.
        inner = {**scope, "path": scope["path"].rstrip("/") or "/"}
        if scope["method"] == "HEAD":
            inner["method"] = "GET"
        account = inner.setdefault("state", {})["account"] = Account(scope["method"])

        async def receiving() -> Message:
            nonlocal holds_body_back
            holds_body_back = False
            message: Message = await receive()
            return message

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started, account.status = True, message["status"]
                if holds_body_back:  # the next request would be taken for the body
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await self._pass(inner, receiving, sending)
        except Refusal as refusal:
            await _refuse(refusal, inner, sending)
        except Exception as error:
            warn(f"an error of the server's own:\n{raised_in(error)}")
            if not started:
                await _refuse(server_failed(), inner, sending)
        finally:
            account.seconds = time.perf_counter() - began
            account.route = _route(inner)
            note(self._service, account)

    async def _pass(self, scope: Message, receive: Any, send: Any) -> None:
        service, path = self._service, scope["path"]
        headers = dict(scope["headers"])
        _check_host(scope, service.hosts)
        if not (scope["method"] == "GET" and path in OPEN_PATHS):
            _check_token(headers, service.token)
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        service.check_ready()
        length = _check_head(headers, service)
        service.check_room(path, length)
        async with self._bodies.read(receive) as body:
            if body is not None:
                await self._answer(scope, body, receive, send)

    async def _answer(self, scope: Message, body: bytes, receive: Any, send: Any) -> None:
        """Runs the route, unless the client goes away before it has an answer."""
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await asyncio.Future()

        with self._service.working_on(scope["state"]["account"], len(body)):
            answering = asyncio.create_task(self._app(scope, replay, send))
            leaving = asyncio.create_task(receive())
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    await answering
            finally:
                answering.cancel()
                leaving.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)


def _check_head(headers: dict[bytes, bytes], service: Service) -> int:
    """The length that a body says it has, 0 where it does not.

    Raises Refusal for one that is too long (413), for one that is compressed (415), and for one that is not JSON (415):
    a browser sends nothing else to another site without asking first.
    """
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise Refusal(415, "the body must be JSON; send the header Content-Type: application/json")
    packed = headers.get(b"content-encoding", b"").strip().lower()
    if packed not in (b"", b"identity"):
        raise Refusal(415, "the body is compressed (Content-Encoding); send it as it is, without that header")
    said = headers.get(b"content-length", b"")
    length = int(said) if said.isdigit() else 0
    if length > service.limits.body_bytes:
        raise too_long(service.limits.body_bytes)
    return length


def _check_host(scope: Message, hosts: Collection[str] | None) -> None:
    """Raises Refusal: 400 for several names, and for none but in HTTP/1.0, which no browser speaks; 421 for one that is
    not the server's: a web page elsewhere may have let its own name point to this machine, and a browser would then
    send it what the server answers."""
    sent = [value for name, value in scope["headers"] if name == b"host"]
    if len(sent) > 1 or (not sent and scope["http_version"] != "1.0"):
        raise Refusal(400, f"the header Host is there {len(sent)} times; send it once")
    if not sent or hosts is None:
        return
    name = sent[0].decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name not in hosts:
        what = f"without a token this server answers to {', '.join(hosts)} alone"
        raise Refusal(421, f"{what}; send one of these as the host, or start it with --token")


def _check_token(headers: dict[bytes, bytes], token: str) -> None:
    """Raises Refusal (401). The time that this takes does not depend on how much of a token is right."""
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    right = hmac.compare_digest(given.strip(), token.encode()) and scheme.lower() == b"bearer"
    if token and not right:
        what = "a token is wanted; send the header Authorization: Bearer with it"
        raise Refusal(401, what, {"WWW-Authenticate": "Bearer"})


async def _refuse(refusal: Refusal, scope: Message, send: Any) -> None:
    body = refusal.body(scope["path"])
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _route(scope: Message) -> str:
    """The route that answered, as the routes name it: a path that a client made up would make a count of its own."""
    route = scope.get("route")
    path = getattr(route, "path", "")
    return path if isinstance(path, str) and path else "none"


def note(service: Service, account: Account) -> None:
    """Counts a request that has ended, and logs it."""
    service.metrics.request(account)
    say(_line(account))


def _line(account: Account) -> str:
    """A request as a line of JSON; nothing that a client wrote is in it."""
    return json.dumps(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "method": account.method,
            "route": account.route,
            "status": account.status,
            "model": account.model,
            "rows": account.rows,
            "tokens": account.tokens,
            "truncated_rows": account.truncated,
            "empty_rows": account.empty,
            "ms": round(1000 * account.seconds, 2),
        }
    )
