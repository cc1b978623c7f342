"""A whole small run: what it records, the rate it follows, what its phases share, and what stops it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import math
import pydoc_data.topics
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.model.config import ACTIVATIONS, BertConfig
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.schedules import cosine, polynomial, warmup_stable_decay
from bertsmith.recipes.loader import load_recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining.evaluate import baselines
from bertsmith.training.pretraining.phases import HeldOut, phase_stage
from bertsmith.training.run_folder import check_same_run
from bertsmith.training.shape import config_of, shaped_as
from bertsmith.training.work import optimizer_of
from made_pretraining import fresh_model
from made_runs import corpus, figures, small_recipe, weights

RECIPE = small_recipe(phase1__steps=6, phase2__steps=4, evaluate_every=3, save_every=2, keep=20)
ON_EVERY_LINE = {
    *("loss", "masked_loss", "next_sentence_loss", "masked_accuracy", "next_sentence_accuracy"),
    *("learning_rate", "gradient_norm", "tokens_per_second", "padding_share", "data_wait_share", "memory_bytes"),
    *("seconds_left_in_phase", "seconds_per_step", "tokens", "step", "phase", "phase_step"),
}


@pytest.fixture(scope="module")
def said() -> Iterator[list[str]]:
    """What the run of this module says."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("bertsmith")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Run:
    return pretrain(RECIPE, corpus(), tmp_path_factory.mktemp("run") / "run")


def test_every_line_has_what_a_trainer_watches(run: Run) -> None:
    records = run.metrics("train")
    assert [each["step"] for each in records] == list(range(1, 11))
    assert [(each["phase"], each["phase_step"]) for each in records] == [(1, n) for n in range(1, 7)] + [
        (2, n) for n in range(1, 5)
    ]
    for each in records:
        assert each.keys() >= ON_EVERY_LINE
        assert each["loss"] == pytest.approx(each["masked_loss"] + each["next_sentence_loss"])
        assert all(math.isfinite(value) for value in each.values() if not isinstance(value, str))
        assert all(0 <= each[name] <= 1 for name in ("masked_accuracy", "next_sentence_accuracy", "padding_share"))
        assert 0 <= each["data_wait_share"] <= 1
        assert each["memory_bytes"] > 10_000_000
        assert each["seconds_left_in_phase"] >= 0
    assert records[5]["seconds_left_in_phase"] == records[9]["seconds_left_in_phase"] == 0


def test_tokens_are_those_of_the_batches(run: Run) -> None:
    steps = [
        step for number in (1, 2) for step in phase_stage(RECIPE, number, corpus(), HeldOut(RECIPE, corpus())).loader(0)
    ]
    assert [each["tokens"] for each in run.metrics("train")] == [step.totals.tokens for step in steps]
    (end,) = run.metrics("end")
    assert end["tokens"] == sum(step.totals.tokens for step in steps)
    assert end["step"] == 10


def test_the_rate_is_the_schedules(run: Run) -> None:
    found = [each["learning_rate"] for each in run.metrics("train")]
    expected = [
        polynomial(update, phase.steps, phase.warmup, phase.decay_power, phase.learning_rate)
        for phase in (RECIPE.phase1, RECIPE.phase2)
        for update in range(1, phase.steps + 1)
    ]
    assert found == pytest.approx(expected, rel=1e-12)
    assert min(found) > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_the_masking_rate_moves_over_both_phases(compiled: bool) -> None:
    masking = {"masking__rate": 0.4, "masking__final_rate": 0.2, "masking__whole_words": "true"}
    recipe = small_recipe(phase1__steps=6, phase2__steps=5, **masking)
    held_out = HeldOut(recipe, corpus(), compiled)
    steps = [step for number in (1, 2) for step in phase_stage(recipe, number, corpus(), held_out).loader(0)]
    shares = [step.totals.masked / step.totals.tokens for step in steps]
    assert shares == pytest.approx([0.4 - 0.02 * number for number in range(11)], abs=0.01)
    again = next(iter(phase_stage(recipe, 2, corpus(), held_out).loader(3)))  # as a resumed run begins
    for one, other in zip(again.micro_batches, steps[9].micro_batches, strict=True):
        assert np.array_equal(one.masked_positions, other.masked_positions)
    labelled = [sum(int((each.masked_labels >= 0).sum()) for each in step.micro_batches) for step in steps]
    assert labelled == [step.totals.masked for step in steps]


