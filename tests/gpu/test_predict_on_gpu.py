"""Prediction on a card: weights kept once give the same scores, and a worker for each card the same answers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bertsmith.base.device import choose_device
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from bertsmith.tasks.embedding.pooling import VectorModel
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import encode, load_tokenizer
from bertsmith.tasks.task import Runner
from bertsmith.weights.huggingface import load_model, read_config
from bertsmith.weights.names import POOLER
from made_rows import made_model, rows


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_kept_once_give_the_same_vectors(cuda, tmp_path, precision):
    folder = made_model(tmp_path)
    device = choose_device("cuda", precision)
    model = load_model(lambda config: VectorModel(config, "mean", device.compute), folder, may_be_fresh=(POOLER,))
    model.to(cuda)
    records = [Record(row["text"], None, None, f"row {number}") for number, row in enumerate(rows(40, 5))]
    sequences = encode(records, load_tokenizer(folder, read_config(folder)), 40)
    runner = Runner(cuda, 128)
    wide = runner.scores(model, sequences)
    model.encoder.keep_weights_once()
    assert np.array_equal(runner.scores(model, sequences), wide)


def test_a_worker_for_each_card_gives_the_answers_of_one(cuda, tmp_path):
    folder = made_model(tmp_path)
    lines = [json.dumps({"text": row["text"] + " [MASK]"}) + "\n" for row in rows(40, 5)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    for name, gpus in (("one", ""), ("all", "all")):
        options = RowOptions(gpus=gpus, part_rows=8)
        predict_file(folder, tmp_path / "rows.jsonl", tmp_path / f"{name}.jsonl", rows=options, device="cuda")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "all.jsonl").read_bytes()
