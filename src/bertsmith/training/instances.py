"""The instances that a pre-training run's messages number, as text: of a loss spike, or of a NaN."""

from __future__ import annotations

from pathlib import Path

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.batches.samples import show_instances_from
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import load_recipe
from bertsmith.training.shape import masking_of, order_of


def show_instances_of_run(run: Path, corpus: Corpus, first: int, count: int, phase: int = 1) -> str:
    """`count` instances from number `first`, from 0, of a phase of a run, as the run saw them.

    The indices of the epochs up to there are read where a run has kept them beside the corpus, else made again.
    Raises BertsmithError for a folder that is no run of pre-training, another corpus, and instances that it lacks.
    """
    known = files.read_json(run / "run.json", "give the folder of a run of `bertsmith pretrain`")
    if not isinstance(known, dict) or "corpus" not in known:
        what = "this run did not read a corpus"
        raise BertsmithError(what, run, "give the folder of a run of `bertsmith pretrain`")
    if known["corpus"] != files.sha256(corpus.folder / "corpus.json"):
        raise BertsmithError("the run was trained on another corpus", corpus.folder, f"give the one of {run}")
    recipe = load_recipe(run / "recipe.yaml")
    settings = {1: recipe.phase1, 2: recipe.phase2}.get(phase)
    if settings is None or not settings.steps:
        have = " and ".join(str(number) for number, each in ((1, recipe.phase1), (2, recipe.phase2)) if each.steps)
        raise BertsmithError(f"the run has no phase {phase}", "--phase", f"it has {have}")
    # A run that ends by time takes as many steps as it has time for.
    last = None if recipe.hours else settings.steps * settings.global_batch
    if first < 0 or count < 1 or (last is not None and first + count > last):
        where = f"--first-instance {first} --samples {count}"
        fix = "ask for one at least" if last is None else f"ask for one at least, of 0 to {last - 1:,}"
        raise BertsmithError(f"phase {phase} of the run does not have these instances", where, fix)
    kept = corpus.folder / "order"
    order = order_of(recipe, phase, corpus, kept if kept.is_dir() else None)
    return show_instances_from(
        order, corpus.tokenizer(), first, count, masking_of(recipe, phase), settings.global_batch
    )
