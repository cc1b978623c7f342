"""The commands and the Python of docs/serving.md, run as they stand: servers are started, asked and stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from made_pairs import pairs
from made_rows import QUICK, made_model, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
ONE, SEVERAL = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(CLIENTS,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, the page's Python, and commands that are this environment's."""
    folder = tmp_path_factory.mktemp("page")
    encoder, short = made_model(folder / "encoder"), replace(QUICK, epochs=2)
    bertsmith.finetune("classify", encoder, rows(32, 1), rows(16, 2), folder / "runs" / "labels", settings=short)
    bertsmith.finetune("embed", encoder, pairs(32, 1), pairs(16, 2), folder / "runs" / "embed", settings=short)
    (folder / "clients.py").write_text(CLIENTS)
    (folder / "bin").mkdir()
    for name, command in (("bertsmith", f'"{sys.executable}" -m bertsmith'), ("python", f'"{sys.executable}"')):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


def ran(folder: Path, commands: str) -> str:
    """What the commands print, with a free port in place of the page's."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (folder / "clients.py").write_text(CLIENTS.replace("8082", port))
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "0"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    commands = re.sub("808[12]", port, commands)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_model_is_served_and_stopped(folder: Path) -> None:
    ran(folder, ONE)
    predicted = json.loads((folder / "predicted.json").read_text())
    assert {each["label"] for each in predicted} == {"praise", "blame"}
    assert json.loads((folder / "info.json").read_text())["model_id"] == "labels"


def test_several_models_are_asked_by_curl_and_by_clients(folder: Path) -> None:
    said = ran(folder, SEVERAL)
    assert "TextClassificationOutputElement" in said
    assert said.splitlines()[-1] == "32"
    assert [len(each) for each in json.loads((folder / "vectors.json").read_text())] == [32, 32]
    assert [len(each) for each in json.loads((folder / "batch.json").read_text())] == [2, 2]
