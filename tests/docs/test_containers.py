"""The Dockerfile cannot be built by a test. What it names is there, and our own command line reads what it runs."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from bertsmith.cli import main
from made_server import Behaviour, serving

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "decisions" / "017-containers.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "WORKDIR"}


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, (name, rest), in order; those before the first one under ""."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    found: dict[str, list[tuple[str, str]]] = {"": []}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found[rest.split(" AS ")[1]] = []
        found[list(found)[-1]].append((name, rest))
    return found


def of(stage: str, name: str) -> str:
    """What stands behind the only instruction of this name in a stage."""
    (found,) = [rest for each, rest in stages()[stage] if each == name]
    return found


def entry_point(stage: str) -> list[str]:
    words: list[str] = json.loads(of(stage, "ENTRYPOINT"))
    return words


def test_the_stages_are_the_two_images_and_what_they_share() -> None:
    assert list(stages()) == ["", "torch", "train", "serve"]
    assert {name for each in stages().values() for name, _ in each} <= KNOWN
    assert [of(stage, "FROM").split()[0] for stage in ("train", "serve")] == ["torch", "torch"]
    declared = {rest.partition("=")[0] for each in stages().values() for name, rest in each if name == "ARG"}
    assert {"PYTHON", "TORCH", "TORCH_INDEX", "EXTRAS"} == declared
    assert set(re.findall(r"\$\{?([A-Z_]+)", TEXT)) == declared


def test_every_file_that_is_copied_is_there_and_not_ignored() -> None:
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [path for name, rest in stages()["torch"] if name == "COPY" for path in rest.split()[:-1]]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / path).exists() for path in copied)
    needed = [PROJECT["readme"], *PROJECT["license-files"]]
    assert all(any(fnmatch(each, path) for path in copied) for each in needed), "the build back-end reads these"


def test_torch_and_the_extras_are_those_of_the_project() -> None:
    arguments = dict(rest.partition("=")[::2] for name, rest in stages()["torch"] if name == "ARG")
    assert arguments["TORCH"].strip('"') in PROJECT["dependencies"]
    assert of("", "ARG") in ("PYTHON=3.11", "PYTHON=3.12"), "those that the tests are run with"
    for stage in ("train", "serve"):
        extras = of(stage, "ARG").removeprefix("EXTRAS=")
        assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
        assert f"`{extras}`" in PAGE


@pytest.mark.parametrize("stage", ["train", "serve"])
def test_nothing_runs_as_root(stage: str) -> None:
    names = [name for name, _ in stages()[stage]]
    assert int(of(stage, "USER")) > 0
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")
    assert f"--uid {of(stage, 'USER')}" in TEXT


def test_the_entry_points_are_read_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *train = entry_point("train")
    assert program in PROJECT["scripts"]
    assert main([*train, *json.loads(of("train", "CMD"))]) == 0
    program, *serve = entry_point("serve")
    assert program in PROJECT["scripts"]
    assert serve[-2:] == ["--port", of("serve", "EXPOSE")]
    monkeypatch.chdir(tmp_path)
    for model, refused in (([], "no model is named"), (["labels"], "this folder is not there")):
        assert main([*serve, *model]) == 2
        assert refused in capsys.readouterr().err


@pytest.mark.parametrize("line", re.findall(r"^    docker run (.*)$", PAGE, re.MULTILINE))
def test_the_commands_of_the_page_are_read_too(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    (place,) = [place for place, word in enumerate(words) if word.startswith("bertsmith:")]
    stage = words[place].partition(":")[2]
    monkeypatch.chdir(tmp_path)
    assert main([*entry_point(stage)[1:], *words[place + 1 :]]) == 2
    assert re.search("not there|not exist", capsys.readouterr().err)


def test_the_health_check_tells_ready_from_loading_and_from_gone() -> None:
    program, *command = json.loads(of("serve", "HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"

    def healthy(address: str) -> bool:
        asked = [word.replace("http://127.0.0.1:8080", address) for word in command]
        assert asked != command
        return subprocess.run([sys.executable, *asked], capture_output=True, check=False).returncode == 0

    with serving(Behaviour(files={"/health": b"{}"}, statuses=[503, 200])) as address:
        assert not healthy(address)
        assert healthy(address)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert not healthy(f"http://127.0.0.1:{port}")
