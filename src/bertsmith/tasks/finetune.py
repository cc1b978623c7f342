"""Fine-tuning from a model folder and labelled rows to a task model's folder: where the parts are put together."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.device import Device, choose_device
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.layout import deal_within
from bertsmith.base.log import Progress, say, warn
from bertsmith.base.streams import generator, stream_key
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import prepare_training
from bertsmith.model.initial import initialise
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.loss_scale import LossScale
from bertsmith.optim.schedules import linear
from bertsmith.tasks import classification
from bertsmith.tasks.classification import Classifier, class_scores
from bertsmith.tasks.metrics import CLASS_METRICS
from bertsmith.tasks.records import Source, read_records
from bertsmith.tasks.results import EpochResult, FinetuneResult, SeedResult
from bertsmith.tasks.sequences import Sequences, encode, load_tokenizer, pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import (
    FINETUNE_FILE,
    TASK_FILE,
    FolderContents,
    check_replaceable,
    load_model,
    read_config,
    save_model,
)
from bertsmith.weights.names import POOLER

TASKS = ("classify",)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Rows:
    """Encoded rows with the places of their labels, int64[N]."""

    sequences: Sequences
    labels: Ints


@dataclass(frozen=True)
class _Work:
    """Everything that the runs of all seeds share."""

    folder: Path
    tokenizer: Tokenizer
    settings: FinetuneSettings
    max_length: int
    names: list[str]
    class_counts: dict[str, int]
    train: _Rows
    dev: _Rows

    @property
    def steps(self) -> int:
        """Optimizer steps of one seed."""
        return self.settings.epochs * math.ceil(len(self.train.labels) / self.settings.batch)


def finetune(
    task: str,
    model: str | Path,
    train: Source,
    dev: Source,
    out: str | Path | None,
    *,
    settings: FinetuneSettings | None = None,
) -> FinetuneResult:
    """Trains a task model on labelled rows, from one or several seeds, and writes the best one's folder.

    task: "classify". model: a Hugging Face BERT folder with its tokenizer. train, dev: a csv, tsv or jsonl file, or a
    list of {"text": ..., "label": ...}; dev selects the epoch and the seed. out: the folder, complete in itself
    (weights, tokenizer, labels, task.json, finetune.json); None writes nothing. The same seed gives the same score.
    Raises BertsmithError for rows, columns, labels, settings or a folder that cannot be used, before any training.
    """
    if task not in TASKS:
        raise BertsmithError(f"task '{task}' is not known", "task", nearest(task, TASKS))
    settings = settings or FinetuneSettings()
    model, out = Path(model), Path(out) if out is not None else None
    if out is not None:
        _check_out(model, out)
    work = _prepare(model, train, dev, settings)
    device = choose_device(settings.device, settings.precision)
    if device.is_cpu:
        prepare_training(device.compute)
    start = time.monotonic()
    runs: list[SeedResult] = []
    best: tuple[Classifier, dict[str, Tensor]] | None = None
    for number in range(settings.seeds):
        classifier, run, weights = _train_seed(work, device, settings.seed + number)
        if best is None or run.score > max(each.score for each in runs):
            best = classifier, weights
        runs.append(run)
    assert best is not None
    most_frequent = np.full_like(work.dev.labels, work.names.index(next(iter(work.class_counts))))
    result = FinetuneResult(
        folder=out,
        task=task,
        metric=settings.metric,
        seeds=runs,
        baseline=CLASS_METRICS[settings.metric](most_frequent, work.dev.labels),
        class_counts=work.class_counts,
        train_rows=len(work.train.labels),
        dev_rows=len(work.dev.labels),
        truncated_rows=work.train.sequences.truncated_rows,
        seconds=time.monotonic() - start,
    )
    say(result.line())
    if out is not None:
        classifier, weights = best
        classifier.load_state_dict(weights)
        _save(classifier, work, result, out)
        say(f"finished model: {out}")
    return result


def _check_out(model: Path, out: Path) -> None:
    """Refuses a folder that must not be replaced, and says where one will be."""
    if out.resolve() == model.resolve():
        raise BertsmithError(
            "the fine-tuned model would replace the model that it starts from", out, "choose another folder for it"
        )
    if check_replaceable(out):
        warn(f"{out} holds a model already; the fine-tuned one will replace it")


def _prepare(folder: Path, train: Source, dev: Source, settings: FinetuneSettings) -> _Work:
    """Reads and encodes all rows, and says what they are."""
    config = read_config(folder)
    tokenizer = load_tokenizer(folder, config)
    max_length = min(settings.max_length, config.max_position_embeddings)
    if max_length < settings.max_length:
        say(f"rows are cut at {max_length} tokens, not {settings.max_length}: the model has no more positions")
    train_records, dev_records = (read_records(source, settings.columns) for source in (train, dev))
    names = classification.label_names(train_records)
    counts = classification.class_counts(train_records)
    if settings.metric == "binary_f1" and len(names) != 2:
        raise BertsmithError(f"binary_f1 with {len(names)} labels", "metric", "use macro_f1, accuracy or matthews")
    sides = []
    for name, records in (("train", train_records), ("dev", dev_records)):
        rows = _Rows(encode(records, tokenizer, max_length), classification.label_ids(records, names))
        tokens = int(rows.sequences.lengths.sum())
        say(f"{name}: {len(records):,} rows, {tokens:,} tokens, {rows.sequences.truncation()}")
        sides.append(rows)
    say("train rows by label: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    return _Work(folder, tokenizer, settings, max_length, names, counts, *sides)


def _build(work: _Work, device: Device, seed: int) -> Classifier:
    """The folder's encoder, or random weights of its shape, with a fresh head."""
    hidden, attention = work.settings.dropout, work.settings.attention_dropout

    def build(config: BertConfig) -> Classifier:
        config = replace(config, hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)
        return Classifier(config, len(work.names), device.compute)

    if work.settings.from_scratch:
        model = build(read_config(work.folder))
        initialise(model, model.config.initializer_range, stream_key(seed, "from scratch"))
    else:
        head = classification.HEAD
        model = load_model(build, work.folder, may_be_fresh=(POOLER, head), leave_out=(head,), seed=seed)
    return model.to(device.torch_device)


