"""What a pre-training run is given: recipe, corpus and weights, opened and checked, and what decides its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.base import files, ranks
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import say
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.neighbours import look_at_neighbours
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.recipes.loader import recipe_of
from bertsmith.recipes.schema import Distillation, ModelShape, Pairs, Recipe
from bertsmith.training.pretraining.continued import Figures, check_old, own_figures
from bertsmith.training.pretraining.distil import DistilledPretraining, Teaching
from bertsmith.training.pretraining.fitting import fitting_tokens
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.start import fit_vocabulary
from bertsmith.training.pretraining.teacher import TeachingSettings, check_teacher, take_layers, teaching_of
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import micro_batch_tokens
from bertsmith.training.run_folder import model_identity, settings_identity
from bertsmith.training.shape import check_positions, config_of, masking_of, refuse_auto_of_shards, shaped_as
from bertsmith.weights.huggingface import load_pretraining_model, model_folder, read_config

# Fields that change what is written, how fast, or how a step is cut up and shared, and at most the last bits of a
# result; a resumed run may change them.
FREE_FIELDS = (
    "parallel",
    "compile",
    "device",
    "gradient_checkpointing",
    "loader_workers",
    "micro_batch_tokens",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep",
    "keep_every",
)
# Fields that came later, and what versions without them did: their runs do not name them, and are resumed.
_LATER_FIELDS = {
    "recipe.gradient_sums": "fp32",
    "recipe.objective": "mlm+nsp",
    "recipe.hours": 0.0,
    "recipe.optimizer.bias_correction": True,
    "recipe.masking.whole_words": False,
    "recipe.masking.final_rate": 0.0,
    **{f"recipe.{phase}.schedule": "polynomial" for phase in ("phase1", "phase2")},
    **{f"recipe.{phase}.decay_share": 0.1 for phase in ("phase1", "phase2")},
}
_OLD_TEXT = "also_evaluate"
CPU_TOKENS = 8192
"""More tokens of a micro-batch gain nothing on a CPU."""


@dataclass(frozen=True)
class Work:
    """What a run is given, opened. start: the folder of the weights that it starts from, None where they are random.
    own: of `own_figures`, of `init_from`. old: a corpus that is measured as well. identity: all that decides what the
    run comes to. outputs: as of `pretrain`."""

    recipe: Recipe
    corpus: Corpus
    start: Path | None
    teacher: Path | None
    own: Mapping[int, Figures]
    old: Corpus | None
    identity: dict[str, Any]
    outputs: Outputs


def work_of(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    init_from: StrPath | None,
    teacher: StrPath | None = None,
    outputs: Outputs | None = None,
) -> Work:
    """Opens what `pretrain` is given. Raises BertsmithError for what does not fit together."""
    outputs = outputs or Outputs()
    recipe = recipe_of(recipe)
    corpus = _corpus(corpus)
    init_from = None if init_from is None else model_folder(init_from, "init_from")
    if teacher is None and recipe.distillation != Distillation():
        say("there is no teacher, so the recipe's fields of distillation have no effect")
    if recipe.objective == "mlm" and recipe.pairs.random_next != Pairs().random_next:
        say("the objective is mlm, so pairs.random_next has no effect: there are no second segments")
    if teacher is not None:
        teacher = model_folder(teacher, "teacher")
        _check_taught(recipe, init_from)
        check_teacher(teacher, corpus, recipe.longest)
    old = None if outputs.also_evaluate is None else _corpus(outputs.also_evaluate)
    if old is not None:
        check_old(corpus, old, predicts=teacher is None or recipe.distillation.labels > 0)
    own = {} if init_from is None else own_figures(init_from)
    layers = 0 if teacher is None else recipe.distillation.teacher_layers
    start = teacher if layers else init_from
    identity = _identity(recipe, corpus, init_from, teacher, has_own_shape=start is None)
    if start is not None:
        recipe = _keeping_shape(recipe, start, layers)
    return Work(recipe, corpus, start, teacher, own, old, identity, outputs)


def _keeping_shape(recipe: Recipe, start: Path, layers: int) -> Recipe:
    """The recipe of a run that starts from the model in a folder: with its shape and dropout; logs where these differ.
    layers: that are taken of it; 0 for all."""
    config = read_config(start)
    every = config.num_hidden_layers
    if layers > every:
        what = f"teacher_layers is {layers}, and the teacher has {every} layers"
        raise BertsmithError(what, start, f"use at most {every}")
    found = shaped_as(recipe, replace(config, num_hidden_layers=layers or every))
    # Which layers are taken of a teacher is logged when they are.
    wanted = replace(recipe.model, layers=layers) if layers else recipe.model
    differing = [name for name, value in asdict(wanted).items() if getattr(found.model, name) != value]
    if differing:
        details = ", ".join(
            f"{name} {getattr(found.model, name)} (recipe: {getattr(wanted, name)})" for name in differing
        )
        say(f"the model has the shape of the one in {start}, which differs from the recipe's: {details}")
    return found


def _corpus(corpus: Corpus | str | Path) -> Corpus:
    found = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
    found.check_sizes()
    return found


def checksum_of(corpus: Corpus) -> str:
    """Of what a corpus holds."""
    return files.sha256(corpus.folder / "corpus.json")


def old_text_of_run(old: Corpus | None, started_on: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Which corpus a run is measured on as well, for `RunFacts.started_on`; kept where a resumed run leaves it out.
    Raises BertsmithError for another one, whose figures would be compared with those of the first."""
    found = started_on.get(_OLD_TEXT) if old is None else checksum_of(old)
    if old is not None and started_on.get(_OLD_TEXT, found) != found:
        what = f"{folder} was measured on another corpus than this one, and their figures do not compare"
        raise BertsmithError(what, f"--also-evaluate {old.folder}", "name that one, or leave the flag out")
    return {} if found is None else {_OLD_TEXT: found}


