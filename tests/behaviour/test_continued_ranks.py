"""Two ranks measure old text beside new as one does, and say so together."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.records.sinks import Outputs
from made_runs import ran_by_ranks, small_corpus, small_recipe

RECIPE = small_recipe(
    phase1__steps=2, phase2__steps=0, model__hidden_dropout=0, model__attention_dropout=0, evaluate_every=1
)


def work(rank: int, folder: Path, texts: Path) -> None:
    pretrain(RECIPE, texts, folder / "two", outputs=Outputs(also_evaluate=texts))


@pytest.mark.slow
def test_two_ranks_measure_both_texts_as_one_does(tmp_path: Path) -> None:
    ran_by_ranks(work, 2, tmp_path)
    one = pretrain(RECIPE, small_corpus(), tmp_path / "one", outputs=Outputs(also_evaluate=small_corpus()))
    for kind in ("before", "evaluation", "final"):
        pairs = zip(Run(tmp_path / "two").metrics(kind), one.metrics(kind), strict=True)
        for theirs, ours in pairs:
            assert theirs["old_masked_words"] == ours["old_masked_words"]
            assert theirs["old_masked_loss"] == pytest.approx(ours["old_masked_loss"], rel=1e-5)
