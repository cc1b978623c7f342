"""The README's commands, run as they stand; only the size of what they train is made small.

They run in a folder like a fresh clone: links to the files of the checkout, and an environment that is this one.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.recipes.loader import load_recipe
from made_browser import browsing
from made_pages import without_warnings, write_topics
from made_runs import save_recipe
from made_served import Served, serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 42  # of the quickstart, on other text beside its warnings, and the commands that make prints
NEW_ROWS = 10
TINY = ["--phase1.steps=3", "--phase2.steps=2", "--phase1.global_batch=8", "--phase2.global_batch=2"]


def blocks(language: str) -> list[str]:
    """The fenced blocks of the README in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A folder like a fresh clone, with texts and labelled rows of the user's own."""
    folder = tmp_path_factory.mktemp("clone")
    made = {".git", ".venv", ".venv-ci", "runs", "corpus"}
    for path in ROOT.iterdir():
        if path.name not in made:
            (folder / path.name).symlink_to(path)
    topics = write_topics(folder / "my_texts")
    paragraphs = [part for text in topics for part in text.split("\n\n") if len(part) > 100]
    rows = [(part, ("even", "odd")[number % 2]) for number, part in enumerate(paragraphs)]
    write_csv(folder / "train.csv", ["text", "label"], rows[:24])
    write_csv(folder / "dev.csv", ["text", "label"], rows[24:40])
    write_csv(folder / "new.csv", ["text"], [row[:1] for row in rows[40 : 40 + NEW_ROWS]])
    save_recipe(load_recipe("bert-tiny", TINY), folder / "tiny.yaml")
    return folder


def write_csv(path: Path, header: list[str], rows: list[tuple[str, ...]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """An environment whose VENV is ready: its commands are this interpreter's."""
    venv = tmp_path_factory.mktemp("venv")
    (venv / "bin").mkdir()
    for name, words in (("python", ""), ("bertsmith", " -m bertsmith")):
        (venv / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (venv / "bin" / name).chmod(0o755)
    (venv / ".ready").touch()
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # `make test ARGS=...` hands its own ARGS down by these.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return {**inherited, "VENV": str(venv), "PATH": path, "PYTHONPATH": str(ROOT / "src")}


def run(command: list[str], clone: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def shell(block: str, clone: Path, environment: dict[str, str]) -> str:
    return run(["bash", "-euo", "pipefail", "-c", block], clone, environment)


def test_the_blocks_are_those_that_are_run_below():
    firsts = [block.split("\n")[0] for block in blocks("sh")]
    assert firsts == ["make quickstart", "make test", "bertsmith prepare my_texts --out corpus"]
    assert len(blocks("python")) == 1
    assert len(re.findall(r"^```\w", README, re.MULTILINE)) == 4, "a block in a language that no test runs"


@pytest.mark.parametrize("source", ["--source my_texts", pytest.param("", marks=pytest.mark.slow)])
def test_make_quickstart(source, clone, environment):
    shutil.rmtree(clone / "runs" / "quickstart", ignore_errors=True)
    said = shell(blocks("sh")[0], clone, environment | {"ARGS": f"--budget tiny {source}"})
    assert len(without_warnings(said)) <= MOST_LINES, said
    assert source or len(said.splitlines()) <= MOST_LINES, said
    assert "Try next:" in said
    promised = re.findall(r"^\| `([\w./]+)` \|", README, re.MULTILINE)
    assert "curves.png" in promised
    assert not [path for path in promised if not (clone / "runs" / "quickstart" / path).exists()]


def test_make_test(clone, environment):
    """Without running every test once more inside this one."""
    said = shell(blocks("sh")[1], clone, environment | {"ARGS": "--collect-only -q tests/house"})
    assert "tests collected" in said


@pytest.fixture(scope="module")
def stages(clone, environment) -> str:
    """What the commands of "Your own text" say, run one after the other."""
    return shell(blocks("sh")[2].replace("bert-mini", "tiny.yaml"), clone, environment)


def test_stage_by_stage(stages, clone):
    predictions = [json.loads(line) for line in (clone / "predictions.jsonl").read_text().splitlines()]
    assert len(predictions) == NEW_ROWS
    assert {row["prediction"]["label"] for row in predictions} <= {"even", "odd"}
    assert (clone / "runs" / "mini" / "metrics.jsonl").exists()


def asked_by_curl(server: Served, body: dict[str, object]) -> object:
    """The answer of /predict, by `http.client` where there is no curl."""
    if shutil.which("curl") is None:
        status, found, _ = server.ask("/predict", body)
        assert status == 200
        return found
    command = ["curl", "--silent", "--fail", "--noproxy", "*", f"{server.address}/predict", "--data-binary", "@-"]
    done = subprocess.run(
        [*command, "-H", "Content-Type: application/json"],
        input=json.dumps(body).encode(),
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.usefixtures("stages")
def test_what_the_stages_made_answers_programs_and_a_browser(clone, tmp_path):
    """The whole path: texts, an encoder of them, fine-tuned on a CSV file, served, asked."""
    row = json.loads((clone / "predictions.jsonl").read_text().splitlines()[0])
    expected = row["prediction"]["scores"]
    with serving({"labels": clone / "runs" / "labels"}, "--precision", "fp32") as server:
        found = asked_by_curl(server, {"inputs": row["text"], "truncate": True})
        assert {each["label"]: each["score"] for each in found} == pytest.approx(expected, abs=1e-3)
        with browsing(tmp_path / "profile") as page:
            page.open(server.address)
            page.until("document.getElementById('field-text')")
            page.run("document.getElementById('field-text').focus()")
            page.type(row["text"][:200])
            page.run("document.querySelector('#form button').click()")
            page.until("/^Answered/.test(document.querySelector('#status').textContent)")
            shown = page.run("document.getElementById('result').innerText")
            assert all(label in shown for label in expected)
            assert not page.problems


@pytest.mark.usefixtures("stages")
def test_the_model_folder_is_one_that_transformers_reads(clone):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(clone / "runs" / "mini" / "model")
    assert model.config.hidden_size == load_recipe("bert-tiny").model.hidden


def test_from_python(clone, environment, tmp_path):
    for name in ("my_texts", "train.csv", "dev.csv", "tiny.yaml"):
        (tmp_path / name).symlink_to(clone / name)
    said = run([sys.executable, "-c", blocks("python")[0].replace("bert-mini", "tiny.yaml")], tmp_path, environment)
    assert "'label': 'even'" in said or "'label': 'odd'" in said
