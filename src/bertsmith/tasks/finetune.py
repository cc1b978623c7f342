"""Fine-tuning from a model folder and labelled rows to a run folder: where the parts are put together."""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertsmith.base import files, ranks
from bertsmith.base.device import Device
from bertsmith.base.log import say
from bertsmith.base.ranks.together import together
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.base.streams import stream_key
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.loss_scale import LossScale
from bertsmith.optim.schedules import linear
from bertsmith.recipes.loader import as_yaml
from bertsmith.tasks.examples import check_sources, checksums, encode_sources
from bertsmith.tasks.objective import Order, RowSteps, TaskObjective
from bertsmith.tasks.reading.records import Source
from bertsmith.tasks.registry import task_named
from bertsmith.tasks.results import FinetuneResult, results_of
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, Runner, Task
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.agreement import agree, checksum, code_facts
from bertsmith.training.checkpoints import Best, drop_checkpoints, load_best
from bertsmith.training.loop import Cadence, Stage, Trainer, run_stages
from bertsmith.training.run import (
    TrainerSettings,
    cut_of_run,
    newest_checkpoint,
    resume_position,
    start_device,
    trainer_of,
)
from bertsmith.training.run_folder import Run, RunFacts, check_free, model_identity, opened, settings_identity
from bertsmith.weights.huggingface import (
    FINETUNE_FILE,
    TASK_FILE,
    FolderContents,
    load_model,
    model_folder,
    read_config,
    save_model,
)
from bertsmith.weights.names import POOLER

# Settings that change what is written, how fast, or how a step is cut up, never what it holds; a resumed run may change
# them.
_FREE_SETTINGS = ("device", "micro_batch_tokens", "log_every", "save_every", "keep", "keep_every")
REPORT = "report"  # in the run folder
# Of these, the ones that ranks need not have alike.
_OF_A_RANK = ("device",)


@dataclass(frozen=True)
class _Work:
    """Everything that the stages of a run share. parts: the rows, as "train", "dev" and perhaps "test"."""

    folder: Path
    task: Task
    tokenizer: Tokenizer
    settings: FinetuneSettings
    max_length: int
    parts: dict[str, Examples]

    @property
    def metric(self) -> str:
        """What selects the best weights."""
        return self.task.metric_of(self.settings)

    def order(self, seed: int) -> Order:
        """The order of the training rows from a seed."""
        settings, train = self.settings, self.parts["train"]
        rows = (settings.epochs, settings.batch, settings.micro_batch_tokens)
        return Order(train, self.task, seed, *rows, ranks.rank(), ranks.world_size())


def finetune(
    task: str,
    model: str | Path,
    train: Source,
    dev: Source,
    out: str | Path | None,
    *,
    test: Source | None = None,
    settings: FinetuneSettings | None = None,
    resume: bool = False,
) -> FinetuneResult:
    """Trains a task model on labelled rows, from one or several seeds, and writes a run folder with the best one.

    task: the name of a kind, such as "classify". model: a Hugging Face BERT folder with its tokenizer, or a run that
    has one. train, dev, test: a file of rows, or a list of {"text": ..., "label": ...}; dev
    selects the epoch and the seed, test is only measured.
    out: the run folder, whose `model` is complete in itself (weights, tokenizer, labels, task.json, finetune.json);
    None leaves nothing behind. resume: continue the run in `out`, to the bit. The same seed gives the same score. In
    each of several processes that torch.distributed has joined, it takes that rank's part of the run, and all get the
    result.
    Raises BertsmithError for rows, columns, labels, settings or a folder that cannot be used, before any training,
    and for a gradient that is not finite; StoppedAfterSaving after SIGTERM, SIGUSR1 or SIGINT.
    """
    kind, settings = task_named(task), settings or FinetuneSettings()
    ranks.check_joined()
    sources = {"train": train, "dev": dev} | ({} if test is None else {"test": test})
    check_sources(sources)
    with nullcontext(out) if out is not None else tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Run(Path(folder))
        ranks.by_first(lambda: check_free(run.folder, resume))
        work, identity = together(lambda: _prepare(kind, model_folder(Path(model)), sources, settings))
        given = settings_identity(asdict(settings), "settings", _OF_A_RANK)
        agree(lambda: {**given, **identity, "resume": resume, **code_facts()})
        recipe = {"task": task, "model": str(model), **{name: _named(each) for name, each in sources.items()}}
        with opened(run.folder, identity, resume) as started_on:
            if resume and ranks.by_first(run.is_finished):
                result = ranks.by_first(lambda: _finished(run))
                say(f"this run is finished already: {run.model}; {result.line()}")
                # Where a kill came before that.
                ranks.by_first(lambda: drop_checkpoints(run.folder, settings.keep_every))
                return result
            facts = RunFacts(identity, as_yaml(recipe | asdict(settings)), started_on)
            try:
                result = _train(work, run, facts, resume)
            except StoppedAfterSaving as stopped:
                if out is not None:
                    raise
                raise KeyboardInterrupt("fine-tuning was stopped; no folder was given, so nothing is kept") from stopped
    if out is None:
        return replace(result, folder=None)
    say(f"finished model: {run.model}")
    return result


