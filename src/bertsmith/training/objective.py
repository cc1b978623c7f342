"""What a model learns, as the loop sees it: pre-training and every task give it one of these.

An objective turns a micro-batch into named summed losses, evaluates the model, and words the lines a person reads.
Step, loop, meter, checkpoints and compiled steps know losses by these names, and nothing else of what is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from bertsmith.model.losses import Forward, LossSum


def nothing() -> None:
    """For who wants nothing to happen between batches."""


class Step(Protocol):
    """One optimizer step of one rank.

    number: within its stage, from 0. micro_batches: this rank's share. counts: labels of each loss that has some in the
    whole step, over all ranks and micro-batches. tokens, sequences: of the whole step; of rows with several sequences
    each, such as choices, the rows. where: its instances or rows, for messages.
    """

    @property
    def number(self) -> int: ...
    @property
    def micro_batches(self) -> Sequence[Any]: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def tokens(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def where(self) -> str: ...


class Steps(Protocol):
    """The steps of a stage in order, in a `with` block. waited_seconds: how long the steps so far were waited for."""

    @property
    def waited_seconds(self) -> float: ...
    def __iter__(self) -> Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


class Objective(Protocol):
    """model: what learns. names: of the losses that `forward` gives, in their order."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def names(self) -> tuple[str, ...]: ...

    def forward(self, batch: Any, device: torch.device) -> Forward:
        """Runs one micro-batch through the model, with the graph that `backward` needs."""

    def evaluate(self, held_out: Any, between: Callable[[], None] = nothing) -> dict[str, float]:
        """Figures of the model on what is held out, over all ranks; the training mode is left as it was.

        between: called before each batch, equally often on all ranks; it may raise, which ends the evaluation.
        """

    def training_line(self, record: Mapping[str, float]) -> str:
        """A record of the meter that has a loss, in a few words."""

    def evaluation_line(self, when: str, figures: Mapping[str, float]) -> str:
        """What `evaluate` gave, as a line. when: such as "after step 500", or with rows "seed 42, epoch 1: dev"."""


@runtime_checkable
class SeesSteps(Protocol):
    """An objective whose loss is not the sum of those of its micro-batches: it is shown all of a step first."""

    def begin_step(self, micro_batches: Sequence[Any], device: torch.device) -> None:
        """Called by all ranks before the first forward pass of a step, with the micro-batches of this rank."""


class Watch(Protocol):
    """What looks at a run while it trains, on the first rank, and says what looks wrong; it waits for no device."""

    def count(self, step: Step) -> None:
        """Looks at what a step was given, after it."""

    def see(self, record: Mapping[str, Any]) -> dict[str, str]:
        """What a record of `metrics.jsonl` shows to be wrong: a message by its name. Those of a resumed run are seen
        again first, without a warning."""


def figures_of(losses: Iterable[LossSum]) -> Tensor:
    """Loss, count and right predictions of each loss, one after the other, without their graph: fp32[3 x losses]."""
    return torch.stack([part.detach().float() for loss in losses for part in (loss.loss, loss.count, loss.right)])


def mean_loss(losses: Sequence[LossSum], counts: Sequence[int | Tensor]) -> Tensor:
    """Each summed loss divided by its count over the whole step, added up; a scalar with its graph."""
    total = losses[0].loss / counts[0]
    for loss, count in zip(losses[1:], counts[1:], strict=True):
        total = total + loss.loss / count
    return total