def test_a_field_of_another_schedule_is_named(said: list[str]) -> None:
    recipe = small_recipe(phase1__schedule="cosine", phase1__decay_power=1.0, phase1__decay_share=0.5)
    phase_stage(recipe, 1, corpus(), HeldOut(recipe, corpus()))
    for field in ("decay_power 1.0", "decay_share 0.5"):
        assert f"{field}: without effect (the schedule is cosine)" in said


def test_other_schedules_and_an_adam_without_correction_are_a_run_of_their_own(tmp_path: Path) -> None:
    """What earlier versions had no field for stays unnamed where it is as it was, so that their runs are resumed."""
    schedules = {"phase1__schedule": "cosine", "phase2__schedule": "warmup_stable_decay", "phase2__decay_share": 0.5}
    adam = {"optimizer__name": "adamw", "optimizer__bias_correction": "false"}
    run = pretrain(small_recipe(phase1__steps=6, phase2__steps=4, **schedules, **adam), corpus(), tmp_path / "run")
    first, second = RECIPE.phase1, RECIPE.phase2
    expected = [cosine(update, 6, first.warmup, first.learning_rate) for update in range(1, 7)]
    expected += [warmup_stable_decay(update, 4, second.warmup, 0.5, second.learning_rate) for update in range(1, 5)]
    assert [each["learning_rate"] for each in run.metrics("train")] == pytest.approx(expected, rel=1e-12)
    known = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert known["recipe.phase1.schedule"] == "cosine"
    assert "recipe.phase1.decay_share" not in known
    corrected = small_recipe(phase1__steps=6, phase2__steps=4, **schedules, optimizer__name="adamw")
    with pytest.raises(BertsmithError, match=r"optimizer\.bias_correction was False, is not given"):
        pretrain(corrected, corpus(), run.folder, resume=True)


def test_what_a_recipe_says_of_the_optimizer_is_what_it_does() -> None:
    asked = {"beta1": 0.7, "beta2": 0.8, "epsilon": 0.1, "weight_decay": 0.3, "max_gradient_norm": 2.5}
    more = {"trust_ratio": "all", "bias_correction": False}
    recipe = small_recipe(**{f"optimizer__{name}": value for name, value in (asked | more).items()})
    found = optimizer_of(recipe, fresh_model(deviation=0.1), Device(torch.device("cpu"), torch.float32))
    assert isinstance(found, Lamb)
    decays, does_not = found.param_groups
    group = {"betas": (0.7, 0.8), "epsilon": 0.1, "weight_decay": 0.3}
    assert {name: decays[name] for name in group} == group
    assert {name: does_not[name] for name in group} == group | {"weight_decay": 0}
    assert (found.max_gradient_norm, found.trust_ratio, found.bias_correction) == (2.5, "all", False)


def test_lines_far_apart_are_means_of_the_lines_between(run: Run, tmp_path: Path) -> None:
    recipe = small_recipe(phase1__steps=6, phase2__steps=4, evaluate_every=3, log_every=4)
    sparse = pretrain(recipe, corpus(), tmp_path / "run").metrics("train")
    assert [(each["step"], each["steps"]) for each in sparse] == [(4, 4), (6, 2), (10, 4)]
    every = run.metrics("train")
    for each, part in zip(sparse, (every[:4], every[4:6], every[6:]), strict=True):
        assert each["tokens"] == sum(one["tokens"] for one in part)
        assert each["next_sentence_loss"] == pytest.approx(np.mean([one["next_sentence_loss"] for one in part]))
        assert each["gradient_norm"] == part[-1]["gradient_norm"]
        bounds = [one["masked_loss"] for one in part]
        assert min(bounds) <= each["masked_loss"] <= max(bounds)


