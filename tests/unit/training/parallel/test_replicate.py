"""Buckets: summed once a step, during the last backward pass, in one order, whatever got a gradient."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bertsmith.training.parallel import gradients_of, replicate
from bertsmith.training.parallel.replicate import Replicated
from made_runs import ran_by_ranks

WIDTH, DEPTH = 8, 5


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)), torch.nn.Linear(3, 3))


def logged(events: list[str]):
    """`all_reduce` that notes each call."""
    ours = dist.all_reduce

    def all_reduce(tensor, *arguments, **options):
        events.append(f"sum of {tensor.numel()} {tensor.dtype}")
        return ours(tensor, *arguments, **options)

    return all_reduce


def backward(model: torch.nn.Sequential, x: torch.Tensor, events: list[str], used: int = DEPTH) -> None:
    """Backward through the first `used` layers; notes when it leaves each."""
    for number, layer in enumerate(model[:used]):
        x = layer(x)
        x.register_hook(lambda _, number=number: events.append(f"backward of {number}"))
    x.square().sum().backward()


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    found: dict[str, object] = {}
    events: list[str] = []
    dist.all_reduce = logged(events)
    for name, sums in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = layers()
        shared = Replicated(list(model.parameters()), sums, bucket_bytes=2 * WIDTH * (WIDTH + 1) * 4)
        # Two steps of three micro-batches. The second rank does not use the fourth and fifth layer in the last one.
        for step in range(2):
            events.clear()
            shared.begin()
            for number in range(3):
                if number == 2:
                    shared.before_last()
                torch.manual_seed(100 * rank + 10 * step + number)
                backward(model, torch.randn(4, WIDTH), events, DEPTH - 2 * (rank == 1 and number == 2))
                if number == 1:
                    events.append("last")
            if step and rank == 1:
                model[0].weight.grad = model[0].weight.grad.clone()  # as code that makes gradients whole may do
            faulty = shared.finish()
        found |= {f"{name} events": list(events), f"{name} faulty": faulty, f"{name} kept": len(shared._under_way)}
        found[f"{name} gradients"] = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
        shared.begin()
        shared.before_last()
        if rank == 1:
            model[1].bias.grad[0] = float("nan")
        found[f"{name} after a fault"] = shared.finish()
        found[f"{name} sum with a fault"] = model[1].bias.grad.clone()
        shared.begin()
        torch.manual_seed(7)
        backward(model, torch.randn(4, WIDTH), events)
        shared.before_last()
        if rank == 1:
            model[2].bias.grad = None
        found[f"{name} after a fault elsewhere"] = shared.finish([torch.tensor(float("inf"))] * rank)
        found[f"{name} without one rank's"] = model[2].bias.grad.clone()
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def expected() -> list[torch.Tensor]:
    """The gradients of the second step, both ranks' micro-batches in one process."""
    model = layers()
    for rank in (0, 1):
        for number in range(3):
            torch.manual_seed(100 * rank + 10 + number)
            backward(model, torch.randn(4, WIDTH), [], DEPTH - 2 * (rank == 1 and number == 2))
    return [each.grad for each in model.parameters()]


@pytest.mark.parametrize(("name", "close"), [("fp32", 1e-6), ("bf16", 2**-6)])
def test_sums_are_those_of_one_process(found: list[dict[str, object]], name: str, close: float) -> None:
    ours, theirs = (each[f"{name} gradients"] for each in found)
    assert ours[-2:] == theirs[-2:] == expected()[-2:] == [None, None], "a layer that no rank used"
    for first, second, right in zip(ours[:-2], theirs[:-2], expected()[:-2], strict=True):
        assert torch.equal(first, second)
        assert float((first - right).norm()) <= close * float(right.norm())


def test_a_step_sums_each_bucket_once_in_the_same_order_on_all_ranks(found: list[dict[str, object]]) -> None:
    """From the last parameter, the unused layer of 3 x 3, to the first, with a flag for each rank behind it."""
    matrix = WIDTH * WIDTH
    sizes = [12 + WIDTH + matrix + WIDTH, 2 * (matrix + WIDTH), 2 * matrix + WIDTH + 2]
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for each in found:
            assert [event for event in each[f"{name} events"] if "sum" in event] == [
                f"sum of {size} {dtype}" for size in sizes
            ]
            assert each[f"{name} kept"] == 0, "what was sent is freed"


def test_no_sum_starts_before_the_last_micro_batch(found: list[dict[str, object]]) -> None:
    for each in found:
        events = each["fp32 events"]
        assert min(number for number, event in enumerate(events) if "sum" in event) > events.index("last")


def test_a_rank_with_a_gradient_that_is_not_finite_is_named(found: list[dict[str, object]]) -> None:
    for each in found:
        for name in ("fp32", "bf16"):
            assert each[f"{name} faulty"].tolist() == [0, 0]
            assert each[f"{name} after a fault"].tolist() == [0, 1]
            assert not torch.isfinite(each[f"{name} sum with a fault"][0])
            assert each[f"{name} after a fault elsewhere"].tolist() == [0, 1], "in what else the rank has summed"


@pytest.mark.parametrize(("name", "close"), [("fp32", 1e-6), ("bf16", 2**-6)])
def test_a_gradient_that_a_rank_has_dropped_counts_as_zeros(
    found: list[dict[str, object]], name: str, close: float
) -> None:
    model = layers()
    torch.manual_seed(7)
    backward(model, torch.randn(4, WIDTH), [])
    for each in found:
        gradient = each[f"{name} without one rank's"]
        assert float((gradient - model[2].bias.grad).norm()) <= close * float(gradient.norm())


def test_the_first_buckets_are_complete_before_the_backward_pass_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every parameter used, the bucket of a layer is started before the backward pass reaches the next layer."""
    events: list[str] = []
    model = layers()[:DEPTH]
    shared = Replicated(list(model.parameters()), bucket_bytes=WIDTH * (WIDTH + 1) * 4)
    started = type(shared)._start_next
    monkeypatch.setattr(type(shared), "_start_next", lambda self: (events.append("start"), started(self)))
    shared.begin()
    backward(model, torch.randn(4, WIDTH), events)
    assert "start" not in events, "nothing but the last micro-batch starts a sum"
    events.clear()
    shared.before_last()
    backward(model, torch.randn(4, WIDTH), events)
    assert events.count("start") == DEPTH
    assert [event == "start" for event in events] == [False, True] * DEPTH
    assert shared.finish() is None, "one rank has nobody to be told apart from"


def test_what_is_no_longer_used_is_freed() -> None:
    model = layers()
    shared = Replicated(list(model.parameters()))
    gone = weakref.ref(shared)
    del shared
    gc.collect()
    assert gone() is None
    backward(model, torch.randn(4, WIDTH), [])  # its hooks do nothing now


def test_a_model_that_ranks_shared_is_trained_alone_once_they_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    model[-1].requires_grad_(False)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[Replicated.__module__], "world_size", lambda: 2)
        replicate(model)
    gradients = gradients_of(model)
    gradients.begin()
    gradients.before_last()
    backward(model, torch.randn(4, WIDTH), [])
    assert gradients.finish() is None
