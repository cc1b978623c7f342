"""A weight that no rank's loss reaches is left as it is on any number of ranks: no decay, no update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.losses import Forward
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.parallel import whole
from bertsmith.training.parallel.replicate import Replicated
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import batch_of
from made_runs import ran_by_ranks
from made_steps import CPU, LENGTHS, MODES, check_close, dealt, model_for, part_of, weights_of

KINDS = {"adamw": AdamW, "lamb": Lamb}


class MaskedOnly(Pretraining):
    """Of the two losses only that of masked words, so that pooler and next-sentence map get no gradient."""

    names = ("masked",)

    def forward(self, batch: PretrainBatch, device: torch.device) -> Forward:
        found = super().forward(batch, device)
        return replace(found, losses={"masked": found.losses["masked"]})


def trained(mode: str, kind: str, parts: list[list[int]]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights after two updates, and which parameters have moved."""
    model = model_for(mode)
    optimizer = KINDS[kind](parameter_groups(model, 0.1), epsilon=1e-3)
    batch, before = batch_of(LENGTHS, seed=5), weights_of(model)
    for _ in range(2):
        optimizer.set_learning_rate(0.01)
        micro_batches = [part_of(batch, each) for each in parts]
        train_step(MaskedOnly(model, CPU), optimizer, micro_batches, {"masked": len(batch.masked_labels)}, CPU)
    after = {name: whole(each.detach()).clone() for name, each in model.named_parameters()}
    return after, [name for name, each in after.items() if not torch.equal(each, before[name])]


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    found = {f"{mode} {kind}": trained(mode, kind, dealt(2, 2)[rank]) for mode in MODES for kind in KINDS}
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[dict[str, Tensor], list[str]]]]:
    folder = ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_several_ranks_move_what_one_moves(found: list[dict[str, tuple]], mode: str, kind: str) -> None:
    weights, moved = trained("", kind, dealt(1, 1)[0])
    still = [name for name in weights if name not in moved]
    assert still
    assert all("pooler" in name or "next_sentence" in name for name in still)
    for each in found:
        assert each[f"{mode} {kind}"][1] == moved
        check_close(each[f"{mode} {kind}"][0], weights, 1e-4)


def test_what_is_reached_later_than_in_the_first_step_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    shared = Replicated(list(model.parameters()))
    for layers in (model[:1], model):
        shared.begin()
        shared.before_last()
        layers(torch.ones(1, 2)).sum().backward()
        if layers is not model:
            shared.finish()
            assert [each.grad is None for each in model.parameters()] == [False, False, True, True]
    with pytest.raises(BertsmithError, match=r"got no gradient in the first step and got one now: of shape \(2,\)"):
        shared.finish()