def test_evaluations_stand_beside_their_baselines(run: Run) -> None:
    records = run.metrics("evaluation")
    assert [each["step"] for each in records] == [3, 6, 9, 10]
    alphabetic, unigrams = corpus().tokenizer().is_alphabetic, corpus().unigrams()
    for number, those in ((1, records[:2]), (2, records[2:])):
        work = phase_stage(RECIPE, number, corpus(), HeldOut(RECIPE, corpus()))
        for each in those:
            beside = baselines(work.held_out, unigrams, alphabetic)
            assert {name: each[name] for name in beside} == beside
            assert each["sequences"] == 8
            sizes = [len(piece.removeprefix("##").encode()) for piece in corpus().tokenizer().pieces]
            masked = [sizes[label] for batch in work.held_out for label in batch.masked_labels if label >= 0]
            bits = each["masked_loss"] / math.log(2) * len(masked) / sum(masked)
            assert each["masked_bits_per_byte"] == pytest.approx(bits)


def test_the_loss_before_training_is_that_of_guessing_and_said(run: Run, said: list[str]) -> None:
    (start,) = run.metrics("start")
    assert start["guessing_loss"] == pytest.approx(math.log(512) + math.log(2), abs=0.01)
    assert start["guessing_loss"] > math.log(512) + math.log(2), "the spread of fresh scores adds a little"
    assert start["loss"] == pytest.approx(start["guessing_loss"], abs=0.3)
    assert start["step"] == 0
    assert any("loss before training" in line and "as expected" in line for line in said)


