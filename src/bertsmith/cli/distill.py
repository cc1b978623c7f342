"""The verb that trains a student from a teacher, on rows or on a corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from bertsmith.base.errors import BertsmithError
from bertsmith.cli.ranks import RunFlags, over_ranks, said_once_a_host
from bertsmith.cli.train import LabelledFlags, given_fields, own_flags, task_flags
from bertsmith.cli.verb import Call, Verb
from bertsmith.recipes.loader import load_recipe, presets
from bertsmith.recipes.schema import Recipe

_CORPUS = "--corpus"


@dataclass(frozen=True, kw_only=True)
class DistillFlags(LabelledFlags, RunFlags):
    """Flags of `distill` on a task, beside those of DistillSettings."""

    teacher: Path
    """The folder, or the run, of a model that is fine-tuned for the task with the same labels."""
    out: Path
    """The run folder; the finished student lies in its `model`."""
    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")] = "auto"
    """A kind (classify, regress, tag, qa, choice) or a benchmark, as of `finetune`; auto infers it from the rows."""
    student: str | None = None
    """A model folder or run with the teacher's tokenizer, or a recipe (a preset or a YAML file), whose shape gets
    random weights; without it the teacher itself, whose layers --student-layers takes."""


@dataclass(frozen=True)
class CorpusFlags(RunFlags):
    """Flags of `distill` on a corpus, beside those of Recipe."""

    teacher: Path
    """A BERT folder or run with the corpus's vocabulary."""
    student: str
    """A recipe, a preset's name or a YAML file; its section `distillation` says what the student learns from."""
    corpus: Path
    """A folder that `bertsmith prepare` wrote."""
    out: Path
    """The run folder; the finished student lies in its `model`."""


def _distill(call: Call) -> int:
    if _CORPUS not in call.given:
        return _on_task(call)
    if of_rows := sorted(call.given & {"--train", "--dev", "--test", "--data"}):
        what = f"{_CORPUS} and {', '.join(of_rows)} exclude each other: a student learns from a corpus or from rows"
        raise BertsmithError(what, call.prog, "leave out one of them")
    return _on_corpus(call)


def _on_task(call: Call) -> int:
    with said_once_a_host():
        from bertsmith.tasks.benchmarks.inputs import distill_settings

        flags, settings = task_flags(call, DistillFlags, lambda benchmark, _: distill_settings(benchmark))

    def work(device: str) -> Path:
        rows = {"train": flags.train, "dev": flags.dev, "test": flags.test, "data": flags.data}
        return _distilled(flags, flags.student, task=flags.task, **rows, settings=replace(settings, device=device))

    return over_ranks(call, flags, settings.device, work)


def _on_corpus(call: Call) -> int:
    with said_once_a_host():
        flags, recipe = _corpus_flags(call)

    def work(device: str) -> Path:
        return _distilled(flags, replace(recipe, device=device), corpus=flags.corpus)

    return over_ranks(call, flags, recipe.device, work)


def _corpus_flags(call: Call) -> tuple[CorpusFlags, Recipe]:
    flags = own_flags(call, CorpusFlags, load_recipe("bert-mini"))
    if Path(flags.student).is_dir():
        what = "on a corpus the student is a recipe, which says what it learns from and for how long"
        raise BertsmithError(what, "--student", f"give a YAML file, or one of: {', '.join(presets())}")
    return flags, load_recipe(flags.student, given_fields(call))


def _distilled(flags: DistillFlags | CorpusFlags, student: str | Recipe | None, **others: Any) -> Path:
    from bertsmith.tasks.distill import distill

    result = distill(flags.teacher, student, flags.out, resume=flags.resume, **others)
    assert result.model is not None
    return result.model


VERBS = {
    "distill": Verb(
        "Train a small model from a larger one: on a task with --train, on a corpus with --corpus.",
        "  bertsmith distill classify --teacher runs/labels --student-layers 4 --train train.csv --dev dev.csv \\\n"
        "      --out runs/small\n"
        "  bertsmith distill --teacher runs/base --student bert-mini --corpus corpus --out runs/mini\n"
        "  bertsmith distill --corpus --help        the flags of distillation on a corpus",
        _distill,
    ),
}
