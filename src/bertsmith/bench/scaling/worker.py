"""A rank of a scaling bench, run as `python -m bertsmith.bench.scaling.worker SPEC`: training steps of its share, and
the collectives of such a step alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.base.device import choose_device
from bertsmith.bench.child import Answer, serve
from bertsmith.bench.fresh import fresh
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.parallel import gradients_of, replicate, shard
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step

LONGEST = 128
_RATE = 1e-4
# PyTorch 2.13 has new names for them, and warns of the old ones.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SUM, _SCATTERED_SUM, _GATHER = "c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::_allgather_base_"
_KINDS = {"sums": (_SUM, _SCATTERED_SUM), "gathers": (_GATHER,)}


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the collectives of a step.

    seen: which they were, in their order, each with the elements of its longer side and its dtype. tiny: each carries
    a number or two in place of its tensors, so that ranks wait for each other as before and send nothing to speak of.
    """

    def __init__(self, tiny: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tiny = tiny
        self.seen: list[tuple[str, int, torch.dtype]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.name().split(".")[0]
        if name not in (_SUM, _SCATTERED_SUM, _GATHER):
            return func(*args, **(kwargs or {}))
        tensors: list[Tensor] = list(args[0]) if name == _SUM else list(args[:2])
        least, most = (choose(each.numel() for each in tensors) for choose in (min, max))
        self.seen.append((name, most, tensors[0].dtype))
        if not self._tiny:
            return func(*args, **(kwargs or {}))
        first = [each.view(-1)[: each.numel() // least] for each in tensors]
        _, work = func(*([first, *args[1:]] if name == _SUM else [*first, *args[2:]]), **(kwargs or {}))
        return args[0], work


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
        config, compute = BertConfig(**spec["model"]), self._device.compute
        model = fresh(lambda: PretrainingModel(config, compute), self._device.torch_device).train()
        if self._ranks > 1:
            shard(model, model.encoder.layers, compute) if spec["mode"] == "shard" else replicate(model)
        self._sharded = spec["mode"] == "shard"
        if not spec["overlap"]:  # then no bucket is started before the backward pass has ended
            gradients_of(model).before_last = lambda: None  # type: ignore[method-assign]
        self._optimizer = Lamb(parameter_groups(model, 0.01))
        self._seen: list[tuple[str, int, torch.dtype]] = []
        self._objective = Pretraining(model, self._device.torch_device)
        lengths = [lengths_of("ragged", spec["sequences"], LONGEST, seed) for seed in range(2)]
        self._batches = [pretrain_batch(each, config.vocab_size, spec["rank"]) for each in lengths]

    def ready(self) -> Answer:
        """Its precision, and the tokens of each of its micro-batches."""
        return {"precision": self._device.precision, "tokens": [each.tokens for each in self._batches]}

    def step(self, micro_batches: int, collectives: str = "") -> Answer:
        """A step of so many micro-batches a rank, in seconds, from when all ranks are there. collectives: "seen" or
        "tiny" takes it under the eyes of `Collectives`, which cost some time in both; weights stay as they are."""
        own = [self._batches[number % len(self._batches)] for number in range(micro_batches)]
        counts = {
            "masked": self._ranks * sum(len(each.masked_positions) for each in own),
            "next_sentence": self._ranks * sum(each.layout.sequences for each in own),
        }
        self._optimizer.set_learning_rate(0.0 if collectives else _RATE)
        watch = Collectives(collectives == "tiny") if collectives else None
        with watch or nullcontext():
            device = self._device.torch_device
            answer = self._timed(lambda: train_step(self._objective, self._optimizer, own, counts, device))
        if watch is not None:
            self._seen = watch.seen
        return answer

    def sent(self, kind: str) -> Answer:
        """The bytes that a rank sends in the collectives of the last step that was seen, where they go round a ring:
        a sum twice, the others once, each rank's own part aside. kind: of `bench.KINDS`."""
        rounds = {_SUM: 2, _SCATTERED_SUM: 1, _GATHER: 1}
        found = [rounds[name] * size * dtype.itemsize for name, size, dtype in self._seen if name in _KINDS[kind]]
        return {"bytes": sum(found) * (self._ranks - 1) // self._ranks}

    def alone(self, kind: str) -> Answer:
        """These collectives and nothing else, in seconds: sums of replicated gradients together, as the last bucket
        finds them, and those of sharded weights one after another, as FSDP2 has them on a CPU."""
        chosen = [each for each in self._seen if each[0] in _KINDS[kind]]
        # One after another they share their memory, as they do in FSDP2; at once each has its own.
        rooms: dict[object, tuple[Tensor, Tensor]] = {}
        keys = chosen if self._sharded else range(len(chosen))
        for key, (_, size, dtype) in zip(keys, chosen, strict=True):
            rooms[key] = rooms.get(key) or self._room(size, dtype)

        def exchange() -> None:
            started = []
            for key, each in zip(keys, chosen, strict=True):
                started.append(_exchange(each[0], *rooms[key]))
                if self._sharded:
                    started.pop().wait()
            for work in started:
                work.wait()

        return self._timed(exchange)

    def _room(self, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Both sides of a collective: [size], [size / ranks]."""
        return torch.ones(size, dtype=dtype), torch.ones(size // self._ranks, dtype=dtype)

    def _timed(self, work: Callable[[], object]) -> Answer:
        if self._ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - start}


def _exchange(name: str, whole: Tensor, part: Tensor) -> dist.Work:
    """Starts a collective of this name."""
    work: dist.Work | None
    if name == _SUM:
        work = dist.all_reduce(whole, async_op=True)
    elif name == _SCATTERED_SUM:
        work = _reduce_scatter(part, whole, async_op=True)
    else:
        work = _gather(whole, part, async_op=True)
    assert work is not None
    return work


if __name__ == "__main__":
    serve(Worker)
