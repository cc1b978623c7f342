"""Every task there is: found by its name for fine-tuning, and by the class that a model folder names for the rest."""

from __future__ import annotations

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.tasks.classify import Classify
from bertsmith.tasks.masked_words import MaskedWords
from bertsmith.tasks.task import Answering, Task

TASKS: dict[str, type[Task]] = {each.kind: each for each in (Classify,)}
_ANSWERING: tuple[type[Answering], ...] = (*TASKS.values(), MaskedWords)


def task_named(name: str) -> type[Task]:
    """Raises BertsmithError, with the nearest name, for one that is not known."""
    if name not in TASKS:
        raise BertsmithError(f"task '{name}' is not known", "task", nearest(name, TASKS))
    return TASKS[name]


def answering(architecture: str) -> type[Answering] | None:
    """What answers with a model of this class of `transformers`; None where nothing does."""
    return next((each for each in _ANSWERING if architecture in each.architectures), None)
