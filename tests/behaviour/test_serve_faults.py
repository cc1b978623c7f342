"""Clients that misbehave and models that fail: nothing crashes, and the neighbours get their answers."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.cli import main
from bertsmith.cli.serve import named_folders
from made_served import Served, in_threads, serving

PATH = "/models/labels/predict"
ONE = {"inputs": "lovely word1"}
HEAD = b"POST /models/labels/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps(ONE).encode()


@pytest.fixture(scope="module")
def folders(served_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """labels; vectors; and overflows, a copy of labels that has no finite score for "word7"."""
    broken = tmp_path_factory.mktemp("broken") / "model"
    shutil.copytree(served_models["labels"], broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"][5 + 7] = 3e38 * torch.randn(32).sign()
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    return {"labels": served_models["labels"], "vectors": served_models["vectors"], "overflows": broken}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Iterator[Served]:
    with serving(folders, "--precision", "fp32") as server:
        yield server


@pytest.fixture(scope="module")
def impatient(folders: dict[str, Path]) -> Iterator[Served]:
    """A server that waits for its clients for two seconds."""
    with serving(folders, "--precision", "fp32", "--limits.body-seconds", "2") as server:
        yield server


@pytest.fixture(autouse=True)
def neighbours(request: pytest.FixtureRequest) -> Iterator[None]:
    """Asks the server all the while, and holds that every answer is the right one. The impatient server may cut it
    where the machine has held it up for two seconds: then it asks again."""
    names = {"served", "impatient"} & {*request.fixturenames}
    if not names:
        yield
        return
    served: Served = request.getfixturevalue(*names)
    cut = (ConnectionError, http.client.HTTPException) if "impatient" in names else ()

    def answer(path: str, body: Any = None) -> tuple[int, Any]:
        while True:
            with suppress(*cut):
                status, found, _ = served.ask(path, body)
                if not cut or status != 408:
                    return status, found
            assert served.process.poll() is None

    expected = answer(PATH, ONE)[1][0]["score"]
    ended, wrong = threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            status, found = answer(PATH, ONE)
            if status != 200 or abs(found[0]["score"] - expected) > 1e-5:
                wrong.append((status, found))
            ended.wait(0.01)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        yield
        ended.set()
        asking.result()
    assert not wrong
    assert served.process.poll() is None
    assert answer("/health")[0] == 200


def read_all(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    parts = []
    with suppress(ConnectionError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("how", ["with its length", "in chunks"])
def test_a_body_of_100_mb_is_refused_and_not_kept(served: Served, how: str) -> None:
    before = served.resident_bytes()
    size, part = 100_000_000, b"x" * 1_000_000
    with closing(served.connect_bare()) as client:
        with suppress(ConnectionError):  # the server may close before all is sent
            if how == "in chunks":
                client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(size // len(part)):
                    client.sendall(b"%x\r\n" % len(part) + part + b"\r\n")
                client.sendall(b"0\r\n\r\n")
            else:
                client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
                for _ in range(size // len(part)):
                    client.sendall(part)
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert served.resident_bytes() - before < 40e6


def test_a_body_that_comes_too_slowly_is_given_up(impatient: Served) -> None:
    with closing(impatient.connect_bare()) as client:
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n{" % len(BODY))
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 2 s" in answer


def test_a_head_that_does_not_come_to_its_end_is_cut(impatient: Served) -> None:
    with ExitStack() as stack:
        heads = (b"", b"GET /health HT", HEAD + b"X-Long: ")
        clients = [stack.enter_context(closing(impatient.connect_bare())) for _ in heads]
        for client, sent in zip(clients, heads, strict=True):
            client.sendall(sent)
        assert [read_all(client) for client in clients] == [b"", b"", b""]


def test_a_client_that_does_not_read_its_answer_is_cut(impatient: Served) -> None:
    """Also one that asks for more before that."""
    with ExitStack() as stack:
        for more in (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b""):
            stack.enter_context(closing(waiting_client(impatient))).sendall(more)
        while waiting_for_clients(impatient):  # until the test's own limit of time
            time.sleep(0.1)


def waiting_client(served: Served) -> socket.socket:
    """A client that does not take its answer. On a busy machine one may be cut, after two seconds, before it is seen to
    wait: then there is another one."""
    body = json.dumps({"inputs": ["word1 " * 20] * 400}).encode()
    head = HEAD.replace(b"labels/predict", b"vectors/embed_all") + b"Content-Length: %d\r\n\r\n" % len(body)
    while True:
        client, end = served.connect_bare(), time.monotonic() + 30
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(head + body)
        while time.monotonic() < end:
            if client.getsockname()[1] in waiting_for_clients(served):
                return client
            time.sleep(0.01)
        client.close()


def waiting_for_clients(served: Served) -> set[int]:
    """The ports of clients that do not take the data that the server's process holds for them. What the kernel keeps
    of a closed connection has no inode."""
    table = Path(f"/proc/{served.process.pid}/net/tcp").read_text().splitlines()[1:]
    port = f":{urlsplit(served.address).port:04X}"
    rows = [line.split() for line in table]
    return {
        int(row[2].split(":")[1], 16)
        for row in rows
        if row[1].endswith(port) and row[9] != "0" and int(row[4].split(":")[0], 16) > 100_000
    }


def test_garbage_in_place_of_http_is_answered_with_400(served: Served) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"):
        with closing(served.connect_bare()) as client:
            client.sendall(garbage + b"\r\n\r\n")
            assert read_all(client).startswith(b"HTTP/1.1 400 ")


def test_a_name_that_points_here_from_elsewhere_is_refused(served: Served) -> None:
    for name, status in (("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("evil.example", 421)):
        assert served.ask("/info", headers={"Host": name})[0] == status
        assert served.ask(PATH, ONE, {"Host": name})[0] == status


def test_half_closed_and_reset_connections_are_let_go(served: Served) -> None:
    count = len([each for each in served.requests() if each["status"] == 499])
    for shut in (True, False):
        for sent in (HEAD + b"Content-Length: 1000\r\n\r\n{", HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY):
            with closing(served.connect_bare()) as client:
                client.sendall(sent)
                if shut:
                    client.shutdown(socket.SHUT_WR)
                    read_all(client)
                else:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    served.until_seen(lambda: len([each for each in served.requests() if each["status"] == 499]) >= count + 2)


def test_pipelined_requests_are_answered_in_their_order(served: Served) -> None:
    bodies = [json.dumps({"inputs": text, "x": 1}).encode() if not text else BODY for text in ("a", "", "b")]
    with closing(served.connect_bare()) as client:
        client.sendall(b"".join(HEAD + b"Content-Length: %d\r\n\r\n" % len(each) + each for each in bodies))
        found = b""
        while found.count(b"HTTP/1.1") < 3:
            found += client.recv(65536)
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200", b"422", b"200"]


def test_a_model_that_fails_on_a_row_fails_that_request_alone(served: Served) -> None:
    texts = ["lovely word7" if number % 5 == 0 else f"lovely word{number % 6}" for number in range(60)]
    path = "/models/overflows/predict"
    found = in_threads(12, lambda text: served.ask(path, {"inputs": text}), texts)
    for text, (status, answer, _) in zip(texts, found, strict=True):
        assert status == (424 if "word7" in text else 200), answer
        if "word7" in text:
            assert answer["error_type"] == "Backend"
            assert "not finite" in answer["error"]


# Half of a surrogate pair, as JSON can write it, and as bytes that are no UTF-8.
HALF, NO_TEXT = rb'"\ud800"', b'"\xed\xa0"'
UNUSABLE = [
    *((PATH, body, 422) for body in (b"", b"{", b"[" * 100_000, BODY + b"}", BODY[:-1], b"\xff\xfe", BODY + b"\x00")),
    *((PATH, b'{"inputs": %s}' % text, 422) for text in (HALF, NO_TEXT, b'"a\x00b"', b"NaN", b"1" * 5000)),
    (PATH, b'{"inputs": "a", %s: 1}' % HALF, 422),
    ("/models/labels/tokenize", b'{"inputs": ["a", %s]}' % HALF, 422),
    ("/models/labels/answers", b'{"rows": [{"text": %s}]}' % HALF, 422),
    ("/models/labels", b'{"inputs": "a", "parameters": {%s: 1}}' % HALF, 422),
    ("/models/labels", b'{"inputs": "a", "parameters": {"function_to_apply": %s}}' % HALF, 422),
    ("/embed", b'{"inputs": ["a", %s]}' % HALF, 422),
    ("/v1/embeddings", b'{"input": %s, "model": "vectors"}' % HALF, 422),
    ("/v1/embeddings", b'{"input": "a", "model": %s}' % HALF, 404),
]


def test_bodies_that_are_no_json_or_no_text_leave_their_neighbours_answers_alone(served: Served) -> None:
    texts = [f"lovely word{number % 6} awful" for number in range(len(UNUSABLE))]
    alone = [served.ask(PATH, {"inputs": text})[1] for text in texts]
    both = [(PATH, {"inputs": text}) for text in texts] + [(path, body) for path, body, _ in UNUSABLE]
    both = [each for pair in zip(both[: len(texts)], both[len(texts) :], strict=True) for each in pair]
    found = in_threads(8, lambda each: served.ask(*each), both)
    for (status, answer, _), expected in zip(found[::2], alone, strict=True):
        assert status == 200
        assert [each["label"] for each in answer] == [each["label"] for each in expected]
        assert [each["score"] for each in answer] == pytest.approx([each["score"] for each in expected], abs=1e-5)
    for (status, answer, _), (path, body, wanted) in zip(found[1::2], UNUSABLE, strict=True):
        assert status == wanted, (path, body[:80], answer)
        assert answer.keys() == ({"error"} if path.startswith("/v1") else {"error", "error_type"})
    assert not [line for line in served.lines if "an error of the server's own" in line]


def _of_equal_names(folder: Path, copy: Path) -> Path:
    """The folder with one name for its two classes."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "id2label": dict.fromkeys(config["id2label"], "good")}))
    return copy


