"""Pre-training from a recipe and a corpus to a run folder with a finished model: where the parts are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith.base import files, ranks
from bertsmith.base.device import Device, device_of_run
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.initial import initialise
from bertsmith.model.neighbours import look_at_neighbours
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.recipes.loader import load_recipe, save_recipe
from bertsmith.recipes.schema import ModelShape, Recipe
from bertsmith.training.checkpoints import Position, check_same_run, claim, load_checkpoint
from bertsmith.training.compiled import CompiledStep, choose_compiled
from bertsmith.training.loop import Cadence, Trainer
from bertsmith.training.meters import MetricsFile, forget_after, read_metrics
from bertsmith.training.phases import run_phases
from bertsmith.training.start import fit_vocabulary, start_identity, tell_shape
from bertsmith.training.stopping import stop_on_signals
from bertsmith.weights.huggingface import load_pretraining_model, save_pretraining_model

# Fields that change what is written or how fast, never the result; a resumed run may change them.
_FREE_FIELDS = (
    "device",
    "gradient_checkpointing",
    "loader_workers",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep",
)
_BETWEEN = "between_products"


@dataclass(frozen=True)
class Run:
    """A finished run. folder: with metrics.jsonl and the step folders; its model lies in `model`."""

    folder: Path

    @property
    def model(self) -> Path:
        """The finished model, a folder that transformers reads."""
        return self.folder / "model"

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, all or those of a kind: "start", "train", "evaluation", "final", "end"."""
        return [each for each in read_metrics(self.folder / "metrics.jsonl") if kind in (None, each["kind"])]

    def is_finished(self) -> bool:
        """Whether the model was written and the metrics say that the run ended."""
        return bool(self.metrics("end")) and (self.model / "config.json").exists()


def pretrain(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
) -> Run:
    """Pre-trains a BERT and writes a run folder.

    recipe: a Recipe, a preset's name or a YAML file. corpus: prepared by `bertsmith.prepare`. init_from: a model folder
    to start from. resume: go on from the newest checkpoint in `out` (from the start where there is none). In each of
    several processes that torch.distributed has joined, it takes that rank's part of the run.
    Raises BertsmithError for input that does not fit together, StoppedAfterSaving after SIGTERM, SIGUSR1 or SIGINT.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    corpus = corpus if isinstance(corpus, Corpus) else Corpus.open(Path(corpus))
    ranks.check_joined()
    run = Run(Path(out))
    identity = _identity(recipe, corpus, init_from)
    begun_on = ranks.by_first(lambda: _check_folder(run.folder, identity, resume))
    if resume and ranks.by_first(run.is_finished):
        say(f"this run is finished already: {run.model}")
        return run
    device = device_of_run(recipe.device, recipe.precision, begun_on, run.folder)
    facts = device.facts() | _between_products(recipe, device, begun_on)
    model = _model(recipe, corpus, device, init_from)
    optimizer = _optimizer(recipe, model, device)
    position = load_checkpoint(run.folder, model, optimizer) if resume else None
    if position is not None:
        say(f"resuming after step {position.step:,} (phase {position.phase}, step {position.phase_step:,} of it)")
    ranks.by_first(lambda: _claim(run.folder, recipe, identity, facts, position))
    metrics = MetricsFile(run.folder, position.step + 1 if position else 0) if ranks.is_first() else None
    is_compiled = ranks.by_first(lambda: choose_compiled(recipe.compile, device.torch_device))
    try:
        with stop_on_signals() as stop:
            trainer = Trainer(
                model=model,
                optimizer=optimizer,
                device=device.torch_device,
                folder=run.folder,
                metrics=metrics,
                cadence=Cadence(recipe.log_every, recipe.evaluate_every, recipe.save_every, recipe.keep),
                alphabetic=corpus.tokenizer().is_alphabetic,
                unigrams=corpus.unigrams(),
                position=position or Position(),
                stop=stop,
                seed=recipe.seed,
                go_on=f"run the same command {'again' if resume else 'with --resume'} to go on",
                compiled=CompiledStep(model, optimizer, device.torch_device) if is_compiled else None,
            )
            run_phases(recipe, corpus, trainer, fresh=position is None, from_scratch=init_from is None)
    finally:
        if metrics is not None:
            metrics.close()
    if ranks.is_first():
        save_pretraining_model(model, corpus.folder / "tokenizer", run.model)
        say(f"finished model: {run.model}")
    return run


def _check_folder(folder: Path, identity: dict[str, Any], resume: bool) -> dict[str, str]:
    """Refuses a folder that belongs to another run; puts back what a killed one was about to replace.

    Gives what the run there was begun on.
    """
    if (folder / "run.json").exists() and not resume:
        raise BertsmithError("there is a run in this folder already", folder, "add --resume, or choose another --out")
    begun_on = check_same_run(folder, identity)
    files.put_back(folder)  # a step folder, before the newest is looked for
    return begun_on


def _between_products(recipe: Recipe, device: Device, begun_on: Mapping[str, str]) -> dict[str, str]:
    """Prepares a CPU for training. Gives what decides the last bits of the run, for `run.json`."""
    if not device.is_cpu:
        return {}
    started_with = begun_on.get(_BETWEEN, "") if begun_on else None
    found = prepare_training(device.compute, recipe.compile != "false", started_with)
    return {_BETWEEN: found} if found else {}


def _claim(
    folder: Path, recipe: Recipe, identity: dict[str, Any], facts: dict[str, str], position: Position | None
) -> None:
    """Makes the folder the run's, and clears it of what came after `position`. facts: what it was begun on."""
    claim(folder, identity, facts)
    save_recipe(recipe, folder / "recipe.yaml")
    forget_after(folder / "metrics.jsonl", position.step if position else -1)


