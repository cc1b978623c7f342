"""One optimizer step: micro-batches forward and backward, gradients summed over ranks, one update.

Losses leave the model as sums. Each is divided at once by the count of the whole step over all ranks and micro-batches,
so the gradient does not depend on how the step was cut up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bertsmith.base.ranks import rank, sum_over_ranks, world_size
from bertsmith.model.losses import Forward
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.norms import tensor_norms
from bertsmith.training.objective import Objective, figures_of, mean_loss


@dataclass
class StepSums:
    """What a step adds up over its micro-batches on this rank: `figures_of` on the device, four numbers on the host.

    slots: tokens and what fills batches up. attention_places: slots that attention worked on, padding included. flop:
    floating-point operations of its matrix products, without padding.
    faulty: of `sum_gradients`.
    """

    figures: Tensor
    tokens: int = 0
    slots: int = 0
    attention_places: int = 0
    flop: float = 0.0
    faulty: Tensor | None = None

    @classmethod
    def zero(cls, losses: int, device: torch.device) -> StepSums:
        """losses: how many there are."""
        return cls(torch.zeros(3 * losses, device=device))

    def add(self, batch: Forward) -> None:
        """Adds a micro-batch."""
        self.figures += figures_of(batch.losses)
        self.tokens += batch.tokens
        self.slots += batch.slots
        self.attention_places += batch.attention_places
        self.flop += batch.flop


class Compiled(Protocol):
    """A model and its optimizer, run compiled: `training.compiled.CompiledStep`."""

    def add_losses(self, batch: Any, counts: Mapping[str, int], sums: StepSums) -> Tensor:
        """The micro-batch's share of the step's loss, with its graph; adds its figures to `sums`."""

    def update(self) -> None:
        """The optimizer's step."""


def train_step(
    objective: Objective,
    optimizer: ClippedOptimizer,
    micro_batches: Sequence[Any],
    counts: Mapping[str, int],
    device: torch.device,
    compiled: Compiled | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> StepSums | None:
    """One update from `micro_batches`, this rank's share of a step.

    counts: labels of each loss in the whole step, over all ranks. The learning rate is the optimizer's. compiled: runs
    the objective's model and `optimizer`, where they are compiled. should_stop: called between micro-batches; where it
    is True, which it must be on all ranks alike, the step is dropped, nothing is changed, and None is returned.
    """
    counts = {name: max(counts[name], 1) for name in objective.names}
    optimizer.zero_grad(set_to_none=True)
    sums = StepSums.zero(len(counts), device)
    for number, batch in enumerate(micro_batches):
        if number and should_stop():
            optimizer.zero_grad(set_to_none=True)
            return None
        if compiled is None:
            forward = objective.forward(batch, device)
            sums.add(forward)
            loss = mean_loss([forward.losses[name] for name in counts], list(counts.values()))
        else:
            loss = compiled.add_losses(batch, counts, sums)
        optimizer.scaled(loss).backward()  # type: ignore[no-untyped-call]
    sums.faulty = sum_gradients(objective.model)
    if compiled is None:
        optimizer.step()
    else:
        compiled.update()
    return sums


def sum_gradients(model: torch.nn.Module) -> Tensor | None:
    """Adds up the fp32 gradients of all ranks, in one flat buffer; every rank then holds the same sums.

    Returns which ranks' own gradients were not finite, fp32[ranks], 1 for each; None where there is one rank.
    """
    if world_size() == 1:
        return None
    # A rank without instances in this step has no gradients, and must still take its part with zeros.
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    parts = [each.reshape(-1) for each in gradients]
    faulty = torch.zeros(world_size(), dtype=parts[0].dtype, device=parts[0].device)
    faulty[rank()] = ~torch.isfinite(tensor_norms(parts)).all()
    flat = sum_over_ranks(torch.cat([*parts, faulty]))
    *sums, faulty = torch.split(flat, [each.numel() for each in (*parts, faulty)])
    for gradient, part in zip(gradients, sums, strict=True):
        gradient.copy_(part.view_as(gradient))
    return faulty
