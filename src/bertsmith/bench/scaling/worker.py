"""A rank of a scaling bench, run as `python -m bertsmith.bench.scaling.worker SPEC`: training steps of its share."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from bertsmith.base.device import choose_device
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.child import Answer, serve_worker
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.parallel import gradients_of, replicate, shard
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step

LONGEST = 128
_RATE = 1e-4


class Worker:
    """One rank's model over made-up micro-batches; each public method answers a question, on all ranks alike."""

    def __init__(self, spec: Answer) -> None:
        """spec: of `bench.Side`, with rank, model (fields of a `BertConfig`), sequences (of a micro-batch) and meeting
        (where ranks meet, an init_method of torch.distributed)."""
        torch.set_num_threads(1)
        self._ranks = spec["ranks"]
        if self._ranks > 1:
            dist.init_process_group("gloo", init_method=spec["meeting"], rank=spec["rank"], world_size=self._ranks)
        self._device = choose_device("cpu", spec["precision"])
        prepare_training(self._device.compute)
        config = BertConfig(**spec["model"])
        compute = None if self._device.compute == torch.float32 else self._device.compute
        model = PretrainingModel(config, compute)
        initialise(model, config.initializer_range, seed=0)
        model.train()
        if self._ranks > 1:
            shard(model, model.encoder.layers, compute) if spec["mode"] == "shard" else replicate(model)
        self._gradients = gradients_of(model)
        if not spec["overlap"]:  # then no bucket is started before the backward pass has ended
            self._gradients.before_last = lambda: None  # type: ignore[method-assign]
        self._optimizer = Lamb(parameter_groups(model, 0.01))
        self._optimizer.set_learning_rate(_RATE)
        self._objective = Pretraining(model, self._device.torch_device)
        lengths = [lengths_of("ragged", spec["sequences"], LONGEST, seed) for seed in range(2)]
        self._batches = [pretrain_batch(each, config.vocab_size, spec["rank"]) for each in lengths]

    def ready(self) -> Answer:
        """Its precision, and the tokens of each of its micro-batches."""
        return {"precision": self._device.precision, "tokens": [each.tokens for each in self._batches]}

    def step(self, micro_batches: int) -> Answer:
        """A step of so many micro-batches a rank, in seconds, from when all ranks are there."""
        own = [self._batches[number % len(self._batches)] for number in range(micro_batches)]
        counts = {
            "masked": self._ranks * sum(len(each.masked_positions) for each in own),
            "next_sentence": self._ranks * sum(each.layout.sequences for each in own),
        }
        return self._timed(lambda: self._step(own, counts))

    def _step(self, own: list[PretrainBatch], counts: dict[str, int]) -> None:
        train_step(self._objective, self._optimizer, own, counts, self._device.torch_device)

    def reduction(self) -> Answer:
        """The sum of all gradients and nothing else, in seconds."""
        self._gradients.begin()
        return self._timed(self._gradients.finish)

    def _timed(self, work: Callable[[], object]) -> Answer:
        if self._ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    serve_worker(Worker)
