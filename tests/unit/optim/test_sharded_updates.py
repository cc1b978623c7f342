"""LAMB and AdamW on shards: the updates of one process that holds whole tensors, and its norms."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.optim.norms import tensor_norms
from bertsmith.training.parallel import whole
from made_runs import ran_by_ranks

KINDS = ("decayed", "all", "none", "adamw")
# Fewer rows than ranks, so some ranks have none; a first axis that the ranks do not divide evenly; one that they do.
SHAPES = {"few": (2, 4), "one": (1, 7), "uneven": (5, 3), "even": (8, 6), "vector": (9,), "large": (40, 30)}
STEPS, RANKS = 4, (2, 4)
# The scale that the gradients come with: its effect on the updates is none, to the bit.
SCALE = 8.0
HUGE = 7e18


def drawn(seed: int, size: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * size for name, shape in SHAPES.items()}


class Tensors(nn.Module):
    def __init__(self, shares: bool) -> None:
        super().__init__()
        for name, value in drawn(0).items():
            self.register_parameter(name, nn.Parameter(shared(value) if shares and value.ndim > 1 else value))


def shared(value: Tensor) -> DTensor:
    return distribute_tensor(value, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])


def optimizer_of(kind: str, module: nn.Module, loss_scale: bool) -> ClippedOptimizer:
    options = {"max_gradient_norm": 1.0, "loss_scale": LossScale(initial=SCALE) if loss_scale else None}
    groups = parameter_groups(module, 0.1)
    return AdamW(groups, **options) if kind == "adamw" else Lamb(groups, trust_ratio=kind, **options)


def updated(kind: str, loss_scale: bool, shares: bool = False) -> dict[str, Tensor]:
    """What some updates come to, the third of them with a gradient that is not finite in the last row of a tensor."""
    module = Tensors(shares)
    optimizer = optimizer_of(kind, module, loss_scale)
    norms, finite = [], []
    for step in range(STEPS):
        values = drawn(10 + step, size=SCALE if loss_scale else 1.0)
        if step == 2:
            values["even"][-1, -1] = float("nan")
        for name, parameter in module.named_parameters():
            parameter.grad = shared(values[name]) if isinstance(parameter, DTensor) else values[name]
        optimizer.set_learning_rate(0.02)
        optimizer.step()
        norms.append(optimizer.gradient_norm)
        finite.append(optimizer.finite)
    found = {name: whole(each.detach()).clone() for name, each in module.named_parameters()}
    for name, parameter in module.named_parameters():
        for moment, value in optimizer.state[parameter].items():
            assert isinstance(value, DTensor) == isinstance(parameter, DTensor), "kept as the parameter is"
            found[f"{moment} of {name}"] = whole(value).clone()
    return found | {"norms": torch.stack(norms), "finite": torch.stack(finite)}


def norms_of(shares: bool) -> Tensor:
    """The last tensor's squares overflow fp32 when they are summed over ranks, and not before."""
    values = drawn(3) | ({"huge": torch.full((6, 2), HUGE)} if shares else {})
    return tensor_norms([shared(value) if shares and value.ndim > 1 else value for value in values.values()])


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    found: dict[str, object] = {"norms": norms_of(shares=True), "of one row": tensor_norms([shared(drawn(3)["one"])])}
    for kind, loss_scale in itertools.product(KINDS, (False, True)):
        found[f"{kind} {loss_scale}"] = updated(kind, loss_scale, shares=True)
    torch.save(found, folder / f"{rank}-of-{dist.get_world_size()}.pt")


@pytest.fixture(scope="module")
def over_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for ranks in RANKS:
        ran_by_ranks(work_of_a_rank, ranks, folder)
    return folder


def of(folder: Path, ranks: int, name: str) -> list[dict[str, Tensor]]:
    return [torch.load(folder / f"{rank}-of-{ranks}.pt", weights_only=True)[name] for rank in range(ranks)]


@pytest.mark.parametrize("loss_scale", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", RANKS)
def test_updates_are_those_of_one_process(over_ranks: Path, ranks: int, kind: str, loss_scale: bool) -> None:
    expected = updated(kind, loss_scale)
    assert expected["finite"].tolist() == [True, True, False, True]
    for found in of(over_ranks, ranks, f"{kind} {loss_scale}"):
        assert found.keys() == expected.keys()
        for name, each in expected.items():
            torch.testing.assert_close(found[name], each, rtol=2e-6, atol=1e-8, equal_nan=True)


@pytest.mark.parametrize("ranks", RANKS)
def test_norms_are_those_of_whole_tensors_and_do_not_overflow(over_ranks: Path, ranks: int) -> None:
    for found in of(over_ranks, ranks, "norms"):
        torch.testing.assert_close(found[:-1], norms_of(shares=False), rtol=1e-6, atol=0)
        assert float(found[-1]) == pytest.approx(HUGE * 12**0.5, rel=1e-6)


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_that_have_no_row_of_any_tensor_have_its_norm(over_ranks: Path, ranks: int) -> None:
    for found in of(over_ranks, ranks, "of one row"):
        torch.testing.assert_close(found, tensor_norms([drawn(3)["one"]]), rtol=1e-6, atol=0)


def test_a_trust_ratio_of_a_shard_alone_would_be_seen() -> None:
    """The norms of shards differ by more than the tolerance, so that the comparison above could fail."""
    whole_norm = float(drawn(0)["large"].norm())
    assert abs(2**0.5 * float(drawn(0)["large"][:20].norm()) / whole_norm - 1) > 1e-3
