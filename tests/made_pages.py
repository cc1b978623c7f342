"""Pages of the documentation, and folders in which their commands are run as they stand."""

from __future__ import annotations

import csv
import io
import json
import os
import pydoc_data.topics
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base import log
from bertsmith.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def page(name: str) -> str:
    """The text of a page of docs/."""
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str = "sh") -> list[str]:
    """The fenced blocks of a page in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def ran(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that has to succeed, run in the folder, where `bertsmith` and `python` are those of this environment.
    variables: of the environment."""
    from made_shell import commands_of

    with commands_of(folder) as programs:
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), **variables}
        # The limit of the test is that of the command.
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def typed(folder: Path, commands: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Commands of the shell, all of which have to succeed, run as by `ran`."""
    return ran(folder, "bash", "-euo", "pipefail", "-c", commands, **variables)


def typed_here(commands: str) -> subprocess.CompletedProcess[str]:
    """Commands of one line each, run in the present folder, those of Bertsmith in this process, which takes seconds
    less each and has no limit of time. Pipes and redirections are for other commands only. All have to succeed."""
    printed, said = io.StringIO(), io.StringIO()
    for command in filter(None, commands.replace("\\\n", " ").splitlines()):
        if not command.startswith("bertsmith "):
            shell = ["bash", "-euo", "pipefail", "-c", command]
            done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            printed.write(done.stdout)
            continue
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(said):
            patch.setattr(log, "_said", set())
            status = main(shlex.split(command, comments=True)[1:])
        assert status == 0, f"{printed.getvalue()}\n{said.getvalue()}"
    return subprocess.CompletedProcess(commands, 0, printed.getvalue(), said.getvalue())


def run_here(code: str) -> dict[str, Any]:
    """The names that Python of a page has made, run in this process and in the present folder."""
    made: dict[str, Any] = {}
    exec(code, made)
    return made


def without_warnings(said: str) -> list[str]:
    """The lines of an output but for its warnings, none of which may be given twice."""
    warning = re.compile(r"^warning: .*\n(?:    .*\n)*", re.MULTILINE)
    given = warning.findall(said)
    assert len(set(given)) == len(given)
    return warning.sub("", said).splitlines()


def write_topics(folder: Path) -> list[str]:
    """Sixteen help topics of Python, of 5 kB and more, each written to a file of a new folder."""
    topics = sorted((text for text in pydoc_data.topics.topics.values() if len(text) > 5000), key=len)[:16]
    folder.mkdir()
    for number, text in enumerate(topics):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return topics


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a csv file whose columns are those of the first one."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
