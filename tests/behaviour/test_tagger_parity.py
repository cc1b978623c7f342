"""Taggers beside transformers on WNUT-17 with real weights: the same losses and the same entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig
from bertsmith.tasks.kinds.tag import Tag, Tagger
from bertsmith.tasks.reading.records import read_records
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.tagging.schemes import spans_of
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import FolderContents, load_model, save_model
from bertsmith.weights.names import POOLER
from made_entities import Row, conll_file, entities_of

transformers = pytest.importorskip("transformers")

FILES = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
STEPS, BATCH = 50, 4
Find = Callable[[str], Path]


def wnut(real_data: Find, part: str) -> list[Row]:
    return list(conll_file(real_data("ner/wnut17") / FILES[part]))


def test_wnut_has_its_published_sizes(real_data: Find) -> None:
    """Sentences as the data set's card counts them, and an entity for every line with a B-."""
    found = {}
    for part, name in FILES.items():
        rows = wnut(real_data, part)
        found[part] = (len(rows), sum(len(spans_of(row["tags"])) for row in rows))
        lines = (real_data("ner/wnut17") / name).read_text(encoding="utf-8").split("\n")
        assert found[part][1] == sum("\tB-" in line for line in lines)
    assert found == {"train": (3394, 1975), "dev": (1009, 836), "test": (1287, 1079)}


@pytest.fixture
def folder(real_data: Find) -> Path:
    return real_data("weights/all-MiniLM-L6-v2")


def padded_batches(rows: list[Row], folder: Path, names: tuple[str, ...]) -> Iterator[dict[str, torch.Tensor]]:
    """What a script of transformers' examples gives its model: its own tokenizer and its own alignment of labels."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for start in range(0, STEPS * BATCH, BATCH):
        those = rows[start : start + BATCH]
        batch = tokenizer([row["tokens"] for row in those], is_split_into_words=True, padding=True, return_tensors="pt")
        labels = torch.full_like(batch["input_ids"], -100)
        for number, row in enumerate(those):
            seen = set()
            for place, word in enumerate(batch.word_ids(number)):
                if word is not None and word not in seen:
                    labels[number, place] = names.index(row["tags"][word])
                    seen.add(word)
        yield {**batch, "labels": labels}


def without_dropout(config: BertConfig) -> BertConfig:
    return replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def updated(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_steps_have_the_losses_of_transformers(real_data: Find, folder: Path) -> None:
    rows = wnut(real_data, "train")[: STEPS * BATCH]
    records = read_records(rows, reader=Tag)
    task = Tag.of_records(records, FinetuneSettings())
    examples = task.examples(records, Tokenizer.load(folder), 128)
    theirs = transformers.BertForTokenClassification.from_pretrained(
        folder, num_labels=len(task.names), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    ours = load_model(
        lambda config: task.build(without_dropout(config), None), folder, may_be_fresh=(POOLER, task.head)
    ).train()
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=5e-5, weight_decay=0.01) for each in (ours, theirs)]
    losses = []
    for step, batch in enumerate(padded_batches(rows, folder, task.names)):
        units = np.arange(step * BATCH, (step + 1) * BATCH)
        members, unit = examples.members(units)
        inputs = pack(examples.sequences, members, torch.device("cpu"), unit)
        found = task.loss(ours, inputs, torch.from_numpy(examples.targets[units]))
        assert int(found.count) == int((batch["labels"] != -100).sum())
        losses.append((updated(optimizers[0], found.loss / found.count), updated(optimizers[1], theirs(**batch).loss)))
    by_step = np.array(losses)
    assert np.abs(by_step[:, 0] - by_step[:, 1]).max() < 1e-4
    assert by_step[-10:].mean() < by_step[:10].mean() / 2  # they did learn


def test_the_pipeline_of_transformers_finds_our_entities_in_real_text(
    real_data: Find, folder: Path, tmp_path: Path
) -> None:
    """With a head that finds many: the encoder's own states through random weights."""
    rows = wnut(real_data, "dev")[:80]
    task = Tag.of_records(read_records(rows, reader=Tag), FinetuneSettings())
    model = load_model(lambda config: task.build(config, None), folder, may_be_fresh=(POOLER, task.head))
    assert isinstance(model, Tagger)
    torch.nn.init.normal_(model.classifier.weight, std=1.0, generator=torch.Generator().manual_seed(0))
    tokenizer = Tokenizer.load(folder)
    save_model(model, FolderContents(task.architecture, tokenizer.save, task.config()), tmp_path / "model")
    ours = Predictor(tmp_path / "model", "cpu", precision="fp32")
    pipe: Any = transformers.pipeline(
        "token-classification", model=str(tmp_path / "model"), device="cpu", aggregation_strategy="first"
    )
    compared = Counter[str]()
    for row in rows:
        text = " ".join(row["tokens"])
        if not text.isascii():
            continue  # of a word that the normaliser shortens, the pipeline makes a part of the word before it
        pairs = [("text", pipe(text), ours(text)[0])]
        if all(word.isalnum() for word in row["tokens"]):  # of a word with a hyphen it makes three
            pairs.append(("words", pipe([row["tokens"]], is_split_into_words=True)[0], ours(row)[0]))
        for form, theirs, answer in pairs:
            found = [(each["start"], each["end"], each["entity_group"]) for each in theirs]
            assert found == [tuple(span) for span in entities_of(answer)]
            assert [each["score"] for each in answer["entities"]] == pytest.approx(
                [float(each["score"]) for each in theirs], abs=1e-4
            )
            compared[form] += len(found)
    assert compared["text"] > 500
    assert compared["words"] > 5