def test_a_loss_before_training_that_is_off_is_explained(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From wild weights. `pretraining/test_continued.py` says what is explained of trained ones."""
    module = importlib.import_module("bertsmith.training.work")
    real = module.initialise
    monkeypatch.setattr(module, "initialise", lambda model, width, seed, fresh: real(model, 40 * width, seed))
    pretrain(small_recipe(phase1__steps=1, phase2__steps=0), corpus(), tmp_path / "run")
    assert any("higher: the weights are too large" in line for line in said[-12:]), said[-12:]
    monkeypatch.setattr(module, "initialise", real)
    monkeypatch.setattr("bertsmith.training.pretraining.start.guessing_loss", lambda *_: 99.0)
    pretrain(small_recipe(phase1__steps=1, phase2__steps=0), corpus(), tmp_path / "low")
    assert any("lower: labels can be seen in the input" in line for line in said[-12:]), said[-12:]


def test_a_start_from_a_model_says_where_the_recipe_is_not_followed(run: Run, tmp_path: Path, said: list[str]) -> None:
    recipe = small_recipe(phase1__steps=1, phase2__steps=0, model__hidden_dropout=0.37)
    pretrain(recipe, corpus(), tmp_path / "run", init_from=run.model)
    (line,) = [line for line in said if "which differs from the recipe's" in line]
    assert "hidden_dropout 0.1 (recipe: 0.37)" in line
    trained = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert trained["model"]["hidden_dropout"] == 0.1
    known = tmp_path / "run" / "run.json"
    of_run = json.loads(known.read_text())
    assert not [name for name in of_run if name.startswith("recipe.model.")]
    # As earlier versions named the recipe's own shape, which has no effect.
    known.write_text(json.dumps(of_run | {"recipe.model.hidden_dropout": 0.37}))
    again = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert pretrain(again, corpus(), tmp_path / "run", init_from=run.model, resume=True).is_finished()
    with pytest.raises(BertsmithError, match=r"init_from\.config\.json was"):
        pretrain(again, corpus(), tmp_path / "run", resume=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_shape_of_a_model_is_that_of_its_config(activation: str) -> None:
    given = BertConfig(
        vocab_size=99, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        hidden_act=activation, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3, max_position_embeddings=40,
    )  # fmt: skip
    found = config_of(shaped_as(small_recipe(), given).model, 99, given.pad_token_id)
    same = {"gelu_new": "gelu_pytorch_tanh"}.get(activation, activation)
    assert found == dataclasses.replace(given, hidden_act=same)


def test_a_start_from_a_model_says_which_fields_have_no_effect(run: Run, tmp_path: Path, said: list[str]) -> None:
    recipe = small_recipe(phase1__steps=1, phase2__steps=0, model__fresh_positions="neighbours")
    pretrain(recipe, corpus(), tmp_path / "run", init_from=run.model)
    (line,) = [line for line in said if "this has no effect" in line]
    assert line.endswith("model.fresh_positions neighbours")


def test_the_model_that_a_run_starts_from_is_known_by_its_content(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run.model, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    recipe = small_recipe(phase1__steps=1, phase2__steps=0)
    started = pretrain(recipe, corpus(), tmp_path / "run", init_from="model")
    assert pretrain(recipe, corpus(), tmp_path / "run", init_from=tmp_path / "model", resume=True) == started
    assert pretrain(recipe, corpus(), tmp_path / "run", init_from=run.model, resume=True) == started
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors["cls.predictions.bias"] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(BertsmithError, match=r"init_from\.model\.safetensors was"):
        pretrain(recipe, corpus(), tmp_path / "run", init_from="model", resume=True)


def test_processes_that_build_batches_change_no_figure(run: Run, tmp_path: Path) -> None:
    other = pretrain(dataclasses.replace(RECIPE, loader_workers=1), corpus(), tmp_path / "run")
    assert figures(other) == figures(run)
    assert weights(other) == weights(run)


def test_phase_2_counts_anew_and_keeps_the_moments(run: Run) -> None:
    """After its first step LAMB's count is 1 again, and the moments are those of phase 1 moved on by one gradient."""
    states = {each.name: load_file(each / "training-state.safetensors") for each in step_folders(run.folder)}
    states.pop("step-00000009", None)  # where its evaluation is the best so far
    assert list(states) == [f"step-{number:08d}" for number in (2, 4, 6, 8, 10)]
    counts = [float(state["optimizer.group.0.step"]) for state in states.values()]
    assert counts == [2, 4, 6, 2, 4]
    before, after = states["step-00000006"], states["step-00000008"]
    names = [name for name in before if name.endswith("mean_square")]
    kept = RECIPE.optimizer.beta2**2
    for name in names:
        # Each update leaves beta2 of what was there and adds what is not negative.
        assert bool((after[name] >= kept * before[name] * (1 - 1e-5)).all()), name
    assert all(bool(before[name].any()) for name in names)


def test_runs_repeat_to_the_bit_and_seeds_differ(run: Run, tmp_path: Path) -> None:
    again = pretrain(RECIPE, corpus(), tmp_path / "again")
    assert figures(again) == figures(run)
    assert weights(again) == weights(run)
    other = pretrain(small_recipe(phase1__steps=2, phase2__steps=0, seed=8), corpus(), tmp_path / "other")
    assert other.metrics("train")[0]["loss"] != run.metrics("train")[0]["loss"]


def test_the_run_folder_holds_its_recipe_and_its_model(run: Run) -> None:
    assert load_recipe(run.folder / "recipe.yaml") == RECIPE
    names = {each.name for each in run.folder.iterdir() if not each.name.startswith(("step-", "best"))}
    assert names == {"recipe.yaml", "run.json", "metrics.jsonl", "events.jsonl", "tensorboard", "model", ".lock"}
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"} <= {
        each.name for each in run.model.iterdir()
    }
    last = load_file(step_folders(run.folder)[-1] / "training-state.safetensors")
    finished = load_file(run.model / "model.safetensors")
    assert torch.equal(finished["cls.predictions.bias"], last["model.masked_head.bias"])


def test_a_recipe_of_the_users_in_the_run_folder_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "run" / "recipe.yaml"
    mine.parent.mkdir()
    mine.write_text("# why I chose these\nmodel: {layers: 1, hidden: 64, heads: 2, intermediate: 128}\n")
    with pytest.raises(BertsmithError, match=r"holds recipe\.yaml and no run\.json"):
        pretrain(RECIPE, corpus(), tmp_path / "run")
    assert mine.read_text().startswith("# why I chose these")
    assert [each.name for each in mine.parent.iterdir()] == ["recipe.yaml"]


def test_a_run_that_was_started_with_another_recipe_names_its_own(run: Run) -> None:
    with pytest.raises(BertsmithError, match=r"started with something else: recipe\.phase1\.steps") as caught:
        pretrain(small_recipe(phase1__steps=99), corpus(), run.folder, resume=True)
    assert f"use the same, as {run.folder / 'recipe.yaml'} has it" in caught.value.fix
    assert pretrain(run.folder / "recipe.yaml", corpus(), run.folder, resume=True).is_finished()
    identity = json.loads((run.folder / "run.json").read_text())
    del identity["begun_on"]
    with pytest.raises(BertsmithError, match="started with something else: corpus") as caught:
        check_same_run(run.folder, {**identity, "corpus": "another"})
    assert caught.value.fix == "use the same, or another --out for a new run"  # of which a recipe says nothing


