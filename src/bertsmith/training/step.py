"""One optimizer step: micro-batches forward and backward, gradients summed over ranks, one update.

Losses leave the model as sums. Each is divided at once by the count of the whole step over all ranks and micro-batches,
so the gradient does not depend on how the step was cut up. In fp16 what that makes too small is multiplied again before
the backward pass (`LossScale.set_labels`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.model.losses import Forward
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.objective import Objective, SeesSteps, Step, figures_of, mean_loss
from bertsmith.training.parallel import gradients_of


@dataclass
class StepSums:
    """What a step adds up over its micro-batches on this rank: `figures_of` on the device, four numbers on the host.

    slots: tokens and what fills batches up. attention_places: slots that attention worked on, padding included. flop:
    floating-point operations of its matrix products, without padding.
    faulty: of `Gradients.finish`.
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
        self.figures += figures_of(batch.losses.values())
        self.tokens += batch.tokens
        self.slots += batch.slots
        self.attention_places += batch.attention_places
        self.flop += batch.flop


class Compiled(Protocol):
    """A model, run compiled: `training.pretraining.compiled.CompiledStep`."""

    def add_gradients(
        self, batch: Any, counts: Mapping[str, int], sums: StepSums, scaled: Callable[[Tensor], Tensor]
    ) -> None:
        """Runs a micro-batch forward and backward, from its share of the step's loss as `scaled` gives it; adds its
        figures to `sums`."""


def train_step(
    objective: Objective,
    optimizer: ClippedOptimizer,
    micro_batches: Sequence[Any],
    counts: Mapping[str, int],
    device: torch.device,
    compiled: Compiled | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> StepSums | None:
    """One update from `micro_batches`, this rank's share of a step. All ranks must call it; where the model is sharded
    or a stop is looked for, with equally many micro-batches.

    counts: labels of each loss in the whole step, over all ranks. The learning rate is the optimizer's. compiled: runs
    the objective's model, where it is compiled. should_stop: called between micro-batches and, of several that are not
    compiled on a CPU, between forward and backward of each; where it is True, which it must be on all ranks alike, the
    step is dropped, nothing is changed, and None is returned.
    """
    optimizer.begin_step(min((counts[name] for name in objective.names if counts[name]), default=1))
    counts = {name: max(counts[name], 1) for name in objective.names}
    gradients = gradients_of(objective.model)
    gradients.begin()
    sums = StepSums.zero(len(counts), device)
    if isinstance(objective, SeesSteps):
        objective.begin_step(micro_batches, device)

    def dropped() -> bool:
        """Whether a stop came, and the step was dropped for it."""
        if not should_stop():
            return False
        gradients.drop()
        optimizer.zero_grad(set_to_none=True)
        return True

    # On a CPU a micro-batch takes seconds, and among several ranks a signal counts one look later.
    within = len(micro_batches) > 1 and device.type == "cpu"
    for number, batch in enumerate(micro_batches, start=1):
        if number > 1 and dropped():
            return None
        if number == len(micro_batches):
            gradients.before_last()
        if compiled is None:
            forward = objective.forward(batch, device)
            if within and dropped():
                return None
            sums.add(forward)
            loss = mean_loss([forward.losses[name] for name in counts], list(counts.values()))
            optimizer.scaled(loss).backward()  # type: ignore[no-untyped-call]
        else:
            compiled.add_gradients(batch, counts, sums, optimizer.scaled)
    sums.faulty = gradients.finish()
    optimizer.step()
    return sums


def verdict(optimizer: ClippedOptimizer, sums: StepSums) -> Tensor:
    """Of a step, fp32[1 + ranks]: 1 where training can go on; 1 for each rank with a gradient at fault."""
    sound = optimizer.sound.float().view(1)
    return torch.cat([sound, 1 - sound if sums.faulty is None else sums.faulty])


def refuse_faulty(found: Sequence[float], optimizer: ClippedOptimizer, precision: str, stage: str, step: Step) -> None:
    """Raises BertsmithError where training cannot go on. found: of `verdict`. stage: such as "phase 1"."""
    sound, *faulty = found
    if sound:
        return
    named = ", ".join(str(number) for number, fault in enumerate(faulty) if fault) or "of all together"
    scale = optimizer.loss_scale
    at_scale = "" if scale is None else f" even at the lowest loss scale, {scale.floor:g}"
    raise BertsmithError(
        f"the gradient is not finite (NaN or infinity){at_scale}, so its update was skipped and training stopped",
        f"{stage}, step {step.number + 1}, rank {named}, {step.where}",
        "a resumed run keeps its settings: start another --out, with a lower learning rate"
        f"{'' if precision == 'fp32' else ' or --precision fp32'}",
    )
