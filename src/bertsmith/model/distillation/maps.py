"""Linear maps from a student's width to its teacher's: trained with the student, and no part of what is saved."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from bertsmith.base.streams import stream_key
from bertsmith.model.initial import initialise
from bertsmith.model.linear import Linear

Student = TypeVar("Student", bound=nn.Module)
_NAME = "hidden_maps"


def hidden_maps(pairs: int, student: int, teacher: int) -> nn.ModuleList | None:
    """A linear map from the student's width to the teacher's for each pair of layers; None where the widths are equal.
    Its weights are not set."""
    return None if student == teacher else nn.ModuleList(Linear(student, teacher) for _ in range(pairs))


def add_maps(model: nn.Module, pairs: int, widths: tuple[int, int], seed: int) -> None:
    """Gives a student its maps, with random weights, on its device; none where the widths are equal.

    pairs: of layers that are compared. widths: the student's and the teacher's.
    """
    maps = hidden_maps(pairs, *widths)
    if maps is not None:
        initialise(maps, widths[0] ** -0.5, stream_key(seed, _NAME))
        model.add_module(_NAME, maps.to(next(model.parameters()).device))


def maps_of(model: nn.Module) -> nn.ModuleList | None:
    """The maps of a student; None for one that has none."""
    found: nn.ModuleList | None = getattr(model, _NAME, None)
    return found


def without_maps(model: Student) -> Student:
    """The student as it is saved."""
    if hasattr(model, _NAME):
        delattr(model, _NAME)
    return model
