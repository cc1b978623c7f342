"""Ranks 1, 2 and 4 with accumulation 1, 2 and 8, replicated or sharded: the same gradients, losses and updates."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bertsmith.base.ranks import world_size
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.parallel import gradients_of
from made_runs import ran_by_ranks
from made_steps import MODES, PlainSgd, check_close, dealt, gradients, model_for, take_step, weights_of

ACCUMULATION = (1, 2, 8)
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}
NAMES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16"}
OPTIMIZERS = {"lamb": Lamb, "adamw": AdamW}


def taken(mode: str, dtype: torch.dtype, parts: list[list[int]], **settings: object) -> dict[str, Tensor]:
    """The gradients of a step, and the sums of its losses on this rank."""
    model = model_for(mode, dtype, **settings)
    sums = take_step(model, PlainSgd(model.parameters(), lr=0.0), parts)
    return {**gradients(model), "figures": sums.figures.double()}


def trained(mode: str, kind: str, parts: list[list[int]]) -> dict[str, Tensor]:
    """The weights after three steps of a real optimizer."""
    model = model_for(mode)
    optimizer = OPTIMIZERS[kind](parameter_groups(model, 0.01), epsilon=1e-3, max_gradient_norm=0.1)
    for _ in range(3):
        optimizer.set_learning_rate(1e-2)
        take_step(model, optimizer, parts)
    return {**weights_of(model), "norm": optimizer.gradient_norm.clone()}


def resumed(mode: str, parts: list[list[int]]) -> dict[str, Tensor]:
    """The weights after four steps; the last two with new sharing objects, as in a process that resumes."""
    for part in ("unbroken", "resumed"):
        model = model_for(mode)
        optimizer = Lamb(parameter_groups(model, 0.01))
        for number in range(4):
            if number == 2 and part == "resumed":
                state, moments = weights_of(model), optimizer.state_dict()
                model = model_for(mode, seed=9)
                with torch.no_grad():
                    for name, each in model.named_parameters():
                        each.copy_(state[name])
                optimizer = Lamb(parameter_groups(model, 0.01))
                optimizer.load_state_dict(moments)
            optimizer.set_learning_rate(1e-2)
            take_step(model, optimizer, parts)
        found = weights_of(model)
        if part == "unbroken":
            unbroken = found
    return {name: (each == unbroken[name]).all() for name, each in found.items()}


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    ranks, found = world_size(), dict[str, object]()
    if ranks == 3:
        found["resumed"] = resumed("replicate", dealt(3, 2)[rank])
    else:
        for mode, accumulation in itertools.product(MODES, ACCUMULATION):
            for dtype, name in ((torch.float64, "float64"), (torch.float32, "float32")):
                found[f"{mode} {accumulation} {name}"] = taken(mode, dtype, dealt(ranks, accumulation)[rank])
        for mode in MODES:
            parts = dealt(ranks, 2)[rank]
            found[f"{mode} bf16 compute"] = taken(mode, torch.float32, parts, compute=torch.bfloat16)
            found[f"{mode} bf16 sums"] = taken(mode, torch.float32, parts, sums=torch.bfloat16)
            for kind in OPTIMIZERS:
                found[f"{mode} {kind}"] = trained(mode, kind, parts)
        # Where the ranks were told nothing they replicate; and one may have nothing to do.
        model = model_for("")
        mine = [] if rank == ranks - 1 else dealt(ranks, 1)[rank]
        take_step(model, PlainSgd(model.parameters(), lr=0.0), mine)
        found["told nothing"] = gradients(model)
        found["buckets"] = torch.tensor(float(type(gradients_of(model)).__name__ == "Replicated"))
    torch.save(found, folder / f"{rank}-of-{ranks}.pt")


@pytest.fixture(scope="module")
def over_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for ranks in (4, 3, 2):
        ran_by_ranks(work_of_a_rank, ranks, folder)
    return folder


@cache
def found_by(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """By name; only read."""
    return torch.load(folder / f"{rank}-of-{ranks}.pt", weights_only=True)


def of(folder: Path, ranks: int, name: str) -> list[dict[str, Tensor]]:
    """What each rank found."""
    return [found_by(rank, ranks, folder)[name] for rank in range(ranks)]


def check(found: list[dict[str, Tensor]], expected: dict[str, Tensor], close: float) -> None:
    """That all ranks hold the same bits, close to what one process found; figures are those of all ranks together."""
    found, expected = [dict(each) for each in found], dict(expected)
    figures = [each.pop("figures") for each in found if "figures" in each]
    if figures:
        torch.testing.assert_close(sum(figures), expected.pop("figures"), rtol=max(close, 1e-6), atol=0)
    for other in found[1:]:
        assert all(torch.equal(each, other[name]) for name, each in found[0].items()), "ranks hold the same bits"
    check_close(found[0], expected, close)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("accumulation", ACCUMULATION)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_the_gradients_are_those_of_one_micro_batch_on_one_rank(
    over_ranks: Path, mode: str, ranks: int, accumulation: int, dtype: torch.dtype
) -> None:
    whole = taken("", dtype, dealt(1, 1)[0])
    if ranks == 1:
        check([taken("", dtype, dealt(1, accumulation)[0])], whole, CLOSE[dtype])
    else:
        check(of(over_ranks, ranks, f"{mode} {accumulation} {NAMES[dtype]}"), whole, CLOSE[dtype])


@pytest.mark.parametrize("ranks", [2, 4])
def test_in_bf16_both_modes_round_the_same_weights(over_ranks: Path, ranks: int) -> None:
    """Both differ from fp32 by the rounding of products; from each other by that of sums alone."""
    replicated, sharded = ([*of(over_ranks, ranks, f"{mode} bf16 compute")] for mode in MODES)
    fp32 = taken("", torch.float32, dealt(1, 1)[0])
    check([{name: each for name, each in sharded[0].items() if name != "figures"}], strip(replicated[0]), 2e-3)
    check([strip(each) for each in sharded], strip(fp32), 0.1)
    with pytest.raises(AssertionError):
        check([strip(sharded[0])], strip(fp32), 1e-5)


def strip(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: each for name, each in found.items() if name != "figures"}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_sums_in_bf16_are_rounded_once_or_twice_a_rank(over_ranks: Path, mode: str, ranks: int) -> None:
    found, fp32 = of(over_ranks, ranks, f"{mode} bf16 sums"), taken("", torch.float32, dealt(1, 1)[0])
    check(found, fp32, 2**-6)
    with pytest.raises(AssertionError):
        check_close(strip(found[0]), strip(fp32), 1e-5)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_three_updates_are_those_of_one_process(over_ranks: Path, mode: str, ranks: int, kind: str) -> None:
    check(of(over_ranks, ranks, f"{mode} {kind}"), trained("", kind, dealt(1, 1)[0]), 1e-5)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_were_told_nothing_replicate_and_one_may_be_idle(over_ranks: Path, ranks: int) -> None:
    check(of(over_ranks, ranks, "told nothing"), strip(taken("", torch.float32, dealt(1, 1)[0])), 1e-5)
    assert all(of(over_ranks, ranks, "buckets"))


def test_on_three_ranks_a_resumed_run_has_the_bits_of_the_unbroken_one(over_ranks: Path) -> None:
    for found in of(over_ranks, 3, "resumed"):
        assert all(found.values())
