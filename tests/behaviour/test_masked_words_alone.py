"""The objective mlm: instances of one segment, no next-sentence loss, and a model that transformers reads as its
BertForMaskedLM."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertsmith.base.layout import Layout
from bertsmith.model.attention.packed import Packed
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining import compiled
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.phases import HeldOut, phase_stage
from bertsmith.training.step import train_step
from bertsmith.weights.huggingface import load_pretraining_model
from made_pretraining import fresh_model
from made_runs import corpus, figures, ran_by_ranks, small_recipe, stopped_after, weights
from made_steps import PlainSgd

FIELDS = {"objective": "mlm", "phase2__steps": 0, "model__hidden_dropout": 0.0, "model__attention_dropout": 0.0}
RECIPE = small_recipe(**FIELDS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(RECIPE, corpus(), tmp_path_factory.mktemp("run") / "run")


def test_records_say_nothing_of_pairs(run: Run) -> None:
    for record in run.metrics("train"):
        assert record["loss"] == pytest.approx(record["masked_loss"])
        assert record["next_sentence_count"] == 0
        assert not {"next_sentence_loss", "next_sentence_accuracy"} & record.keys()
    for kind in ("start", "evaluation", "final"):
        for record in run.metrics(kind):
            assert record["masked_words"] > 0
            assert not {"next_sentence_loss", "next_sentence_accuracy", "sequences"} & record.keys()


def test_every_token_is_seen_once_an_epoch() -> None:
    stage = phase_stage(RECIPE, 1, corpus(), HeldOut(RECIPE, corpus()))
    (epoch, account), *_ = next(iter(stage.loader(0))).started_epochs
    assert epoch == 0
    assert account.visited == account.corpus == corpus().tokens("train")
    assert account.truncated == account.repeated == account.random == 0


def test_transformers_reads_it_as_a_masked_language_model(run: Run) -> None:
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(run.model, output_loading_info=True)
    assert type(theirs).__name__ == "BertForMaskedLM"
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not [name for name in load_file(run.model / "model.safetensors") if "pooler" in name or "seq_rel" in name]
    ours = load_pretraining_model(run.model, pairs=False)
    ids = torch.randint(5, ours.config.vocab_size, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.eval()(ids).logits[0]
        places = torch.arange(30)
        hidden = ours.encoder(ids[0], torch.zeros_like(places), places, Packed(Layout.from_lengths(np.array([30]))))
        found = ours.masked_logits(hidden, places)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_it_resumes_to_the_bit(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(2, monkeypatch, RECIPE, tmp_path / "run")
    resumed = pretrain(RECIPE, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(run)
    assert weights(resumed) == weights(run)


def runs_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    for parallel in ("replicate", "shard"):
        pretrain(small_recipe(**FIELDS, parallel=parallel), made, folder / parallel)


def test_two_ranks_take_the_same_steps(run: Run, tmp_path: Path) -> None:
    ran_by_ranks(runs_of_a_rank, 2, tmp_path)
    for parallel in ("replicate", "shard"):
        for one, other in zip(Run(tmp_path / parallel).metrics(), run.metrics(), strict=True):
            assert one["kind"] == other["kind"]
            for name in one.keys() & {"loss", "masked_loss", "masked_words", "masked_count", "tokens"}:
                assert one[name] == pytest.approx(other[name], rel=1e-4), name


def test_compiled_steps_compute_the_same(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    recipe = small_recipe(**FIELDS, compile="true", micro_batch_tokens=384)
    found = pretrain(recipe, corpus(), tmp_path / "run")
    for one, other in zip(found.metrics("train"), run.metrics("train"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_it_goes_on_from_a_model_with_all_heads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    both = pretrain(replace(RECIPE, objective="mlm+nsp"), corpus(), tmp_path / "both")
    caplog.clear()
    found = pretrain(RECIPE, corpus(), tmp_path / "run", init_from=both.folder)
    assert "next_sentence: left out (this model has no such part)" in caplog.text
    assert "randomly initialised" not in caplog.text
    (before,), (after,) = both.metrics("final"), found.metrics("start")
    assert after["masked_loss"] == pytest.approx(before["masked_loss"], rel=0.05)


def test_a_loss_without_labels_does_not_set_the_scale() -> None:
    """fp16 scales a step by its rarest loss; one that nothing counts in is none of them."""
    recipe = small_recipe(**FIELDS)
    step = next(iter(phase_stage(recipe, 1, corpus(), HeldOut(recipe, corpus())).loader(0)))
    model = fresh_model(vocab_size=512, hidden_size=32, num_hidden_layers=1, intermediate_size=48)
    asked: list[int] = []

    class Asked(PlainSgd):
        def begin_step(self, labels: int) -> None:
            asked.append(labels)
            super().begin_step(labels)

    train_step(Pretraining(model, torch.device("cpu")), Asked(model.parameters()), step.micro_batches, step.counts,
               torch.device("cpu"))  # fmt: skip
    assert asked == [step.totals.masked]
    assert model.next_sentence.weight.grad is None or not model.next_sentence.weight.grad.any()
