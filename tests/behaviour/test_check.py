"""`pretrain --check` says whether a run would learn, how long it would take, and leaves nothing behind."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress
from bertsmith.cli import main
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.recipes.loader import load_recipe
from bertsmith.training import check
from bertsmith.training.check import check_pretraining
from bertsmith.training.pretrain import pretrain
from made_runs import corpus, small_corpus, small_recipe

LARGER = replace(load_recipe("bert-base-nvlamb").model, layers=13)
# Smaller than bert-tiny, and by a higher rate: what a check says depends on neither.
TINY = [
    *("--device=cpu", "--precision=fp32", "--phase2.sequence_length=128", "--micro_batch_tokens=1024"),
    *("--model.layers=1", "--model.hidden=64", "--model.intermediate=128", "--phase1.learning_rate=0.01"),
]


PRESET = ["--model.layers=2", "--model.hidden=128", "--model.intermediate=512", "--phase1.learning_rate=0.004"]


@pytest.mark.parametrize(
    "more", [PRESET, ["--objective=mlm"], ["--optimizer.name=adamw", "--phase1.learning_rate=0.001"]]
)
def test_a_sound_recipe_learns_a_batch_by_heart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: list[str]
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    found = check_pretraining(load_recipe("bert-tiny", [*TINY, *more]), corpus(), tmp_path / "not there" / "run")
    assert found.loss_after < found.frequencies / 2 < found.loss_before
    assert "as it should be" in caplog.text
    assert re.search(r"a step [\d.]+ m?s", caplog.text)
    assert "read back, the same" in caplog.text
    assert min(found.micro_batch_seconds, found.update_seconds, found.save_seconds, found.load_seconds) > 0
    assert found.run_seconds > found.step_seconds > found.update_seconds
    assert found.memory_bytes > 1e8
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "words", "fix"),
    [
        (["--phase1.learning_rate=0.4"], "this does not learn", "try a tenth of the learning rate"),
        (["--phase1.learning_rate=1e-9"], "this does not learn.* in 60 updates", "try ten times the learning rate"),
        (
            ["--masking.mask_share=0", "--masking.random_share=0"],
            "100% of the words to predict stand in the input",
            "use BERT's",
        ),
    ],
)
def test_what_would_not_learn_is_refused(tmp_path: Path, more: list[str], words: str, fix: str) -> None:
    with pytest.raises(BertsmithError, match=words) as refused:
        check_pretraining(load_recipe("bert-tiny", [*TINY, *more]), corpus(), tmp_path / "run")
    assert refused.value.fix.startswith(fix)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_is_not_learned_in_time_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setattr(check, "_MOST_SECONDS", 0.0)
    monkeypatch.setattr(check, "Progress", partial(Progress, every_seconds=0.0))
    with pytest.raises(BertsmithError, match=r"in 25 updates, which took the 0\.0 s that there are for it"):
        check_pretraining(load_recipe("bert-tiny", [*TINY, "--phase1.learning_rate=1e-6"]), corpus(), tmp_path / "run")
    assert re.search(r"overfit test: 1 update, .*; loss \d", caplog.text)


def test_a_loss_that_still_falls_when_the_time_is_up_is_told_and_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow or busy machine is no fault of the recipe's."""
    monkeypatch.setattr(check, "_MOST_SECONDS", 0.0)
    monkeypatch.setattr(check, "_LEAST_UPDATES", 15)
    check_pretraining(load_recipe("bert-tiny", [*TINY, "--phase1.learning_rate=0.0004"]), corpus(), tmp_path / "run")
    assert "in 15 updates, which took the 0.0 s that there are for it" in caplog.text
    assert "is still far from 0" in caplog.text


def test_a_rate_that_is_too_low_for_this_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "_UPDATES", 80)
    check_pretraining(load_recipe("bert-tiny", [*TINY, "--phase1.learning_rate=0.003"]), corpus(), tmp_path / "run")
    assert "is still far from 0" in caplog.text


def test_a_run_from_a_model_is_checked_from_its_weights(tmp_path: Path) -> None:
    recipe = replace(load_recipe("bert-tiny", TINY), objective="mlm")
    run = pretrain(small_recipe(phase1__steps=3, phase2__steps=0), corpus(), tmp_path / "run")
    assert check_pretraining(recipe, corpus(), tmp_path / "other", run.folder).micro_batch_seconds > 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run"]


def test_for_a_large_model_it_says_first_how_long_it_takes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    base = load_recipe("bert-base-nvlamb", ["--device=cpu", "--precision=fp32"])
    monkeypatch.setattr(check, "model_of", Mock(side_effect=RuntimeError("a model is made")))
    cases = (load_recipe("bert-tiny", TINY), 1e6, True), (base, 1e30, False), (replace(base, model=LARGER), 1e30, True)
    for recipe, flops, is_large in cases:
        caplog.clear()
        monkeypatch.setattr(check, "device_flops", Mock(return_value=flops))
        with pytest.raises(RuntimeError, match="a model is made"):
            check_pretraining(recipe, corpus(), tmp_path / "run")
        assert ("overfit test and micro-batches take about" in caplog.text) == is_large, "before a model is made"