def _identity(recipe: Recipe, corpus: Corpus, init_from: str | Path | None) -> dict[str, Any]:
    """All that decides what a run comes to."""
    settings = _flat(asdict(recipe))
    identity = {f"recipe.{name}": value for name, value in settings.items() if name not in _FREE_FIELDS}
    start = {} if init_from is None else start_identity(Path(init_from))
    return identity | {"corpus": files.sha256(corpus.folder / "corpus.json"), **start}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _model(recipe: Recipe, corpus: Corpus, device: Device, init_from: str | Path | None) -> PretrainingModel:
    compute = None if device.compute == torch.float32 else device.compute
    if init_from is not None:
        model = load_pretraining_model(Path(init_from))
        fit_vocabulary(model, corpus, Path(init_from))
        tell_shape(_config(recipe, corpus), model.config, Path(init_from))
        _tell_unused(recipe.model, Path(init_from))
    else:
        model = PretrainingModel(_config(recipe, corpus))
        shape = recipe.model
        initialise(model, model.config.initializer_range, recipe.seed, shape.embedding_deviation)
        if shape.fresh_positions == "neighbours":
            look_at_neighbours(model.encoder, shape.embedding_deviation, recipe.seed)
    longest = max(phase.sequence_length for phase in (recipe.phase1, recipe.phase2) if phase.steps)
    if longest > model.config.max_position_embeddings:
        raise BertsmithError(
            f"sequences of {longest} tokens do not fit a model of {model.config.max_position_embeddings} positions",
            "recipe: sequence_length",
            "lower sequence_length or raise model.max_positions",
        )
    model.encoder.compute = compute
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


def _config(recipe: Recipe, corpus: Corpus) -> BertConfig:
    shape = recipe.model
    return BertConfig(
        vocab_size=corpus.special.vocabulary_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        hidden_act=shape.activation,
        hidden_dropout_prob=shape.hidden_dropout,
        attention_probs_dropout_prob=shape.attention_dropout,
        max_position_embeddings=shape.max_positions,
        pad_token_id=corpus.special.pad,
    )


def _optimizer(recipe: Recipe, model: PretrainingModel, device: Device) -> ClippedOptimizer:
    settings = recipe.optimizer
    kind = AdamW if settings.name == "adamw" else partial(Lamb, trust_ratio=settings.trust_ratio)
    return kind(
        parameter_groups(model, settings.weight_decay),
        betas=(settings.beta1, settings.beta2),
        epsilon=settings.epsilon,
        max_gradient_norm=settings.max_gradient_norm,
        loss_scale=LossScale(device.torch_device) if device.scales_losses else None,
    )
