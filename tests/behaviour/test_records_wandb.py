"""Promise: `--wandb PROJECT` hands a run's records to Weights & Biases, and nothing that fails there ends the run.

The package is not among the dependencies: in its place stands one that writes down what it is called with, and the
last test takes the real one where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.training.pretrain import pretrain
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run_folder import Run
from made_runs import corpus, figures, save_recipe, small_corpus, small_recipe, stopped_after

RECIPE = small_recipe(phase1__steps=3, phase2__steps=2)
PACKAGE = """
import json, os, pathlib

CALLS, FAILS = pathlib.Path({calls!r}), {fails!r}

def note(name, **given):
    with open(CALLS, "a") as file:
        file.write(json.dumps({{"name": name, "mode": os.environ.get("WANDB_MODE"), **given}}) + "\\n")
    if name == FAILS:
        raise ConnectionError("no route to the server")

class Run:
    offline = os.environ.get("WANDB_MODE") == "offline"
    @property
    def url(self):
        assert not self.offline, "wandb warns of it"
        note("url")
        return "http://localhost/forge"
    def define_metric(self, name, step_metric):
        note("define_metric", metric=name, over=step_metric)
    def log(self, values):
        note("log", values=values)
    def finish(self, exit_code):
        note("finish", exit_code=exit_code)

def init(**given):
    note("init", given=given)
    return Run()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """What the package was called with, a line each. The parameter: the call that fails."""
    path = tmp_path / "calls.jsonl"
    (tmp_path / "packages" / "wandb").mkdir(parents=True)
    text = PACKAGE.format(calls=str(path), fails=getattr(request, "param", ""))
    (tmp_path / "packages" / "wandb" / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    importlib.invalidate_caches()
    yield path
    sys.modules.pop("wandb", None)


def called(calls: Path, name: str) -> list[dict[str, Any]]:
    lines = calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []
    return [each for each in map(json.loads, lines) if each["name"] == name]


def test_every_record_is_handed_on(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = pretrain(RECIPE, corpus(), tmp_path / "small", outputs=Outputs(wandb="forge"))
    (begun,) = called(calls, "init")
    assert begun["mode"] == "offline"
    assert "mode" not in begun["given"], "which would overrule the variable"
    assert (begun["given"]["project"], begun["given"]["name"]) == ("forge", "small")
    assert begun["given"]["config"]["phase1"]["steps"] == 3
    (over,) = {each["over"] for each in called(calls, "define_metric")}
    found = {each["values"][over]: each["values"] for each in called(calls, "log") if "train/loss" in each["values"]}
    assert {step: each["train/loss"] for step, each in found.items()} == {
        each["step"]: each["loss"] for each in run.metrics("train")
    }
    (end,) = (each["values"] for each in called(calls, "log") if "end/tokens" in each["values"])
    assert end["end/tokens"] == run.metrics("end")[0]["tokens"], "counts too"
    (ended,) = called(calls, "finish")
    assert ended["exit_code"] == 0


def test_a_resumed_run_is_the_same_one_there(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(2, monkeypatch, RECIPE, tmp_path / "run", outputs=Outputs(wandb="forge"))
    pretrain(RECIPE, corpus(), tmp_path / "run", resume=True, outputs=Outputs(wandb="forge"))
    first, second = (each["given"] for each in called(calls, "init"))
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    assert [each["exit_code"] for each in called(calls, "finish")] == [1, 0]


@pytest.mark.parametrize("calls", ["init", "define_metric", "url", "log", "finish"], indirect=True)
def test_what_fails_is_warned_of_once_and_ends_nothing(
    calls: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    plain = pretrain(RECIPE, corpus(), tmp_path / "plain")
    said.clear()
    run = pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(wandb="forge"))
    assert figures(run) == figures(plain)
    warnings = [each for each in said.messages if each.startswith("warning: ")]
    assert len([each for each in warnings if "no route to the server" in each]) == 1
    names = [json.loads(line)["name"] for line in calls.read_text(encoding="utf-8").splitlines()]
    assert names.count(names[-1]) == 1, "nothing is called after what failed"
    started = any(each.startswith("Weights & Biases: project forge") for each in said.messages)
    assert started == (names[-1] in ("log", "finish"))


def test_a_package_that_is_missing_is_said_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else find(name, *more))
    save_recipe(RECIPE, tmp_path / "recipe.yaml")
    arguments = ["--corpus", str(small_corpus()), "--out", str(tmp_path / "run"), "--wandb", "forge"]
    assert main(["pretrain", str(tmp_path / "recipe.yaml"), *arguments]) == 2
    assert "pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(BertsmithError, match="wandb is not installed"):
        Outputs(wandb="forge").check(None, resume=False)


def test_a_file_in_the_way_of_its_folder_is_warned_of_once(
    calls: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """As a full disk: what it would write beside wandb's own files cannot be written."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").touch()
    assert pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(wandb="forge")).is_finished()
    assert len([each for each in said.messages if "Weights & Biases failed to start" in each]) == 1
    assert not called(calls, "init")


# The command line with the real package, whose own process is killed after the second step where that is asked for.
REAL = """
import os, signal, sys
from pathlib import Path
from bertsmith.cli import main
from bertsmith.training.loop import Trainer

advance, kills = Trainer._advance, sys.argv.pop(1) == "killed"

def parent(process):
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])

def advanced(trainer, step):
    advance(trainer, step)
    for process in Path("/proc").glob("[0-9]*") if kills and trainer.position.step == 2 else ():
        if b"wandb-core" in (process / "cmdline").read_bytes() and parent(process) == os.getpid():
            os.kill(int(process.name), signal.SIGKILL)

Trainer._advance = advanced
sys.exit(main())
"""


LISTS_PROCESSES = pytest.mark.skipif(not Path("/proc/self/cmdline").is_file(), reason="/proc lists no processes here")


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.parametrize("fate", ["whole", pytest.param("killed", marks=LISTS_PROCESSES)])
def test_the_real_package_offline(fate: str, tmp_path: Path) -> None:
    save_recipe(RECIPE, tmp_path / "recipe.yaml")
    arguments = ["--corpus", str(small_corpus()), "--out", str(tmp_path / "run"), "--wandb", "forge"]
    done = subprocess.run(
        [sys.executable, "-c", REAL, fate, "pretrain", str(tmp_path / "recipe.yaml"), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "WANDB_MODE": "offline"},
    )
    assert done.returncode == 0, done.stderr
    assert "Weights & Biases: project forge, run run (offline)" in done.stderr
    assert "URL not available" not in done.stderr
    assert done.stderr.count("is given nothing more") == (fate == "killed")
    if fate == "whole":
        (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
        assert written.read_bytes().count(b"train/loss") >= len(Run(tmp_path / "run").metrics("train"))
    plain = pretrain(RECIPE, corpus(), tmp_path / "plain")
    assert figures(Run(tmp_path / "run")) == figures(plain)
