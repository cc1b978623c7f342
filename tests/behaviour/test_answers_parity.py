"""The windows of questions of SQuAD are those of the tokenizer of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.reading.records import Record, read_records
from bertsmith.tokens.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

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
