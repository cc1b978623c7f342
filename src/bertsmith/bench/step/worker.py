"""A side of a step bench, run as `python -m bertsmith.bench.step.worker SPEC`: a model over its batches."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import torch

from bertsmith.base.device import Device
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.machine import running_on
from bertsmith.bench.step.instances import read_batches
from bertsmith.bench.step.loaded import data_wait_share
from bertsmith.bench.step.matrix_rate import matrix_rate, seconds_of, step_shapes
from bertsmith.bench.step.ours import OurSteps, TakeStep, device_of
from bertsmith.bench.step.peer import peer_steps
from bertsmith.bench.step.profile import profile_kernels, profile_steps
from bertsmith.bench.step.side import OURS, StepSide
from bertsmith.model.config import BertConfig
from bertsmith.training.records.meters import memory_bytes


def _device_of(side: StepSide) -> Device:
    """The side's device and the dtype of its products. Choosing ours changes settings of the whole process, which a
    peer as shipped does without."""
    if side.side == OURS:
        return device_of(side)
    return Device(torch.device(side.device), torch.bfloat16 if side.precision == "bf16" else torch.float32)


class Worker(Ready):
    """A side's model over its batches; each public method answers a question. sets: batches by name."""

    def __init__(self, side: StepSide, sets: dict[str, list[PretrainBatch]]) -> None:
        self.side, self.sets = side, sets
        self.device = _device_of(side)
        # One model for all sets, whose batches are numbered through.
        ends = accumulate(map(len, sets.values()))
        self._first = {name: end - len(sets[name]) for name, end in zip(sets, ends, strict=True)}
        self._ours = OurSteps(side, *sets.values()) if side.side == OURS else None
        self._step: TakeStep = self._ours or peer_steps(side, *sets.values())
        self._compilations: dict[str, int | None] = {}
        self._passed: set[str] = set()
        super().__init__(**running_on(self.device.torch_device))

    def turn(self, name: str, passes: int) -> Answer:
        """Steps over all batches of a set, `passes` times, waiting for the device only at both ends."""
        return {"seconds": seconds_of(self.device.torch_device, lambda: self._turn(name, passes))}

    def _turn(self, name: str, passes: int) -> None:
        for _ in range(passes):
            self._pass(name)

    def _pass(self, name: str) -> None:
        if name not in self._passed and self.device.torch_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device.torch_device)  # a set's memory is its own
        self._passed.add(name)
        for number in range(len(self.sets[name])):
            self._step(self._first[name] + number)
        if self._ours is not None:
            self._compilations.setdefault(name, self._ours.compilations)

    def loaded(self, name: str, steps: int) -> Answer:
        """Of so many steps over batches in the shape of a set's, made by a loader while they are taken: the share of
        the time in which the loop waited for data. And the graphs that were made again since the set's first pass,
        None where steps are not compiled. Ours alone, after a turn."""
        assert self._ours is not None
        share = data_wait_share(self._ours, self._first[name], self.side.model["vocab_size"], steps)
        before, now = self._compilations[name], self._ours.compilations
        return {"data_wait_share": share, "recompilations": None if before is None or now is None else now - before}

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
        """The most memory held: of a GPU since the first pass over the last new set, or of the whole process so far."""
        return {"bytes": memory_bytes(self.device.torch_device)}

    def kernels(self, name: str, passes: int) -> Answer:
        """Where the GPU's time of the compiled steps of a turn goes, and how many they are."""
        found = profile_kernels(lambda: self._turn(name, passes), self.device)
        return found | {"steps": passes * len(self.sets[name])}

    def profile(self, name: str) -> Answer:
        """Where the time of a set's steps goes, after a step that is not counted."""
        return profile_steps(lambda: self._pass(name), BertConfig(**self.side.model).vocab_size, self.device)


def start(spec: Answer) -> Worker:
    """A worker by its spec (see `race.start_side`)."""
    sets = {name: read_batches(Path(path)) for name, path in spec["sets"].items()}
    return Worker(StepSide(**spec["side"]), sets)


if __name__ == "__main__":
    serve(start)
