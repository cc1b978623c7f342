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
from bertsmith.base.log import log_choice, say, warn
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
from bertsmith.recipes.loader import as_yaml, load_recipe
from bertsmith.recipes.schema import Distillation, ModelShape, Recipe
from bertsmith.training.agreement import agree, checksum, code_facts
from bertsmith.training.checkpoints import Best, load_best
from bertsmith.training.loop import Cadence
from bertsmith.training.parallel import is_sharded, replicate, shard, whole
from bertsmith.training.pretraining.compiled import CompiledStep, choose_compiled
from bertsmith.training.pretraining.distil import DistilledPretraining, Teaching
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.phases import run_phases
from bertsmith.training.pretraining.start import fit_vocabulary, tell_shape
from bertsmith.training.pretraining.teacher import (
    TeachingSettings,
    check_teacher,
    take_layers,
    teaching_of,
)
from bertsmith.training.records.sinks import Outputs
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
    "recipe.optimizer.bias_correction": True,
    "recipe.masking.whole_words": False,
    "recipe.masking.final_rate": 0.0,
    **{f"recipe.{phase}.schedule": "polynomial" for phase in ("phase1", "phase2")},
    **{f"recipe.{phase}.decay_share": 0.1 for phase in ("phase1", "phase2")},
}
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
    outputs: Outputs | None = None,
) -> Run:
    """Pre-trains a BERT and writes a run folder.

    recipe: a Recipe, a preset's name or a YAML file. corpus: prepared by `bertsmith.prepare`. init_from: a model folder
    to start from, or a run that has one. resume: continue from the newest checkpoint in `out` (from the start where
    there is none). teacher: a BERT folder or run with the corpus's vocabulary, from which the model learns too, by the
    recipe's `distillation`. outputs: what is written beside the run folder's own records. In each of several
    processes that torch.distributed has joined, it takes that rank's part of the run.
    Raises BertsmithError for input that does not fit together, StoppedAfterSaving after SIGTERM, SIGUSR1 or SIGINT.
    """
    ranks.check_joined()
    run, outputs = Run(Path(out)), outputs or Outputs()
    ranks.by_first(lambda: outputs.check(resume))
    work = together(lambda: _opened(recipe, corpus, init_from, teacher))
    settings = settings_identity(asdict(work.recipe), "recipe", _OF_A_RANK)
    agree(lambda: {**settings, **work.identity, "resume": resume, **code_facts()})
    with opened(run.folder, work.identity, resume) as started_on:
        if resume and ranks.by_first(run.is_finished):
            say(f"this run is finished already: {run.model}")
            return run
        _train(work, run, started_on, resume, outputs)
    return run


@dataclass(frozen=True)
class _Work:
    """What a run is given, opened. identity: all that decides what the run comes to."""

    recipe: Recipe
    corpus: Corpus
    init_from: Path | None
    teacher: Path | None
    identity: dict[str, Any]


def _opened(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    init_from: str | Path | None,
    teacher: str | Path | None = None,
) -> _Work:
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    corpus = corpus if isinstance(corpus, Corpus) else Corpus.open(Path(corpus))
    corpus.check_sizes()
    init_from = None if init_from is None else model_folder(Path(init_from))
    if teacher is None and recipe.distillation != Distillation():
        say("there is no teacher, so the recipe's fields of distillation have no effect")
    if teacher is not None:
        teacher = model_folder(Path(teacher))
        _check_taught(recipe, init_from)
        check_teacher(teacher, corpus, _longest(recipe))
    return _Work(recipe, corpus, init_from, teacher, _identity(recipe, corpus, init_from, teacher))


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


