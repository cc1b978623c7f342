"""`bertsmith` for a shell: a program that takes no second to start, because the fork server runs what it is asked for.

The program hands its arguments, folder, environment and standard streams to the tests, and ends as the process that
got them ends. Signals that it receives reach that process. Variables that torch reads when it is imported have no
effect, as with `Command`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from bertsmith.base.processes import without_main_module
from made_commands import bertsmith, run_command
from made_runs import fork_server

# A first line of `#!` and an interpreter has little room, and none for spaces.
PROGRAM = """#!/bin/sh
"exec" "{python}" "-IS" "$0" "$@"
import json, os, signal, socket, sys
pid, early = None, []
def pass_on(number, frame):
    os.kill(pid, number) if pid else early.append(number)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, pass_on)
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"3"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
answers = server.makefile()
pid = int(answers.readline())
for number in early:
    os.kill(pid, number)
sys.exit(int(answers.readline()))
"""
# Whoever starts a process polls all others too, and of two that poll one at once one may miss its end.
_LOCK = threading.Lock()


@contextmanager
def commands_of(folder: Path) -> Iterator[Path]:
    """A folder for PATH with the programs `bertsmith`, which works as long as the block, and `python`."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    # A socket's name may have a hundred characters.
    with TemporaryDirectory(prefix="bertsmith-") as short, closing(socket.socket(socket.AF_UNIX)) as listener:
        address = f"{short}/socket"
        texts = {"bertsmith": PROGRAM.format(python=sys.executable, address=address)}
        texts["python"] = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
        for name, text in texts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        listener.bind(address)
        listener.listen()
        over = threading.Event()
        threading.Thread(target=_serve, args=(listener, over), daemon=True).start()
        try:
            yield programs
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, over: threading.Event) -> None:
    while True:
        try:
            asker, _ = listener.accept()
        except OSError:  # it is shut
            return
        threading.Thread(target=_answer, args=(asker, over), daemon=True).start()


def _answer(asker: socket.socket, over: threading.Event) -> None:
    with asker:
        _, streams, _, _ = socket.recv_fds(asker, 1, 3)
        ends = [Connection(stream, readable=True, writable=True) for stream in streams]
        with asker.makefile("rb") as asked:
            arguments, folder, environment = json.loads(asked.read())
        with _LOCK, without_main_module():
            process = fork_server().Process(target=_run, args=(arguments, folder, environment, ends))
            process.start()
        for end in ends:
            end.close()
        asker.sendall(f"{process.pid}\n".encode())
        status = None
        while status is None:
            if over.wait(0.01):
                process.kill()  # what a failed test has left
            with _LOCK:
                status = process.exitcode
        with suppress(OSError):
            asker.sendall(f"{status if status >= 0 else 128 - status}\n".encode())


def _run(arguments: list[str], folder: str, environment: dict[str, str], ends: list[Connection]) -> None:
    os.chdir(folder)
    run_command(bertsmith, tuple(arguments), ends, False, environment)
