"""Questions of SQuAD beside transformers, with real weights: the same windows, and the same losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.model.config import BertConfig
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.reading.records import Record, read_records
from bertsmith.tasks.sequences import pack
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import load_model
from bertsmith.weights.names import POOLER

transformers = pytest.importorskip("transformers")

STEPS, BATCH = 50, 4
Find = Callable[[str], Path]


@pytest.fixture
def folder(real_data: Find) -> Path:
    return real_data("weights/all-MiniLM-L6-v2")


def records_of(path: Path, every: int, count: int) -> list[Record]:
    """Some of the questions, spread over all articles."""
    asked = [
        {**each, "context": paragraph["context"]}
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
        for each in paragraph["qas"]
    ]
    return list(Qa.learnable(read_records(asked[::every][:count], reader=Qa)))


def test_windows_are_those_of_the_tokenizer_of_transformers(real_data: Find, folder: Path) -> None:
    """It moves by a window less the tokens that two windows share, and we by the stride."""
    records = records_of(real_data("squad/v1.1/dev-v1.1.json"), 31, 300)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    windows = Qa(doc_stride=32).encode(records, Tokenizer.load(folder), 96)
    several = 0
    for number, record in enumerate(records):
        ours = [windows.ids[each].tolist() for each in windows.of_record(number)]
        room = 96 - int(windows.first_segments[windows.of_record(number)[0]]) - 1
        found = theirs(
            record.text,
            record.text_b,
            truncation="only_second",
            max_length=96,
            stride=room - 32,
            return_overflowing_tokens=True,
        )
        assert ours == found["input_ids"]
        several += len(ours) > 1
    assert several > 250


def without_dropout(config: BertConfig) -> BertConfig:
    return replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_steps_have_the_losses_of_transformers(real_data: Find, folder: Path) -> None:
    """Of the same windows in the same order. transformers is given each alone: in a padded batch its softmax goes over
    the padding, too."""
    task = Qa(doc_stride=64)
    records = records_of(real_data("squad/v1.1/train-v1.1.json"), 101, STEPS * BATCH)
    examples = task.examples(records, Tokenizer.load(folder), 128)
    theirs = transformers.BertForQuestionAnswering.from_pretrained(
        folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    ours = load_model(
        lambda config: task.build(without_dropout(config), None), folder, may_be_fresh=(POOLER, task.head)
    ).train()
    ours.qa_outputs.load_state_dict(theirs.qa_outputs.state_dict())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-4, weight_decay=0.01) for each in (ours, theirs)]
    losses, answered = [], 0
    for step in range(STEPS):
        units = np.arange(step * BATCH, (step + 1) * BATCH)
        members, unit = examples.members(units)
        targets = torch.from_numpy(examples.targets[units])
        found = task.loss(ours, pack(examples.sequences, members, torch.device("cpu"), unit), targets)
        assert int(found.count) == task.labels(examples.targets[units]) == BATCH
        alone = []
        for member, (start, end) in zip(members, targets, strict=True):
            ids = torch.from_numpy(examples.sequences.ids[member])[None]
            kinds = (torch.arange(ids.shape[1]) >= int(examples.sequences.first_segments[member]))[None].long()
            alone.append(theirs(ids, token_type_ids=kinds, start_positions=start[None], end_positions=end[None]).loss)
            answered += int(start > 0)
        each = (found.loss / found.count, torch.stack(alone).mean())
        for optimizer, loss in zip(optimizers, each, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append([float(loss.detach()) for loss in each])
    by_step = np.array(losses)
    assert np.abs(by_step[:, 0] - by_step[:, 1]).max() < 1e-4
    assert by_step[-10:].mean() < by_step[:10].mean()  # they did learn
    assert 0 < answered < STEPS * BATCH  # some windows do not hold the answer
