"""Promises of a student on a corpus: what it learns from, what it starts as, and the run that it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.recipes.schema import Recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.checkpoints.folders import STATE_FILE
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.distil import DistilledPretraining
from bertsmith.training.pretraining.health import REPEATED
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.run_folder import Run
from bertsmith.training.shape import config_of
from bertsmith.weights.huggingface import save_pretraining_model
from made_kills import Moment
from made_runs import corpus, figures, ran, save_recipe, small_corpus, small_recipe, weights
from made_students import made_bert

WIDE = {"model__layers": 2, "model__hidden": 48, "model__heads": 4, "model__intermediate": 64}
STILL = {"model__hidden_dropout": 0, "model__attention_dropout": 0}
LOSSES = ("hidden_loss", "attention_loss", "values_loss")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights large enough that tokens have relations; without dropout."""
    special = corpus().special
    shape = small_recipe(**WIDE, **STILL).model
    model = PretrainingModel(config_of(shape, special.vocabulary_size, special.pad))
    initialise(model, 0.15, seed=5)
    folder = tmp_path_factory.mktemp("teacher") / "model"
    save_pretraining_model(model, small_corpus() / "tokenizer", folder)
    return folder


def student(**fields: Any) -> Recipe:
    """Narrower than the teacher, so that it has maps; relations by two heads."""
    return small_recipe(**{"distillation__relation_heads": 2, **fields})


def test_losses_of_both_phases_are_measured_and_add_up(teacher: Path, tmp_path: Path) -> None:
    run = bertsmith.distill(teacher, student(), tmp_path / "run", corpus=corpus())
    assert isinstance(run, Run)
    train = run.metrics("train")
    assert {each["phase"] for each in train} == {1, 2}
    for each in train:
        assert each["loss"] == pytest.approx(
            sum(each[name] for name in (*LOSSES, "masked_loss", "next_sentence_loss")), rel=1e-6
        )
        assert each["hidden_count"] == each["attention_count"] == each["values_count"] == each["tokens"]
        assert min(each[name] for name in LOSSES) > 0
    for each in (*run.metrics("evaluation"), *run.metrics("final")):
        assert {"masked_accuracy", *LOSSES} <= each.keys()
    assert not [name for name in load_file(run.model / "model.safetensors") if "map" in name]


def test_a_loss_that_is_high_by_its_weight_is_not_warned_of(teacher: Path, tmp_path: Path) -> None:
    short = student(phase1__steps=1, phase2__steps=0, distillation__labels=5)
    run = bertsmith.distill(teacher, short, tmp_path / "run", corpus=corpus())
    assert run.metrics("train")[0]["masked_loss"] > 5 * 5
    assert not [each["name"] for each in run.metrics("warning") if each["name"] != REPEATED]


@pytest.mark.parametrize("labels", [0, 1])
def test_held_out_text_goes_once_through_the_student(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: int
) -> None:
    evaluate, passes = DistilledPretraining.evaluate, []

    def counted(self: DistilledPretraining, held_out: Any, between: Any) -> dict[str, float]:
        alone = Pretraining.evaluate(self, held_out, between) if labels else {}
        with self.model.encoder.register_forward_hook(lambda *_: passes.append(1)):
            found = evaluate(self, held_out, between)
        assert len(passes) == len(held_out) > 1
        passes.clear()
        assert found == {**alone, **{name: found[name] for name in LOSSES}}
        return found

    monkeypatch.setattr(DistilledPretraining, "evaluate", counted)
    short = {"phase1__steps": 1, "phase2__steps": 0, "distillation__labels": labels}
    assert bertsmith.distill(teacher, student(**short), tmp_path / "run", corpus=corpus()).metrics("final")


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(distillation__teacher_layers=2, distillation__labels=0, phase1__steps=1, phase2__steps=0)
    run = bertsmith.distill(teacher, recipe, tmp_path / "run", corpus=corpus())
    (first,) = run.metrics("train")
    assert [first[name] for name in LOSSES] == [0, 0, 0]


@pytest.mark.parametrize("alone", ["hidden", "attention", "values"])
def test_a_student_comes_nearer_to_its_teacher(teacher: Path, tmp_path: Path, alone: str) -> None:
    weights = {f"distillation__{name}": int(name == alone) for name in ("labels", "hidden", "attention", "values")}
    short = {"phase1__steps": 15, "phase2__steps": 0, "phase1__learning_rate": 0.03, "optimizer__name": "adamw"}
    run = bertsmith.distill(teacher, student(**weights, **short, **STILL), tmp_path / "run", corpus=corpus())
    first, *_, last = run.metrics("train")
    assert last["loss"] < 0.8 * first["loss"]
    assert json.loads((run.model / "config.json").read_text(encoding="utf-8"))["architectures"] == ["BertModel"]
    assert bertsmith.load_encoder(run.model).config.hidden_size == 32


def test_labels_alone_are_pre_training_to_the_bit(teacher: Path, tmp_path: Path) -> None:
    nothing = {f"distillation__{name}": 0 for name in ("hidden", "attention", "values")}
    run = bertsmith.distill(teacher, student(**nothing), tmp_path / "run", corpus=corpus())
    assert weights(run) == weights(pretrain(student(), corpus(), tmp_path / "plain"))


