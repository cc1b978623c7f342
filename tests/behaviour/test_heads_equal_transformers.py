"""Fine-tuning is what transformers' classes do: without dropout, from the same weights and in the same order, the loss
of every step is within 1e-4 of theirs over 50 steps of two epochs, with an evaluation between them."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from bertsmith.weights.huggingface import load_model, read_config
from bertsmith.weights.names import POOLER

STEPS, EPOCHS, BATCH, SEED, RATE, LENGTH = 50, 2, 4, 42, 5e-5, 128
# The class of transformers, and what its configuration says of the head.
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "mrpc": ("BertForSequenceClassification", {"num_labels": 2}),
    "stsb": ("BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "codah": ("BertForMultipleChoice", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIDES)
def test_the_losses_of_fifty_steps_are_those_of_transformers(name, real_data, data_folder, tmp_path):
    folder = real_data("weights/all-MiniLM-L6-v2")
    benchmark = benchmarks()[name]
    columns = Columns(**benchmark.columns_of("train"))
    train = read_rows(benchmark.find(data_folder, ("train",))["train"], columns)
    rows = [row for _, row in train][: STEPS // EPOCHS * BATCH]
    settings = FinetuneSettings(
        epochs=EPOCHS, batch=BATCH, learning_rate=RATE, dropout=0.0, attention_dropout=0.0, max_length=LENGTH,
        seed=SEED, log_every=1, device="cpu", precision="fp32", columns=columns,
    )  # fmt: skip
    bertsmith.finetune(benchmark.kind, folder, rows, rows[:8], tmp_path / "run", settings=settings)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ours = [record["loss"] for record in map(json.loads, lines) if record["kind"] == "train"]
    theirs = losses(name, folder, rows, settings)
    assert len(ours) == len(theirs) == STEPS
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 1e-4
    assert np.mean(theirs[-10:]) < np.mean(theirs[:10])  # something was learned


def losses(name: str, folder: Path, rows: list[Any], settings: FinetuneSettings) -> list[float]:
    """The losses of transformers' class, trained by torch's own AdamW on batches that its own tokenizer made."""
    import transformers

    kind = task_named(benchmarks()[name].kind)
    records = read_records(rows, settings.columns, reader=kind)
    task = kind.of_records(records, settings)
    examples = task.examples(records, load_tokenizer(folder, read_config(folder)), LENGTH)
    assert not examples.sequences.truncated.tokens  # transformers cuts two long texts by another rule
    drawn_order = Order(examples, task, SEED, EPOCHS, BATCH, settings.micro_batch_tokens)
    order = np.concatenate([drawn_order.units(epoch) for epoch in range(1, 1 + EPOCHS)])
    architecture, options = SIDES[name]
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = getattr(transformers, architecture).from_pretrained(folder, **none, **options).train()
    # The head is drawn by us: the first weights are part of the comparison.
    drawn: Any = load_model(lambda config: task.build(config, None), folder, (POOLER, task.head), (task.head,), SEED)
    model.classifier.load_state_dict({key: value.detach() for key, value in drawn.classifier.state_dict().items()})
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    encode = _encoder(transformers.AutoTokenizer.from_pretrained(folder), settings.columns, name)
    found = []
    for step in range(STEPS):
        batch = [rows[place] for place in order[step * BATCH : (step + 1) * BATCH]]
        for group in optimizer.param_groups:
            group["lr"] = linear(step + 1, STEPS, settings.warmup, RATE)
        loss = model(**encode(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def _encoder(tokenizer: Any, columns: Columns, name: str) -> Callable[[list[Any]], dict[str, torch.Tensor]]:
    def encode(batch: list[Any]) -> dict[str, torch.Tensor]:
        firsts = [row[columns.text] for row in batch]
        options = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
        number = float if name == "stsb" else int
        labels = torch.tensor([number(row[columns.label]) for row in batch])
        if name != "codah":
            return {**tokenizer(firsts, [row[columns.text_b] for row in batch], **options), "labels": labels}
        choices = [row[column] for row in batch for column in columns.choices.split(",")]
        found = tokenizer([text for text in firsts for _ in range(4)], choices, **options)
        return {**{key: value.view(len(batch), 4, -1) for key, value in found.items()}, "labels": labels}

    return encode
