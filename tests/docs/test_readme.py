"""The README's commands, run as they stand; only the size of what they train is made small.

They run in a folder like a fresh clone: links to the files of the checkout, and an environment that is this one. Those
of Bertsmith run in this process, but for the quickstart, which `test_wheel.py` runs.
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
from made_pages import blocks, run_here, typed_here, write_topics
from made_runs import save_recipe
from made_served import Served, serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEW_ROWS = 10
TINY = [
    *("--phase1.steps=3", "--phase2.steps=2", "--phase1.global_batch=8", "--phase2.global_batch=2"),
    *("--model.layers=1", "--evaluate_instances=16"),
]


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


def test_the_blocks_are_those_that_are_run():
    firsts = [block.split("\n")[0] for block in blocks(README)]
    assert firsts == ["make quickstart", "make test", "bertsmith prepare my_texts --out corpus"]
    assert len(blocks(README, "python")) == 1
    assert len(re.findall(r"^```\w", README, re.MULTILINE)) == 4, "a block in a language that no test runs"


def test_make_test(clone, tmp_path):
    """Without running every test once more inside this one, in an environment that is set up: it is this one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / ".ready").touch()
    # `make test ARGS=...` hands its own ARGS down by these.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    ours = {"VENV": str(tmp_path), "ARGS": "--collect-only -q tests/house/test_tidiness.py"}
    command = ["bash", "-euo", "pipefail", "-c", blocks(README)[1]]
    done = subprocess.run(command, cwd=clone, env={**inherited, **ours}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "tests collected" in done.stdout


@pytest.fixture(scope="module", autouse=True)
def draws_nothing():
    """As where matplotlib is not installed: to draw the figures of reports takes longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        yield


@pytest.fixture(scope="module")
def stages(clone) -> None:
    """The commands of "Your own text", run one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone)
        typed_here(blocks(README)[2].replace("bert-mini", "tiny.yaml"))


@pytest.mark.usefixtures("stages")
def test_stage_by_stage(clone):
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


def test_from_python(clone, tmp_path, monkeypatch, capsys):
    for name in ("my_texts", "train.csv", "dev.csv", "tiny.yaml"):
        (tmp_path / name).symlink_to(clone / name)
    monkeypatch.chdir(tmp_path)
    run_here(blocks(README, "python")[0].replace("bert-mini", "tiny.yaml"))
    assert re.search("'label': '(even|odd)'", capsys.readouterr().out)
