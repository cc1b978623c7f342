"""Taggers beside the pipeline of transformers on WNUT-17 with real weights: the same entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.kinds.tag import Tag, Tagger
from bertsmith.tasks.reading.records import read_records
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.tagging.schemes import spans_of
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import FolderContents, load_model, save_model
from bertsmith.weights.names import POOLER
from made_entities import Row, conll_file, entities_of

transformers = pytest.importorskip("transformers")

FILES = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
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


def test_the_pipeline_of_transformers_finds_our_entities_in_real_text(
    real_data: Find, folder: Path, tmp_path: Path
) -> None:
    """With a head that finds many: the encoder's own states through random weights."""
    rows = wnut(real_data, "dev")[:24]
    task = Tag.of_records(read_records(rows, reader=Tag), FinetuneSettings())
    model = load_model(lambda config: task.build(config, None), folder, may_be_fresh=(POOLER, task.head))
    assert isinstance(model, Tagger)
    torch.nn.init.normal_(model.classifier.weight, std=1.0, generator=torch.Generator().manual_seed(0))
    tokenizer = Tokenizer.load(folder)
    save_model(model, FolderContents(task.architectures[0], tokenizer.save, task.config()), tmp_path / "model")
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
    assert compared["text"] > 150, compared
    assert compared["words"] > 5, compared
    of_one_piece = [
        " ".join(word for word in row["tokens"] if len(tokenizer.encode_ids([word])[0]) == 1) for row in rows
    ]
    texts = [text for text in of_one_piece if text and text.isascii()]
    for strategy in ("simple", "average", "max"):  # which look at the later pieces of words, too
        found = [entities_of(answer) for answer in ours(texts)]
        theirs = pipe(texts, aggregation_strategy=strategy)
        assert [[(x["start"], x["end"], x["entity_group"]) for x in row] for row in theirs] == [
            list(map(tuple, row)) for row in found
        ]
        assert sum(map(len, found)) > 90