def _finished(run: Run) -> FinetuneResult:
    return FinetuneResult.from_dict(files.read_json(run.model / FINETUNE_FILE), run.folder)


def _prepare(
    kind: type[Task], folder: Path, sources: dict[str, Source], settings: FinetuneSettings
) -> tuple[_Work, dict[str, Any]]:
    """All rows, read and encoded; and all that decides what a run comes to."""
    config = read_config(folder)
    tokenizer = load_tokenizer(folder, config)
    max_length = min(settings.max_length, config.max_position_embeddings)
    if max_length < settings.max_length:
        say(f"rows are cut at {max_length} tokens, not {settings.max_length}: the model has no more positions")
    kind.metric_of(settings)
    kind.check(settings)
    task, parts = encode_sources(kind, sources, tokenizer, max_length, settings)
    work = _Work(folder, task, tokenizer, settings, max_length, parts)
    return work, _identity(work, sources)


def _identity(work: _Work, sources: dict[str, Source]) -> dict[str, Any]:
    settings = settings_identity(asdict(work.settings), "settings", _FREE_SETTINGS)
    rows = {f"{part}_rows": checksum for part, checksum in checksums(sources).items()}
    model = model_identity(work.folder, "model")
    return {"task": work.task.kind, **settings, **rows, **model, "tokenizer": work.tokenizer.sha256}


def _named(source: Source) -> str:
    return str(source) if isinstance(source, str | Path) else f"{len(source):,} rows given in Python"


def _train(work: _Work, run: Run, facts: RunFacts, resume: bool) -> FinetuneResult:
    """All seeds, and the best one's model."""
    start, settings = time.monotonic(), work.settings
    device, started_on = start_device(settings.device, settings.precision, True, facts.started_on, run.folder)
    checkpoint = newest_checkpoint(run.folder, resume)
    model = together(lambda: _build(work, device, settings.seed))
    if checkpoint is None:
        agree(lambda: {"weights": checksum(model.state_dict())})
    optimizer = _optimizer(model, settings, device)
    position = resume_position(checkpoint, model, optimizer)
    drops = settings.dropout > 0 or settings.attention_dropout > 0
    started_on |= cut_of_run(facts.started_on, position, {"micro_batch_tokens": settings.micro_batch_tokens}, drops)
    objective = TaskObjective(
        work.task,
        read_config(work.folder),
        model,
        work.parts["train"],
        work.metric,
        Runner(device.torch_device, settings.micro_batch_tokens, over_ranks=True),
    )
    cadence = Cadence(settings.log_every, 0, settings.save_every, settings.keep, settings.keep_every)
    steps = work.order(settings.seed).steps * settings.seeds
    cuda = [] if device.is_cpu else [device.torch_device]
    with (
        torch.random.fork_rng(cuda),
        trainer_of(
            run.folder,
            replace(facts, started_on=started_on),
            objective,
            optimizer,
            TrainerSettings(device, cadence, position, resume, steps, keeps_best=True),
        ) as trainer,
    ):
        numbers = range(1, settings.seeds + 1)
        run_stages(trainer, {number: partial(_stage, work, number, device) for number in numbers})
        trainer.write("end", {"tokens": trainer.position.tokens})
        trainer.saver.wait()  # for the best weights
        best = trainer.position.best
    assert best is not None
    return ranks.by_first(lambda: _finish(work, run, model, best, time.monotonic() - start))


