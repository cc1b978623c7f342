"""The verbs that train: pretrain, finetune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.cli.ranks import RunFlags, over_ranks, said_once_a_host
from bertsmith.cli.verb import Call, Verb, given_flags, import_torch
from bertsmith.recipes.flags import split_flags, wants_help
from bertsmith.recipes.loader import BUDGET, load_recipe, presets
from bertsmith.recipes.schema import Recipe

if TYPE_CHECKING:
    from bertsmith.tasks.settings import FinetuneSettings
    from bertsmith.training.records.sinks import Outputs


_SHOWN = "bert-base-nvlamb"
"""Whose numbers the help has where no recipe is named."""


@dataclass(frozen=True, kw_only=True)
class OutputFlags(RunFlags):
    """Flags of the verbs that train, but for `distill`: where else the records of a run go."""

    dllogger: Path | None = None
    """Also write the records to this file as NVIDIA's DLLogger does, with the keys of its BERT's scripts."""
    wandb: str | None = None
    """Also send the records to this project of Weights & Biases; WANDB_MODE=offline is respected. The package must be
    installed; no later failure ends the run."""
    profile: int = 0
    """Profile so many steps, after a few for warm-up: a trace in the run's `profile`, and a table; 0 for none."""

    def outputs(self) -> Outputs:
        """What these flags ask for."""
        from bertsmith.training.records.sinks import Outputs

        return Outputs(self.dllogger, self.wandb, self.profile)


@dataclass(frozen=True, kw_only=True)
class RecipeFlags:
    """Flags of the verbs that read a recipe."""

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")]
    """A preset's name or a YAML file."""
    corpus: Path
    """A folder that `bertsmith prepare` wrote."""


@dataclass(frozen=True)
class PretrainFlags(RecipeFlags, OutputFlags):
    """Flags of `pretrain`, beside those of Recipe."""

    out: Path
    """The run folder; the finished model is written to its `model`."""
    check: bool = False
    """Train nothing, but say in about a minute whether model, data, optimizer and device fit together: a small batch is
    overfitted, a micro-batch timed, a checkpoint written and read."""
    init_from: Path | None = None
    """Start from the weights of this model folder or run instead of random ones."""
    also_evaluate: Path | None = None
    """A corpus of old text whose held-out documents are evaluated as well, to see what the model forgets."""


def _pretrain(call: Call) -> int:
    with said_once_a_host():
        flags, recipe = recipe_flags(call, PretrainFlags)

    if flags.check:
        return _check(call, flags, recipe)

    def work(device: str) -> Path:
        from bertsmith.training.pretrain import pretrain

        ours = replace(_by_budget(call, flags, recipe, device), device=device)
        outputs = replace(flags.outputs(), also_evaluate=flags.also_evaluate)
        given: dict[str, Any] = {"init_from": flags.init_from, "outputs": outputs}
        return pretrain(ours, flags.corpus, flags.out, resume=flags.resume, **given).model

    return over_ranks(call, flags, recipe.device, work)


def _check(call: Call, flags: PretrainFlags, recipe: Recipe) -> int:
    """On one device, whatever the run will have. Raises BertsmithError for a budget that several would share."""
    if flags.recipe == BUDGET and (flags.gpus is not None or flags.ranks is not None):
        what = "a check is made on one device, for which the preset budget would choose another model than for several"
        raise BertsmithError(what, "--check", "omit --gpus and --ranks, or name another recipe")
    import_torch()
    from bertsmith.training.check import check_pretraining

    names = ("ranks", "gpus", "dllogger", "wandb", "profile", *(["resume"] if flags.recipe != BUDGET else []))
    if unread := given_flags(flags, names):
        say(f"a check is made on one device and keeps nothing: {', '.join(unread)} not read")
    given = {"init_from": flags.init_from, "also_evaluate": flags.also_evaluate}
    check_pretraining(_by_budget(call, flags, recipe, recipe.device), flags.corpus, flags.out, **given)
    print("model, data, optimizer and device fit together")
    return 0


def _by_budget(call: Call, flags: PretrainFlags, recipe: Recipe, device: str) -> Recipe:
    """The recipe, with what the preset `budget` leaves to the device, where it is that. device: that the run will have,
    which several ranks without GPUs of their own do not choose by what there is."""
    if flags.recipe != BUDGET:
        return recipe
    refuse_another_model(flags.init_from)
    from bertsmith.training.budget import budget_recipe

    return budget_recipe(flags.corpus, flags.out, [*given_fields(call), f"--device={device}"], flags.resume)


def refuse_another_model(init_from: Path | None) -> None:
    """Raises BertsmithError where the preset `budget`, which chooses a model, is to start from one."""
    if init_from is not None:
        what = "the preset budget chooses a model, and --init-from has one"
        raise BertsmithError(what, "--init-from", "leave it out, or name another recipe")


def given_fields(call: Call) -> list[str]:
    """The flags of a recipe's fields that the user gave, for `load_recipe`."""
    return [f"--{name}={value}" for name, value in split_flags(call.args, Recipe)[0].items()]


Own = TypeVar("Own")
OfRecipe = TypeVar("OfRecipe", bound=RecipeFlags)


def recipe_flags(call: Call, kind: type[OfRecipe]) -> tuple[OfRecipe, Recipe]:
    """A verb's own flags, and the recipe, maybe that of a budget, with the values that flags give its fields."""
    numbers = Recipe()
    if wants_help(call.args):  # with the numbers of the recipe, where one is named
        own = split_flags(call.args, Recipe)[1]
        named = next((token for token in own if token in presets() or _is_recipe_file(token)), None)
        unnamed = f"Numbers are those of {_SHOWN}; name a preset or a file before --help for its own.\n\n"
        call = replace(call, description=("" if named else unnamed) + call.description)
        numbers = load_recipe(named or _SHOWN, budget=True)
    flags = own_flags(call, kind, numbers)
    return flags, load_recipe(flags.recipe, given_fields(call), budget=True)


