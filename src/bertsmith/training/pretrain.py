"""Pre-training from a recipe and a corpus to a run folder with a finished model: where the parts are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith.base import files, ranks
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice, say
from bertsmith.base.ranks.together import together
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.maps import without_maps
from bertsmith.model.initial import initialise
from bertsmith.model.neighbours import look_at_neighbours
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.recipes.loader import BUDGET, as_yaml, load_recipe
from bertsmith.recipes.schema import Distillation, ModelShape, Pairs, Recipe
from bertsmith.training.agreement import agree, checksum, code_facts
from bertsmith.training.events import Events
from bertsmith.training.loop import Cadence
from bertsmith.training.parallel import is_sharded, replicate, shard, whole
from bertsmith.training.pretraining.compiled import CompiledStep, choose_compiled
from bertsmith.training.pretraining.continued import (
    Figures,
    SideBySide,
    check_old,
    facts_of,
    own_figures,
    tell_forgetting,
)
from bertsmith.training.pretraining.distil import DistilledPretraining, Teaching
from bertsmith.training.pretraining.fitting import fitting_tokens
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.phases import run_phases
from bertsmith.training.pretraining.start import fit_vocabulary, tell_shape
from bertsmith.training.pretraining.teacher import (
    TeachingSettings,
    check_teacher,
    take_layers,
    teaching_of,
)
from bertsmith.training.run import (
    TrainerSettings,
    cut_of_run,
    micro_batch_tokens,
    newest_checkpoint,
    resume_position,
    start_device,
    trainer_of,
)
from bertsmith.training.run_folder import Run as Run
from bertsmith.training.run_folder import RunFacts, model_identity, opened, settings_identity
from bertsmith.training.shape import config_of
from bertsmith.weights.huggingface import load_pretraining_model, model_folder, save_encoder, save_pretraining_model

# Fields that change what is written, how fast, or how a step is cut up and shared, and at most the last bits of a
# result; a resumed run may change them.
_FREE_FIELDS = (
    "parallel",
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
# More tokens of a micro-batch gain nothing on a CPU.
_CPU_TOKENS = 8192
# Of the free ones, those that ranks need not have alike.
_OF_A_RANK = ("device", "loader_workers")


def pretrain(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    teacher: str | Path | None = None,
    also_evaluate: Corpus | str | Path | None = None,
) -> Run:
    """Pre-trains a BERT and writes a run folder.

    recipe: a Recipe, a preset's name or a YAML file. corpus: prepared by `bertsmith.prepare`. init_from: a model folder
    to start from, or a run that has one. resume: continue from the newest checkpoint in `out` (from the start where
    there is none). teacher: a BERT folder or run with the corpus's vocabulary, from which the model learns too, by the
    recipe's `distillation`. also_evaluate: a corpus whose held-out documents are evaluated beside those of `corpus`, to
    see what is forgotten; it changes nothing else. In each of several processes that torch.distributed has joined, it
    takes that rank's part of the run.
    Raises BertsmithError for input that does not fit together, StoppedAfterSaving after SIGTERM, SIGUSR1 or SIGINT.
    """
    ranks.check_joined()
    run = Run(Path(out))
    with Events() as events:
        work = together(lambda: _opened(recipe, corpus, init_from, teacher, also_evaluate))
        settings = settings_identity(asdict(work.recipe), "recipe", _OF_A_RANK)
        old = None if work.old is None else _checksum_of(work.old)
        agree(lambda: {**settings, **work.identity, "resume": resume, "also_evaluate": old, **code_facts()})
        with opened(run.folder, work.identity, resume) as started_on:
            if resume and ranks.by_first(run.is_finished):
                say(f"this run is finished already: {run.model}")
                return run
            _train(work, run, RunFacts(work.identity, as_yaml(asdict(work.recipe)), started_on, events), resume)
    return run


@dataclass(frozen=True)
class _Work:
    """What a run is given, opened. own: of `own_figures`, of `init_from`. old: a corpus that is measured as well.
    identity: all that decides what the run comes to."""

    recipe: Recipe
    corpus: Corpus
    init_from: Path | None
    teacher: Path | None
    own: Mapping[int, Figures]
    old: Corpus | None
    identity: dict[str, Any]


def _opened(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    init_from: str | Path | None,
    teacher: str | Path | None = None,
    also_evaluate: Corpus | str | Path | None = None,
) -> _Work:
    if recipe == BUDGET:
        what = "this preset leaves model, batch and rate to the hours and the device"
        raise BertsmithError(what, BUDGET, "give what bertsmith.training.budget.budget_recipe makes of it")
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    corpus = _corpus(corpus)
    init_from = None if init_from is None else model_folder(Path(init_from))
    if teacher is None and recipe.distillation != Distillation():
        say("there is no teacher, so the recipe's fields of distillation have no effect")
    if recipe.objective == "mlm" and recipe.pairs.random_next != Pairs().random_next:
        say("the objective is mlm, so pairs.random_next has no effect: there are no second segments")
    if teacher is not None:
        teacher = model_folder(Path(teacher))
        _check_taught(recipe, init_from)
        check_teacher(teacher, corpus, _longest(recipe))
    old = None if also_evaluate is None else _corpus(also_evaluate)
    if old is not None:
        check_old(corpus, old, predicts=teacher is None or recipe.distillation.labels > 0)
    own = {} if init_from is None else own_figures(init_from)
    return _Work(recipe, corpus, init_from, teacher, own, old, _identity(recipe, corpus, init_from, teacher))


def _corpus(corpus: Corpus | str | Path) -> Corpus:
    found = corpus if isinstance(corpus, Corpus) else Corpus.open(Path(corpus))
    found.check_sizes()
    return found


def _checksum_of(corpus: Corpus) -> str:
    return files.sha256(corpus.folder / "corpus.json")


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


def _train(work: _Work, run: Run, known: RunFacts, resume: bool) -> None:
    """The run from its checkpoint, or its start, to the finished model."""
    recipe, corpus, started_on = work.recipe, work.corpus, known.started_on
    kernels = recipe.compile != "false"
    device, facts = start_device(recipe.device, recipe.precision, kernels, started_on, run.folder)
    checkpoint = newest_checkpoint(run.folder, resume)
    model, tokenizer, unigrams = together(lambda: (_model(work, device), corpus.tokenizer(), corpus.unigrams()))
    teaching = None if work.teacher is None else together(lambda: _teaching(work, model, device))
    if checkpoint is None:
        agree(lambda: {"weights": checksum(model.state_dict())})
    most = _budget(recipe, started_on if checkpoint else {}, model, teaching, device)
    _share(recipe, model)
    optimizer = optimizer_of(recipe, model, device)
    position = resume_position(checkpoint, model, optimizer)
    drops = model.config.hidden_dropout_prob > 0 or model.config.attention_probs_dropout_prob > 0
    parallel = "shard" if is_sharded(model) else "replicate"
    cut = {"micro_batch_tokens": most, "parallel": parallel}
    facts |= cut_of_run(started_on, position, cut, drops)
    if teaching is not None:
        log_choice("steps", "as they come", "a step with a teacher is two models")
    is_compiled = teaching is None and ranks.by_first(
        lambda: choose_compiled(recipe.compile, device.torch_device, is_sharded(model))
    )
    compiled = CompiledStep(model, optimizer, device.torch_device) if is_compiled else None
    cadence = Cadence(recipe.log_every, recipe.evaluate_every, recipe.save_every, recipe.keep, recipe.keep_every)
    steps = recipe.phase1.steps + recipe.phase2.steps
    tables = (tokenizer.is_alphabetic, unigrams, tokenizer.piece_bytes)
    parts = (model, device.torch_device, *tables, compiled)
    objective = Pretraining(*parts) if teaching is None else DistilledPretraining(*parts, teaching=teaching)
    measured = together(lambda: objective if work.old is None else SideBySide.of(objective, work.old))
    with trainer_of(
        run.folder,
        replace(known, started_on=facts),
        measured,
        optimizer,
        TrainerSettings(device, cadence, position, resume, steps, compiled=compiled),
    ) as trainer:
        sized = replace(recipe, micro_batch_tokens=most)
        own = None if _starts_from(work) is None else work.own
        run_phases(sized, corpus, trainer, objective, own=own, old=work.old)
    finished = _gathered(without_maps(model))

    def finish() -> None:
        facts, made_with = facts_of(run.metrics(), trainer.position), corpus.folder / "tokenizer"
        if objective.predicts:
            save_pretraining_model(finished, made_with, run.model, facts)
        else:
            save_encoder(finished.encoder, made_with, run.model, facts)
        if work.old is not None:
            tell_forgetting(run.metrics())

    ranks.by_first(finish)
    say(f"finished model: {run.model}")


def _budget(
    recipe: Recipe, started_on: Mapping[str, str], model: PretrainingModel, teaching: Teaching | None, device: Device
) -> int:
    """The most tokens of a micro-batch. started_on: of the run that is resumed, which keeps what was found for it."""
    asked, longest = recipe.micro_batch_tokens, _longest(recipe)
    if asked != "auto":
        return micro_batch_tokens(asked, model.config, longest, device)
    if "micro_batch_tokens" in started_on:
        return int(started_on["micro_batch_tokens"].split(", ")[-1])
    where = device.torch_device
    objective = DistilledPretraining(model, where, teaching=teaching) if teaching else Pretraining(model, where)
    of_steps = [each.steps and each.global_batch * each.sequence_length for each in (recipe.phase1, recipe.phase2)]
    most = max(of_steps) // ranks.world_size()
    if device.is_cpu:
        most = min(most, micro_batch_tokens(_CPU_TOKENS, model.config, longest, device))
    return fitting_tokens(objective, longest, max(recipe.masking.rate, recipe.masking.final_rate), most)


def _starts_from(work: _Work) -> Path | None:
    """The folder of the weights that a run starts from; None where they are random."""
    return work.teacher if work.teacher is not None and work.recipe.distillation.teacher_layers else work.init_from


def _teaching(work: _Work, model: PretrainingModel, device: Device) -> Teaching:
    assert work.teacher is not None
    settings = TeachingSettings(**asdict(work.recipe.distillation))
    return teaching_of(work.teacher, model, settings, device, work.recipe.seed)


def _identity(recipe: Recipe, corpus: Corpus, init_from: Path | None, teacher: Path | None) -> dict[str, Any]:
    """All that decides what a run comes to."""
    start = {} if init_from is None else model_identity(Path(init_from), "init_from")
    free = {*_FREE_FIELDS}
    if teacher is None:
        free |= {f"distillation.{name}" for name in asdict(recipe.distillation)}
    else:
        start |= model_identity(teacher, "teacher")
    settings = settings_identity(asdict(recipe), "recipe", free)
    named = {name: value for name, value in settings.items() if (name, value) not in _LATER_FIELDS.items()}
    return {**named, "corpus": _checksum_of(corpus), **start}


def _longest(recipe: Recipe) -> int:
    """The most tokens of a sequence."""
    return max(phase.sequence_length for phase in (recipe.phase1, recipe.phase2) if phase.steps)


def _model(work: _Work, device: Device) -> PretrainingModel:
    recipe, corpus, init_from = work.recipe, work.corpus, _starts_from(work)
    compute = None if device.compute == torch.float32 else device.compute
    if init_from is not None:
        model = load_pretraining_model(init_from, pairs=recipe.objective != "mlm")
        fit_vocabulary(model, corpus, init_from)
        if work.teacher is not None and recipe.distillation.teacher_layers:
            take_layers(model, recipe.distillation.teacher_layers, init_from)
        tell_shape(_config(recipe, corpus), model.config, init_from)
        _tell_unused(recipe.model, init_from)
    else:
        model = PretrainingModel(_config(recipe, corpus), pairs=recipe.objective != "mlm")
        shape = recipe.model
        initialise(model, model.config.initializer_range, recipe.seed, shape.embedding_deviation)
        if shape.fresh_positions == "neighbours":
            look_at_neighbours(model.encoder, shape.embedding_deviation, recipe.seed)
    longest = _longest(recipe)
    if longest > model.config.max_position_embeddings:
        raise BertsmithError(
            f"sequences of {longest} tokens do not fit a model of {model.config.max_position_embeddings} positions",
            "recipe: sequence_length",
            "lower sequence_length or raise model.max_positions",
        )
    model.encoder.compute = compute
    model.encoder.gradient_checkpointing = recipe.gradient_checkpointing
    return model.to(device.torch_device)


def _share(recipe: Recipe, model: PretrainingModel) -> None:
    """Tells the ranks, where there are several, how to share the model."""
    sums = torch.bfloat16 if recipe.gradient_sums == "bf16" else None
    if ranks.world_size() == 1:
        if recipe.parallel == "shard":
            log_choice("weights", "whole", "one rank has nobody to share them with")
    elif recipe.parallel == "shard":
        shard(model, model.encoder.layers, model.encoder.compute, sums)
    else:
        replicate(model, sums)


def _gathered(model: PretrainingModel) -> PretrainingModel:
    """The finished model with whole weights, on every rank."""
    if not is_sharded(model):
        return model
    finished = PretrainingModel(model.config, pairs=model.pairs)
    with torch.no_grad():
        for ours, theirs in zip(finished.parameters(), model.parameters(), strict=True):
            ours.copy_(whole(theirs))
    return finished


def _tell_unused(shape: ModelShape, folder: Path) -> None:
    """Says which of the recipe's fields about fresh weights have no effect on a run that starts from a model."""
    usual = ModelShape()
    names = [
        name for name in ("embedding_deviation", "fresh_positions") if getattr(shape, name) != getattr(usual, name)
    ]
    if names:
        details = ", ".join(f"model.{name} {getattr(shape, name)}" for name in names)
        say(f"the weights are those of {folder}, so this has no effect: {details}")


def _config(recipe: Recipe, corpus: Corpus) -> BertConfig:
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
