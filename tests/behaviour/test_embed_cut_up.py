"""A step of embeddings is the same step however it is cut up: into micro-batches, and over ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertsmith.base import ranks
from bertsmith.tasks.embedding.ranking import ranking_losses
from bertsmith.tasks.kinds.embed import by_row
from made_pairs import BATCH, EXACT, farthest, objective_of, stepped
from made_runs import ran

CLOSE = 1e-5
# More tokens than a step has.
WHOLE = 9999


@pytest.fixture(scope="module")
def whole(model: Path) -> dict[bool, tuple[dict[str, torch.Tensor], list[float]]]:
    found = {}
    for negatives in (False, True):
        objective, step = objective_of(model, WHOLE, negatives)
        assert len(step.micro_batches) == 1
        found[negatives] = stepped(objective, step)
    return found


@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("parts", [2, 8])
def test_micro_batches_change_no_gradient(whole, model, parts, negatives, both_ways):
    del both_ways
    gradients, figures = whole[negatives]
    tokens = objective_of(model, WHOLE, negatives)[1].tokens
    objective, step = objective_of(model, -(-tokens // parts) + 12, negatives)
    assert len(step.micro_batches) == parts
    found, its_figures = stepped(objective, step)
    assert its_figures == pytest.approx(figures, rel=CLOSE)
    assert figures[1] == BATCH
    assert farthest(found, gradients) < CLOSE


def test_micro_batches_by_themselves_would_be_another_step(whole, model):
    objective, step = objective_of(model, 60, negatives=False)
    alone = 0.0
    for batch in step.micro_batches:
        inputs, targets = objective.inputs(batch, torch.device("cpu"))
        alone += objective.task.loss(objective.model, inputs, targets).loss.item()
    assert alone < 0.9 * whole[False][1][0]


def test_the_second_pass_drops_what_the_first_one_dropped(model, both_ways):
    del both_ways
    settings = replace(EXACT, dropout=0.3, attention_dropout=0.2)
    objective, step = objective_of(model, 160, settings=settings)
    assert len(step.micro_batches) > 2
    found, figures = stepped(objective, step)
    # The same in one graph: all micro-batches one after another, then the loss of the step.
    objective.model.zero_grad()
    torch.manual_seed(7)
    texts = torch.from_numpy(step.micro_batches[0].examples.targets[step.micro_batches[0].step])
    every = torch.zeros(*texts.shape, 32)
    for batch in step.micro_batches:
        inputs, targets = objective.inputs(batch, torch.device("cpu"))
        every = every.index_copy(0, torch.from_numpy(batch.places), by_row(objective.model(inputs), inputs, targets))
    losses, right = ranking_losses(every, texts)
    (losses.sum() / BATCH).backward()
    expected = {name: each.grad for name, each in objective.model.named_parameters() if each.grad is not None}
    assert farthest(found, expected) < CLOSE
    assert figures == pytest.approx([losses.sum().item(), BATCH, right.sum().item()], rel=CLOSE)
    other, _ = stepped(objective, step, seed=8)
    assert farthest(other, expected) > 0.01, "other dropout is seen"


def share(model: Path, folder: Path, budget: int, several: bool) -> None:
    """What every rank does."""
    objective, step = objective_of(model, budget)
    assert (len(step.micro_batches) > 1) == several
    found = stepped(objective, step)
    torch.save(found, folder / f"{ranks.rank()}.pt")


@pytest.mark.parametrize(("count", "budget"), [(2, WHOLE), (2, 160), (4, 80)])
def test_ranks_change_no_gradient(whole, model, tmp_path, count, budget):
    ran(share, count, model, tmp_path, budget, budget < WHOLE)
    gradients, figures = whole[True]
    for rank in range(count):
        found, its_figures = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert its_figures == pytest.approx(figures, rel=CLOSE)
        assert farthest(found, gradients) < CLOSE
