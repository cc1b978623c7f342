"""Small fine-tuned models of every kind, and servers of theirs: in a process, or in a thread, to be held still."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bertsmith
from bertsmith.base.stopping import StopSignal
from bertsmith.inference.server import serve
from bertsmith.inference.server.batcher import Lane
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.service import Service
from made_commands import Command, started_anew
from made_commands import bertsmith as bertsmith_command
from made_entities import tagged_rows
from made_pairs import pairs
from made_questions import QUICK as QUICK_QA
from made_questions import questions
from made_rows import QUICK, made_model, rows
from made_runs import PATIENCE


def made_models(folder: Path) -> dict[str, Path]:
    """A model folder for each name: labels, several (labels a row), number, ranks (numbers of pairs), tags, answers,
    choices, vectors, masks."""
    encoder = made_model(folder / "encoder")
    short = replace(QUICK, epochs=3)
    made = rows(64, 1)
    chosen = [{"text": row["text"], "choices": ["lovely", "awful"], "label": 0} for row in made]
    tuned: dict[str, tuple[str, list[dict[str, Any]], Any]] = {
        "labels": ("classify", made, short),
        "several": ("classify", [{**row, "label": [row["label"], "text"]} for row in made], short),
        "number": ("regress", [{**row, "label": len(row["text"]) / 50} for row in made], short),
        "ranks": ("regress", [{**row, "text_b": "word1 word2", "label": len(row["text"]) / 50} for row in made], short),
        "tags": ("tag", tagged_rows(96, 1), replace(short, epochs=12)),
        "answers": ("qa", questions(96, 1), replace(QUICK_QA, epochs=6)),
        "choices": ("choice", chosen, short),
        "vectors": ("embed", pairs(48, 1), short),
    }  # fmt: skip
    found = {"masks": encoder}
    for name, (task, train, settings) in tuned.items():
        bertsmith.finetune(
            task, encoder, train[:-16], train[-16:], folder / name, settings=replace(settings, report=False)
        )
        found[name] = folder / name / "model"
    return found


def made_cross_encoder(regressor: Path, folder: Path, **names: Any) -> Path:
    """A model of numbers as a folder that others publish: one logit, and nothing that says what it is of but for what
    its config.json names."""
    shutil.copytree(regressor, folder, ignore=shutil.ignore_patterns("task.json"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["problem_type"]
    (folder / "config.json").write_text(json.dumps(config | names), encoding="utf-8")
    return folder


@dataclass
class Listening:
    """A server at an address of this machine."""

    address: str

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        """A connection, to be closed by the caller."""
        parts = urlsplit(self.address)
        assert parts.hostname
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)

    def connect_bare(self) -> socket.socket:
        """The same without HTTP."""
        parts = urlsplit(self.address)
        return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60)

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON (or text) and headers of GET, or of POST with a body: bytes, or what becomes JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data is not None else {}
        connection = self.connect()
        try:
            connection.request("GET" if data is None else "POST", path, data, {**given, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode()
            found = {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text, found

    def metric(self, name: str) -> float:
        """The value in the line of /metrics that begins so."""
        (line,) = [each for each in self.ask("/metrics")[1].splitlines() if each.startswith(name)]
        return float(line.rsplit(" ", 1)[1])

    def resident_bytes(self) -> float:
        """The memory of its process."""
        return self.metric("process_resident_memory_bytes ")


@dataclass
class Served(Listening):
    """A server in a process. lines: what it has logged, as far as the thread `reading` has come."""

    process: subprocess.Popen[str] | Command
    lines: list[str] = field(default_factory=list)
    reading: threading.Thread = field(init=False)

    def requests(self) -> list[dict[str, Any]]:
        """The request log."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def until_seen(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds: the end of the server ends it, or the test's own limit of time."""
        runs = True
        while not holds():
            assert runs, "\n".join(self.lines)
            runs = self.reading.is_alive()
            time.sleep(0.01)

    def until_logged(self, words: str) -> None:
        """Waits for a line with these words, as `until_seen`."""
        self.until_seen(lambda: any(words in line for line in self.lines))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and gives the exit status, once all is read that it has logged."""
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.reading.join(PATIENCE)
        return status


@contextmanager
def serving(
    models: dict[str, Path],
    *flags: str,
    wait_for: str = "ready: ",
    anew: bool = False,
    does: Callable[..., int] = bertsmith_command,
    **variables: str,
) -> Iterator[Served]:
    """A server of the models, once it has logged that it is ready. anew: as a shell starts it, with nothing imported
    before. does: another function in place of the command line. variables: of its environment.

    No request is refused for the time that it would wait, or that its client takes: the machine may be busy.
    """
    named = [f"{name}={folder}" for name, folder in models.items()]
    waits = ("queue-seconds", "request-seconds", "body-seconds", "stop-seconds")
    patient = [part for name in waits for part in (f"--limits.{name}", "1000")]
    command = ["serve", *named, "--port", "0", "--device", "cpu", *patient, *flags]
    process = started_anew(*command, **variables) if anew else Command(*command, does=does, **variables)
    served = Served("", process)
    told: queue.Queue[str] = queue.Queue()
    served.reading = threading.Thread(target=_read, args=(served, told), daemon=True)
    served.reading.start()
    try:
        while wait_for not in (line := told.get(timeout=PATIENCE)):
            assert line != _END, "\n".join(served.lines)
            served.address = line.split()[2] if line.startswith("listening on") else served.address
        served.address = line.split()[-1] if line.startswith("ready: ") else line.split()[2]
        yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        served.reading.join(10)
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


_END = "the end of the log"


def _read(served: Served, told: queue.Queue[str]) -> None:
    assert served.process.stderr is not None
    for line in served.process.stderr:
        served.lines.append(line.rstrip("\n"))
        told.put(served.lines[-1])
    told.put(_END)


class Gate:
    """Holds a way of running a model before each batch until it is opened. sequences: of each batch since."""

    def __init__(self, lane: Lane) -> None:
        self._compute, self._open = lane.compute, threading.Event()
        self.entered, self.sequences = threading.Event(), list[int]()
        lane.compute = self._held

    def _held(self, sequences: Any) -> Any:
        self.entered.set()
        assert self._open.wait(PATIENCE)
        self.sequences.append(len(sequences.ids))
        return self._compute(sequences)

    def wait(self) -> None:
        """Until a batch is held."""
        assert self.entered.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


@dataclass
class ServedHere(Listening):
    """A server in a thread of this process, whose parts a test may replace. stop: as a signal would set it."""

    service: Service
    stop: StopSignal = field(default_factory=StopSignal)
    gates: list[Gate] = field(default_factory=list)

    def hold(self, name: str) -> Gate:
        """A gate before this model; it is opened at the end, if not before."""
        self.gates.append(Gate(self.service.models[name].lane))
        return self.gates[-1]

    def until(self, status: int) -> None:
        """Asks for its health until it has this status: the test's own limit of time ends it."""
        while self.ask("/health")[0] != status:
            time.sleep(0.01)


@contextmanager
def serving_here(models: dict[str, Path], **limits: Any) -> Iterator[ServedHere]:
    """A server of the models that listens, and loads them: as `serve` does it, but for its signals.

    No request is refused for the time that it would wait, or that its client takes: the machine may be busy.
    """
    patient = dict.fromkeys(("queue_seconds", "request_seconds", "body_seconds", "stop_seconds"), 1000.0)
    settings = serve.Settings(models, device="cpu", precision="fp32", limits=Limits(**{**patient, **limits}))
    service = Service(models, settings.limits)
    listener = serve._listener("127.0.0.1", 0)
    served = ServedHere(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
    running = serve._run(serve._server(service), listener, service, settings, served.stop)
    thread = threading.Thread(target=asyncio.run, args=(running,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        for gate in served.gates:
            gate.open()
        served.stop.requested = True
        thread.join(PATIENCE)
        listener.close()
        assert service.close(PATIENCE)
        assert not thread.is_alive()


def in_threads(count: int, function: Any, values: Sequence[Any]) -> list[Any]:
    """What the function gives for each value, asked from so many threads at once, in the order of the values."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, values))
