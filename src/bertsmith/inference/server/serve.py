"""A server from its start to its end: the address is taken, models are loaded, requests answered, the rest finished."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from bertsmith.base.errors import EXIT_INTERRUPTED, EXIT_STOPPED_AFTER_SAVING, BertsmithError, TypeChecked
from bertsmith.base.log import counted, logger, say, warn
from bertsmith.base.stopping import StoppedAfterSaving, StopSignal, stop_on_signals
from bertsmith.inference.backends.model import chosen_engine
from bertsmith.inference.server.app import make_app
from bertsmith.inference.server.connection import connections
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.service import ROWS_THREAD, Service
from bertsmith.weights.huggingface import model_folder

_LOOK_SECONDS = 0.05
# After which a thread that has Python's interpreter gives it to one that waits. By default the event loop may wait 5 ms
# for the computing thread each time, and a refusal has several such waits.
_TURN_SECONDS = 1e-4
_LAST_BATCH_SECONDS = 5.0
_BACKLOG = 2048  # clients whose connections the kernel holds until they are accepted
_ACCEPTED_AT_ONCE = 16  # asyncio accepts as many as are there, before it tells of the first
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TAKEN = "stop what listens there, or choose another --port; --port 0 takes any free one"
_TOO_MANY = "let less be open at a time, or raise the limit (ulimit -n)"
_ADDRESS_FIXES = {errno.EADDRINUSE: _TAKEN, errno.EACCES: _TAKEN, errno.EMFILE: _TOO_MANY, errno.ENFILE: _TOO_MANY}


@dataclass(frozen=True)
class Settings(TypeChecked):
    """models: folders by the names that they are served under. port: 0 for any free one. token: that clients must send
    as a bearer token; "" for none."""

    models: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 8080
    token: str = ""
    device: str = "auto"
    precision: str = "auto"
    backend: str = "torch"
    limits: Limits = field(default_factory=Limits)


class _Server(uvicorn.Server):
    """uvicorn's, but for its signals: those are `stop_on_signals`'s."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)  # the kernel's queue is as long as what is accepted at once until here


def serve(settings: Settings) -> None:
    """Serves until a signal comes, then raises StoppedAfterSaving once what was in the server is answered.

    Raises BertsmithError for an address that cannot be taken and for a model that cannot be loaded.
    """
    for folder in settings.models.values():  # before a line says that it listens
        chosen_engine(model_folder(folder), settings.backend, settings.device, settings.precision)
    _allow_files(settings.limits)
    listener = _listener(settings.host, settings.port)
    open_here = settings.host in _LOOPBACK and not settings.token
    service = Service(settings.models, settings.limits, settings.token, _LOOPBACK if open_here else None)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logger.addFilter(_without_texts)
    if settings.host not in _LOOPBACK and not settings.token:
        warn(f"whoever reaches {settings.host}:{settings.port} may use this server; --token limits that")
    answer = f"no more requests are taken; those in the server have {settings.limits.stop_seconds:g} s to finish"
    at_once, turn = False, sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        with stop_on_signals(answer) as stop:
            asyncio.run(_run(_server(service), listener, service, settings, stop))
    except KeyboardInterrupt:  # a second Ctrl-C
        at_once = True
    finally:
        sys.setswitchinterval(turn)
        listener.close()
        ended = service.close(0.0 if at_once else _LAST_BATCH_SECONDS)
        logger.removeFilter(_without_texts)
    if not ended:
        # Python aborts where it ends while a thread is inside PyTorch, and the status would be that of a crash.
        warn("a batch was not finished and is dropped; the server has stopped")
        logging.shutdown()
        os._exit(EXIT_INTERRUPTED if at_once or stop.interrupted else EXIT_STOPPED_AFTER_SAVING)
    if at_once:
        raise KeyboardInterrupt
    raise StoppedAfterSaving("the server has stopped", interrupted=stop.interrupted)


def _server(service: Service) -> _Server:
    config = uvicorn.Config(
        make_app(service), http=connections(service), ws="none", log_config=None, access_log=False,
        server_header=False, lifespan="off", timeout_graceful_shutdown=2, backlog=_ACCEPTED_AT_ONCE,
    )  # fmt: skip
    return _Server(config)


async def _run(
    server: _Server, listener: socket.socket, service: Service, settings: Settings, stop: StopSignal
) -> None:
    serving = asyncio.create_task(server.serve([listener]))
    run_by = {name: getattr(settings, name) for name in ("device", "precision", "backend")}
    loading = asyncio.create_task(service.load(run_by))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}"
    say(f"listening on {address} while models are loaded")
    try:
        await _until(lambda: loading.done() or stop.requested or serving.done())
        if loading.done():
            await loading
            say(f"ready: {address}")
        await _until(lambda: stop.requested or serving.done())
        service.state = "stopping"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.limits.stop_seconds):
                await _until(lambda: not service.active)
        if service.active:
            within = f"within {settings.limits.stop_seconds:g} s"
            warn(f"{counted(service.active, 'request')} not finished {within} and dropped")
    finally:
        service.state = "stopping"
        server.should_exit = True
        loading.cancel()
        await serving


async def _until(done: Callable[[], bool]) -> None:
    while not done():
        await asyncio.sleep(_LOOK_SECONDS)


def _listener(host: str, port: int) -> socket.socket:
    """Raises BertsmithError for an address that cannot be taken."""
    if not 0 <= port <= 65535:
        raise BertsmithError(f"there is no port {port}", "--port", "use one from 1 to 65535, or 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)[0]
        # With its protocol, for asyncio sends small packets at once only where it sees that this is TCP.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # clients that come before uvicorn is ready wait
        return listener
    except (OSError, OverflowError, UnicodeError) as error:
        fix = "give --host an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
        if isinstance(error, OSError):
            fix = _ADDRESS_FIXES.get(error.errno or 0, fix)
        raise BertsmithError(f"this address cannot be taken: {error}", f"{host}:{port}", fix) from error


def _allow_files(limits: Limits) -> None:
    """Raises BertsmithError where the process may not open a file for every connection."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= limits.open_files:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits.open_files, hard))
    except (OSError, ValueError):
        what = f"{limits.connections:,} connections need {limits.open_files:,} open files, more than are allowed"
        raise BertsmithError(what, "--limits.connections", "use fewer, or raise the limit (ulimit -n)") from None


def _without_texts(record: logging.LogRecord) -> bool:
    """Leaves out what is logged of the rows of requests: it may hold their words."""
    own = threading.current_thread().name.startswith((ROWS_THREAD, "compute"))
    return not own or record.levelno >= logging.WARNING
