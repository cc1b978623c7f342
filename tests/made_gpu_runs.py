"""Whole runs on a GPU, on a corpus that is stored: preparing one takes libraries that a machine with a GPU may lack."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertsmith.recipes.schema import ModelShape, Phase, Recipe
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import Run, pretrain

# Without a preset and flags, whose parser such a machine may lack too.
RECIPE = Recipe(
    model=ModelShape(layers=1, hidden=32, heads=2, intermediate=48),
    phase1=Phase(sequence_length=32, steps=30, global_batch=32, learning_rate=4e-3, warmup=0.3),
    phase2=Phase(sequence_length=48, steps=3, global_batch=8, learning_rate=2e-3, warmup=0.3),
    device="cuda",
    micro_batch_tokens=1024,
    log_every=1,
    evaluate_every=1000,
    evaluate_instances=16,
    save_every=10,
)


def stored_corpus(folder: Path) -> Path:
    """A copy of the stored corpus; an index of its epochs is kept beside it."""
    shutil.copytree(Path(__file__).resolve().parent / "fixtures" / "runs" / "corpus", folder / "corpus")
    return folder / "corpus"


def ran_without_waits(corpus: Path, out: Path, **fields: str) -> Run:
    """A run of eight steps of the first phase, with one line of the log at its end. PyTorch raises where the host waits
    for the GPU in a step that no line follows, the first one aside: in it hosts agree on what is reached. fields: of
    the recipe."""
    steps, advance, guarded = 8, Trainer._advance, 0
    first, second = replace(RECIPE.phase1, steps=steps), replace(RECIPE.phase2, steps=0)
    recipe = replace(RECIPE, phase1=first, phase2=second, log_every=1000, save_every=1000, **fields)

    def advanced(trainer: Trainer, step: Step) -> None:
        nonlocal guarded
        advance(trainer, step)
        is_free = trainer.position.stage_step < steps - 1
        guarded += is_free
        torch.cuda.set_sync_debug_mode("error" if is_free else "default")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_advance", advanced)
        try:
            run = pretrain(recipe, corpus, out)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert guarded == steps - 2
    return run
