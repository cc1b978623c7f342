"""A case of the reference bench, run as `python -m bertsmith.bench.reference.worker SPEC`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from bertsmith.base.device import Device, choose_device
from bertsmith.base.layout import Ints
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.fresh import M, fresh
from bertsmith.bench.machine import running_on
from bertsmith.bench.reference.bench import Case
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.matrix_rate import seconds_of
from bertsmith.bench.step.ours import RATE, WEIGHT_DECAY
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.encoder import Encoder
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.objective import TaskObjective, Units
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.task import Examples, Runner, Task
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.records.meters import memory_bytes
from bertsmith.training.step import train_step

Work = Callable[[], object]
"""A step or a call."""
_FIRST_WORD = 5


def pretraining(case: Case, config: BertConfig, device: Device) -> Work:
    """A step with LAMB, as the recipes have it; or the scores of masked words and next sentences, with their loss."""
    model = _ready(lambda: PretrainingModel(config, device.compute), case, device)
    objective = Pretraining(model, device.torch_device)
    batch = pretrain_batch(lengths_of("full", case.batch, case.length), config.vocab_size)
    counts = {"masked": len(batch.masked_positions), "next_sentence": case.batch}
    if case.mode == "inference":
        return lambda: objective.forward(batch, device.torch_device)
    optimizer = Lamb(parameter_groups(model, WEIGHT_DECAY))
    optimizer.set_learning_rate(RATE)
    return lambda: train_step(objective, optimizer, [batch], counts, device.torch_device)


def fine_tuning(case: Case, config: BertConfig, device: Device) -> Work:
    """A step with AdamW; or from the ids of sequences to their scores on the host."""
    task: Task = Qa() if case.task == "SQuAD" else Classify(("no", "yes"), pairs=True)
    model = _ready(lambda: task.build(config, device.compute), case, device)
    draw = np.random.default_rng(0)
    ids = [draw.integers(_FIRST_WORD, config.vocab_size, case.length) for _ in range(case.batch)]
    every: Ints = np.arange(case.batch)
    zeros = np.zeros_like(every)
    sequences = Sequences(ids, zeros + case.length // 2, zeros, every)
    runner = Runner(device.torch_device, case.batch * case.length)
    if case.mode == "inference":
        return lambda: runner.scores(model, sequences, task.per_token)
    targets = draw.integers(0, 2, (case.batch, 2) if case.task == "SQuAD" else case.batch)
    records = [Record("", "", None, f"row {number}") for number in every]
    examples = Examples(records, sequences, targets, np.arange(case.batch + 1), "train")
    units = Units(examples, every, every, every)
    objective = TaskObjective(task, config, model, task.metrics[0], runner)
    optimizer = AdamW(parameter_groups(model, WEIGHT_DECAY))
    optimizer.set_learning_rate(RATE)
    counts = {task.kind: task.labels(targets)}
    return lambda: train_step(objective, optimizer, [units], counts, device.torch_device)


def _ready(build: Callable[[], M], case: Case, device: Device) -> M:
    """With random weights; for inference as a `Predictor` has it."""
    model = fresh(build, device.torch_device)
    if case.mode == "inference" and isinstance(encoder := getattr(model, "encoder", None), Encoder):
        encoder.keep_weights_once()
    return model.train(case.mode == "training")


class Worker(Ready):
    """Each public method answers a question."""

    def __init__(self, case: Case, config: BertConfig, device: Device) -> None:
        self._config, self._device = config, device
        self._case: Case | None = None
        self._work: Work | None = None
        self._take(case)
        super().__init__(**running_on(device.torch_device))

    def _take(self, case: Case) -> None:
        self._case, self._work = None, None  # else there were two models for a while
        self._work = (pretraining if case.task == "pre-training" else fine_tuning)(case, self._config, self._device)
        self._case = case
        if self._device.torch_device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device.torch_device)  # a case's memory is its own

    def run(self, warmup: int, steps: int, seconds: float, case: Answer | None = None) -> Answer:
        """The seconds of each of so many steps, and of more until `seconds` are over; those of `warmup` not counted.
        case: another one than the worker was started with, of the same precision."""
        if case is not None and Case(**case) != self._case:
            self._take(Case(**case))
        assert self._case is not None
        found: list[float] = []
        with torch.set_grad_enabled(self._case.mode == "training"):
            for _ in range(warmup):
                self._timed()
            while len(found) < steps or sum(found) < seconds:
                found.append(self._timed())
        return {"seconds": found, "bytes": memory_bytes(self._device.torch_device)}

    def _timed(self) -> float:
        assert self._work is not None
        return seconds_of(self._device.torch_device, self._work)


def start(spec: Answer) -> Worker:
    """A worker by its spec."""
    case = Case(**spec["case"])
    device = choose_device(spec["device"], case.precision)
    if device.is_cpu and case.mode == "training":
        prepare_training(device.compute)
    return Worker(case, BertConfig(**spec["model"]), device)


if __name__ == "__main__":
    serve(start)