def test_one_phase_alone(tmp_path: Path) -> None:
    run = pretrain(small_recipe(phase1__steps=0, phase2__steps=2), corpus(), tmp_path / "run")
    assert [(each["phase"], each["step"]) for each in run.metrics("train")] == [(2, 1), (2, 2)]


def test_bf16_runs_and_masters_stay_fp32(tmp_path: Path) -> None:
    run = pretrain(small_recipe(precision="bf16", phase2__steps=0), corpus(), tmp_path / "run")
    assert all(each.dtype == torch.float32 for each in load_file(run.model / "model.safetensors").values())
    assert run.metrics("train")[0]["loss"] == pytest.approx(math.log(1024), abs=0.3)


def poisoned(run: Run, folder: Path) -> Path:
    """A copy of a run in the middle of phase 1, with an infinite weight in its newest checkpoint."""
    shutil.copytree(run.folder, folder)
    shutil.rmtree(folder / "model")
    for each in step_folders(folder)[2:]:
        shutil.rmtree(each)
    path = step_folders(folder)[-1] / "training-state.safetensors"
    tensors = load_file(path)
    tensors["model.encoder.layers.0.feed_forward.outer.bias"][0] = math.inf
    save_file(tensors, path)
    (path.parent / "checksums.json").unlink()  # and in the header no word of it, as in earlier versions
    return folder


def test_a_gradient_that_is_not_finite_stops_the_run_before_anything_is_saved(run: Run, tmp_path: Path) -> None:
    folder = poisoned(run, tmp_path / "run")
    before = {path: path.read_bytes() for each in step_folders(folder) for path in each.iterdir()}
    with pytest.raises(BertsmithError, match="not finite") as caught:
        pretrain(RECIPE, corpus(), folder, resume=True)
    assert "phase 1, step 5, rank 0, instances 32 to 39" in caught.value.where
    assert "start another --out, with a lower learning rate" in caught.value.fix, "a resumed run refuses another rate"
    assert {path: path.read_bytes() for each in step_folders(folder) for path in each.iterdir()} == before
    assert not (folder / "model").exists()
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    assert max(json.loads(line)["step"] for line in text.splitlines()) == 4


def test_a_corpus_without_held_out_documents_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bertsmith"), "propagate", True)
    text = "\n\n".join(sorted(pydoc_data.topics.topics.values(), key=len)[-6:])
    (tmp_path / "one.txt").write_text(text[:60_000], encoding="utf-8")
    options = PrepareOptions(held_out=0.0, workers=1)
    prepare([tmp_path / "one.txt"], tmp_path / "corpus", tokenizer=corpus().folder / "tokenizer", options=options)
    run = pretrain(RECIPE, tmp_path / "corpus", tmp_path / "run")
    assert run.is_finished()
    assert not run.metrics("evaluation")
    assert not run.metrics("final")
    # A record may reach caplog by two handlers.
    warned = {id(each) for each in caplog.records if "no held-out documents, so nothing is evaluated" in each.message}
    assert len(warned) == 1


@pytest.mark.parametrize("often", ["nothing", "evaluate_every", "save_every"])
def test_it_is_noticed_when_lines_are_far_apart(run: Run, tmp_path: Path, often: str) -> None:
    """Before the model is measured, and before a checkpoint from which a resumed run would go on past the fault."""
    folder = poisoned(run, tmp_path / "run")
    every = {name: 1 if name == often else 1000 for name in ("log_every", "evaluate_every", "save_every")}
    with pytest.raises(BertsmithError, match="not finite") as caught:
        pretrain(dataclasses.replace(RECIPE, **every), corpus(), folder, resume=True)
    assert "phase 1, step 5," in caught.value.where
    assert [each.name for each in step_folders(folder)] == ["step-00000002", "step-00000004"]
    assert max(record["step"] for record in Run(folder).metrics()) == 4
