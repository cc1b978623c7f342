"""What a command writes takes the place of nothing that it reads, and of nothing else that it writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertsmith.cli import main
from bertsmith.cli.entry import VERBS
from bertsmith.cli.verb import _WRITTEN


@pytest.mark.parametrize(
    ("call", "flags"),
    [
        ("evaluate m --data glue --json x --submission ./x", "--submission and --json"),
        ("evaluate m --data rows.csv --report x --json here/../x", "--json and --report"),
        ("evaluate m --data rows.csv --json x --skip-bad-rows x", "--json and --skip-bad-rows"),
        ("plan bert-tiny --corpus c --json x.png --png x.png", "--png and --json"),
        ("pretrain bert-tiny --corpus c --out x --dllogger x", "--dllogger and --out"),
        ("finetune --model m --train t --out o --skip-bad-rows x --dllogger x", "--skip-bad-rows and --dllogger"),
    ],
)
def test_two_results_in_one_place_are_refused(call, flags, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(call.split()) == 2
    assert capsys.readouterr().err.startswith(f"{flags} name the same file or folder\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        "bench prepare --source other.txt read.txt --json read.txt",
        "bench predict --model read.txt --json ./read.txt",
        "finetune --model m --train read.txt --out o --dllogger read.txt",
        "quickstart --source read.txt --out read.txt",
    ],
)
def test_no_verb_writes_over_a_file_that_it_reads(call, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("read.txt").write_text("mine")
    assert main(call.split()) == 2
    assert capsys.readouterr().err.startswith("this file is read here, and would be written over")
    assert Path("read.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("bench word --json word", "there is no bench 'word'"),
        (
            "finetune --model m --train t --out o --resume --wandb word --dllogger word",
            "this file is not one that a run",
        ),
    ],
)
def test_a_word_that_is_also_the_name_of_a_file_is_not_taken_for_it(call, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("word").write_text("of an earlier call")
    assert main(call.split()) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    "call",
    [
        "report r --out -",
        "evaluate m --data d --json -",
        "evaluate m --data d --submission=- --json -",
        "prepare text --out -",
        "plan bert-tiny --corpus c --png ./-",
    ],
)
def test_what_is_not_written_to_standard_output_is_not_written_to_a_file_of_that_name(
    call, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(call.split()) == 2
    assert "writes to no standard output" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "inside"),
    [
        ("plan bert-tiny --corpus folder --json", "corpus.json"),
        ("evaluate folder --data rows.csv --json", "model/config.json"),
        ("bench predict --model folder --json", "tokenizer.json"),
        ("bench predict --model folder --json", "tokenizer/vocab.txt"),
        ("predict folder rows.csv --out", "metrics.jsonl"),
        ("evaluate folder --data rows.csv --json", "finetune.json"),
        ("evaluate folder --data rows.csv --json", "recipe.yaml"),
        ("embed folder rows.csv --out", "events.jsonl"),
    ],
)
def test_no_verb_writes_over_what_a_folder_holds(call, inside, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("folder", inside)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert main([*call.split(), str(path)]) == 2
    assert capsys.readouterr().err.startswith("this file is read here, and would be written over")
    assert path.read_text() == "mine"


def test_a_preset_is_read_whatever_file_has_its_name(capsys, tmp_path, monkeypatch):
    """Such as the one that the same command wrote before."""
    monkeypatch.chdir(tmp_path)
    Path("bert-tiny").write_text("{}")
    assert main(["plan", "bert-tiny", "--corpus", "none", "--json", "bert-tiny"]) == 2
    assert capsys.readouterr().err.startswith("there is no corpus here")


def test_a_report_that_cannot_be_written_is_refused_before_a_model_is_loaded(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,label\nlovely,praise\n")
    assert main(["evaluate", "none", "--data", "rows.csv", "--report", "rows.csv/report"]) == 2
    assert capsys.readouterr().err.startswith("a file is in the way of this folder")


def test_every_flag_of_a_path_is_known_to_be_read_or_to_be_written(capsys):
    """A new one belongs to one of both, so that no command writes over what it reads."""
    read = "also-evaluate compare-with config corpus data dev environments exclude extend init-from minimal-pairs model"
    read += " null-scores reuse run teacher test tokenizer train vocab"
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
    flags = set(re.findall(r"--([\w-]+) [^ ]*PATH", capsys.readouterr().out)) - set(read.split())
    assert {name.replace("-", "_") for name in flags} == _WRITTEN
