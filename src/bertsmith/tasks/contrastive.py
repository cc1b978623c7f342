"""The objective of embeddings: a loss of the whole step, whatever micro-batches and ranks it was dealt to.

The negatives of a row are all other rows of its step, so no micro-batch has a loss by itself. A step of one micro-batch
goes through whole. Else the vectors of all micro-batches and ranks are computed first; the loss of the step, its
gradient with respect to these vectors, and then each micro-batch again, whose share of the loss is its vectors times
that gradient (Gao et al., 2021, "Scaling deep contrastive learning batch size under memory limited setup").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bertsmith.base import ranks
from bertsmith.model.losses import LossSum
from bertsmith.tasks.embedding.ranking import ranking_losses
from bertsmith.tasks.kinds.embed import by_row
from bertsmith.tasks.objective import TaskObjective, Units
from bertsmith.tasks.sequences import Inputs

_RandomState = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class _MicroBatch:
    """What is kept of a micro-batch until its backward pass. random: the state before its dropout was drawn. vectors:
    with their graph, where it is the only one of this rank and need not be computed again. loss, right: sums over its
    rows. gradient: of the loss of the step, with respect to its vectors."""

    inputs: Inputs
    targets: Tensor
    random: _RandomState
    vectors: Tensor | None
    loss: Tensor
    right: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class RankingObjective(TaskObjective):
    """The objective of `Embed`. kept: micro-batches of the present step by their identity; none where it goes through
    whole."""

    kept: dict[int, _MicroBatch] = field(default_factory=dict)

    def begin_step(self, micro_batches: Sequence[Units], device: torch.device) -> None:
        """Computes the vectors of the whole step and the gradient of its loss, where it was cut up. All ranks call it
        at once."""
        self.kept.clear()
        if len(micro_batches) == 1 and ranks.world_size() == 1:
            return
        first = micro_batches[0]
        texts = torch.from_numpy(first.examples.targets[first.step]).to(device)
        every = torch.zeros(*texts.shape, self.config.hidden_size, device=device)
        places = [torch.from_numpy(batch.places).to(device) for batch in micro_batches]
        forward: list[tuple[Inputs, Tensor, _RandomState, Tensor | None]] = []
        for batch, those in zip(micro_batches, places, strict=True):
            random = _random_state(device)
            inputs, targets = super().inputs(batch, device)
            # With a graph, although it may be dropped at once: without one other kernels may draw other dropout.
            vectors = by_row(self.model(inputs), inputs, targets)
            every[those] = vectors.detach()
            forward.append((inputs, targets, random, vectors if len(micro_batches) == 1 else None))
            del vectors  # its graph would stay in memory during the next forward pass
        ranks.sum_over_ranks(every)  # each row is on one rank and zero on all others, so this is exact
        every.requires_grad_()
        losses, right = ranking_losses(every, texts)
        (gradient,) = torch.autograd.grad(losses.sum(), every)
        losses = losses.detach()
        for batch, those, parts in zip(micro_batches, places, forward, strict=True):
            sums = losses[those].sum(), right[those].sum()
            self.kept[id(batch)] = _MicroBatch(*parts, *sums, gradient[those])

    def inputs(self, batch: Units, device: torch.device) -> tuple[Inputs, Tensor]:
        known = self.kept.get(id(batch))
        return super().inputs(batch, device) if known is None else (known.inputs, known.targets)

    def losses(self, inputs: Inputs, targets: Tensor, batch: Units) -> Mapping[str, LossSum]:
        """The losses of the micro-batch's rows within the step, with the gradient that they all together give it."""
        known = self.kept.get(id(batch))
        if known is None:
            return super().losses(inputs, targets, batch)
        vectors = known.vectors
        if vectors is None:
            _set_random_state(known.random, targets.device)
            vectors = by_row(self.model(inputs), inputs, targets)
        share = (vectors * known.gradient).sum()
        count = torch.zeros_like(known.right) + len(targets)
        return {self.task.kind: LossSum(share + (known.loss - share.detach()), count, known.right)}


def _random_state(device: torch.device) -> _RandomState:
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_device


def _set_random_state(state: _RandomState, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