def _train(work: _Work, run: Run, started_on: Mapping[str, str], resume: bool, outputs: Outputs) -> None:
    """The run from its checkpoint, or its start, to the finished model."""
    recipe, corpus = work.recipe, work.corpus
    kernels = recipe.compile != "false"
    device, facts = start_device(recipe.device, recipe.precision, kernels, started_on, run.folder)
    checkpoint = newest_checkpoint(run.folder, resume)
    model, tokenizer, unigrams = together(lambda: (_model(work, device), corpus.tokenizer(), corpus.unigrams()))
    teaching = None if work.teacher is None else together(lambda: _teaching(work, model, device))
    if checkpoint is None:
        agree(lambda: {"weights": checksum(model.state_dict())})
    _share(recipe, model)
    optimizer = _optimizer(recipe, model, device)
    position = resume_position(checkpoint, model, optimizer)
    drops = model.config.hidden_dropout_prob > 0 or model.config.attention_probs_dropout_prob > 0
    parallel = "shard" if is_sharded(model) else "replicate"
    most = micro_batch_tokens(recipe.micro_batch_tokens, model.config, _longest(recipe), device)
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
    with trainer_of(
        run.folder,
        RunFacts(work.identity, as_yaml(asdict(recipe)), facts),
        objective,
        optimizer,
        TrainerSettings(device, cadence, position, resume, steps, _keeps_best(work), compiled, outputs),
    ) as trainer:
        sized = replace(recipe, micro_batch_tokens=most)
        run_phases(sized, corpus, trainer, objective, from_scratch=_starts_from(work) is None)
        best = trainer.position.best
    finished = _gathered(without_maps(model))
    made_with = corpus.folder / "tokenizer"
    if best is not None:  # before the model, which makes the run a finished one
        ranks.by_first(lambda: _save_best(run, best, finished.config, made_with))
    if objective.predicts:
        ranks.by_first(lambda: save_pretraining_model(finished, made_with, run.model))
    else:
        ranks.by_first(lambda: save_encoder(finished.encoder, made_with, run.model))
    say(f"finished model: {run.model}")


def _keeps_best(work: _Work) -> bool:
    """Whether the last phase is measured before its end."""
    last = work.recipe.phase2 if work.recipe.phase2.steps else work.recipe.phase1
    often = 0 < work.recipe.evaluate_every < last.steps
    return often and work.teacher is None and work.corpus.tokens("held_out") > 0


def _save_best(run: Run, best: Best, config: BertConfig, made_with: Path) -> None:
    """Writes the model that was the best on held-out text, where that is not the finished one."""
    model = PretrainingModel(config)
    try:
        load_best(run.folder, best, model)
    except BertsmithError as error:
        warn(f"the best model was not written: {error.what} ({error.where})")
        return
    save_pretraining_model(model, made_with, run.best)
    say(f"best model on held-out text: {run.best} (after step {best.step:,}, masked-word loss {-best.score:.3f})")


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
    corpus_checksum = files.sha256(corpus.folder / "corpus.json")
    free = {*_FREE_FIELDS}
    if teacher is None:
        free |= {f"distillation.{name}" for name in asdict(recipe.distillation)}
    else:
        start |= model_identity(teacher, "teacher")
    settings = settings_identity(asdict(recipe), "recipe", free)
    named = {name: value for name, value in settings.items() if (name, value) not in _LATER_FIELDS.items()}
    return {**named, "corpus": corpus_checksum, **start}


def _longest(recipe: Recipe) -> int:
    """The most tokens of a sequence."""
    return max(phase.sequence_length for phase in (recipe.phase1, recipe.phase2) if phase.steps)


def _model(work: _Work, device: Device) -> PretrainingModel:
    recipe, corpus, init_from = work.recipe, work.corpus, _starts_from(work)
    compute = None if device.compute == torch.float32 else device.compute
    if init_from is not None:
        model = load_pretraining_model(init_from)
        fit_vocabulary(model, corpus, init_from)
        if work.teacher is not None and recipe.distillation.teacher_layers:
            take_layers(model, recipe.distillation.teacher_layers, init_from)
        tell_shape(_config(recipe, corpus), model.config, init_from)
        _tell_unused(recipe.model, init_from)
    else:
        model = PretrainingModel(_config(recipe, corpus))
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
    finished = PretrainingModel(model.config)
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


def config_of(shape: ModelShape, vocabulary_size: int, pad: int) -> BertConfig:
    """The shape of a recipe as a config. vocabulary_size: in pieces. pad: the id of [PAD]."""
    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        hidden_act=shape.activation,
        hidden_dropout_prob=shape.hidden_dropout,
        attention_probs_dropout_prob=shape.attention_dropout,
        max_position_embeddings=shape.max_positions,
        pad_token_id=pad,
    )


def _optimizer(recipe: Recipe, model: PretrainingModel, device: Device) -> ClippedOptimizer:
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
