"""Connections: how many there may be, what a request may send beside its body, and edges of HTTP; long requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.server.bodies import Bodies
from bertsmith.inference.server.connection import HEAD_BYTES
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.serve import _listener
from made_served import Listening, Served, in_threads, serving, serving_here

PATH = "/models/labels/predict"
ONE = {"inputs": "lovely word1"}
MOST = 40
JSON = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % PATH.encode()
CHUNKED = JSON + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def served(served_models: dict[str, Path]) -> Iterator[Served]:
    with serving({"labels": served_models["labels"]}, "--limits.connections", str(MOST)) as server:
        yield server


@contextmanager
def idle_clients(served: Listening, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Clients that send this and no more. Each that sends a whole request has its answer before the next one sends: a
    connection whose request is being answered makes no room for another, which may be refused then."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(served.connect_bare())) for _ in range(count)]
        for client in clients:
            with suppress(ConnectionError):  # one of the first may be cut already
                client.sendall(sent)
                if sent.startswith(WHOLE):
                    next_answer(client)
        yield clients


def next_answer(client: socket.socket) -> tuple[int, bytes]:
    """Status and body of the answer to the request that was sent last: its head may come before the rest."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.status, answer.read()


def answer_to(served: Listening, sent: bytes) -> bytes:
    """All that the server sends before it closes the connection."""
    found = b""
    with closing(served.connect_bare()) as client, suppress(ConnectionError):
        with suppress(ConnectionError):
            client.sendall(sent)
        while part := client.recv(65536):
            found += part
    return found


def is_cut(client: socket.socket) -> bool:
    """Whether nothing more will come, behind the answers that have."""
    client.setblocking(False)
    try:
        while client.recv(65536):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


HALF_A_BODY = JSON + b"Content-Length: 9\r\n\r\n{"
WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", HALF_A_BODY, WHOLE + HALF_A_BODY])
def test_the_connections_that_wait_longest_for_their_clients_make_room_for_others(served: Served, sent: bytes) -> None:
    before = served.metric("bertsmith_cut_connections_total")
    with idle_clients(served, 2 * MOST, sent) as clients:
        for _ in range(5):
            assert served.ask(PATH, ONE)[0] == 200
        cut = [is_cut(client) for client in clients]
        assert MOST <= sum(cut) <= MOST + 5
        assert sent or all(cut[:MOST])  # who has sent a part does not count as waiting since it came
        after = served.metric("bertsmith_cut_connections_total")
    assert after - before >= MOST
    served.until_logged("connections (--limits.connections) are taken")


def test_a_flood_of_connections_does_not_use_up_the_files_that_a_process_may_open(
    served_models: dict[str, Path],
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 4096 else 4096, hard))
    try:
        with serving({"labels": served_models["labels"]}, "--limits.connections", "60") as served:
            most = Limits(connections=60).open_files
            resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (most, most))
            flood = threading.Event()

            statuses: list[int] = []

            def ask() -> None:
                while not flood.is_set() or not statuses:
                    # The flood may be faster than a request after its connection.
                    with suppress(ConnectionError, http.client.HTTPException):
                        statuses.append(served.ask("/health")[0])

            with ExitStack() as stack:
                asking = threading.Thread(target=ask)
                asking.start()
                for _ in range(8):
                    stack.enter_context(idle_clients(served, 100))
                flood.set()
                asking.join()
            assert set(statuses) == {200}
            assert served.ask(PATH, ONE)[0] == 200
            assert not [line for line in served.lines if "open files" in line or "Traceback" in line]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "announced", [b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"Content-Length: 4000000\r\n\r\n{"]
)
def test_slow_bodies_shut_nobody_out(served_models: dict[str, Path], announced: bytes) -> None:
    with serving_here({"labels": served_models["labels"]}) as served:
        served.until(200)
        with idle_clients(served, 100, JSON + announced) as clients:
            assert {served.ask(PATH, ONE)[0] for _ in range(5)} == {200}
            assert not any(is_cut(client) for client in clients)


@pytest.mark.parametrize("chunked", [True, False])
def test_where_bodies_have_too_many_bytes_the_slowest_are_cut(served_models: dict[str, Path], chunked: bool) -> None:
    part = b"x" * 900
    body = b"384\r\n" + part + b"\r\n" if chunked else part
    how = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000"
    with serving_here({"labels": served_models["labels"]}, body_bytes=1000) as served:
        served.until(200)
        with idle_clients(served, 100, JSON + how + b"\r\n\r\n" + body) as clients:
            assert {served.ask(PATH, ONE)[0] for _ in range(5)} == {200}
            cut = [client for client in clients if is_cut_with_429(client)]
            assert 100 - 64_000 // 900 <= len(cut) <= 100 - 64_000 // 900 + 5
            assert {served.ask(PATH, ONE)[0] for _ in range(5)} == {200}


