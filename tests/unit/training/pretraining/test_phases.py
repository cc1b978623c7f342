"""What a recipe's steps cannot be is found before a run folder is claimed, for every phase that is still to come; and
what phases are measured on."""

from __future__ import annotations

import pytest

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.training.checkpoints import Position
from bertsmith.training.pretraining.phases import HeldOut, check_steps
from made_runs import corpus, small_recipe


def test_a_phase_with_fewer_sequences_than_ranks_is_refused_while_it_is_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "world_size", lambda: 8)
    recipe = small_recipe(phase1__global_batch=4, phase2__global_batch=8)
    with pytest.raises(BertsmithError, match="4 sequences leaves some of 8 ranks without work") as caught:
        check_steps(recipe, Position(stage=1), compiled=False)
    assert caught.value.where == "phase1.global_batch"
    check_steps(recipe, Position(stage=2), compiled=False)
    check_steps(small_recipe(phase1__global_batch=4, phase1__steps=0, phase2__global_batch=8), None, compiled=False)


def test_a_budget_that_is_too_small_for_compiled_steps_is_refused() -> None:
    recipe = small_recipe(phase2__sequence_length=300, micro_batch_tokens=300)
    check_steps(recipe, None, compiled=False)
    with pytest.raises(BertsmithError, match="has no room for a sequence of 300"):
        check_steps(recipe, None, compiled=True)


def test_held_out_text_is_masked_alike_whatever_the_run_is_trained_with() -> None:
    usual, other = (
        HeldOut(small_recipe(**masking), corpus()).of(64)
        for masking in ({}, {"masking__rate": 0.4, "masking__mask_share": 1.0, "masking__random_share": 0.0})
    )
    assert [batch.masked_positions.tolist() for batch in usual] == [each.masked_positions.tolist() for each in other]
    assert [batch.input_ids.tolist() for batch in usual] == [each.input_ids.tolist() for each in other]
