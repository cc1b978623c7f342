"""What decisions 020 and 021 say of presets is what they have."""

from __future__ import annotations

import torch

from bertsmith.recipes.loader import load_recipe, presets
from bertsmith.training.planning.work import Batch
from bertsmith.training.pretraining.captured import is_small
from bertsmith.training.shape import config_of
from made_pages import page


def phases_of_small_micro_batches(name: str) -> list[bool]:
    """Of each phase of a preset, whether its micro-batches are small for an H100."""
    recipe = load_recipe(name, budget=True)
    config = config_of(recipe.model, 30_522, 0)
    found = []
    for phase in (recipe.phase1, recipe.phase2):
        if phase.steps and recipe.micro_batch_tokens != "auto":
            length = phase.sequence_length
            slots = min(int(recipe.micro_batch_tokens), phase.global_batch * length)
            batch = Batch(slots, slots * length, 0.15 * slots, slots / length)
            found.append(is_small(config, batch, torch.bfloat16, "NVIDIA H100 80GB HBM3"))
    return found


def test_the_presets_that_take_cuda_graphs_are_those_of_the_page() -> None:
    said = "`bert-tiny`, `bert-mini`, `bert-small-mlm` and `quickstart`, and for no micro-batch of BERT-base"
    assert said in " ".join(page("decisions/021-cuda-graphs-for-small-micro-batches.md").split())
    small = {name for name in presets() if any(phases_of_small_micro_batches(name))}
    assert small == {"bert-tiny", "bert-mini", "bert-small-mlm", "quickstart"}
    assert all(all(phases_of_small_micro_batches(name)) for name in small)


def test_all_presets_but_one_compute_gelu_by_tanh() -> None:
    said = "which all presets but `quickstart` compute (`gelu_pytorch_tanh`"
    assert said in " ".join(page("decisions/020-left-for-the-first-gpu.md").split())
    found = {name for name in presets() if load_recipe(name, budget=True).model.activation != "gelu_pytorch_tanh"}
    assert found == {"quickstart"}
