"""However a step is cut up, into micro-batches or over ranks, it is the same step: gradients, weights, figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith.base.ranks import world_size
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.steps import StepBuilder, held_out_batches
from bertsmith.corpus.shards import Corpus
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining.inputs import to_inputs
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import fresh_model
from made_runs import OF_THE_CLOCK, corpus, ran_by_ranks, small_recipe
from made_steps import PlainSgd

CPU = torch.device("cpu")
STEPS, BATCH, BUDGET = 3, 12, 200
CLOSE = 1e-10


def builder(budget: int = BUDGET, rank: int = 0, ranks: int = 1, source: Corpus | None = None) -> StepBuilder:
    order = Order(Epochs(source or corpus(), seed=1, phase=1, sequence_length=64))
    return StepBuilder(order, BATCH, MaskingSettings(), budget, rank, ranks)


def new_model() -> tuple[PretrainingModel, PlainSgd]:
    """A float64 model without dropout, and plain SGD."""
    model = fresh_model(
        deviation=0.1,
        seed=2,
        vocab_size=512,
        hidden_size=16,
        num_hidden_layers=2,
        intermediate_size=24,
        max_position_embeddings=64,
    ).double()
    return model, PlainSgd(model.parameters(), lr=0.5, momentum=0.9)


def take_steps(steps: StepBuilder) -> dict[str, Tensor]:
    """The gradient of the first step and the weights after three."""
    model, optimizer = new_model()
    found = {}
    for number in range(STEPS):
        step = steps.build(number)
        train_step(Pretraining(model, CPU), optimizer, step.micro_batches, step.counts, CPU)
        if number == 0:
            found |= {f"gradient of {name}": each.grad.clone() for name, each in model.named_parameters()}
    return found | {name: each.detach().clone() for name, each in model.named_parameters()}


def compare(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    size = max(float(each.norm()) for name, each in expected.items() if name.startswith("gradient"))
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        # A key's bias has no gradient in exact arithmetic, so it is held to the size of the others.
        assert float((found[name] - each).norm()) < CLOSE * max(float(each.norm()), 1e-3 * size), name


@pytest.fixture(scope="module")
def whole() -> dict[str, Tensor]:
    """As one micro-batch on one rank."""
    return take_steps(builder(budget=100_000))


@pytest.mark.parametrize("budget", [64, 150, 400])
def test_micro_batches_do_not_change_a_step(whole: dict[str, Tensor], budget: int) -> None:
    assert len(builder(budget).build(0).micro_batches) > 1
    compare(take_steps(builder(budget)), whole)


def test_the_gradient_is_that_of_the_means_over_the_whole_step(whole: dict[str, Tensor]) -> None:
    """By definition: the mean over all masked words plus the mean over all pairs, not a mean of means."""
    model, _ = new_model()
    step = builder(64).build(0)
    sums = [torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    counts = [0, 0]
    for batch in step.micro_batches:
        for index, part in enumerate(model.losses(to_inputs(batch, CPU))):
            sums[index] = sums[index] + part.loss
            counts[index] += int(part.count)
    assert counts == [step.totals.masked, step.totals.sequences]
    (sums[0] / counts[0] + sums[1] / counts[1]).backward()
    compare(
        {name: each for name, each in whole.items() if name.startswith("gradient")},
        {f"gradient of {name}": each.grad for name, each in model.named_parameters()},
    )


def evaluated(source: Corpus) -> dict[str, float]:
    """The figures of a model on held-out instances in one batch: fewer batches than ranks."""
    batches = held_out_batches(
        source, sequence_length=64, instances=8, masking=MaskingSettings(), micro_batch_tokens=100_000, seed=0
    )
    assert len(batches) == 1
    return Pretraining(new_model()[0], CPU, np.arange(512) % 2 == 0).measure(batches).as_record()


RECIPE = small_recipe(model__hidden_dropout=0, model__attention_dropout=0, evaluate_every=2, log_every=2)


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    source, ranks = Corpus.open(made), world_size()
    found = take_steps(builder(rank=rank, ranks=ranks, source=source))
    torch.save({**found, "evaluated": evaluated(source)}, folder / f"{rank}-of-{ranks}.pt")
    if ranks == 2:
        pretrain(RECIPE, source, folder / "run")


@pytest.fixture(scope="module")
def over_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what every rank of groups of four and two came to."""
    folder = tmp_path_factory.mktemp("ranks")
    for ranks in (4, 2):
        ran_by_ranks(work_of_a_rank, ranks, folder)
    return folder


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_take_the_same_step(whole: dict[str, Tensor], over_ranks: Path, ranks: int) -> None:
    found = [torch.load(over_ranks / f"{rank}-of-{ranks}.pt", weights_only=True) for rank in range(ranks)]
    figures = [each.pop("evaluated") for each in found]
    compare(found[0], whole)
    for other in found[1:]:
        assert all(torch.equal(each, other[name]) for name, each in found[0].items()), "ranks hold the same bits"
    for each in figures:
        assert each == pytest.approx(evaluated(corpus()), rel=1e-12)


def test_a_run_of_two_ranks_writes_the_figures_of_one(over_ranks: Path, tmp_path: Path) -> None:
    alone, two = pretrain(RECIPE, corpus(), tmp_path / "run").metrics(), Run(over_ranks / "run").metrics()
    assert [each["kind"] for each in two] == [each["kind"] for each in alone]
    for ours, theirs in zip(two, alone, strict=True):
        for name in theirs.keys() - OF_THE_CLOCK - {"kind", "padding_share"}:
            assert ours[name] == pytest.approx(theirs[name], rel=2e-4), name
