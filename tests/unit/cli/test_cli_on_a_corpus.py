"""The verbs on a real, tiny corpus: what they print, and how they end when something is wrong or someone interrupts."""

from __future__ import annotations

import pydoc_data.topics
import re
import signal
import time
from pathlib import Path

import pytest

from bertsmith.cli import main
from made_commands import Command

SMALL = ["--phase1.global_batch=8", "--phase2.global_batch=2", "--precision=fp32", "--evaluate_instances=8"]
SHORT = ["--phase1.steps=3", "--phase2.steps=2", *SMALL]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A corpus of paragraphs from Python's own documentation."""
    folder = tmp_path_factory.mktemp("river")
    longest = sorted(pydoc_data.topics.topics.values(), key=len)[-12:]
    (folder / "topics.txt").write_text("\n".join(" ".join(text.split()) for text in longest), encoding="utf-8")
    flags = ["--documents", "line", "--held-out", "0.3", "--vocabulary-size", "512", "--workers", "1"]
    assert main(["prepare", str(folder / "topics.txt"), "--out", str(folder / "corpus"), *flags]) == 0
    return folder / "corpus"


def test_prepare_prints_the_folder_and_nothing_else(corpus, capsys, tmp_path):
    call = ["prepare", str(corpus.parent / "topics.txt"), "--out", str(tmp_path / "c"), "--workers=1"]
    assert main(["--quiet", *call]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'c'}\n"
    assert all(line.startswith("warning: ") for line in said.err.splitlines())


def test_prepare_refuses_a_wrong_option_before_it_begins(corpus, capsys, tmp_path):
    assert main(["prepare", str(corpus.parent / "topics.txt"), "--out", str(tmp_path / "c"), "--held-out", "2"]) == 2
    assert "held_out is 2" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (["--samples", "-1"], "--samples is -1"),
        (["--sequence-length", "4"], "sequence length 4 is not possible"),
        (["--png", "."], "'' is not a kind of picture"),
        (["--png", "x.jpg"], "'.jpg' is not a kind of picture"),
    ],
)
def test_what_inspect_cannot_show_is_said_instead_of_half_a_report(corpus, tmp_path, capsys, wrong, what):
    assert main(["inspect", str(corpus), "--png", str(tmp_path / "lengths.png"), *wrong]) == 2
    said = capsys.readouterr()
    assert what in said.err
    assert said.out == ""
    assert not list(tmp_path.iterdir())


def test_inspect_tells_the_counts(corpus, capsys):
    assert main(["inspect", str(corpus)]) == 0
    assert re.search(r"read +12 ", capsys.readouterr().out)


def test_verify_names_the_file_that_changed(corpus, capsys):
    assert main(["verify", str(corpus)]) == 0
    shard = next((corpus / "train").glob("*.tokens.npy"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    try:
        shard.write_bytes(content)
        assert main(["verify", str(corpus)]) == 2
        assert shard.name in capsys.readouterr().err
    finally:
        content[-1] ^= 1
        shard.write_bytes(content)


def test_pretrain_prints_the_model_and_refuses_to_overwrite_it(corpus, capsys, tmp_path):
    call = ["pretrain", "bert-tiny", "--corpus", str(corpus), "--out", str(tmp_path / "run"), *SHORT]
    assert main(["--quiet", *call]) == 0
    model = tmp_path / "run" / "model"
    assert capsys.readouterr().out == f"{model}\n"
    before = (model / "model.safetensors").read_bytes()
    assert main(call) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*call, "--resume"]) == 0
    assert (model / "model.safetensors").read_bytes() == before
    assert main([*call, "--resume", "--seed", "7"]) == 2, "another seed is another run"


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_with_its_status(corpus, tmp_path, sent, status):
    run, said = tmp_path / "run", tmp_path / "said"
    flags = ["--corpus", str(corpus), "--out", str(run), "--log_every=1", *SMALL, "--phase1.steps=100000"]
    with Command("pretrain", "bert-tiny", *flags, log=said) as process:
        wait_for(lambda: has_line(run / "metrics.jsonl", '"train"') or process.poll() is not None)
        process.send_signal(sent)
        assert process.wait() == status, said.read_text()
    assert "Traceback" not in said.read_text()


def has_line(path: Path, part: str) -> bool:
    return path.exists() and part in path.read_text(encoding="utf-8")


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
