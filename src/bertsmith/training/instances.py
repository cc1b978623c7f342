"""The instances that a pre-training run's messages number, as text: of a loss spike, or of a NaN."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.batches.samples import show_instances_from
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.records.names import RECIPE_FILE, RUN_FILE
from bertsmith.training.run_folder import Run, settings_identity
from bertsmith.training.shape import masking_of, order_of

# The fields of a recipe that instances and their masks depend on.
_READ = tuple(f"recipe.{name}" for name in ("seed", "objective", "pairs.", "masking.", "phase1.", "phase2."))
_FIX = "give the folder of a run of `bertsmith pretrain`"


def show_instances_of_run(run: Path, corpus: Corpus, first: int, count: int, phase: int = 1) -> str:
    """`count` instances from number `first`, from 0, of a phase of a run, as they are masked in it.

    The indices of the epochs up to there are read where a run has kept them beside the corpus, else made again; nothing
    is written. Raises BertsmithError for a folder that is no run of pre-training, another corpus, and instances that
    the phase does not have.
    """
    recipe = _recipe(run, corpus)
    if phase not in recipe.phases:
        have = " and ".join(map(str, recipe.phases))
        raise BertsmithError(f"the run has no phase {phase}", "--phase", f"it has {have}")
    batch = recipe.phase(phase).global_batch
    if count < 1:
        raise BertsmithError(f"--samples is {count}", "inspect --run", "use a number from 1")
    last = _steps(run, recipe, phase) * batch
    if first < 0 or first + count > last:
        where = f"--first-instance {first} --samples {count}"
        raise BertsmithError(
            f"phase {phase} of the run does not have these instances", where, f"it has 0 to {last - 1}"
        )
    kept = corpus.folder / "order"
    order = order_of(recipe, phase, corpus, kept if kept.is_dir() else None)
    order.epochs.keeps_indices = False
    return show_instances_from(order, corpus.tokenizer(), first, count, masking_of(recipe, phase), batch)


def _recipe(run: Path, corpus: Corpus) -> Recipe:
    """That of the run. Raises BertsmithError where it is not what the run was started with."""
    if run.is_file():
        raise BertsmithError("this is a file, and a run is a folder", run, _FIX)
    known = files.read_json(run / RUN_FILE, _FIX)
    if not isinstance(known, dict) or "corpus" not in known:
        raise BertsmithError("this run was not trained on a corpus", run, _FIX)
    if known["corpus"] != files.sha256(corpus.folder / "corpus.json"):
        raise BertsmithError("the run was trained on another corpus", corpus.folder, f"give the one of {run}")
    recipe = load_recipe(run / RECIPE_FILE)
    ours = settings_identity(asdict(recipe), "recipe", ())
    changed = [
        name for name, value in ours.items() if name.startswith(_READ) and name in known and known[name] != value
    ]
    if changed:
        what = f"this file is not what the run was started with: {', '.join(changed)}"
        raise BertsmithError(what, run / RECIPE_FILE, f"write it as {RUN_FILE} has it")
    return recipe


def _steps(run: Path, recipe: Recipe, phase: int) -> int:
    """Of a phase; one that ends by time has those of its metrics, and those that may have followed their last line."""
    if not recipe.hours:
        return recipe.phase(phase).steps
    taken = [int(each.get("phase_step", 0)) for each in Run(run).metrics("train") if each.get("phase") == phase]
    return max(taken, default=0) + recipe.log_every
