"""Our side of a step bench: the step that training takes, over micro-batches that are there already."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bertsmith.base.device import Device, choose_device
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.bench.step.made_batches import padded
from bertsmith.bench.step.side import StepSide
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step

TakeStep = Callable[[int], None]
"""Takes a step over the batch of this number."""

RATE, WEIGHT_DECAY = 1e-4, 0.01
FILLING_PIECE = 0


def device_of(side: StepSide) -> Device:
    """Our device and its precision. A processor has no tf32, which stands for fp32 there."""
    no_tf32 = side.device == "cpu" and side.precision == "tf32"
    return choose_device(side.device, "fp32" if no_tf32 else side.precision)


def our_steps(side: StepSide, batches: list[PretrainBatch]) -> TakeStep:
    """A fresh model in train mode with its optimizer. What a step costs on the host, such as working out the blocks of
    attention, is part of it."""
    config = BertConfig(**side.model)
    device = device_of(side)
    if device.is_cpu:
        prepare_training(device.compute)
    model = PretrainingModel(config, None if device.compute == torch.float32 else device.compute)
    initialise(model, config.initializer_range, seed=0)
    model.to(device.torch_device).train()
    kind = Lamb if side.optimizer == "lamb" else AdamW
    optimizer = kind(parameter_groups(model, WEIGHT_DECAY))
    optimizer.set_learning_rate(RATE)
    if side.padded:
        batches = [padded(batch, side.longest) for batch in batches]
    counts = [{"masked": len(each.masked_positions), "next_sentence": each.layout.sequences} for each in batches]
    objective = Pretraining(model, device.torch_device)
    compiled = None
    if side.compiled:
        compiled = CompiledStep(model, device.torch_device)
        batches = fix_shapes(batches, side.longest, FILLING_PIECE)

    def step(number: int) -> None:
        train_step(objective, optimizer, [batches[number]], counts[number], device.torch_device, compiled)

    return step
