"""Fine-tuning is what transformers' classes do: without dropout, from the same weights and in the same order, the loss
of every step is within 1e-4 of theirs over 50 steps of two epochs, with an evaluation between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.optim.schedules import linear
from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.objective import Order
from bertsmith.tasks.reading.records import Columns, read_records, read_rows
from bertsmith.tasks.registry import task_named
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Task
from bertsmith.weights.huggingface import load_model, read_config
from bertsmith.weights.names import POOLER

STEPS, EPOCHS, BATCH, SEED, RATE, LENGTH, STRIDE = 50, 2, 4, 42, 5e-5, 128, 64
ROWS = STEPS // EPOCHS * BATCH
Row = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Encode = Callable[[Any, list[Row], Task], list[Tensors]]
TEXTS = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}


def benchmark_rows(name: str, data: Path, every: int = 1) -> list[Row]:
    """Rows to learn from, with the usual names for their columns; one of `every` so many."""
    benchmark = benchmarks()[name]
    columns = Columns(**benchmark.columns_of("train"))
    found = read_rows(benchmark.find(data, ("train",))["train"], columns, reader=task_named(benchmark.kind))
    rows = [row for _, row in found][::every][:ROWS]
    if benchmark.kind in ("tag", "qa"):
        return rows
    renamed = [{"text": row[columns.text], "label": row[columns.label]} for row in rows]
    for row, made in zip(rows, renamed, strict=True):
        if columns.text_b in row:
            made["text_b"] = row[columns.text_b]
        if benchmark.kind == "choice":
            made["choices"] = [row[column] for column in columns.choices.split(",")]
    return renamed


def several_labels(data: Path) -> list[Row]:
    rows = benchmark_rows("sst2", data)
    labels = [[word for word in ("a", "the", "of") if word in row["text"].split()] for row in rows]
    return [{"text": row["text"], "label": found} for row, found in zip(rows, labels, strict=True)]


def word_counts(data: Path) -> list[Row]:
    return [{"text": row["text"], "label": len(row["text"].split()) / 10} for row in benchmark_rows("sst2", data)]


def questions(data: Path) -> list[Row]:
    """Of many articles; in two windows each, more or less."""
    return benchmark_rows("squad1", data, 1001)[:60]


def texts(tokenizer: Any, rows: list[Row]) -> Tensors:
    seconds = [[row["text_b"] for row in rows]] if "text_b" in rows[0] else []
    return dict(tokenizer([row["text"] for row in rows], *seconds, **TEXTS))


def classes(tokenizer: Any, rows: list[Row], task: Task) -> list[Tensors]:
    return [{**texts(tokenizer, rows), "labels": torch.tensor([int(row["label"]) for row in rows])}]


def numbers(tokenizer: Any, rows: list[Row], task: Any) -> list[Tensors]:
    """In standard deviations of all rows from their mean, as ours learns them."""
    labels = [(float(row["label"]) - task.mean) / task.deviation for row in rows]
    return [{**texts(tokenizer, rows), "labels": torch.tensor(labels)}]


def labels(tokenizer: Any, rows: list[Row], task: Any) -> list[Tensors]:
    each = [[float(name in row["label"]) for name in task.names] for row in rows]
    return [{**texts(tokenizer, rows), "labels": torch.tensor(each)}]


def choices(tokenizer: Any, rows: list[Row], task: Task) -> list[Tensors]:
    firsts, seconds = (
        [row["text"] for row in rows for _ in range(4)],
        [each for row in rows for each in row["choices"]],
    )
    found = {key: value.view(len(rows), 4, -1) for key, value in tokenizer(firsts, seconds, **TEXTS).items()}
    return [{**found, "labels": torch.tensor([int(row["label"]) for row in rows])}]


def tags(tokenizer: Any, rows: list[Row], task: Any) -> list[Tensors]:
    """The first piece of each word has its tag, as in the examples of transformers."""
    batch = tokenizer([row["tokens"] for row in rows], is_split_into_words=True, **TEXTS)
    wanted = torch.full_like(batch["input_ids"], -100)
    for number, row in enumerate(rows):
        words = batch.word_ids(number)
        for place, word in enumerate(words):
            if word is not None and word != words[place - 1]:
                wanted[number, place] = task.names.index(row["tags"][word])
    return [{**batch, "labels": wanted}]


def windows(tokenizer: Any, rows: list[Row]) -> list[Row]:
    """The windows of all contexts, each with the tokens where the answer begins and ends in it, else [CLS]."""
    found = []
    for row in rows:
        answer = row["answers"][0]
        room = LENGTH - 3 - len(tokenizer(row["question"], add_special_tokens=False)["input_ids"])
        cut = {"truncation": "only_second", "max_length": LENGTH, "stride": room - STRIDE, "return_tensors": "pt"}
        those = tokenizer(row["question"], row["context"], return_overflowing_tokens=True, padding=True, **cut)
        for number, length in enumerate(those["attention_mask"].sum(1)):
            start = answer["answer_start"]
            places = [those.char_to_token(number, at, 1) for at in (start, start + len(answer["text"]) - 1)]
            first, last = (0, 0) if None in places else places
            ids = {name: those[name][number : number + 1, :length] for name in ("input_ids", "token_type_ids")}
            found.append({**ids, "start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])})
    assert 0 < sum(int(each["start_positions"]) > 0 for each in found) < len(found)  # not all hold their answer
    return found


def spans(tokenizer: Any, rows: list[Row], task: Task) -> list[Tensors]:
    """Each window alone: in a padded batch the softmax of transformers goes over the padding, too."""
    return rows


@dataclass(frozen=True)
class Case:
    """kind: of ours. architecture: the class of transformers, with options of its configuration. encode: what its
    tokenizer makes of a step's units, which are rows, or what `units` makes of all rows."""

    kind: str
    architecture: str
    rows: Callable[[Path], list[Row]]
    encode: Encode
    options: dict[str, Any] = field(default_factory=dict)
    units: Callable[[Any, list[Row]], list[Row]] = lambda tokenizer, rows: rows