def test_of_bodies_that_have_too_many_bytes_the_one_that_comes_slowest_is_cut() -> None:
    async def check() -> None:
        bodies = Bodies(Limits(body_bytes=100))  # 6,400 of all

        async def sent(size: int) -> None:
            parts = [{"type": "http.request", "body": b"x" * size, "more_body": True}]

            async def receive() -> dict[str, Any]:
                return parts.pop() if parts else await asyncio.Future()

            async with bodies.read(receive):
                pass

        slow, *others = (asyncio.create_task(sent(size)) for size in (50, *[99] * 64, 60))
        done, _ = await asyncio.wait((slow, *others), return_when=asyncio.FIRST_COMPLETED)
        assert (done, slow.exception().status) == ({slow}, 429)

    asyncio.run(check())


def is_cut_with_429(client: socket.socket) -> bool:
    """Whether a body was refused because there were too many."""
    client.setblocking(False)
    try:
        client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    client.settimeout(60)
    status, answer = next_answer(client)
    assert status == 429
    assert b"64,000 bytes together" in answer
    assert b"queue" not in answer
    return True


def test_where_no_connection_waits_for_its_client_a_new_one_is_answered_with_503(
    served_models: dict[str, Path],
) -> None:
    with serving_here({"labels": served_models["labels"]}, connections=3) as served:
        served.until(200)
        gate = served.hold("labels")
        body = json.dumps(ONE).encode()
        with idle_clients(served, 3, JSON + b"Content-Length: %d\r\n\r\n" % len(body) + body) as clients:
            gate.wait()
            while served.service.active < 3:
                time.sleep(0.01)
            for refused in in_threads(8, lambda _: answer_to(served, b""), range(40)):
                assert refused.startswith(b"HTTP/1.1 503 ")
                assert b"Retry-After: 1\r\n" in refused
            assert served.service.metrics.cut_connections._value.get() == 0
            gate.open()
            for client in clients:
                assert next_answer(client)[0] == 200


def test_more_connections_than_files_that_may_be_opened_are_refused_at_the_start(
    served_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(served_models["labels"]), "--limits.connections", "2000000000"]) == 2
    assert "2,000,000,000 connections need 2,000,000,124 open files" in capsys.readouterr().err