def test_layers_of_the_teacher_are_taken(teacher: Path, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    fields = {"phase1__steps": 1, "phase2__steps": 0, "phase1__learning_rate": 1e-9}
    recipe = small_recipe(distillation__teacher_layers=1, **fields)
    run = bertsmith.distill(teacher, recipe, tmp_path / "run", corpus=corpus())
    assert f"the student starts as layers 2 of the 2 of {teacher}" in said.text
    trained = yaml.safe_load((run.folder / "recipe.yaml").read_text(encoding="utf-8"))["model"]
    config = bertsmith.load_encoder(run.model).config
    assert (trained["layers"], trained["hidden"]) == (1, config.hidden_size)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run.model, teacher))
    for name, each in ours.items():
        assert torch.allclose(each, theirs[name.replace("layer.0.", "layer.1.")], atol=1e-6), name


def test_a_student_that_starts_from_the_teacher_s_folder_has_all_its_layers(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(phase1__steps=1, phase2__steps=0)
    run = pretrain(recipe, corpus(), tmp_path / "run", init_from=teacher, teacher=teacher)
    assert bertsmith.load_encoder(run.model).config.num_hidden_layers == 2
    both = small_recipe(distillation__teacher_layers=1, phase1__steps=1, phase2__steps=0)
    with pytest.raises(BertsmithError, match="from a model and from the teacher's layers") as caught:
        pretrain(both, corpus(), tmp_path / "both", init_from=teacher, teacher=teacher)
    assert "--init-from" not in caught.value.fix


def work(teacher: Path, folder: Path, out: Path) -> None:
    bertsmith.distill(teacher, student(save_every=2), out, corpus=folder, resume=True)


def test_killed_in_both_phases_and_resumed_is_unbroken(teacher: Path, tmp_path: Path) -> None:
    given = (teacher, small_corpus())
    work(*given, tmp_path / "unbroken")
    for step in (3, 6):  # of the first phase, and of the second
        ran(work, 1, *given, tmp_path / "run", kill=Moment(step, 0.0, saved=True))
        assert "model.hidden_maps.0.weight" in load_file(step_folders(tmp_path / "run")[-1] / STATE_FILE)
    work(*given, tmp_path / "run")
    resumed, unbroken = Run(tmp_path / "run"), Run(tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def still(teacher: Path, folder: Path, out: Path) -> None:
    bertsmith.distill(teacher, student(**STILL, micro_batch_tokens=160), out, corpus=folder, resume=True)


def test_two_ranks_have_the_losses_of_one(teacher: Path, tmp_path: Path) -> None:
    one, two = Run(tmp_path / "one"), Run(tmp_path / "two")
    still(teacher, small_corpus(), one.folder)
    ran(still, 2, teacher, small_corpus(), two.folder)
    for kind in ("train", "evaluation", "final"):
        for ours, theirs in zip(two.metrics(kind), one.metrics(kind), strict=True):
            for name in (*LOSSES, "masked_loss", "next_sentence_loss"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-5), (kind, name)


def refused(teacher: Path, recipe: Recipe, out: Path) -> BertsmithError:
    with pytest.raises(BertsmithError) as caught:
        bertsmith.distill(teacher, recipe, out / "run", corpus=corpus())
    assert not (out / "run" / "run.json").exists()
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"parallel": "shard"}, "weights are not sharded over ranks"),
        ({"compile": "true"}, "steps with a teacher are not compiled"),
        ({"distillation__relation_heads": 5}, "relations by 5 heads: the widths are 32"),
        ({"distillation__layer_map": "1:3"}, "names layer 3 of the teacher, which has 2"),
        ({"distillation__teacher_layers": 3}, "teacher_layers is 3, and the teacher has 2 layers"),
    ],
)
def test_what_does_not_fit_is_refused(teacher: Path, tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    assert what in refused(teacher, student(**fields), tmp_path).what


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    assert "another tokenizer than the teacher's" in refused(made_bert(tmp_path / "bert"), student(), tmp_path).what


def test_no_weight_at_all_is_refused() -> None:
    nothing = {f"distillation__{name}": 0 for name in ("labels", "hidden", "attention", "values")}
    with pytest.raises(BertsmithError, match="no loss has a weight above 0"):
        small_recipe(**nothing)


def test_a_run_without_a_teacher_has_none_of_it(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    short = {"phase1__steps": 1, "phase2__steps": 0}
    plain = pretrain(small_recipe(**short), corpus(), tmp_path / "plain")
    said.clear()
    other = pretrain(small_recipe(**short, distillation__hidden=7), corpus(), tmp_path / "other")
    assert "there is no teacher, so the recipe's fields of distillation have no effect" in said.text
    assert weights(plain) == weights(other)
    known = [json.loads((run.folder / "run.json").read_text(encoding="utf-8")) for run in (plain, other)]
    assert known[0]["begun_on"].pop("start") != known[1]["begun_on"].pop("start")
    assert known[0] == known[1]
    assert not [name for name in known[0] if "distillation" in name]


def test_the_command_line_does_the_same(teacher: Path, tmp_path: Path) -> None:
    save_recipe(student(), tmp_path / "recipe.yaml")
    named = ["--teacher", str(teacher), "--student", str(tmp_path / "recipe.yaml"), "--corpus", str(small_corpus())]
    assert main(["distill", *named, "--out", str(tmp_path / "cli"), "--distillation.hidden", "0.5", "--quiet"]) == 0
    run = bertsmith.distill(teacher, student(distillation__hidden=0.5), tmp_path / "python", corpus=corpus())
    assert weights(Run(tmp_path / "cli")) == weights(run)
