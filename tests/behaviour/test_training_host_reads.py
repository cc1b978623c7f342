"""Between two lines of the log no rank reads what its device computes, whatever the number of ranks and the mode."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from bertsmith.base.ranks.shared_stop import SharedStop
from bertsmith.corpus.shards import Corpus
from bertsmith.model.pretraining import PretrainLosses
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training.loop import Stage, Trainer
from bertsmith.training.parallel import replicate
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.records.late_reading import LateReading
from bertsmith.training.records.meters import Meter
from bertsmith.training.step import train_step, verdict
from made_pretraining import batch_of, fresh_model
from made_runs import ran_by_ranks, small_corpus, small_recipe
from made_steps import CPU, LENGTHS, MODES, SHAPE, Operators, check_close, model_for, part_of, take_step, weights_of

STEPS = 4
WATCHED = STEPS - 1
OF_THE_MODEL = ("bertsmith.model.", "bertsmith.training.pretraining.inputs")
STOP = ("bertsmith.base.ranks.shared_stop", "tolist")
VERDICT = ("bertsmith.training.records.late_reading", "__float__")


class HostReads(TorchFunctionMode):
    """Where Python asks a tensor for its values while `counts()` is true: (module, what it calls).

    Some calls, such as `tolist` of a tensor in the host's memory, run no operator.
    """

    NAMES = frozenset({"tolist", "item", "numpy", "cpu", "__array__", "__bool__", "__float__", "__int__", "__index__"})

    def __init__(self, counts: Callable[[], bool]) -> None:
        super().__init__()
        self.counts = counts
        self.places: Counter[tuple[str, str]] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = getattr(func, "__name__", "")
        if name in self.NAMES and self.counts():
            frame = sys._getframe(1)
            while frame.f_back and not frame.f_globals["__name__"].startswith(("bertsmith.", __name__)):
                frame = frame.f_back
            self.places[frame.f_globals["__name__"], name] += 1
        return func(*args, **(kwargs or {}))


def reads_of_a_run(out: Path, made: Path, mode: str = "replicate") -> dict[tuple[str, str], int]:
    """What reads tensors in `Trainer.run`, and how often, during WATCHED steps that no line follows. The first one is
    left out: in it the hosts agree on what is reached."""
    fields = {"phase1__steps": STEPS + 1, "phase2__steps": 0, "log_every": 1000, "parallel": mode}
    found: Counter[tuple[str, str]] = Counter()
    run = Trainer.run

    def watched(trainer: Trainer, stage: Stage) -> None:
        with HostReads(lambda: 0 < trainer.position.stage_step < stage.steps - 1) as reads:
            run(trainer, stage)
        found.update(reads.places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "run", watched)
        pretrain(small_recipe(**fields), Corpus.open(made), out)
    return dict(found)


def reads_of_steps(mode: str, parts: list[list[int]]) -> tuple[int, bool]:
    """Reads of some eager steps with what the loop does between two lines; whether anything was summed over ranks.

    On a CPU the model itself looks at ids and labels; those are the same on any number of ranks.
    """
    model = model_for(mode, compute=torch.bfloat16)
    optimizer = Lamb(parameter_groups(model, 0.01), loss_scale=LossScale(initial=2.0))
    meter = Meter(CPU, PretrainLosses._fields)
    take_step(model, optimizer, parts)
    with Operators() as reads:
        for _ in range(STEPS):
            optimizer.set_learning_rate(1e-3)
            sums = take_step(model, optimizer, parts)
            meter.add(sums, optimizer.gradient_norm)
            LateReading(verdict(optimizer, sums))
    return reads.asked, any("allreduce" in name or "reduce_scatter" in name for name in reads.counts)


def compiled_steps(parts: list[list[int]]) -> tuple[int, dict[str, torch.Tensor], int]:
    """Reads of compiled steps on replicated weights, their weights, and the graphs that were made."""
    torch._dynamo.reset()
    model = fresh_model(deviation=0.1, **SHAPE)
    if dist.is_initialized():
        replicate(model)
    optimizer = Lamb(parameter_groups(model, 0.01), epsilon=1e-3)
    step_of = CompiledStep(model, CPU, "aot_eager")
    batch = batch_of(LENGTHS, seed=5)
    counts = {"masked": len(batch.masked_labels), "next_sentence": len(LENGTHS)}
    micro_batches = [part_of(batch, each) for each in parts]
    reads = Operators()
    for number in range(STEPS):
        optimizer.set_learning_rate(1e-2)
        arguments = (Pretraining(model, CPU), optimizer, micro_batches, counts, CPU, step_of)
        if number:
            with reads:
                train_step(*arguments)
        else:
            train_step(*arguments)
    return reads.asked, weights_of(model), step_of.compilations


def quarters(rank: int) -> list[list[int]]:
    """For two ranks, two micro-batches each."""
    return [[*range(8 * rank, 8 * rank + 4)], [*range(8 * rank + 4, 8 * rank + 8)]]


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    found = {mode: reads_of_steps(mode, quarters(0)) for mode in MODES}
    found |= {f"run {mode}": reads_of_a_run(folder / mode, made, mode) for mode in MODES}
    torch.save(found, folder / f"{rank}.pt")


def compiled_steps_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    torch.save(compiled_steps(quarters(rank)), folder / f"{rank}.pt")


def by_two_ranks(work: Callable[[int, Path, Path], None], folder: Path) -> list[Any]:
    ran_by_ranks(work, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return by_two_ranks(work_of_a_rank, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("mode", MODES)
def test_several_ranks_read_no_more_than_one(found: list[Any], mode: str) -> None:
    alone, summed = reads_of_steps("", quarters(0))
    assert not summed
    for each in found:
        assert each[mode] == (alone, True)


@pytest.mark.slow
def test_compiled_steps_of_several_ranks_read_nothing(tmp_path: Path) -> None:
    whole = compiled_steps([[*range(len(LENGTHS))]])
    found = by_two_ranks(compiled_steps_of_a_rank, tmp_path)
    for reads, weights, compilations in found:
        assert reads == 0
        assert compilations in (3, 6), "three of each shape"
        check_close(weights, whole[1], 1e-5)
    assert all(torch.equal(each, found[1][1][name]) for name, each in found[0][1].items())


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_reads_what_is_in_the_hosts_memory_and_nothing_else(found: list[Any], mode: str) -> None:
    """Once a step the flags of a stop, and the verdict on the step before (one number, and one for each of two ranks),
    whose copy is there by then."""
    for each in found:
        counts = {place: count for place, count in each[f"run {mode}"].items() if not place[0].startswith(OF_THE_MODEL)}
        assert counts.keys() == {STOP, VERDICT}
        assert counts[VERDICT] == 3 * WATCHED
        assert counts[STOP] <= WATCHED


@pytest.mark.parametrize("owner", [Trainer, SharedStop])
def test_a_read_in_the_loop_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type[Trainer | SharedStop]
) -> None:
    name = "_advance" if owner is Trainer else "look"
    ours = getattr(owner, name)

    def reading(*given: object) -> object:
        torch.ones(2).tolist()
        return ours(*given)

    monkeypatch.setattr(owner, name, reading)
    assert (__name__, "tolist") in reads_of_a_run(tmp_path / "run", small_corpus())


def test_a_read_would_be_seen() -> None:
    with Operators() as reads:
        bool(torch.ones(2).sum() > 1)
    assert reads.asked == 1
