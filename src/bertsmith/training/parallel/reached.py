"""Which parameters a step of all ranks together gives a gradient, agreed on once, between the hosts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks import gathered


class Reached:
    """Parameters that the objective reaches: those that got a gradient on any rank by the end of the first step.

    What one process leaves without a gradient, and so without an update, must not get zeros from a sum over ranks:
    weights would decay. Every step would have to wait for all hosts to ask them anew, so the answer is kept.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._here: set[int] = set()
        self._anywhere: set[int] | None = None

    def note(self, number: int) -> None:
        """A backward pass has come to this parameter."""
        self._here.add(number)

    def drop_others(self) -> None:
        """Sets `grad` to None where no rank has a gradient; all ranks call it, at the end of a step.

        Raises BertsmithError where a parameter is reached on this rank for the first time after the first step.
        """
        if self._anywhere is None:
            self._anywhere = set().union(*gathered(self._here))
        if late := self._here - self._anywhere:
            shapes = ", ".join(str(tuple(self._parameters[number].shape)) for number in sorted(late))
            raise BertsmithError(
                f"parameters got no gradient in the first step and got one now: of shape {shapes}",
                "training on several ranks",
                "have the loss reach the same parameters in every step",
            )
        for number, parameter in enumerate(self._parameters):
            if number not in self._anywhere:
                parameter.grad = None
