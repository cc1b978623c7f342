"""Every task there is: found by its name for fine-tuning, and by what a model folder says for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from bertsmith.tasks.task import Answering, Task

TASKS: dict[str, type[Task]] = {each.kind: each for each in (Classify, Regress, Tag, Qa, Choice, Embed)}
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
