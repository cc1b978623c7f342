"""Options made in Python get the checks that flags and YAML get: a wrong type, a wrong word and a number out of range
are refused by name, before any work."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError, TypeChecked
from bertsmith.bench.options import BenchOptions
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.corpus.vocabularies import VocabularyOptions, make_vocabulary
from bertsmith.download.download import DownloadOptions, download
from bertsmith.inference.embed import VectorOptions
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.serve import Settings
from bertsmith.recipes.schema import Distillation, Masking, ModelShape, Optimizer, Pairs, Phase, Recipe
from bertsmith.tasks.benchmarks.inputs import BenchmarkChoice
from bertsmith.tasks.distill import distill
from bertsmith.tasks.plan import RowsOfRun, plan_finetuning
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.plan import plan_pretraining
from bertsmith.training.planning.where import Where
from bertsmith.training.pretrain import pretrain
from bertsmith.training.records.sinks import Outputs
from made_runs import corpus, small_recipe

OPTIONS = (
    *(ModelShape, Phase, Masking, Pairs, Optimizer, Distillation, Recipe, Outputs, Where),
    *(FinetuneSettings, DistillSettings, Columns, BenchmarkChoice, PrepareOptions, VocabularyOptions, DownloadOptions),
    *(VectorOptions, RowOptions, ExportOptions, Settings, Limits, BenchOptions),
)
REQUIRED: dict[type, dict[str, Any]] = {Settings: {"models": {"mine": Path("mine")}}, BenchmarkChoice: {"data": None}}


def made(kind: type, **values: Any) -> Any:
    return kind(**{**REQUIRED.get(kind, {}), **values})


def parts(hint: Any) -> tuple[Any, ...]:
    """Of a union; of another annotation itself alone."""
    return get_args(hint) if get_origin(hint) in (Union, type(int | str)) else (hint,)


def fields(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def misfits(hint: Any) -> Iterator[Any]:
    """Values that an annotation does not allow, among them those that are nearest to it."""
    allowed = parts(hint)
    yield object()
    yield from [None] * (type(None) not in allowed)
    yield from [1] * (not {int, float} & {*allowed})
    yield from [1.5] * (float not in allowed)
    yield from [True] * (bool not in allowed)
    yield from [10**400, -(2**63) - 1] * (int in allowed or float in allowed)
    yield from ["yes"] * (not {str, Path} & {*allowed})
    yield from [{"text": "text"}, ["a", 1], "a"][: 3 if get_origin(hint) is tuple else 0]


def test_the_list_has_all_that_are_checked_and_all_that_public_calls_take():
    def below(kind: type) -> set[type]:
        return {kind, *(found for each in kind.__subclasses__() for found in below(each))}

    assert {*OPTIONS} == below(TypeChecked) - {TypeChecked}
    taken: set[Any] = set()
    calls = [getattr(bertsmith, name) for name in bertsmith.__all__]
    for call in [
        *calls,
        make_vocabulary,
        download,
        embed_file,
        export,
        predict_file,
        plan_finetuning,
        plan_pretraining,
    ]:
        function = call.__init__ if isinstance(call, type) else call
        hints = get_type_hints(function, vars(importlib.import_module(call.__module__)))
        taken |= {each for name, hint in hints.items() if name != "return" for each in parts(hint)}
    # The rows of a plan are checked as they are read.
    opened = {Corpus, Tokenizer, RowsOfRun, importlib.import_module("bertsmith.download.fetch").Patience}
    assert {each for each in taken if dataclasses.is_dataclass(each)} - opened <= {*OPTIONS}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_wrong_type_is_refused_by_name(kind: type):
    for name, hint in fields(kind).items():
        for value in misfits(hint):
            with pytest.raises(BertsmithError) as raised:
                made(kind, **{name: value})
            error = raised.value
            assert (error.what.startswith(f"{name} is "), error.where) == (True, f"{kind.__name__}, {name}"), value
            assert error.fix.startswith("use ")


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_wrong_word_is_refused_with_the_nearest_one(kind: type):
    for name, hint in fields(kind).items():
        words = [word for part in parts(hint) if get_origin(part) is Literal for word in get_args(part)]
        for word in words:
            with pytest.raises(BertsmithError) as raised:
                made(kind, **{name: f"{word}s"})
            error = raised.value
            assert (error.what, error.where) == (f"{name} is '{word}s'", f"{kind.__name__}, {name}")
            assert all(each in error.fix for each in words)
            assert f"did you mean '{word}'?" in error.fix


@pytest.mark.parametrize("kind", OPTIONS)
def test_numbers_of_numpy_paths_and_lists_are_kept_as_pythons(kind: type):
    plain = made(kind)
    for name, hint in fields(kind).items():
        value = getattr(plain, name)
        others = {bool: [np.bool_], int: [np.int64, np.uint64], float: [np.float64], tuple: [list], str: [np.str_]}
        for other in others.get(type(value), []):
            found = getattr(made(kind, **{name: other(value)}), name)
            assert (found, type(found)) == (value, type(value))
        for place in ("a/b", Path("a/b")) if Path in parts(hint) else ():
            found = getattr(dataclasses.replace(plain, **{name: place}), name)
            assert Path(found) == Path("a/b")


def test_a_path_may_name_the_files_of_settings():
    rows: Any = Path("bad.jsonl")
    texts: Any = ["a.txt"]
    assert FinetuneSettings(skip_bad_rows=rows, learning_rate=1).skip_bad_rows == "bad.jsonl"
    assert PrepareOptions(exclude=texts).exclude == (Path("a.txt"),)


def test_a_recipe_with_numbers_of_numpy_trains(tmp_path: Path):
    recipe = dataclasses.replace(
        small_recipe(phase1__steps=1, phase2__steps=0), seed=np.int64(3), save_every=np.int32(9)
    )
    assert pretrain(recipe, corpus(), tmp_path / "run").model.is_dir()


OUT_OF_RANGE = {
    "phase1.learning_rate": -1,
    "phase1.warmup": 2,
    "phase1.steps": -1,
    "optimizer.beta1": 2,
    "optimizer.weight_decay": -1,
    "log_every": 0,
    "save_every": -1,
    "micro_batch_tokens": 32,
}


def changed(**values: Any) -> Recipe:
    recipe = small_recipe()
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        part = dataclasses.replace(getattr(recipe, section), **{field: value}) if section else value
        recipe = dataclasses.replace(recipe, **{section or field: part})
    return recipe


@pytest.mark.parametrize("values", [{name: value} for name, value in OUT_OF_RANGE.items()], ids=[*OUT_OF_RANGE])
def test_a_recipe_made_in_python_is_in_range(tmp_path: Path, values: dict[str, Any]):
    (name,) = values
    calls: list[Callable[[Recipe], object]] = [
        lambda recipe: pretrain(recipe, corpus(), tmp_path / "run"),
        lambda recipe: distill(tmp_path, recipe, tmp_path / "run", corpus=corpus()),
        lambda recipe: distill(tmp_path, recipe, tmp_path / "run", task="classify", train=[]),
        lambda recipe: plan_pretraining(recipe, corpus(), Where()),
    ]
    for call in calls:
        with pytest.raises(BertsmithError, match=name.rpartition(".")[2]) as raised:
            call(changed(**values))
        assert raised.value.where == f"recipe, {name}"
    assert not (tmp_path / "run").exists()


def test_a_recipe_without_steps_and_what_is_none_are_refused(tmp_path: Path):
    with pytest.raises(BertsmithError, match="both phases have 0 steps"):
        pretrain(changed(**{"phase1.steps": 0, "phase2.steps": 0}), corpus(), tmp_path / "run")
    others: list[Any] = [{"seed": 1}, None]
    for wrong in others:
        with pytest.raises(BertsmithError, match="recipe is ") as raised:
            pretrain(wrong, corpus(), tmp_path / "run")
        assert "a Recipe" in raised.value.fix
    with pytest.raises(BertsmithError, match="recipe is "):
        distill(tmp_path, others[0], tmp_path / "run", corpus=corpus())


ROWS = [{"text": "good", "label": "a"}, {"text": "bad", "label": "b"}]
TAKING_OTHERS: dict[str, Callable[[Path, Any], object]] = {
    "settings of finetune": lambda folder, given: bertsmith.finetune("classify", folder, ROWS, ROWS, settings=given),
    "settings of distill": lambda folder, given: bertsmith.distill(folder, train=ROWS, dev=ROWS, settings=given),
    "settings of a plan": lambda folder, given: plan_finetuning("classify", folder, RowsOfRun(), Where(), given),
    "outputs of finetune": lambda folder, given: bertsmith.finetune("classify", folder, ROWS, ROWS, outputs=given),
    "outputs of pretrain": lambda folder, given: pretrain("bert-tiny", folder, folder / "run", outputs=given),
    "options of prepare": lambda folder, given: prepare(folder, folder / "run", options=given),
    "options of vocab": lambda folder, given: make_vocabulary([folder], folder / "run", given),
    "options of download": lambda folder, given: download("sst2", folder / "run", given),
    "options of export": lambda folder, given: export(folder, folder / "run", given),
    "rows of predict": lambda folder, given: predict_file(folder, "a.csv", folder / "run.csv", rows=given),
    "rows of embed": lambda folder, given: embed_file(folder, "a.csv", folder / "run.npy", rows=given),
    "vectors of embed": lambda folder, given: embed_file(folder, "a.csv", folder / "run.npy", vectors=given),
    "vectors of Embedder": lambda folder, given: bertsmith.Embedder(folder, vectors=given),
    "columns of Embedder": lambda folder, given: bertsmith.Embedder(folder, columns=given),
    "columns of Predictor": lambda folder, given: bertsmith.Predictor(folder, columns=given),
}


@pytest.mark.parametrize("what", TAKING_OTHERS)
def test_options_of_another_class_are_refused(what: str, model: Path):
    name = what.split()[0]
    for given in (["epochs"], [], Where()):
        with pytest.raises(BertsmithError) as raised:
            TAKING_OTHERS[what](model, given)
        assert raised.value.what.startswith(f"{name} is {given!r}, and not a ")
        assert raised.value.where == name
    assert not (model / "run").exists()


RESUMING: list[Callable[[Path, Any], object]] = [
    lambda folder, given: bertsmith.finetune("classify", folder, ROWS, ROWS, resume=given),
    lambda folder, given: bertsmith.distill(folder, train=ROWS, dev=ROWS, resume=given),
    lambda folder, given: pretrain("bert-tiny", folder, folder / "run", resume=given),
]


@pytest.mark.parametrize("call", RESUMING, ids=["finetune", "distill", "pretrain"])
def test_resume_is_true_or_false(call: Callable[[Path, Any], object], model: Path):
    for given in ("no", 1):
        with pytest.raises(BertsmithError) as raised:
            call(model, given)
        what = f"resume is {given!r}, and not true or false"
        assert (raised.value.what, raised.value.fix) == (what, "give true or false, or leave it out")
    assert not (model / "run").exists()


@pytest.mark.parametrize("call", RESUMING[:2], ids=["finetune", "distill"])
def test_nothing_is_resumed_without_a_folder(call: Callable[[Path, Any], object], model: Path):
    with pytest.raises(BertsmithError, match="there is no run folder to resume from"):
        call(model, True)


def test_a_student_has_settings_of_distillation(model: Path):
    settings: Any = FinetuneSettings()
    with pytest.raises(BertsmithError, match=r"and not a DistillSettings") as raised:
        bertsmith.distill(model, train=ROWS, dev=ROWS, settings=settings)
    assert raised.value.fix.startswith("give a bertsmith.tasks.settings.DistillSettings")
    with pytest.raises(BertsmithError, match="and there is no teacher"):
        bertsmith.finetune("classify", model, ROWS, ROWS, settings=DistillSettings())
    with pytest.raises(BertsmithError, match="and there is no teacher"):
        plan_finetuning("classify", model, RowsOfRun(), Where(), DistillSettings())


@pytest.mark.parametrize(
    "call",
    [
        lambda text, out: bertsmith.prepare([text], out),
        lambda text, out: bertsmith.prepare(__file__, out, options=PrepareOptions(exclude=(text,))),
        lambda text, out: bertsmith.prepare(__file__, out, tokenizer=text),
        lambda text, out: bertsmith.pretrain(text, out, out),
        lambda text, out: bertsmith.pretrain("bert-tiny", text, out),
        lambda text, out: bertsmith.finetune("mrpc", out, out=out, data=text),
        lambda text, out: bertsmith.import_checkpoint(text, out),
        lambda text, out: bertsmith.Predictor(text),
    ],
)
def test_a_text_in_place_of_the_name_of_its_file_is_refused(call, tmp_path):
    with pytest.raises(BertsmithError, match="File name too long") as caught:
        call("A text, and not the name of its file. " * 20, tmp_path / "out")
    assert caught.value.where.startswith("A text, and not")
    assert len(caught.value.where) <= 80
    with pytest.raises(BertsmithError, match="a zero byte"):
        call("a\0b", tmp_path / "out")
    assert not list(tmp_path.iterdir())
