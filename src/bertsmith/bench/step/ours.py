"""Our side of a step bench: the step that training takes, over micro-batches that are there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bertsmith.base.device import Device, choose_device
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.bench.child import CannotHere
from bertsmith.bench.fresh import fresh
from bertsmith.bench.step.made_batches import padded
from bertsmith.bench.step.side import StepSide
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import StepSums, train_step

TakeStep = Callable[[int], None]
"""Takes a step over the batch of this number."""

RATE, WEIGHT_DECAY = 1e-4, 0.01
FILLING_PIECE = 0


def device_of(side: StepSide) -> Device:
    """Our device and its precision. A processor has no tf32, which stands for fp32 there."""
    no_tf32 = side.device == "cpu" and side.precision == "tf32"
    return choose_device(side.device, "fp32" if no_tf32 else side.precision)


class OurSteps:
    """A fresh model in train mode with its optimizer; called with a number, it takes a step over the batch of that
    number, all sets counted through. What a step costs on the host, such as working out the blocks of attention, is
    part of it."""

    def __init__(self, side: StepSide, *sets: Sequence[PretrainBatch]) -> None:
        config = BertConfig(**side.model)
        device = device_of(side)
        if device.is_cpu:
            prepare_training(device.compute)
        model = fresh(lambda: PretrainingModel(config, device.compute), device.torch_device).train()
        kind = Lamb if side.optimizer == "lamb" else AdamW
        self.device, self._optimizer = device.torch_device, kind(parameter_groups(model, WEIGHT_DECAY))
        self._optimizer.set_learning_rate(RATE)
        if side.padded:
            sets = tuple([padded(batch, side.longest) for batch in batches] for batches in sets)
        self._counts = [
            {"masked": len(each.masked_positions), "next_sentence": each.layout.sequences}
            for batches in sets
            for each in batches
        ]
        self._objective = Pretraining(model, self.device)
        self._compiled: CompiledStep | None = None
        if side.compiled:
            self._compiled = CompiledStep(model, self.device, graphs=side.graphs)
            # A shape for each set, as each phase has: one for all would fill up the sets of shorter sequences.
            sets = tuple(fix_shapes(batches, side.longest, FILLING_PIECE) for batches in sets)
        self.batches = [batch for batches in sets for batch in batches]

    @property
    def compilations(self) -> int | None:
        """Graphs made so far; None where steps are not compiled."""
        return None if self._compiled is None else self._compiled.compilations

    def __call__(self, number: int) -> None:
        self.take([self.batches[number]], self._counts[number])
        if self._compiled is not None and self._compiled.refused:
            raise CannotHere(f"the CUDA graph is not taken: {self._compiled.refused}")

    def take(self, micro_batches: Sequence[PretrainBatch], counts: Mapping[str, int]) -> StepSums | None:
        """A step over these micro-batches; counts: as of `train_step`."""
        return train_step(self._objective, self._optimizer, micro_batches, counts, self.device, self._compiled)