def test_every_phase_is_tried_and_the_time_is_that_of_what_is_computed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, where micro-batches are cut, a model of BERT-base's size is not said to take longer than it does."""
    caplog.set_level(logging.INFO, "bertsmith")
    found = check_pretraining(load_recipe("bert-tiny", [*TINY, "--phase2.steps=2"]), corpus(), tmp_path / "run")
    assert "phase 1: a micro-batch of" in caplog.text
    assert "in sequences of up to 128" in caplog.text.split("phase 2: a micro-batch of")[1]
    assert found.run_seconds > found.step_seconds
    parts = [
        "read back, the same",
        "phase 1: a micro-batch of",
        "phase 2: a micro-batch of",
        "of it the copy of a save",
    ]
    assert [part for message in caplog.messages for part in parts if part in message] == parts
    caplog.clear()
    base = load_recipe("bert-base-nvlamb", ["--device=cpu", "--precision=fp32", "--micro_batch_tokens=1000000000"])
    monkeypatch.setattr(check, "model_of", Mock(side_effect=RuntimeError("a model is made")))
    monkeypatch.setattr(check, "device_flops", Mock(return_value=1e12))
    with pytest.raises(RuntimeError, match="a model is made"):
        check_pretraining(base, corpus(), tmp_path / "run")
    assert "take about" not in caplog.text


@pytest.mark.parametrize("batch", [4, 8])
def test_a_step_takes_its_micro_batches_and_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """The one that is timed has all of the first 4 instances."""
    monkeypatch.setattr(check, "_timed", Mock(return_value=(2.0, 3.0)))
    monkeypatch.setattr(
        check, "_batch", lambda *given, make=check._batch: make(replace(given[0], phase1=four), *given[1:])
    )
    recipe = load_recipe("bert-tiny", [*TINY, f"--phase1.global_batch={batch}", "--phase2.steps=0"])
    four = replace(recipe.phase1, global_batch=4)
    found = check_pretraining(recipe, corpus(), tmp_path / "run")
    assert found.step_seconds == batch / 4 * 2 + 3
    assert found.run_seconds == recipe.phase1.steps * found.step_seconds


@pytest.mark.parametrize(("batch", "beside"), [(4, 1), (400, 2)])
def test_where_a_step_has_several_micro_batches_two_are_taken_for_its_memory(
    batch: int, beside: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    step = check._step
    monkeypatch.setattr(check, "_step", lambda *given: (taken.append(len(given[2])), step(*given))[1])
    few = [*TINY, f"--phase1.global_batch={batch}", "--phase2.steps=0"]
    check_pretraining(load_recipe("bert-tiny", few), corpus(), tmp_path / "run")
    assert taken[-2:] == [beside, 1]


def test_what_the_run_would_refuse_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = PrepareOptions(documents="line", held_out=0.99, workers=1)
    (tmp_path / "few.txt").write_text("\n".join(f"the {each} line is here" for each in ("first", "second")) + "\n")
    few = prepare(tmp_path / "few.txt", tmp_path / "few", tokenizer=small_corpus() / "tokenizer", options=options)
    with pytest.raises(BertsmithError, match="no train documents"):
        check_pretraining(load_recipe("bert-tiny", TINY), few, tmp_path / "run")
    monkeypatch.setattr(check, "choose_compiled", lambda *_: True)
    small = ["--phase1.sequence_length=120", "--phase2.steps=0", "--micro_batch_tokens=120"]
    with pytest.raises(BertsmithError, match="micro_batch_tokens 120 has no room for a sequence of 120"):
        check_pretraining(load_recipe("bert-tiny", [*TINY[:2], *small]), corpus(), tmp_path / "run")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["few", "few.txt"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    call = ["pretrain", "bert-tiny", "--corpus", str(small_corpus()), "--out", str(out), "--check", *TINY]
    assert main([*call, "--ranks", "2", "--profile", "3", "--resume"]) == 0
    said = capsys.readouterr()
    assert "fit together" in said.out
    assert "made on one device and keeps nothing: --ranks, --profile, --resume not read" in said.err
    assert main([*call, "--phase1.learning_rate=0.4"]) == 2
    assert "this does not learn" in capsys.readouterr().err
    assert not out.exists()


def test_an_out_that_cannot_be_made_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "run")
    assert main(["pretrain", "bert-tiny", "--corpus", str(tmp_path / "none"), "--out", out, "--check", *TINY]) == 2
    assert "a file is in the way" in capsys.readouterr().err
