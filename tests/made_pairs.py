"""Pairs of like texts that can be learned, and steps of embeddings on them with the small encoder of `made_rows`."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith.base import ranks
from bertsmith.base.device import Device, choose_device
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.tasks.contrastive import RankingObjective
from bertsmith.tasks.finetuning.model import build_model
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.objective import Order, RowStep
from bertsmith.tasks.reading.records import read_records
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Runner
from bertsmith.training.step import train_step
from bertsmith.weights.huggingface import read_config
from made_rows import QUICK, WORDS

BATCH = 24
EXACT = replace(QUICK, dropout=0.0, attention_dropout=0.0, batch=BATCH)


def pairs(count: int, seed: int, negatives: bool = False) -> list[dict[str, Any]]:
    """Two texts with the same words in another order, some of them left out; with `negatives` every second row has a
    text of other words. Every fifth row has the first text of the row before it."""
    draw = random.Random(seed)
    made: list[dict[str, Any]] = []
    for number in range(count):
        text = " ".join(draw.sample(WORDS, draw.randrange(4, 12)))
        if number % 5 == 4:
            text = made[-1]["text"]
        words = text.split()
        row = {"text": text, "text_b": " ".join(draw.sample(words, draw.randrange(3, len(words) + 1)))}
        if negatives and number % 2:
            row["negative"] = " ".join(draw.sample([word for word in WORDS if word not in words], 5))
        made.append(row)
    return made


def scored_pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Pairs with the share of words that they have in common, from 0 to 5."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        words = draw.sample(WORDS, 8)
        common = draw.randrange(6)
        second = [*words[:common], *draw.sample([word for word in WORDS if word not in words], 5 - common)]
        draw.shuffle(second)
        made.append({"text": " ".join(words), "text_b": " ".join(second), "label": common})
    return made


def objective_of(
    folder: Path, budget_tokens: int, negatives: bool = True, settings: FinetuneSettings = EXACT, max_length: int = 32
) -> tuple[RankingObjective, RowStep]:
    """The objective on a model folder, with the first step of this rank."""
    config = read_config(folder)
    tokenizer, records = load_tokenizer(folder, config), read_records(pairs(60, 1, negatives), reader=Embed)
    task = Embed.of_records(records, settings)
    examples = task.examples(records, tokenizer, max_length)
    device: Device = choose_device("cpu", "fp32")
    model = build_model(Work(folder, task, tokenizer, settings, max_length, {"train": examples}), device, 0).train()
    order = Order(examples, task, 1, BATCH, budget_tokens, ranks.rank(), ranks.world_size())
    objective = RankingObjective(task, config, model, "mrr", Runner(device.torch_device, 999))
    return objective, order.step(0, order.units(1))


def stepped(objective: RankingObjective, step: RowStep, seed: int = 7) -> tuple[dict[str, Tensor], list[float]]:
    """The gradients of a step by their parameters' names, and its figures (the losses' sum, count and right ones)."""
    optimizer = AdamW(parameter_groups(objective.model, 0.0), max_gradient_norm=0.0)
    optimizer.set_learning_rate(0.0)
    torch.manual_seed(seed)
    sums = train_step(objective, optimizer, step.micro_batches, step.counts, torch.device("cpu"))
    assert sums is not None
    ranks.sum_over_ranks(sums.figures)
    named = objective.model.named_parameters()
    return {name: each.grad.clone() for name, each in named if each.grad is not None}, sums.figures.tolist()


def farthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest distance of two gradients of a parameter, in units of its norm."""
    assert found.keys() == expected.keys()
    distances = []
    for name, each in expected.items():
        # A key's bias has no gradient in exact arithmetic: it is rounding alone, held to the matrix that it belongs to.
        of = expected[name.replace("key.bias", "key.weight")]
        distances.append(float((found[name] - each).norm() / of.norm()))
    return max(distances)