SEQUENCE, REGRESSION = "BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}
CASES = {
    "classes of single texts": Case("classify", SEQUENCE, partial(benchmark_rows, "sst2"), classes),
    "classes of pairs": Case("classify", SEQUENCE, partial(benchmark_rows, "mrpc"), classes),
    "several labels": Case(
        "classify", SEQUENCE, several_labels, labels, {"num_labels": 3, "problem_type": "multi_label_classification"}
    ),
    "numbers of single texts": Case("regress", SEQUENCE, word_counts, numbers, REGRESSION),
    "numbers of pairs": Case("regress", SEQUENCE, partial(benchmark_rows, "stsb"), numbers, REGRESSION),
    "choices": Case("choice", "BertForMultipleChoice", partial(benchmark_rows, "codah"), choices),
    "tags": Case("tag", "BertForTokenClassification", partial(benchmark_rows, "wnut17"), tags),
    "answers": Case("qa", "BertForQuestionAnswering", questions, spans, units=windows),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CASES)
def test_the_losses_of_fifty_steps_are_those_of_transformers(name, real_data, data_folder, tmp_path):
    case, folder = CASES[name], real_data("weights/all-MiniLM-L6-v2")
    rows = case.rows(data_folder)
    settings = FinetuneSettings(
        epochs=EPOCHS, max_steps=STEPS, batch=BATCH, learning_rate=RATE, dropout=0.0, attention_dropout=0.0,
        max_length=LENGTH, seed=SEED, log_every=1, device="cpu", precision="fp32", report=False,
        **({"doc_stride": STRIDE} if case.kind == "qa" else {}),
    )  # fmt: skip
    bertsmith.finetune(case.kind, folder, rows, rows[:8], tmp_path / "run", settings=settings)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ours = [record["loss"] for record in map(json.loads, lines) if record["kind"] == "train"]
    theirs = losses(case, folder, rows, settings)
    assert len(ours) == len(theirs) == STEPS
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-4
    halves = np.split(np.array(theirs), EPOCHS)  # of the same rows each
    assert halves[-1].mean() < halves[0].mean()  # something was learned


def losses(case: Case, folder: Path, rows: list[Row], settings: FinetuneSettings) -> list[float]:
    """The losses of transformers' class, trained by torch's own AdamW on batches that its own tokenizer made."""
    import transformers

    kind = task_named(case.kind)
    records = kind.learnable(read_records(rows, settings.columns, reader=kind))
    task = kind.of_records(records, settings)
    examples = task.examples(records, load_tokenizer(folder, read_config(folder)), LENGTH)
    assert not examples.sequences.truncated.tokens  # transformers cuts two long texts by another rule
    drawn_order = Order(examples, task, SEED, BATCH, settings.micro_batch_tokens)
    epochs = [drawn_order.units(epoch) for epoch in range(1, 1 + EPOCHS)]
    steps = [units[start : start + BATCH] for units in epochs for start in range(0, len(units), BATCH)][:STEPS]
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    options = case.options or ({"num_labels": len(task.names)} if hasattr(task, "names") else {})
    model = getattr(transformers, case.architecture).from_pretrained(folder, **none, **options).train()
    # The head is drawn by us: the first weights are part of the comparison.
    drawn: Any = load_model(lambda config: task.build(config, None), folder, (POOLER, task.head), (task.head,), SEED)
    getattr(model, task.head).load_state_dict(getattr(drawn, task.head).state_dict())
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    units = case.units(tokenizer, rows)
    assert len(units) == len(examples.units) - 1 < STEPS * BATCH  # so that a second epoch begins
    found = []
    for step, members in enumerate(steps, start=1):
        for group in optimizer.param_groups:
            group["lr"] = linear(step, STEPS, settings.warmup, RATE)
        batches = case.encode(tokenizer, [units[member] for member in members], task)
        loss = torch.stack([model(**batch).loss for batch in batches]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found