def own_flags(call: Call, kind: type[Own], numbers: Recipe) -> Own:
    """A verb's flags beside those of a recipe's fields. numbers: of these, for the help."""
    if wants_help(call.args):
        return replace(call, args=["--help"]).read_with(kind, numbers)[0]
    return replace(call, args=split_flags(call.args, Recipe)[1]).read(kind, beside=Recipe)


def _is_recipe_file(token: str) -> bool:
    return token.endswith((".yaml", ".yml")) and Path(token).is_file()


# One line: tyro keeps the breaks of a field's string.
_TASK = (
    "A kind: classify, regress, tag, qa, choice, embed; auto infers it from the rows, but for embed. Or a benchmark, "
    "which has columns, labels and settings of its own: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad1, "
    "squad2, swag, codah, wnut17, conll2003, chemprot, bc5cdr-chemical, bc5cdr-disease."
)


@dataclass(frozen=True, kw_only=True)
class LabelledFlags:
    """Flags of the verbs that learn from labelled rows."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK", help=_TASK)] = "auto"
    train: Path | None = None
    """Labelled rows to learn from: .csv, .tsv, .jsonl, .json, .parquet or CoNLL's columns, compressed or not."""
    dev: Path | None = None
    """Labelled rows by which the best epoch and seed are chosen; without it --dev-share of the training rows."""
    test: Path | None = None
    """Labelled rows that are only measured, and choose nothing."""
    data: Path | None = None
    """For a benchmark: the folder with its files, instead of --train, --dev and --test."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkFlags(LabelledFlags):
    """The same, of the verbs that take a benchmark as its authors measure it."""

    hyper_parameters: str | None = None
    """For a benchmark: whose settings to use, google, nvidia or authors; without it the first of these that it has."""
    fold: int = 0
    """For a benchmark with published folds: which one, from 0."""


@dataclass(frozen=True)
class FinetuneFlags(BenchmarkFlags, OutputFlags):
    """Flags of `finetune`, beside those of FinetuneSettings."""

    model: Path
    """The folder of a pre-trained model, or a run that has one."""
    out: Path
    """The run folder; the fine-tuned model is written to its `model`."""


def _finetune(call: Call) -> int:
    with said_once_a_host():
        flags, settings = finetune_flags(call, FinetuneFlags)

    def work(device: str) -> Path:
        from bertsmith.tasks.finetune import finetune

        files, ours = (flags.model, flags.train, flags.dev, flags.out), replace(settings, device=device)
        rules: dict[str, Any] = {"data": flags.data, "hyper_parameters": flags.hyper_parameters, "fold": flags.fold}
        rules |= {"resume": flags.resume, "outputs": flags.outputs()}
        result = finetune(flags.task, *files, test=flags.test, settings=ours, **rules)
        assert result.model is not None
        return result.model

    return over_ranks(call, flags, settings.device, work)


OfTask = TypeVar("OfTask", bound=LabelledFlags)
OfBenchmark = TypeVar("OfBenchmark", bound=BenchmarkFlags)
Settings = TypeVar("Settings")


def finetune_flags(call: Call, kind: type[OfBenchmark]) -> tuple[OfBenchmark, FinetuneSettings]:
    """`task_flags` with the settings of fine-tuning."""
    from bertsmith.tasks.benchmarks.inputs import benchmark_settings
    from bertsmith.tasks.settings import FinetuneSettings

    def settings_of(benchmark: str, flags: OfBenchmark | None) -> FinetuneSettings:
        if not benchmark:
            return FinetuneSettings()
        return benchmark_settings(benchmark, flags.hyper_parameters if flags else None)

    return task_flags(call, kind, settings_of)


def task_flags(
    call: Call, kind: type[OfTask], settings_of: Callable[[str, OfTask | None], Settings]
) -> tuple[OfTask, Settings]:
    """A verb's own flags, and its settings: a benchmark's take the place of the usual ones, flags that of both.

    settings_of: those of a benchmark by its name, the usual ones for ""; with the verb's own flags where they are read.
    """
    from bertsmith.tasks.benchmarks.benchmark import benchmarks

    if wants_help(call.args):
        named = next((token for token in call.args if token in benchmarks()), "")
        # Without the name: tyro leaves out of its help what is given.
        return replace(call, args=["--help"]).read_with(kind, settings_of(named, None))
    flags, settings = call.read_with(kind, settings_of("", None))
    if flags.task not in benchmarks():
        return flags, settings
    return call.read_with(kind, settings_of(flags.task, flags))


VERBS = {
    "pretrain": Verb(
        "Pre-train a BERT from a recipe; every field of the recipe is a flag.\n\nPresets:\n"
        + "\n".join(f"  {name:<20}{text}" for name, text in presets().items()),
        "  bertsmith pretrain bert-mini --corpus corpus --out runs/mini --phase1.steps 2000\n"
        "  bertsmith pretrain bert-mini --help        the numbers of that preset",
        _pretrain,
    ),
    "finetune": Verb(
        "Fine-tune a model on labelled rows. Task and columns are inferred where they are not named.",
        "  bertsmith finetune --model runs/mini --train rows.csv --out runs/labels\n"
        "  bertsmith finetune classify --model runs/mini --train train.csv --dev dev.csv --out runs/labels\n"
        "  bertsmith finetune mrpc --model runs/mini --data glue --out runs/mrpc\n"
        "  bertsmith finetune mrpc --help        the settings of that benchmark",
        _finetune,
    ),
}