def test_where_no_file_is_left_to_open_the_host_is_not_to_blame() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(BertsmithError, match="Too many open files") as caught:
            _listener("127.0.0.1", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.fix == "let less be open at a time, or raise the limit (ulimit -n)"


LONG = b"X-Long: " + 60_000_000 * b"x"
MANY = b"".join(b"X-%d: 1\r\n" % number for number in range(1_000_000))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /health HTTP/1.1\r\n" + LONG, id="a header"),
        pytest.param(b"GET /health HTTP/1.1\r\n" + MANY, id="many headers"),
        pytest.param(b"GET /" + LONG, id="a path"),
        pytest.param(CHUNKED + b"1;" + LONG, id="what stands beside a chunk's size"),
        pytest.param(CHUNKED + b"1\r\n{\r\n0\r\n" + MANY, id="trailers"),
        pytest.param(CHUNKED + b"200000\r\n" + (1 << 21) * b"x" + b"\r\n0\r\n" + MANY, id="trailers of a long body"),
    ],
)
def test_what_a_request_sends_beside_its_body_has_a_limit(served: Served, sent: bytes) -> None:
    before = served.resident_bytes()
    found = answer_to(served, sent)
    assert found[:13] in (b"", b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")  # nothing where the client has not stopped sending
    assert served.resident_bytes() - before < 20e6
    assert served.ask(PATH, ONE)[0] == 200


def test_a_head_that_is_too_long_is_answered_with_431(served: Served) -> None:
    # What comes in one read with the beginning of the head, 256 KB at the most, is not counted.
    found = answer_to(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + (262_144 + HEAD_BYTES) * b"x")
    assert found.startswith(b"HTTP/1.1 431 ")
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error_type"] == "Validation"
    served.until_logged('"route": "none", "status": 431')
    long_path = b"GET /" + HEAD_BYTES * b"x" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert answer_to(served, long_path).startswith(b"HTTP/1.1 431 ")  # also where it comes at once


def test_small_chunks_do_not_count_as_a_long_head(served: Served) -> None:
    body = json.dumps({"inputs": "lovely word1" + 40_000 * " "}).encode()
    found = answer_to(served, CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 200 ")


ASKED = json.dumps(ONE).encode()
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in ASKED) + b"0\r\nX-Trailer: 1\r\n\r\n"


@pytest.mark.parametrize("packet", [1, 300, 1 << 20])
@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (JSON + UPGRADE + b"Content-Length: %d\r\n" % len(ASKED), ASKED, 200),
        (JSON + UPGRADE + b"Transfer-Encoding: chunked\r\n", CHUNKS, 200),
        (JSON + UPGRADE + b"Content-Length: 0\r\n", b"", 422),
        (JSON + UPGRADE.replace(b"h2c", b"websocket"), b"", 422),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE, b"", 200),
    ],
    ids=["length", "chunked", "empty", "websocket", "GET"],
)
def test_an_upgrade_is_ignored(served: Served, head: bytes, body: bytes, status: int, packet: int) -> None:
    closing_one = head.replace(b"Connection: Upgrade", b"Connection: Upgrade, close")
    sent = 3 * (head + b"\r\n" + body) + WHOLE + closing_one + b"\r\n" + body
    found = b""
    with closing(served.connect_bare()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin in range(0, len(sent), packet):
            client.sendall(sent[begin : begin + packet])
        while part := client.recv(65536):
            found += part
    statuses = [int(each[:3]) for each in found.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [status, status, status, 200, status]


def test_many_upgrades_in_one_packet(served: Served) -> None:
    count = 2000
    sent = count * (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + b"\r\n")
    last = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert answer_to(served, sent + last).count(b"HTTP/1.1 200 ") == count + 1


def test_connect_is_no_upgrade(served: Served) -> None:
    assert answer_to(served, b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")[:13] == b"HTTP/1.1 400 "


def test_what_is_no_http_is_answered_in_json(served: Served) -> None:
    head, _, body = answer_to(served, b"GET\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "cannot be read as HTTP" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.0\r\n", 200),
        (b"GET /health HTTP/1.1\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
        (b"GET /models/labels/info/ HTTP/1.1\r\nHost: localhost\r\n", 200),
        (b"GET /health// HTTP/1.1\r\nHost: localhost\r\n", 200),
    ],
)
def test_edges_of_http(served: Served, head: bytes, status: int) -> None:
    assert answer_to(served, head + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (JSON + b"Content-Length: 9000000\r\n", 413),
        (JSON.replace(b"POST", b"PUT") + b"Content-Length: 9\r\n", 405),
        (JSON.replace(b"json", b"xml") + b"Content-Length: 9\r\n", 415),
    ],
)
def test_where_a_body_is_refused_that_the_client_holds_back_the_connection_is_closed(
    served: Served, head: bytes, status: int
) -> None:
    found = answer_to(served, head + b"Expect: 100-continue\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in found


def test_a_client_that_was_told_to_send_its_body_may_ask_again(served: Served) -> None:
    body = json.dumps(ONE).encode()
    with closing(served.connect_bare()) as client:
        for _ in range(2):
            client.sendall(JSON + b"Expect: 100-Continue\r\nContent-Length: %d\r\n\r\n" % len(body))
            assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(body)
            status, answer = next_answer(client)
            assert (status, json.loads(answer)[0]["label"]) == (200, "praise")


@pytest.mark.parametrize("path", ["/", "/health", "/info", "/metrics", "/page.js"])
def test_head_is_answered_as_get_without_a_body(served: Served, path: str) -> None:
    found = {}
    for method in ("GET", "HEAD"):
        connection = served.connect()
        with closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            found[method] = (answer.status, answer.getheader("content-type"), bool(answer.read()))
    assert found["GET"] == (200, found["HEAD"][1], True)
    assert found["HEAD"][::2] == (200, False)
    served.until_seen(lambda: any((each["method"], each["route"]) == ("HEAD", path) for each in served.requests()))


def test_long_requests_leave_the_short_ones_their_turn(served_models: dict[str, Path]) -> None:
    long = {"inputs": 20_000 * "word1 ", "truncate": True}
    with serving_here({"labels": served_models["labels"]}) as served:
        served.until(200)
        ended, answers = threading.Event(), list[int]()
        served.service._long_pool.submit(ended.wait)
        asking = threading.Thread(target=lambda: answers.extend(_statuses(served, long, 16)))
        asking.start()
        try:
            while served.service.long < 16:
                assert served.ask(PATH, ONE)[0] == 200
            status, _, headers = served.ask(PATH, long)
            assert (status, headers["retry-after"]) == (429, "5")
            assert served.ask(PATH, ONE)[0] == 200
        finally:
            ended.set()
            asking.join()
        assert answers == [200] * 16
        while served.service.active or served.service.long:
            time.sleep(0.01)


def _statuses(served: Listening, body: object, count: int) -> list[int]:
    return in_threads(count, lambda _: served.ask(PATH, body)[0], range(count))
