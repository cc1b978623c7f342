"""Between two lines of the log no rank reads what its device computes, whatever the number of ranks and the mode."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training.late import LateReading
from bertsmith.training.meters import Meter
from bertsmith.training.parallel import replicate
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import batch_of, fresh_model
from made_runs import join_ranks, ran_by_ranks
from made_steps import CPU, LENGTHS, MODES, SHAPE, check_close, model_for, part_of, take_step, weights_of

# Operators that hand a value of the device to the host, or whose result has a shape that the host must wait for.
ASKING = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select", "aten::is_nonzero"}
ASKING |= {"aten::_unique2", "aten::unique_dim", "aten::equal", "aten::bincount"}
STEPS = 4


class Reads(TorchDispatchMode):
    """How often each asking operator runs, and which others."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.others: set[str] = set()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Under any other mode PyTorch runs no compiled graph."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.name().split(".")[0]
        if name in ASKING:
            self.counts[name] += 1
        self.others.add(name)
        return func(*args, **(kwargs or {}))


def reads_of_steps(mode: str, parts: list[list[int]]) -> tuple[int, bool]:
    """Reads of some eager steps with what the loop does between two lines; whether anything was summed over ranks.

    On a CPU the model itself looks at ids and labels; those are the same on any number of ranks.
    """
    model = model_for(mode, compute=torch.bfloat16)
    optimizer = Lamb(parameter_groups(model, 0.01), loss_scale=LossScale(initial=2.0))
    meter = Meter(CPU, Pretraining.names)
    take_step(model, optimizer, parts)
    with Reads() as reads:
        for _ in range(STEPS):
            optimizer.set_learning_rate(1e-3)
            sums = take_step(model, optimizer, parts)
            meter.add(sums, optimizer.gradient_norm)
            sound = optimizer.sound.float().view(1)
            LateReading(torch.cat([sound, 1 - sound if sums.faulty is None else sums.faulty]))
    return reads.counts.total(), any("allreduce" in name or "reduce_scatter" in name for name in reads.others)


def compiled_steps(parts: list[list[int]]) -> tuple[int, dict[str, torch.Tensor], int]:
    """Reads of compiled steps on replicated weights, their weights, and the graphs that were made."""
    torch._dynamo.reset()
    model = fresh_model(deviation=0.1, **SHAPE)
    if dist.is_initialized():
        replicate(model)
    optimizer = Lamb(parameter_groups(model, 0.01), epsilon=1e-3)
    step_of = CompiledStep(model, optimizer, CPU, "aot_eager")
    batch = batch_of(LENGTHS, seed=5)
    counts = {"masked": len(batch.masked_labels), "next_sentence": len(LENGTHS)}
    micro_batches = [part_of(batch, each) for each in parts]
    reads = Reads()
    for number in range(STEPS):
        optimizer.set_learning_rate(1e-2)
        arguments = (Pretraining(model, CPU), optimizer, micro_batches, counts, CPU, step_of)
        if number:
            with reads:
                train_step(*arguments)
        else:
            train_step(*arguments)
    return reads.counts.total(), weights_of(model), step_of.compilations


def quarters(rank: int) -> list[list[int]]:
    """For two ranks, two micro-batches each."""
    return [[*range(8 * rank, 8 * rank + 4)], [*range(8 * rank + 4, 8 * rank + 8)]]


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    join_ranks(rank, 2, folder)
    found = {mode: reads_of_steps(mode, quarters(0)) for mode in MODES}
    found["compiled"] = compiled_steps(quarters(rank))
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple]]:
    folder = ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("mode", MODES)
def test_several_ranks_read_no_more_than_one(found: list[dict[str, tuple]], mode: str) -> None:
    alone, summed = reads_of_steps("", quarters(0))
    assert not summed
    for each in found:
        assert each[mode] == (alone, True)


def test_compiled_steps_of_several_ranks_read_nothing(found: list[dict[str, tuple]]) -> None:
    whole = compiled_steps([[*range(len(LENGTHS))]])
    for each in found:
        reads, weights, compilations = each["compiled"]
        assert reads == 0
        assert compilations <= 3, "the losses of two shapes, and the update"
        check_close(weights, whole[1], 1e-5)
    assert all(torch.equal(each, found[1]["compiled"][1][name]) for name, each in found[0]["compiled"][1].items())


def test_a_read_would_be_seen() -> None:
    with Reads() as reads:
        bool(torch.ones(2).sum() > 1)
    assert reads.counts.total() == 1
