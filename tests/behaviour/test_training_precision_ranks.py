"""Several ranks in fp16: one rank's overflow is every rank's, the scales stay equal, and what cannot go on is named."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from bertsmith.base import fp32_products
from bertsmith.base.device import device_of_run
from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks import rank
from bertsmith.corpus.shards import Corpus
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training import work as work_module
from bertsmith.training.parallel.replicate import Replicated
from bertsmith.training.pretrain import Run, pretrain
from made_processors import WITH_BF16_OF_AMD, WITHOUT_BF16
from made_runs import ran_by_ranks, small_recipe

FP16 = small_recipe(precision="fp16", phase1__steps=10, phase2__steps=0, log_every=2)
FP32 = small_recipe(precision="fp32", phase1__steps=3, phase2__steps=0)
FAULTY_RANK = 1
_before_last = Replicated.before_last


def with_faults(steps: set[int]):
    """`before_last` that puts an infinity into the gradient of one rank at these steps."""
    taken = iter(range(1, 1000))

    def before_last(self: Replicated) -> None:
        if next(taken) in steps and rank() == FAULTY_RANK:
            parameter, _ = self._buckets[-1].members[-1]
            parameter.grad[0, 0] = float("inf")
        _before_last(self)

    return before_last


def work_of_a_rank(number: int, folder: Path, made: Path) -> None:
    """A run in which one rank overflows twice, and runs that it stops, in fp16 and in fp32."""
    source, scales, told = Corpus.open(made), [], []

    def kept(*arguments: object, **options: object) -> LossScale:
        scales.append(LossScale(*arguments, initial=8.0, **options))
        return scales[-1]

    work_module.LossScale = kept
    Replicated.before_last = with_faults({3, 7})
    pretrain(FP16, source, folder / "skips")
    state = [float(each) for each in scales[0].state_dict().values()]
    work_module.LossScale = partial(LossScale, initial=2.0)
    for name, recipe in (("fp16", FP16), ("fp32", FP32)):
        Replicated.before_last = with_faults({2, 3, 4})
        try:
            pretrain(recipe, source, folder / name)
        except BertsmithError as error:
            told.append(f"{error.what}; {error.where}")
    # Nodes of a cluster may differ: here only the second rank's processor would lead to oneDNN.
    fp32_products.this_processor = lambda: (WITHOUT_BF16, WITH_BF16_OF_AMD)[number]
    fp32_products.largest_error = lambda name: 0.2
    chosen = device_of_run("cpu", "fp32", {}, folder).fp32_products
    torch.save({"state": state, "told": told, "chosen": chosen}, folder / f"{number}.pt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))


def test_one_ranks_overflow_is_skipped_by_all(finished: Path) -> None:
    found = [torch.load(finished / f"{number}.pt", weights_only=True)["state"] for number in (0, 1)]
    assert found[0] == found[1] == [2.0, 3.0, 2.0], "scale, good updates since, updates skipped"
    records = Run(finished / "skips").metrics("train")
    assert [record["skipped_updates"] for record in records] == [0, 1, 1, 2, 2]
    assert [record["loss_scale"] for record in records] == [8, 4, 4, 2, 2]
    assert Run(finished / "skips").is_finished()


def test_a_fault_that_stays_is_named_by_step_and_rank(finished: Path) -> None:
    """By both ranks alike: at fp16's floor after the scales 2 and 1, in fp32 at once."""
    told = [torch.load(finished / f"{number}.pt", weights_only=True)["told"] for number in (0, 1)]
    assert told[0] == told[1]
    assert "even at the lowest loss scale, 1, so its update was skipped" in told[0][0]
    assert "phase 1, step 3, rank 1, instances 16 to 23" in told[0][0]
    assert "not finite (NaN or infinity), so its update was skipped" in told[0][1]
    assert "phase 1, step 2, rank 1, instances 8 to 15" in told[0][1]
    assert not Run(finished / "fp32").metrics("end")


def test_the_first_rank_chooses_for_all(finished: Path) -> None:
    assert [torch.load(finished / f"{number}.pt", weights_only=True)["chosen"] for number in (0, 1)] == ["default"] * 2