def test_what_the_user_gets_wrong_is_one_message(
    served_models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = str(served_models["labels"])
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wrong = {
            (str(tmp_path / "nowhere"),): "this folder is not there",
            (labels, labels): "two models are called 'labels'",
            (f"a/b={labels}",): "cannot be the name of a model",
            (str(tmp_path / "empty"), "--port", "0"): "config.json",
            (labels, "--port", port): "choose another --port",
            (labels, "--host", "no such host"): "give --host an address of this machine",
            (labels, "--host", "192.0.2.1"): "give --host an address of this machine",  # set aside for documents
            ("unset=",): "this folder is not there",
            (labels, "--port", "65536"): "there is no port 65536",
            (str(_of_equal_names(served_models["labels"], tmp_path / "equal")),): "classes of this model have the name",
            (): "no model is named",
            (labels, "--limits.rows", "0"): "--limits.rows is 0",
            (labels, "--backend", "onnx", "--precision", "bf16"): "onnx does not run in bf16",
            (labels, "--backend", "onnx"): "onnx runs no other",
            (labels, "--device", "cuda:99"): "device 'cuda:99' does not exist",
            (labels, "--token", "pässword"): "a token has",
            (labels, "--token", ""): "--token is set and empty",
            (labels, "--token", "None"): "--token is None",
            (labels, "--prot", "1"): "--port",
        }
        for call, says in wrong.items():
            assert main(["serve", *call]) == 2, call
            message = capsys.readouterr().err
            assert says in message
            assert "Traceback" not in message
            # A folder is read while the server listens; what it is to be run by is checked before.
            assert "listening" not in message or says in ("config.json", "classes of this model have the name"), call


def test_a_path_may_have_an_equals_sign_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "lr=3e-5"
    folder.mkdir()
    assert named_folders((str(folder), f"other={folder}"), "serve") == {"lr=3e-5": folder, "other": folder}


def test_an_empty_token_is_refused(
    served_models: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_TOKEN", "")
    assert main(["serve", str(served_models["labels"])]) == 2
    assert "BERTSMITH_TOKEN is set and empty" in capsys.readouterr().err


def test_without_the_packages_of_a_server_one_message_says_which_extra_to_install(
    served_models: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("bertsmith.inference.server.")]:
        if not name.endswith(".limits"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(served_models["labels"])]) == 2
    message = capsys.readouterr().err
    assert "a server needs uvicorn, which is not installed" in message
    assert "pip install 'bertsmith[serve]'" in message
