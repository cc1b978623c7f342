"""Distillation: a student that learns from a larger model, on the rows of a task or on a corpus."""

from __future__ import annotations

import os
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath, as_path
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.recipes.loader import presets, recipe_of
from bertsmith.recipes.schema import Recipe
from bertsmith.tasks.benchmarks.inputs import BenchmarkChoice, distill_settings
from bertsmith.tasks.examples import given_parts
from bertsmith.tasks.finetune import Asked, tune
from bertsmith.tasks.reading.records import Source
from bertsmith.tasks.results import FinetuneResult
from bertsmith.tasks.settings import DistillSettings
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.shape import config_of
from bertsmith.weights.huggingface import model_folder, read_config


def distill(
    teacher: StrPath,
    student: Recipe | StrPath | None = None,
    out: StrPath | None = None,
    *,
    corpus: Corpus | str | Path | None = None,
    task: str = "auto",
    train: Source | None = None,
    dev: Source | None = None,
    test: Source | None = None,
    data: str | Path | None = None,
    settings: DistillSettings | None = None,
    resume: bool = False,
) -> FinetuneResult | Run:
    """Trains a student on labelled rows, or on a corpus, and on what a teacher shows of them; otherwise as
    `bertsmith.finetune`, or as `bertsmith.pretrain`.

    On a corpus: teacher is any BERT folder or run with the corpus's vocabulary, student a recipe, whose `distillation`
    says what is compared, and nothing else but `resume` is given. It returns the run.

    On rows: teacher is the folder or run of a model that is fine-tuned for the same task with the same labels. student:
    a model folder or run with the teacher's tokenizer; a recipe (a preset's name, a YAML file or a Recipe), whose shape
    gets random weights; None for the teacher itself, whose layers are taken. `settings.student_layers` takes some of
    the layers of a folder.
    Raises BertsmithError where teacher and student do not fit each other or the text, before any training.
    """
    if corpus is not None:
        rows = {"train": train, "dev": dev, "test": test, "data": data, "settings": settings}
        of_rows = {"task": None if task == "auto" else task, **rows}
        recipe, run = _of_corpus(student, out, [name for name, each in of_rows.items() if each is not None])
        return pretrain(recipe, corpus, run, resume=resume, teacher=teacher)
    given = given_parts(train, dev, test)
    teacher = as_path(teacher, "teacher")
    shape = None if student is None else _recipe_shape(student, teacher)
    model = teacher
    if shape is None and student is not None and not isinstance(student, Recipe):
        model = as_path(student, "student")
    if train is None and data is None:
        fix = "name rows by --train, a benchmark's folder by --data, or --corpus and for --student a recipe"
        raise BertsmithError("there is nothing to learn from: neither training rows nor a corpus", "distill", fix)
    named = {"teacher": str(teacher), **({"student": _name(student)} if shape is not None else {})}
    settings = distill_settings(task) if settings is None else settings
    asked = Asked(task, model, given, BenchmarkChoice(data), settings, teacher, shape, student is None, named)
    return tune(asked, None if out is None else as_path(out, "out"), resume)


def _of_corpus(
    student: Recipe | StrPath | None, out: StrPath | None, given: list[str]
) -> tuple[Recipe | str | Path, StrPath]:
    """The recipe and the run folder. Raises BertsmithError where one is missing, and for what excludes a corpus."""
    if given:
        what = f"a corpus and {' and '.join(given)} exclude each other"
        raise BertsmithError(what, "corpus", "give a corpus and a recipe, or a task with its rows")
    student = Path(student) if isinstance(student, os.PathLike) else student
    if student is None or (isinstance(student, str | Path) and Path(student).is_dir()):
        what = "on a corpus the student is a recipe, which says what it learns from and for how long"
        raise BertsmithError(what, "student", f"give a YAML file, or one of: {', '.join(presets())}")
    if out is None:
        raise BertsmithError("there is no run folder", "out", "name one")
    return student, out


def _recipe_shape(student: Recipe | StrPath, teacher: Path) -> BertConfig | None:
    """The shape of a student that a recipe describes, with the teacher's vocabulary; None for a folder's."""
    if not isinstance(student, Recipe):
        student = as_path(student, "student")
        if student.is_dir():
            return None
        if str(student) not in presets() and not student.is_file():
            what = f"the student '{student}' is neither a model folder nor a recipe"
            raise BertsmithError(what, "student", f"give a folder, a YAML file, or one of: {', '.join(presets())}")
    recipe = recipe_of(student)
    folder = model_folder(teacher)
    special = Tokenizer.load(folder).special
    return config_of(recipe.model, read_config(folder).vocab_size, special.pad)


def _name(student: object) -> str:
    return "a recipe given in Python" if isinstance(student, Recipe) else str(student)
