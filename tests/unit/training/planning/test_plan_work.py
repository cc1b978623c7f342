"""What a run has to do: lengths counted or estimated, without writing anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.recipes.loader import load_recipe
from bertsmith.training.plan import plan_pretraining
from bertsmith.training.planning.where import Where
from bertsmith.training.planning.work import Work, epoch_lengths, even_cut, fixed_cut
from made_corpora import contents
from made_runs import small_corpus
from made_shards import make_source


def order(shards: int = 6, folder: Path | None = None) -> Order:
    return Order(Epochs(make_source(shards), seed=3, phase=1, sequence_length=64, cache_folder=folder))


def test_all_shards_are_counted_as_the_index_of_the_epoch_counts_them() -> None:
    found, index = epoch_lengths(order().epochs), order().epoch(0)
    assert found.instances == index.size
    assert found.values.tolist() == index.lengths.tolist()
    assert not found.sampled


def test_the_index_that_a_run_has_kept_is_taken(tmp_path: Path) -> None:
    order(folder=tmp_path).epoch(0)
    kept = order(folder=tmp_path)
    assert epoch_lengths(kept.epochs).instances == kept.epoch(0).size
    assert not kept.epochs.source.opened


def test_of_many_tokens_a_sample_is_cut_and_it_is_told(tmp_path: Path) -> None:
    ours, whole = order(folder=tmp_path / "order"), order().epoch(0)
    total = sum(each.tokens for each in ours.epochs.shards)
    found = epoch_lengths(ours.epochs, most_tokens=total // 2 + 1)
    assert len(ours.epochs.source.opened) == 3
    assert "3 of 6 shards" in found.sampled
    assert found.instances == pytest.approx(whole.size, rel=0.1)
    assert found.values.mean() == pytest.approx(whole.lengths.mean(), rel=0.1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_step_is_cut_up_as_a_run_cuts_it(ranks: int) -> None:
    lengths = epoch_lengths(order().epochs)
    masking = MaskingSettings()
    work = Work("phase 1", 64, 10, 96, lengths.sequence(masking), lengths.instances, 0.0)
    as_they_are, fixed = even_cut(512)(work, ranks), fixed_cut(512, {"phase 1": lengths}, masking)(work, ranks)
    tokens = work.batch * work.sequence.tokens / ranks
    assert as_they_are.micro_batches * as_they_are.batch.tokens == pytest.approx(tokens)
    assert as_they_are.batch.tokens <= 512
    assert fixed.batch.tokens <= 512
    assert fixed.batch.tokens % 128 == 0
    assert fixed.micro_batches * fixed.batch.tokens >= tokens


def test_a_corpus_stays_as_it_is(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(small_corpus(), corpus)
    before = contents(corpus)
    plan_pretraining("bert-base-nvlamb", corpus, Where("v100", 4))
    assert contents(corpus) == before


def test_what_the_run_would_refuse_of_shards_is_refused() -> None:
    shards = replace(load_recipe("bert-base-nvlamb"), parallel="shard")
    for changed, what in (({"compile": "true"}, "cannot be compiled"), ({"micro_batch_tokens": "auto"}, "is tried")):
        with pytest.raises(BertsmithError, match=what):
            plan_pretraining(replace(shards, **changed), small_corpus(), Where("h100", 8))


def test_what_is_held_out_is_measured_by_all_ranks_and_as_often_as_in_a_run() -> None:
    recipe = load_recipe("bert-base-nvlamb", ["--evaluate_every=1000", "--phase2.steps=10"])
    alone, fewer, eight, one = (
        plan_pretraining(replace(recipe, evaluate_instances=count), small_corpus(), Where("h100", gpus)).one.stages
        for gpus, count in ((1, 10**6), (1, 10**5), (8, 10**6), (1, 1))
    )
    assert fewer[0].evaluation == alone[0].evaluation, "as much as there is"
    assert eight[0].evaluation == pytest.approx(alone[0].evaluation / 8, rel=0.1)
    # Of 7,038 steps and 10: every 1,000, at the end of the phase and of the run, and before the first one.
    assert [each.work.evaluated for each in one] == [7 + 1 + 1 + 1, 1 + 1]


@pytest.mark.parametrize(("steps", "warned"), [(5, False), (5000, True)])
def test_many_passes_over_a_corpus_are_warned_of(steps: int, warned: bool) -> None:
    recipe = load_recipe("bert-base-nvlamb", [f"--phase1.steps={steps}", "--phase1.global_batch=8", "--phase2.steps=0"])
    found = plan_pretraining(recipe, small_corpus(), Where("h100"))
    assert any("goes through its corpus" in each for each in found.warnings) == warned


def test_a_step_may_have_one_sequence_for_each_rank() -> None:
    recipe = load_recipe("bert-base-nvlamb", ["--phase1.global_batch=8", "--phase2.steps=0"])
    plan = plan_pretraining(recipe, small_corpus(), Where("h100", 4))
    assert [each.ranks for each in plan.many if each.stages] == [4, 8]
    with pytest.raises(BertsmithError, match="9 ranks are to share it"):
        plan_pretraining(recipe, small_corpus(), Where("h100", 9))


def test_weights_in_shards_take_a_ranks_part_of_the_memory() -> None:
    whole, shard = (
        plan_pretraining(load_recipe("bert-base-nvlamb", [f"--parallel={each}"]), small_corpus(), Where("h100", 8))
        for each in ("replicate", "shard")
    )
    for part in ("parameters, fp32", "moments of the optimizer"):
        assert shard.memory[part] == pytest.approx(whole.memory[part] / 8)


def test_where_no_micro_batch_fits_nothing_is_offered_as_if_it_did() -> None:
    huge = load_recipe("bert-base-nvlamb", ["--model.hidden=24576", "--model.heads=96"])
    (told,) = [line for line in plan_pretraining(huge, small_corpus(), Where("v100")).warnings if "not fit" in line]
    assert told.endswith("no micro-batch fits; --gradient-checkpointing needs less")


def test_sums_of_gradients_are_hidden_in_compiled_steps_as_in_eager_ones_whose_memory_is_planned_apart() -> None:
    usual = load_recipe("bert-base-nvlamb")
    assert usual.compile == "auto"
    compiled, eager = (
        plan_pretraining(replace(usual, compile=each), small_corpus(), Where("h100", 8)) for each in ("auto", "false")
    )
    exchange = compiled.asked.exchange
    assert exchange == eager.asked.exchange
    assert exchange.hides
    assert 0 < exchange.last < exchange.summed
    assert compiled.asked.held.compiled
    assert not eager.asked.held.compiled
