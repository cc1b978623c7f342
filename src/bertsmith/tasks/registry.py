"""Every task there is: found by its name for fine-tuning, and by what a model folder says for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.kinds.choice import Choice
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.kinds.many_labels import ManyLabels
from bertsmith.tasks.kinds.masked_words import MaskedWords
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.kinds.regress import Regress
from bertsmith.tasks.kinds.score import Score
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.task import Answering, FolderFacts, Task

Kind = TypeVar("Kind", bound=Answering)

TASKS: dict[str, type[Task]] = {each.kind: each for each in (Classify, Regress, Tag, Qa, Choice, Embed)}
_LEAST_LENGTH = 4  # [CLS], [SEP] and [SEP] leave one piece of a pair
_ANSWERING: tuple[type[Answering], ...] = (Score, *TASKS.values(), ManyLabels, MaskedWords)


def task_named(name: str) -> type[Task]:
    """Raises BertsmithError, with the nearest name, for one that is not known."""
    if name not in TASKS:
        raise BertsmithError(f"task '{name}' is not known", "task", nearest(name, (*TASKS, *benchmarks())))
    return TASKS[name]


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class of `transformers` that a config.json names first."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "no architecture"


def answering(config: Mapping[str, Any]) -> type[Answering] | None:
    """What answers with a model of this config.json, with the task.json in it; None where nothing does."""
    architecture = architecture_of(config)
    return next((each for each in _ANSWERING if architecture in each.architectures and each.reads(config)), None)


def of_folder(kind: type[Kind], folder: Path, facts: FolderFacts) -> Kind:
    """As `Answering.of_folder`; errors name the file with its folder, as there may be several folders."""
    try:
        return kind.of_folder(facts)
    except BertsmithError as error:
        raise BertsmithError(error.what, folder / error.where, error.fix) from error


@dataclass(frozen=True)
class Trained:
    """What a task.json says. max_length: the most tokens of a row; None where it does not say."""

    columns: Columns
    max_length: int | None
    values: dict[str, Any]


def read_task(path: Path) -> Trained:
    """The usual columns where a folder has no task.json. Raises BertsmithError where the file holds something else."""
    if not path.is_file():
        return Trained(Columns(), None, {})
    fix = "fine-tune again, or copy the file again from where the model came from"
    task = files.read_json(path, fix)
    try:
        if not isinstance(task, dict):
            raise ValueError("it holds no JSON object")
        length, overlap = task.get("max_length"), task.get("window_overlap")
        if length is not None and (type(length) is not int or length < _LEAST_LENGTH):
            raise ValueError(f"max_length is {length!r}, not a whole number from {_LEAST_LENGTH}")
        if overlap is not None and (type(overlap) is not int or overlap < 0):
            raise ValueError(f"window_overlap is {overlap!r}, not a whole number from 0")
        if not isinstance(task.get("pairs"), bool | None):
            raise ValueError(f"pairs is {task['pairs']!r}")
        return Trained(Columns.from_json(task.get("columns", {})), length, task)
    except ValueError as error:
        raise BertsmithError(f"this file does not describe a task: {error}", path, fix) from error
