"""Promise: a run on garbage is not silent. Each of these faults, planted in the preset `bert-tiny`, raises a warning by
its name, which the metrics keep; a run without a fault raises none. Those with a fault
have one layer and short sequences."""

from __future__ import annotations

import pydoc_data.topics
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.repeats import repeated_share
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import load_recipe
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining.health import DIVERGING, PLATEAU, PLATEAU_LINES, REPEATED, SPIKE, VISIBLE
from bertsmith.training.pretraining.start import check_text
from made_runs import corpus, figures, signalled_after

SHORT = ("--device=cpu", "--precision=fp32", "--log_every=2", "--evaluate_instances=16", "--phase2.steps=0")
SMALL = ("--model.layers=1", "--phase1.sequence_length=64")


def tiny(folder: Path, *overrides: str, of: Corpus | None = None, resume: bool = False) -> Run:
    return pretrain(load_recipe("bert-tiny", [*SHORT, *SMALL, *overrides]), of or corpus(), folder, resume=resume)


def warnings(run: Run) -> list[dict[str, Any]]:
    return run.metrics("warning")


@pytest.mark.parametrize("preset", ["bert-tiny", "quickstart"])
def test_a_healthy_run_raises_none(preset: str, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    small = ("--phase1.global_batch=8", "--phase2.global_batch=4", "--phase2.sequence_length=128")
    recipe = load_recipe(preset, [*SHORT, *small, "--phase1.steps=24", "--phase2.steps=4"])
    run = pretrain(recipe, corpus(), tmp_path / "run")
    losses = [each["loss"] for each in run.metrics("train")]
    assert losses[11] < losses[0] - 0.2, "it learns"
    assert not warnings(run)
    named = (SPIKE, DIVERGING, PLATEAU, REPEATED, VISIBLE)
    assert not [each for each in said.messages if any(f"warning: {name}" in each for name in named)]


def test_fault_masking_switched_off(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    run = tiny(tmp_path / "run", "--phase1.steps=4", "--masking.mask_share=0", "--masking.random_share=0")
    (found,) = warnings(run)
    assert (found["name"], found["step"]) == (VISIBLE, 2)
    assert found["message"].startswith("100% of the words to predict in steps 1 to 2 (instances 0 to 63 of phase 1)")
    assert f"warning: {VISIBLE}: {found['message']}" in said.messages


def test_fault_rate_times_a_hundred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rate = 100 * load_recipe("bert-tiny").phase1.learning_rate
    run = tiny(tmp_path / "run", "--phase1.steps=30", "--phase1.global_batch=8", f"--phase1.learning_rate={rate}")
    assert {SPIKE, DIVERGING} <= {each["name"] for each in warnings(run)}
    diverging = next(each for each in warnings(run) if each["name"] == DIVERGING)
    assert "the learning rate is too high" in diverging["message"]
    spike = next(each for each in warnings(run) if each["name"] == SPIKE)
    ((command, samples),) = re.findall(r"`bertsmith (.* --samples (\d+))` prints (?:the first|these)", spike["message"])
    named = {"CORPUS": str(corpus().folder), "RUN": str(run.folder)}
    assert main([named.get(each, each) for each in command.split()]) == 0
    assert len(re.findall(r"pieces, \d+ of them to predict", capsys.readouterr().out)) == int(samples)


def test_fault_rate_of_next_to_nothing(tmp_path: Path) -> None:
    """Noise may look like a fall at one evaluation, and not at all of them."""
    often = ("--phase1.global_batch=8", "--log_every=1", "--evaluate_every=2", "--model.hidden=64")
    run = tiny(tmp_path / "run", "--phase1.steps=38", "--phase1.learning_rate=1e-7", *often)
    (found,) = warnings(run)
    assert found["name"] == PLATEAU
    assert found["step"] >= PLATEAU_LINES


@pytest.mark.parametrize("held_out", [0.3, 0.0])
def test_fault_a_corpus_of_repeated_documents(held_out: float, tmp_path: Path) -> None:
    """Copies that differ by a word, as those without a difference are dropped when the corpus is prepared."""
    texts = [" ".join(text.split())[:3000] for text in sorted(pydoc_data.topics.topics.values(), key=len)[-6:]]
    copies = [f"{text} This was copy {number}." for number in range(8) for text in texts]
    (tmp_path / "copies.txt").write_text("\n".join(copies), encoding="utf-8")
    options = PrepareOptions(documents="line", held_out=held_out, vocabulary_size=512, workers=1, shard_tokens=8000)
    made = prepare(tmp_path / "copies.txt", tmp_path / "corpus", options=options)
    assert repeated_share(made) > 0.7 > 0.2 > repeated_share(corpus())
    run = tiny(tmp_path / "run", "--phase1.steps=2", of=made)
    (found,) = warnings(run)
    assert (found["name"], found["step"]) == (REPEATED, 0)
    assert ("held-out text has them too" in found["message"]) == (held_out > 0)
    assert found["message"].endswith("; prepare the corpus with --near-duplicates")
    searched = Corpus(made.folder, made.account | {"searches": {"near_duplicates": {"dropped": 0}}})
    told: dict[str, str] = {}
    check_text(cast("Any", SimpleNamespace(warn_of=told.__setitem__)), searched)
    assert "; near-duplicates were dropped already" in told[REPEATED]


def test_a_resumed_run_keeps_its_warnings_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    fault = ("--phase1.steps=4", "--phase1.global_batch=8", "--masking.mask_share=0", "--masking.random_share=0")
    unbroken = tiny(tmp_path / "unbroken", *fault)
    with monkeypatch.context() as patch:
        signalled_after(3, patch)
        with pytest.raises(StoppedAfterSaving):
            tiny(tmp_path / "run", *fault)
    said.clear()
    run = tiny(tmp_path / "run", *fault, resume=True)
    assert figures(run) == figures(unbroken)
    assert len(warnings(run)) == 1
    assert VISIBLE not in said.text