def _finish(work: _Work, run: Run, model: nn.Module, best: Best, seconds: float) -> FinetuneResult:
    """Writes the results of all seeds, and the best weights as the finished model."""
    load_best(run.folder, best, model)
    result = _result(work, run, seconds)
    say(result.line())
    work = _fitted_to_dev(work, run, model)
    # Before the model, which makes the run a finished one.
    files.write_json(run.folder / FINETUNE_FILE, result.to_dict())
    _save(model, work, result, run.model)
    drop_checkpoints(run.folder, work.settings.keep_every)
    return result


def _fitted_to_dev(work: _Work, run: Run, model: nn.Module) -> _Work:
    """The work with what its task fits to the dev rows, and the reports of dev and test rows, of the best weights."""
    runner = Runner(next(model.parameters()).device, work.settings.micro_batch_tokens)
    held_out = {part: examples for part, examples in work.parts.items() if part != "train"}
    scores = {part: runner.scores(model.eval(), each.sequences, work.task.per_token) for part, each in held_out.items()}
    task = work.task.tuned(scores["dev"], held_out["dev"])
    for part, examples in held_out.items():
        task.write(scores[part], examples, run.folder / REPORT / part)
    return replace(work, task=task)


def _stage(work: _Work, number: int, device: Device) -> Stage:
    """The run of one seed, which starts afresh from the model folder's weights."""
    seed = work.settings.seed + number - 1
    order = work.order(seed)

    def begin(trainer: Trainer) -> None:
        if number > 1:  # the first seed's weights are there already
            model = trainer.objective.model
            model.load_state_dict(_build(work, device, seed).state_dict())
            trainer.optimizer.start_afresh()  # in place: another one would leave this one's moments in memory

    return Stage(
        number=number,
        kind="seed",
        label=seed,
        steps=order.steps,
        learning_rate=partial(
            linear, steps=order.steps, warmup_share=work.settings.warmup, base=work.settings.learning_rate
        ),
        loader=partial(RowSteps, order),
        held_out={part: rows for part, rows in work.parts.items() if part != "train"},
        begin=begin,
        seed=stream_key(seed, "finetune"),
        first_step=(number - 1) * order.steps,
        epoch_steps=order.epoch_steps,
        select=work.metric,
    )


def _build(work: _Work, device: Device, seed: int) -> nn.Module:
    """The folder's encoder, or random weights of its shape, with a fresh head."""
    hidden, attention = work.settings.dropout, work.settings.attention_dropout

    def build(config: BertConfig) -> nn.Module:
        config = replace(config, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
        return work.task.build(config, device.compute)

    if work.settings.from_scratch:
        config = read_config(work.folder)
        model = build(config)
        initialise(model, config.initializer_range, stream_key(seed, "from scratch"))
    else:
        head = work.task.head
        model = load_model(build, work.folder, may_be_fresh=(POOLER, head), leave_out=(head,), seed=seed)
    return model.to(device.torch_device)


def _optimizer(model: nn.Module, settings: FinetuneSettings, device: Device) -> ClippedOptimizer:
    return AdamW(
        parameter_groups(model, settings.weight_decay),
        max_gradient_norm=settings.max_gradient_norm,
        loss_scale=LossScale(device.torch_device) if device.scales_losses else None,
    )


def _result(work: _Work, run: Run, seconds: float) -> FinetuneResult:
    parts, settings = work.parts, work.settings
    return FinetuneResult(
        folder=run.folder,
        task=work.task.kind,
        metric=work.metric,
        seeds=results_of(
            run.metrics(),
            work.metric,
            work.order(settings.seed).epoch_steps,
            {settings.seed + number: settings.epochs for number in range(settings.seeds)},
        ),
        baseline=work.task.baseline(work.metric, parts["dev"]),
        class_counts=dict(work.task.counts or {}),
        rows={part: len(each.records) for part, each in parts.items()},
        truncated={part: each.sequences.truncated for part, each in parts.items()},
        seconds=seconds,
    )


def _save(model: nn.Module, work: _Work, result: FinetuneResult, out: Path) -> None:
    task: dict[str, Any] = {
        "task": result.task,
        "max_length": work.max_length,
        "lowercase": work.tokenizer.lowercase,
        "columns": asdict(work.settings.columns),
        "metric": result.metric,
        **work.task.facts(),
    }
    contents = FolderContents(
        work.task.architecture,
        work.tokenizer.save,
        config=work.task.config(),
        json_files={TASK_FILE: task, FINETUNE_FILE: {**result.to_dict(), "settings": asdict(work.settings)}},
    )
    save_model(model, contents, out)