def _train_seed(work: _Work, device: Device, seed: int) -> tuple[Classifier, SeedResult, dict[str, Tensor]]:
    """A whole run. Returns the model, the run's figures, and the weights of its best epoch."""
    settings, model = work.settings, _build(work, device, seed)
    optimizer = AdamW(
        parameter_groups(model, settings.weight_decay),
        max_gradient_norm=settings.max_gradient_norm,
        loss_scale=LossScale(device.torch_device) if device.scales_losses else None,
    )
    results: list[EpochResult] = []
    weights: dict[str, Tensor] = {}
    best = 0
    cuda = [] if device.is_cpu else [device.torch_device]
    what = f"seed {seed}" if settings.seeds > 1 else "fine-tuning"
    with Progress(what, work.steps, "step") as progress, torch.random.fork_rng(cuda):
        torch.manual_seed(stream_key(seed, "finetune", "dropout") >> 1)
        for epoch in range(1, settings.epochs + 1):
            loss = _train_epoch(work, model, optimizer, device, (seed, epoch), progress)
            results.append(EpochResult(loss, _evaluate(work, model, device)))
            if epoch == 1 or results[-1].dev[settings.metric] > results[best - 1].dev[settings.metric]:
                best, weights = epoch, {name: each.clone() for name, each in model.state_dict().items()}
            score = results[-1].dev[settings.metric]
            say(f"{what}, epoch {epoch} of {settings.epochs}: loss {loss:.4f}, dev {settings.metric} {score:.4f}")
    return model, SeedResult(seed, results, best, results[best - 1].dev[settings.metric]), weights


def _train_epoch(
    work: _Work, model: Classifier, optimizer: AdamW, device: Device, place: tuple[int, int], progress: Progress
) -> float:
    """One pass over the training rows in the order drawn for place = (seed, epoch). Returns the mean loss of a row."""
    settings, (seed, epoch) = work.settings, place
    order = generator(stream_key(seed, "finetune", epoch, "order")).permutation(len(work.train.labels))
    starts = range(0, len(order), settings.batch)
    model.train()
    loss = torch.zeros((), device=device.torch_device)
    skipped = torch.zeros((), device=device.torch_device)
    for number, start in enumerate(starts, start=1 + (epoch - 1) * len(starts)):
        optimizer.set_learning_rate(linear(number, work.steps, settings.warmup, settings.learning_rate))
        loss += _step(model, optimizer, work, order[start : start + settings.batch], device.torch_device)
        skipped += ~optimizer.finite
        progress.advance(1)
    if skipped == len(starts):
        raise BertsmithError(
            "no update of this epoch had a finite gradient, so the model learned nothing",
            f"seed {seed}, epoch {epoch}",
            "use --precision fp32, or a lower learning rate",
        )
    if skipped:
        warn(f"{int(skipped)} of {len(starts)} updates were left out: their gradient was not finite")
    return float(loss) / len(order)


def _step(model: Classifier, optimizer: AdamW, work: _Work, members: Ints, device: torch.device) -> Tensor:
    """One update from the rows `members`, in as many micro-batches as the budget asks for. Returns the summed loss."""
    optimizer.zero_grad(set_to_none=True)
    rows = work.train
    lengths = rows.sequences.lengths[members]
    total = torch.zeros((), device=device)
    for micro in deal_within(lengths, 1, work.settings.micro_batch_tokens):
        chosen = members[micro]
        sums = model.loss(pack(rows.sequences, chosen, device), torch.from_numpy(rows.labels[chosen]).to(device))
        optimizer.scaled(sums.loss / len(members)).backward()  # type: ignore[no-untyped-call]
        total += sums.loss.detach()
    optimizer.step()
    return total


def _evaluate(work: _Work, model: Classifier, device: Device) -> dict[str, float]:
    """Every metric on the dev rows."""
    budget = work.settings.micro_batch_tokens
    predicted = class_scores(model.eval(), work.dev.sequences, device.torch_device, budget).argmax(1)
    return {name: metric(predicted, work.dev.labels) for name, metric in CLASS_METRICS.items()}


def _save(model: Classifier, work: _Work, result: FinetuneResult, out: Path) -> None:
    task: dict[str, Any] = {
        "task": result.task,
        "max_length": work.max_length,
        "lowercase": work.tokenizer.lowercase,
        "columns": asdict(work.settings.columns),
        "metric": result.metric,
    }
    contents = FolderContents(
        classification.ARCHITECTURE,
        work.tokenizer.save,
        config=classification.config_labels(work.names),
        json_files={TASK_FILE: task, FINETUNE_FILE: {**result.to_dict(), "settings": asdict(work.settings)}},
    )
    save_model(model, contents, out)
