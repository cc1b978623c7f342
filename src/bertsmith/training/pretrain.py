"""Pre-training from a recipe and a corpus to a run folder with a finished model: where the parts are put together."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError, check_class
from bertsmith.base.files import StrPath, as_path
from bertsmith.base.log import log_choice, say, warn
from bertsmith.base.ranks.together import together
from bertsmith.corpus.shards import Corpus
from bertsmith.model.distillation.maps import without_maps
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.recipes.loader import as_yaml
from bertsmith.recipes.schema import Recipe
from bertsmith.training.agreement import agree, checksum, code_facts
from bertsmith.training.checkpoints import Best, load_best
from bertsmith.training.loop import Cadence
from bertsmith.training.parallel import is_sharded, replicate, shard, whole
from bertsmith.training.pretraining.compiled import CompiledStep, Graphs, choose_compiled
from bertsmith.training.pretraining.continued import SideBySide, facts_of, tell_forgetting
from bertsmith.training.pretraining.distil import DistilledPretraining
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.phases import check_steps, run_phases
from bertsmith.training.records.events import Events
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import (
    TrainerSettings,
    cut_of_run,
    newest_checkpoint,
    only_training,
    resume_position,
    start_device,
    trainer_of,
)
from bertsmith.training.run_folder import Run as Run
from bertsmith.training.run_folder import RunFacts, opened, settings_identity
from bertsmith.training.work import (
    Work,
    checksum_of,
    model_of,
    old_text_of_run,
    optimizer_of,
    teaching_for,
    tokens_of_run,
    work_of,
)
from bertsmith.weights.huggingface import save_encoder, save_pretraining_model

# Of the free ones, those that ranks need not have alike.
_OF_A_RANK = ("device", "loader_workers")


def pretrain(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    out: StrPath,
    *,
    resume: bool = False,
    init_from: StrPath | None = None,
    teacher: StrPath | None = None,
    outputs: Outputs | None = None,
) -> Run:
    """Pre-trains a BERT and writes a run folder.

    recipe: a Recipe, a preset's name or a YAML file. corpus: prepared by `bertsmith.prepare`. init_from: a model folder
    to start from, or a run that has one. resume: continue from the newest checkpoint in `out` (from the start where
    there is none). teacher: a BERT folder or run with the corpus's vocabulary, from which the model learns too, by the
    recipe's `distillation`. outputs: what the run measures and writes beside its own records. In each of several
    processes that torch.distributed has joined, it takes that rank's part of the run. What it sets in PyTorch for the
    whole process, such as random states, is as before when it returns.
    Returns the run, whose `model` is the folder of the finished model and whose `metrics()` are its records.
    Raises BertsmithError for input that does not fit together, and where another run trains in this process;
    StoppedAfterSaving after SIGTERM, SIGUSR1 or SIGINT.
    """
    check_class(outputs, Outputs, "outputs")
    check_class(resume, bool, "resume")
    ranks.check_joined()
    run, outputs = Run(as_path(out, "out")), outputs or Outputs()
    with only_training(), Events() as events:
        ranks.by_first(lambda: outputs.check(run.folder, resume))
        work = together(lambda: work_of(recipe, corpus, init_from, teacher, outputs))
        settings = settings_identity(asdict(work.recipe), "recipe", _OF_A_RANK)
        old = None if work.old is None else checksum_of(work.old)
        agree(lambda: {**settings, **work.identity, "resume": resume, "also_evaluate": old, **code_facts()})
        facts = RunFacts(work.identity, as_yaml(asdict(work.recipe)), {}, events)
        with opened(run.folder, facts, resume) as facts:
            if resume and ranks.by_first(run.is_finished_and_whole):
                say(f"this run is finished already: {run.model}")
                return run
            _train(work, run, facts, resume)
    return run


def _train(work: Work, run: Run, known: RunFacts, resume: bool) -> None:
    """The run from its checkpoint, or its start, to the finished model."""
    recipe, corpus, started_on = work.recipe, work.corpus, known.started_on
    kernels = recipe.compile != "false"
    device, facts = start_device(recipe.device, recipe.precision, kernels, started_on, run.folder)
    checkpoint = newest_checkpoint(run.folder, resume, needs_best=False)
    model, tokenizer, unigrams = together(lambda: (model_of(work, device), corpus.tokenizer(), corpus.unigrams()))
    teaching = None if work.teacher is None else together(lambda: teaching_for(work, model, device))
    if checkpoint is None:
        agree(lambda: {"weights": checksum(model.state_dict())})
    most = tokens_of_run(recipe, started_on if checkpoint else {}, model, teaching, device)
    _share(recipe, model)
    optimizer = optimizer_of(recipe, model, device)
    position = resume_position(checkpoint, model, optimizer)
    drops = model.config.hidden_dropout_prob > 0 or model.config.attention_probs_dropout_prob > 0
    if teaching is not None:
        log_choice("steps", "as they come", "a step with a teacher is two models")
    is_compiled = teaching is None and ranks.by_first(
        lambda: choose_compiled(recipe.compile, device.torch_device, is_sharded(model))
    )
    graphs: Graphs = "false" if recipe.compile == "no-graphs" else "auto"
    compiles = "false" if not is_compiled else "no-graphs" if graphs == "false" else "true"
    old_text = old_text_of_run(work.old, started_on if checkpoint else {}, run.folder)
    cut = {"micro_batch_tokens": most, "parallel": "shard" if is_sharded(model) else "replicate", "compiled": compiles}
    facts |= cut_of_run(started_on, position, cut, drops) | old_text
    compiled = CompiledStep(model, device.torch_device, graphs=graphs) if is_compiled else None
    sized = replace(recipe, micro_batch_tokens=most)
    check_steps(sized, position, is_compiled)
    cadence = Cadence(recipe.log_every, recipe.evaluate_every, recipe.save_every, recipe.keep, recipe.keep_every)
    steps = 0 if recipe.hours else recipe.phase1.steps + recipe.phase2.steps
    tables = (tokenizer.is_alphabetic, unigrams, tokenizer.piece_bytes)
    parts = (model, device.torch_device, *tables, compiled)
    objective = Pretraining(*parts) if teaching is None else DistilledPretraining(*parts, teaching=teaching)
    measured = together(lambda: objective if work.old is None else SideBySide.of(objective, work.old))
    with trainer_of(
        run.folder,
        replace(known, started_on=facts),
        measured,
        optimizer,
        TrainerSettings(device, cadence, position, resume, steps, _keeps_best(work), compiled, work.outputs),
    ) as trainer:
        own = None if work.start is None else work.own
        run_phases(sized, corpus, trainer, objective, own=own, old=work.old)
        best = trainer.position.best
    finished = _gathered(without_maps(model))

    def finish() -> None:
        known.hold()
        facts, made_with = facts_of(run.metrics(), trainer.position), corpus.folder / "tokenizer"
        if best is not None:  # before the model, which makes the run a finished one
            _save_best(run, best, finished, made_with)
        if objective.predicts:
            save_pretraining_model(finished, made_with, run.model, facts)
        else:
            save_encoder(finished.encoder, made_with, run.model, facts)
        if work.old is not None:
            tell_forgetting(run.metrics())

    ranks.by_first(finish)
    say(f"finished model: {run.model}")


def _keeps_best(work: Work) -> bool:
    """Whether the last phase is measured before its end."""
    *_, last = work.recipe.phases.values()
    often = work.recipe.hours or work.recipe.evaluate_every < last.steps
    return bool(often) and work.teacher is None and work.corpus.tokens("held_out") > 0


def _save_best(run: Run, best: Best, finished: PretrainingModel, made_with: Path) -> None:
    """Writes the model that was the best on held-out text, where that is not the finished one."""
    model = PretrainingModel(finished.config, pairs=finished.pairs)
    try:
        load_best(run.folder, best, model)
    except BertsmithError as error:
        warn(f"the best model was not written: {error.what} ({error.where})")
        return
    save_pretraining_model(model, made_with, run.best)
    say(f"best model on held-out text: {run.best} (after step {best.step:,}, masked-word loss {-best.score:.3f})")


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
