"""The path of docs/continued-pretraining.md, from an archive on a server to a classifier; only sizes are small."""

from __future__ import annotations

import json
import pydoc_data.topics
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertsmith.cli import main
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.run_folder import Run
from bertsmith.training.shape import config_of
from bertsmith.weights.huggingface import save_pretraining_model
from made_google import write_archive
from made_pages import blocks, page, typed, write_table
from made_rows import rows
from made_runs import corpus, small_corpus, small_recipe
from made_server import Behaviour, serving

PAGE = page("continued-pretraining.md")
ADDRESS = "/2020_02_20/uncased_L-4_H-256_A-4.zip"
SIZE = 512
FEW = " --phase1.steps 3 --phase1.global_batch 8 --evaluate-every 1"


def test_its_lines_from_an_extended_vocabulary_to_a_model_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As they stand but for sizes and steps, from a made model; the whole path is slow."""
    special = corpus().special
    model = PretrainingModel(config_of(small_recipe().model, special.vocabulary_size, special.pad))
    initialise(model, 0.02, seed=0)
    save_pretraining_model(model, small_corpus() / "tokenizer", tmp_path / "published")
    shutil.copytree(small_corpus(), tmp_path / "general")
    (tmp_path / "my_texts").mkdir()
    for number, text in enumerate(sorted(pydoc_data.topics.topics.values(), key=len)[-24:]):
        (tmp_path / "my_texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    commands = blocks(PAGE)[0].replace("\\\n", " ").splitlines()
    monkeypatch.chdir(tmp_path)
    changes = {
        " --phase1.steps 20000": FEW,
        "--size 32000": f"--size {SIZE + 64}",
        "--out corpus": "--out corpus --held-out 0.3",
    }
    for start in ("vocab", "prepare my_texts", "pretrain"):
        (line,) = [each for each in commands if each.startswith(f"bertsmith {start}")]
        for old, new in changes.items():
            line = line.replace(old, new)
        assert main(shlex.split(line)[1:]) == 0
    run, said = Run(tmp_path / "runs" / "mine"), capsys.readouterr().err
    for kind in ("before", "evaluation", "final"):
        found = run.metrics(kind)
        assert found
        assert all({"masked_loss", "old_masked_loss"} <= each.keys() for each in found), kind
    assert run.is_finished()
    assert "64 new rows begin as the mean of their old pieces" in said
    assert "loss before training" in said
    (header,) = [each for each in blocks(PAGE, "text")[1].splitlines() if each.startswith("masked words")]
    assert header.split() in [each.split() for each in said.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where an archive of a made model is, which a cut connection interrupts."""
    folder = tmp_path_factory.mktemp("server")
    special = corpus().special
    model = PretrainingModel(config_of(small_recipe().model, special.vocabulary_size, special.pad))
    initialise(model, 0.02, seed=0)
    write_archive(model, small_corpus() / "tokenizer", folder / "model.zip")
    with serving(Behaviour({ADDRESS: (folder / "model.zip").read_bytes()}, cuts=[5000])) as url:
        yield url


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, server: str) -> tuple[Path, str]:
    """The folder in which the path's commands were run, and what they logged."""
    folder = tmp_path_factory.mktemp("page")
    topics = sorted(pydoc_data.topics.topics.values(), key=len)
    mine, general = topics[-24:], topics[-48:-24]
    for name, texts in (("my_texts", mine), ("general_texts", general), ("documentation", mine), ("books", general)):
        (folder / name).mkdir()
        for number, text in enumerate(texts):
            (folder / name / f"{number}.txt").write_text(text, encoding="utf-8")
    write_table(folder / "train.csv", rows(60, 1))
    path, measured = blocks(PAGE)
    block = path + measured.replace("8192", str(SIZE)).replace("9216", str(SIZE + 64))
    for old, new in (
        ("--shape 4x256", f"--shape 4x256 --url {server}"),
        (" --phase1.steps 20000", FEW),
        ("--size 32000", f"--size {SIZE + 64}"),
        ("--out corpus", "--out corpus --held-out 0.3"),
        ("--out general", "--out general --held-out 0.3"),
        ("--held-out 0.2", "--held-out 0.4"),
        ("--held-out 0.1", "--held-out 0.4"),
        (" --phase1.steps 400", FEW),
        (" --phase1.steps 75", FEW),
    ):
        assert block.count(old) == 1, old
        block = block.replace(old, new)
    return folder, typed(folder, block).stderr


@pytest.mark.slow
def test_the_path_ends_with_a_classifier(ran: tuple[Path, str]) -> None:
    folder, said = ran
    assert "the connection was cut at 5.0 kB" in said
    assert "64 new rows begin as the mean of their old pieces" in said
    assert (folder / "runs" / "labels" / "model" / "task.json").is_file()


@pytest.mark.slow
def test_the_lines_that_the_page_explains_are_printed(ran: tuple[Path, str]) -> None:
    _, said = ran
    shown = "\n".join(blocks(PAGE, "text"))
    number = r"[+-]?[\d,]+(?:\.\d+)?%?"
    lines = {re.sub(number, "#", re.sub(r"\s+", " ", line)).strip() for line in said.splitlines()}
    wanted = {"masked words", "new text", "old text"}
    for line in shown.splitlines():
        plain = re.sub(number, "#", re.sub(r"\s+", " ", line)).strip()
        if any(plain.startswith(each) for each in wanted):
            assert plain in lines, line
    assert "loss before training: " in said
    assert "does not say which loss it had" in said
    assert said.count("on held-out text of its own training, at 128 tokens, the model had") == 2
    assert re.search(r"held out, after step 1: .*; old text: masked words", said)


@pytest.mark.slow
def test_the_records_that_the_page_names_are_there(ran: tuple[Path, str]) -> None:
    folder, _ = ran
    records = [json.loads(line) for line in (folder / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()]
    for kind in ("before", "evaluation", "final"):
        found = [each for each in records if each["kind"] == kind]
        assert found
        assert all({"masked_loss", "old_masked_loss", "old_masked_accuracy"} <= each.keys() for each in found), kind
    peaks = {path.name for path in (folder / "runs").glob("peak-*")}
    assert peaks == {"peak-0.001", "peak-0.004"}
    facts = json.loads((folder / "runs" / "mine" / "model" / "pretraining.json").read_text(encoding="utf-8"))
    assert facts["steps"] == 3
    assert "128" in facts["held_out"]
