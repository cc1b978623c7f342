"""A side of a step bench in a process of its own: `python -m bertsmith.bench.step.worker SPEC`.

It loads what it needs, says what it runs on, and then does what it is asked to, a JSON line for a JSON line, until its
standard input ends. A process for each side, because oneDNN's switch and a compiler's caches are global to one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertsmith.base.device import Device
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.step.instances import read_batches
from bertsmith.bench.step.matrix_rate import matrix_rate, step_shapes, wait
from bertsmith.bench.step.ours import CannotHere, TakeStep, device_of, our_steps
from bertsmith.bench.step.peer import peer_steps
from bertsmith.bench.step.profile import profile_steps
from bertsmith.bench.step.side import OURS, StepSide
from bertsmith.model.config import BertConfig
from bertsmith.training.meters import memory_bytes

Answer = dict[str, Any]


def _device_of(side: StepSide) -> Device:
    """The side's device and the dtype of its products. To choose ours sets what is faster for the whole process, which
    a peer as shipped does without."""
    if side.side == OURS:
        return device_of(side)
    return Device(torch.device(side.device), torch.bfloat16 if side.precision == "bf16" else torch.float32)


class Worker:
    """What a side can be asked for. sets: batches by name."""

    def __init__(self, side: StepSide, sets: dict[str, list[PretrainBatch]]) -> None:
        self.side, self.sets = side, sets
        self.device = _device_of(side)
        # One model for all sets: their batches lie behind one another.
        self._first = {}
        batches: list[PretrainBatch] = []
        for name, members in sets.items():
            self._first[name] = len(batches)
            batches += members
        self._step: TakeStep = (our_steps if side.side == OURS else peer_steps)(side, batches)

    def ready(self) -> Answer:
        """What it runs on."""
        if self.device.is_cpu:
            return {"device": f"cpu, threads of torch: {torch.get_num_threads()}"}
        return {"device": f"{torch.cuda.get_device_name(self.device.torch_device)}, CUDA {torch.version.cuda}"}

    def turn(self, name: str, passes: int) -> Answer:
        """Steps over all batches of a set, `passes` times, the device waited for at the two ends alone."""
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
        """The most memory held so far: of the card, or of the whole process."""
        return {"bytes": memory_bytes(self.device.torch_device)}

    def profile(self, name: str) -> Answer:
        """Where the time of a set's steps goes, after a step that is not counted."""
        return profile_steps(lambda: self._pass(name), BertConfig(**self.side.model).vocab_size, self.device)


def answer(worker: Worker, question: Answer) -> Answer:
    """Does what is asked for: {"do": "turn", "name": "...", ...}."""
    does: Callable[..., Answer] = getattr(worker, question.pop("do"))
    try:
        return does(**question)
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}


def main(spec: Path) -> None:
    """Reads questions and writes answers; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(what: Answer) -> None:
        print(json.dumps(what), file=answers, flush=True)

    told = json.loads(spec.read_text(encoding="utf-8"))
    sets = {name: read_batches(Path(path)) for name, path in told["sets"].items()}
    try:
        worker = Worker(StepSide(**told["side"]), sets)
    except CannotHere as why:
        say({"failed": str(why)})
        return
    say(worker.ready())
    for line in sys.stdin:
        say(answer(worker, json.loads(line)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
