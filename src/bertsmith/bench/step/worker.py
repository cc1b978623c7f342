"""A side of a step bench, run as `python -m bertsmith.bench.step.worker SPEC`: a model over its batches."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from bertsmith.base.device import Device
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.child import Answer, serve_worker
from bertsmith.bench.machine import running_on
from bertsmith.bench.step.instances import read_batches
from bertsmith.bench.step.matrix_rate import matrix_rate, step_shapes, wait
from bertsmith.bench.step.ours import TakeStep, device_of, our_steps
from bertsmith.bench.step.peer import peer_steps
from bertsmith.bench.step.profile import profile_steps
from bertsmith.bench.step.side import OURS, StepSide
from bertsmith.model.config import BertConfig
from bertsmith.training.records.meters import memory_bytes


def _device_of(side: StepSide) -> Device:
    """The side's device and the dtype of its products. Choosing ours changes settings of the whole process, which a
    peer as shipped does without."""
    if side.side == OURS:
        return device_of(side)
    return Device(torch.device(side.device), torch.bfloat16 if side.precision == "bf16" else torch.float32)


class Worker:
    """A side's model over its batches; each public method answers a question. sets: batches by name."""

    def __init__(self, side: StepSide, sets: dict[str, list[PretrainBatch]]) -> None:
        self.side, self.sets = side, sets
        self.device = _device_of(side)
        # One model for all sets, whose batches are numbered through.
        self._first = {}
        batches: list[PretrainBatch] = []
        for name, members in sets.items():
            self._first[name] = len(batches)
            batches += members
        self._step: TakeStep = (our_steps if side.side == OURS else peer_steps)(side, batches)

    def ready(self) -> Answer:
        """What it runs on."""
        return running_on(self.device.torch_device)

    def turn(self, name: str, passes: int) -> Answer:
        """Steps over all batches of a set, `passes` times, waiting for the device only at both ends."""
        wait(self.device.torch_device)
        start = time.perf_counter()
        for _ in range(passes):
            self._pass(name)
        wait(self.device.torch_device)
        return {"seconds": time.perf_counter() - start}

    def _pass(self, name: str) -> None:
        for number in range(len(self.sets[name])):
            self._step(self._first[name] + number)

    def rate(self, name: str) -> Answer:
        """The best matrix product in this side's dtype, among those of a set's first batch."""
        config, batch = BertConfig(**self.side.model), self.sets[name][0]
        shapes = step_shapes(
            config.hidden_size,
            config.intermediate_size,
            config.vocab_size,
            batch.layout.tokens,
            len(batch.masked_positions),
        )
        return {"flops": matrix_rate(self.device, shapes)}

    def memory(self) -> Answer:
        """The most memory held so far: of the GPU, or of the whole process."""
        return {"bytes": memory_bytes(self.device.torch_device)}

    def profile(self, name: str) -> Answer:
        """Where the time of a set's steps goes, after a step that is not counted."""
        return profile_steps(lambda: self._pass(name), BertConfig(**self.side.model).vocab_size, self.device)


def start(spec: Answer) -> Worker:
    """A worker by its spec (see `race.start_side`)."""
    sets = {name: read_batches(Path(path)) for name, path in spec["sets"].items()}
    return Worker(StepSide(**spec["side"]), sets)


if __name__ == "__main__":
    serve_worker(start)