def _check_taught(recipe: Recipe, init_from: Path | None) -> None:
    """Raises BertsmithError for what a run with a teacher does not have."""
    if recipe.parallel == "shard":
        what = "a student's weights are not sharded over ranks: its hidden states are compared outside the model"
        raise BertsmithError(what, "parallel", "--parallel replicate")
    if recipe.compile == "true":
        what = "steps with a teacher are not compiled: they are two models in one step"
        raise BertsmithError(what, "compile", "--compile auto")
    if init_from is not None and recipe.distillation.teacher_layers:
        what = "the student would start from a model and from the teacher's layers"
        raise BertsmithError(what, "distillation.teacher_layers", "use 0, or start from no other model (init_from)")


def tokens_of_run(
    recipe: Recipe, started_on: Mapping[str, str], model: PretrainingModel, teaching: Teaching | None, device: Device
) -> int:
    """The most tokens of a micro-batch; called by all ranks. started_on: of the run that is resumed, which keeps what
    was found for it, as far as a CPU has the threads for that."""
    asked, longest = recipe.micro_batch_tokens, recipe.longest
    if asked != "auto":
        return micro_batch_tokens(asked, model.config, longest, device)
    if "micro_batch_tokens" in started_on:
        found = int(started_on["micro_batch_tokens"].split(", ")[-1])
        return micro_batch_tokens(found, model.config, longest, device)
    refuse_auto_of_shards(recipe, ranks.world_size())
    where = device.torch_device
    objective = DistilledPretraining(model, where, teaching=teaching) if teaching else Pretraining(model, where)
    of_steps = max(phase.global_batch * phase.sequence_length for phase in recipe.phases.values())
    most = of_steps // ranks.world_size()
    if device.is_cpu:
        most = min(most, micro_batch_tokens(CPU_TOKENS, model.config, longest, device))
    return fitting_tokens(objective, longest, masking_of(recipe, 1).densest().rate, most)


def teaching_for(work: Work, model: PretrainingModel, device: Device) -> Teaching:
    """The teacher of a run that has one."""
    assert work.teacher is not None
    settings = TeachingSettings(**asdict(work.recipe.distillation))
    return teaching_of(work.teacher, model, settings, device, work.recipe.seed)


def _identity(
    recipe: Recipe, corpus: Corpus, init_from: Path | None, teacher: Path | None, has_own_shape: bool
) -> dict[str, Any]:
    """All that decides what a run comes to. has_own_shape: whether the recipe's shape does: not of a run that starts
    from a model."""
    models = {} if init_from is None else model_identity(init_from, "init_from")
    free = {*FREE_FIELDS}
    if not has_own_shape:
        free |= {f"model.{name}" for name in asdict(recipe.model)}
    if teacher is None:
        free |= {f"distillation.{name}" for name in asdict(recipe.distillation)}
    else:
        models |= model_identity(teacher, "teacher")
    settings = settings_identity(asdict(recipe), "recipe", free)
    named = {name: value for name, value in settings.items() if (name, value) not in _LATER_FIELDS.items()}
    return {**named, "corpus": checksum_of(corpus), **models}


def model_of(work: Work, device: Device) -> PretrainingModel:
    """The model before the first step, on the device. Raises BertsmithError where it is too short for the sequences."""
    recipe, corpus, start = work.recipe, work.corpus, work.start
    if start is not None:
        model = load_pretraining_model(start, pairs=recipe.objective != "mlm")
        fit_vocabulary(model, corpus, start)
        if work.teacher is not None and recipe.distillation.teacher_layers:
            take_layers(model, recipe.distillation.teacher_layers, start)
        _tell_unused(recipe.model, start)
    else:
        model = PretrainingModel(config_for(recipe, corpus), pairs=recipe.objective != "mlm")
        shape = recipe.model
        initialise(model, model.config.initializer_range, recipe.seed, shape.embedding_deviation)
        if shape.fresh_positions == "neighbours":
            look_at_neighbours(model.encoder, shape.embedding_deviation, recipe.seed)
    check_positions(recipe.longest, model.config.max_position_embeddings)
    model.encoder.compute = device.compute
    model.encoder.gradient_checkpointing = recipe.gradient_checkpointing
    return model.to(device.torch_device)


def _tell_unused(shape: ModelShape, folder: Path) -> None:
    """Says which of the recipe's fields about fresh weights have no effect on a run that starts from a model."""
    usual = ModelShape()
    names = [
        name for name in ("embedding_deviation", "fresh_positions") if getattr(shape, name) != getattr(usual, name)
    ]
    if names:
        details = ", ".join(f"model.{name} {getattr(shape, name)}" for name in names)
        say(f"the weights are those of {folder}, so this has no effect: {details}")


def config_for(recipe: Recipe, corpus: Corpus) -> BertConfig:
    """The model's shape."""
    return config_of(recipe.model, corpus.special.vocabulary_size, corpus.special.pad)


def optimizer_of(recipe: Recipe, model: PretrainingModel, device: Device) -> ClippedOptimizer:
    """The recipe's optimizer of a model's parameters."""
    settings = recipe.optimizer
    kind = AdamW if settings.name == "adamw" else partial(Lamb, trust_ratio=settings.trust_ratio)
    return kind(
        parameter_groups(model, settings.weight_decay),
        betas=(settings.beta1, settings.beta2),
        epsilon=settings.epsilon,
        max_gradient_norm=settings.max_gradient_norm,
        bias_correction=settings.bias_correction,
        loss_scale=LossScale(device.torch_device) if device.scales_losses else None,
    )
