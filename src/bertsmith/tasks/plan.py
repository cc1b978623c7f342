"""The plan of a fine-tuning run, before anything starts: from a model folder and labelled rows, in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import counted
from bertsmith.model.config import BertConfig
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.tasks.benchmarks.inputs import BenchmarkChoice, run_inputs
from bertsmith.tasks.examples import check_sources, given_parts, most_tokens, read_records, warn_of_few_rows
from bertsmith.tasks.reading.divide import curve_rows, fold_rows
from bertsmith.tasks.reading.documents import parsed_once
from bertsmith.tasks.reading.records import Record, Source
from bertsmith.tasks.resolve import chosen
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.settings import FinetuneSettings, check_settings, due_steps
from bertsmith.tasks.task import Examples, Task
from bertsmith.training.planning.cost import Exchange, is_half
from bertsmith.training.planning.memory import WHOLE, Held
from bertsmith.training.planning.model_size import parameters
from bertsmith.training.planning.on_cpu import Measuring, measure
from bertsmith.training.planning.on_gpus import gpu_costs
from bertsmith.training.planning.plan import Asked, Plan, make_plan
from bertsmith.training.planning.where import Where
from bertsmith.training.planning.work import Batch, Lengths, Work, even_cut
from bertsmith.training.run import only_training
from bertsmith.training.this_cpu import Here
from bertsmith.weights.huggingface import model_folder, read_config
from bertsmith.weights.stored import refuse_export

_SAMPLE_ROWS = 2000
_POOLED = ("classify", "regress", "choice")


@dataclass(frozen=True)
class RowsOfRun:
    """The rows of a run, as `finetune` takes them."""

    train: Source | None = None
    dev: Source | None = None
    test: Source | None = None
    data: str | Path | None = None
    hyper_parameters: str | None = None
    fold: int = 0


@dataclass(frozen=True)
class _Read:
    """The rows, read. examples: training rows, encoded, all or a sample. rows: how many each part has. shares: of the
    training rows that each training takes, those of seeds first."""

    task: Task
    settings: FinetuneSettings
    examples: Examples
    max_length: int
    rows: dict[str, int]
    shares: list[float]

    @property
    def units(self) -> float:
        """Of an epoch."""
        return (len(self.examples.units) - 1) * self.rows["train"] / len(self.examples.records)

    @property
    def unit(self) -> Batch:
        """A unit in the mean."""
        lengths, count = self.examples.sequences.lengths.astype(np.float64), len(self.examples.units) - 1
        return Batch(lengths.sum() / count, (lengths**2).sum() / count, 0.0, len(lengths) / count)


def plan_finetuning(
    task: str, model: StrPath, rows: RowsOfRun, where: Where, settings: FinetuneSettings | None = None
) -> Plan:
    """What the run will need. Writes nothing but what `skip_bad_rows` names.

    task, model, rows, settings: as of `finetune`. Raises BertsmithError for what that would refuse.
    """
    check_settings(settings, has_teacher=False)
    if settings is not None and settings.side_by_side and where.gpus > 1:
        what = "a plan has all GPUs train one seed after the other, not seeds side by side"
        fix = "plan one training, with --gpus 1 and without --seeds; so many GPUs do so many of them at a time"
        raise BertsmithError(what, "--side-by-side", fix)
    folder = model_folder(model)
    config = read_config(folder)
    here = Here.of(settings.precision if settings else "auto") if where.on_cpu else None
    read = _read(task, folder, config, rows, settings)
    settings, work = read.settings, _work(read)
    lengths = Lengths(read.examples.sequences.lengths, read.units)
    if here is None:
        precision, most = where.precision(settings.precision), settings.micro_batch_tokens
        costs = gpu_costs(where, precision, config, "adamw", [read.max_length], finetuning=True)
    else:
        precision = here.device.precision
        most = here.micro_batch_tokens(settings.micro_batch_tokens, config, read.max_length, where.gpus)
        optimizer = partial(parameter_groups, weight_decay=settings.weight_decay)
        measuring = Measuring(
            config, here.device, {work.name: lengths}, None, "adamw", lambda made: AdamW(optimizer(made))
        )
        with only_training():
            costs = measure(measuring, where.gpus, here.base)
    size = parameters(config, classes=max(2, len(read.task.counts or ())))
    held = Held(config, size, is_half(precision), where.on_cpu, lamb=False)
    asked = Asked(
        title=f"fine-tuning ({read.task.kind})",
        facts=_facts(read, config, size.total),
        precision=precision,
        works=[work],
        cut=even_cut(most),
        most_tokens=most,
        ranks=where.gpus,
        price=where.price,
        exchange=Exchange(WHOLE * size.total, WHOLE * size.words, hides=here is None),
        held=held,
        can_checkpoint=False,
    )
    return make_plan(asked, costs)


@parsed_once()
def _read(task: str, folder: Path, config: BertConfig, rows: RowsOfRun, settings: FinetuneSettings | None) -> _Read:
    """Reads all rows, and encodes some training rows, evenly spaced."""
    if not (settings and settings.from_scratch):
        refuse_export(folder)
    given = given_parts(rows.train, rows.dev, rows.test)
    check_sources(given)
    inputs = run_inputs(task, BenchmarkChoice(rows.data, rows.hyper_parameters, rows.fold), given, settings)
    kind, settings = chosen(inputs.kind, inputs.sources, inputs.settings)
    kind.check(settings)
    settings.check_layers(config.num_hidden_layers, bool(kind.head))
    records = read_records(kind, inputs.sources, settings)
    made = kind.of_records(records["train"], settings)
    warn_of_few_rows(records, made.metric_of(settings))
    longest, train = most_tokens(kind, settings, config), records["train"]
    examples = made.examples(_sample(train), load_tokenizer(folder, config), longest)
    made = made.settled(folder, records, settings)
    some = [taken for _, taken in curve_rows(train, type(made), settings.curve_shares, settings.seed)]
    some += [taken for taken, _ in fold_rows(train, type(made), settings.folds, settings.seed)]
    shares = [1.0] * settings.seeds + [len(taken) / len(train) for taken in some]
    return _Read(made, settings, examples, longest, {part: len(each) for part, each in records.items()}, shares)


def _sample(records: Sequence[Record]) -> Sequence[Record]:
    count = min(len(records), _SAMPLE_ROWS)
    return [records[place * len(records) // count] for place in range(count)]


def _work(read: _Read) -> Work:
    """All trainings of the run in one: those of each seed, and those of folds and of a learning curve."""
    settings, units = read.settings, read.units
    epochs = [math.ceil(units * share / settings.batch) for share in read.shares]
    steps = [settings.steps(each) for each in epochs]
    due = due_steps(steps[0], (epochs[0], settings.evaluate_every))
    measured = sum(count for part, count in read.rows.items() if part != "train")
    per_row = len(read.examples.sequences.ids) / len(read.examples.records)
    # Of a fold the rows that it leaves out are measured, so of all folds each training row once.
    times = settings.seeds * len(due) + len(settings.curve_shares) + 1  # the last: the finished model
    evaluated = times * measured + (settings.folds > 0) * read.rows["train"]
    more = [f"{settings.folds} folds"] * (settings.folds > 0) + ["a learning curve"] * settings.learning_curve
    return Work(
        name=" + ".join([f"{counted(settings.epochs, 'epoch')} x {counted(settings.seeds, 'seed')}", *more]),
        length=read.max_length,
        steps=sum(steps),
        batch=units / epochs[0],  # the last step of an epoch has fewer
        sequence=read.unit,
        instances=units,
        evaluated=evaluated * per_row,
        pooled=read.task.kind in _POOLED,
    )


def _facts(read: _Read, config: BertConfig, total: int) -> list[str]:
    rows = ", ".join(f"{part} {count:,}" for part, count in read.rows.items())
    sampled = len(read.examples.records)
    tokens = read.unit.tokens * read.units
    how = "" if sampled == read.rows["train"] else f", estimated from {sampled:,} of them"
    return [
        f"model: {total:,} parameters, {config.num_hidden_layers} layers of {config.hidden_size}",
        f"rows: {rows}; {tokens:,.0f} tokens to learn from in an epoch{how}",
    ]
