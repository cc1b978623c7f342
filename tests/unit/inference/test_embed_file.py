"""Vectors of the rows of a file: their order, what was cut, what is refused, and that a file is whole or not there."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith import Embedder
from bertsmith.base.errors import BertsmithError, TypeChecked
from bertsmith.cli import main
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.parts.run import RowOptions
from bertsmith.tasks.reading.records import Columns
from bertsmith.weights.huggingface import load_encoder
from made_heads import made_head
from made_rows import CONFIG, PIECES, WORDS

TEXTS = [" ".join(WORDS[place % 30] for place in range(number, number + 1 + number % 6)) for number in range(25)]


@pytest.fixture(scope="module")
def embedder(model: Path) -> Embedder:
    return Embedder(model, "cpu", precision="fp32", budget_tokens=64)


def rows_file(path: Path, texts: list[str]) -> Path:
    lines = [json.dumps({"number": number, "text": text}) + "\n" for number, text in enumerate(texts)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_any_bert_gives_the_mean_over_its_tokens(model, embedder):
    encoder = load_encoder(model)
    for text, vector in zip(TEXTS[:5], embedder(TEXTS[:5]), strict=True):
        ids = torch.tensor([[2, *map(PIECES.index, text.split()), 3]])
        expected = encoder.encode_padded(ids)[0].mean(0)
        assert np.allclose(vector, expected.detach().numpy(), atol=1e-6)


def test_vectors_come_in_the_order_of_the_texts(embedder):
    vectors = embedder(TEXTS)
    assert vectors.shape == (25, CONFIG.hidden_size)
    assert vectors.dtype == np.float32
    assert np.allclose(embedder(TEXTS[::-1]), vectors[::-1], atol=1e-6)
    assert np.allclose(embedder(TEXTS[7])[0], vectors[7], atol=1e-6)
    assert embedder([]).shape == (0, CONFIG.hidden_size)


def test_no_options_are_made_and_checked_for_every_row(embedder, monkeypatch):
    made = list[type]()
    monkeypatch.setattr(TypeChecked, "__post_init__", lambda options: made.append(type(options)))
    embedder(TEXTS)
    assert not made


def test_a_row_is_one_text(embedder):
    assert np.array_equal(embedder({"text": TEXTS[7], "id": 1}), embedder([{"text": TEXTS[7]}]))


def test_a_row_without_the_column_is_told_how_to_name_another_one(embedder):
    """As by a `Predictor`; what is wrong with the text itself is corrected in the row alone."""
    for row, what, more in (
        ({"body": "word1"}, "no column 'text'; found: body", '; Embedder(..., columns={"text": ...}) names another'),
        ({"text": ""}, "column 'text' is empty", ""),
    ):
        with pytest.raises(BertsmithError, match=what) as caught:
            embedder(["word1", row])
        assert (caught.value.where, caught.value.fix) == ("row 2", f"correct or remove this row{more}")


@pytest.mark.parametrize("at_once", [4, 1000])
def test_both_kinds_of_files_hold_the_same_vectors(embedder, tmp_path, at_once):
    source = rows_file(tmp_path / "texts.jsonl", TEXTS)
    for name in ("vectors.npy", "vectors.jsonl"):
        done = embed_file(embedder, source, tmp_path / name, rows=RowOptions(part_rows=at_once))
        assert (done.rows, done.truncated_rows) == (25, 0)
    array = np.load(tmp_path / "vectors.npy", allow_pickle=False)
    assert (array.shape, array.dtype) == ((25, 32), np.float32)
    assert np.allclose(array, embedder(TEXTS), atol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(25))
    assert np.array_equal(np.float32([line["embedding"] for line in lines]), array)


def test_what_was_cut_is_counted(embedder, tmp_path, said):
    source = rows_file(tmp_path / "texts.jsonl", [TEXTS[0], " ".join(WORDS * 2), " ".join(WORDS[:29] * 3)])
    done = embed_file(embedder, source, tmp_path / "vectors.npy")
    assert embedder.max_length == 40
    assert (done.truncated_rows, done.truncated_tokens) == (2, 60 - 38 + 87 - 38)
    assert "2 texts truncated, 71 tokens not read" in said.text
    assert "have no part in the vectors: number" in said.text


@pytest.mark.parametrize(("text", "what"), [("", "column 'text' is empty"), (None, "holds no text")])
def test_a_bad_row_is_named_and_no_file_is_written(embedder, tmp_path, text, what):
    source = rows_file(tmp_path / "texts.jsonl", [*TEXTS[:4], text, TEXTS[5]])
    with pytest.raises(BertsmithError, match=what) as caught:
        embed_file(embedder, source, tmp_path / "vectors.npy")
    assert caught.value.where == f"{source}:5"
    assert [each.name for each in tmp_path.iterdir()] == ["texts.jsonl"]


def test_a_missing_column_a_taken_name_and_an_empty_file_are_refused(embedder, tmp_path):
    source = rows_file(tmp_path / "texts.jsonl", TEXTS)
    with pytest.raises(BertsmithError, match="no column 'body'"):
        embed_file(embedder, source, tmp_path / "out.npy", columns=Columns(text="body"))
    for name in ("embedding", "truncated_tokens"):
        (tmp_path / "taken.jsonl").write_text(json.dumps({"text": "word1", name: 1}) + "\n")
        with pytest.raises(BertsmithError, match=rf"column '{name}' already(.|\n)*: +rename that column$"):
            embed_file(embedder, tmp_path / "taken.jsonl", tmp_path / "out.jsonl")
        assert embed_file(embedder, tmp_path / "taken.jsonl", tmp_path / "vectors.npy").rows == 1
    (tmp_path / "empty.csv").write_text("text\n")
    with pytest.raises(BertsmithError, match="no rows found"):
        embed_file(embedder, tmp_path / "empty.csv", tmp_path / "out.npy")
    assert not list(tmp_path.glob("out*"))


def test_columns_that_have_no_part_in_vectors_are_refused_and_those_of_a_loaded_model_stay(model, tmp_path):
    with pytest.raises(BertsmithError, match="text_b would have no effect"):
        Embedder(model, "cpu", columns={"text": "query", "text_b": "passage"})
    loaded = Embedder(model, "cpu", precision="fp32", columns={"text": "body"})
    source = tmp_path / "texts.jsonl"
    source.write_text(json.dumps({"text": "word1", "body": "word2 word3"}) + "\n")
    with pytest.raises(BertsmithError, match="label would have no effect"):
        embed_file(loaded, source, tmp_path / "out.npy", columns={"label": "class"})
    embed_file(loaded, source, tmp_path / "out.npy", columns={"header": True})
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), loaded(["word2 word3"]))


def test_the_text_of_a_file_stands_where_the_folder_says(tmp_path):
    folder, source = made_head("embed", tmp_path / "model"), tmp_path / "texts.jsonl"
    (folder / "task.json").write_text(json.dumps({"task": "embed", "columns": {"text": "body"}}))
    source.write_text(json.dumps({"text": "word1", "body": "word2 word3"}) + "\n")
    embed_file(folder, source, tmp_path / "out.npy", device="cpu", precision="fp32")
    np.testing.assert_array_equal(
        np.load(tmp_path / "out.npy"), Embedder(folder, "cpu", precision="fp32")(["word2 word3"])
    )


def test_the_command_reads_a_pipe_and_names_what_it_cannot_write(model, tmp_path, monkeypatch, capsys):
    fp32 = ["--device", "cpu", "--precision", "fp32"]
    assert main(["embed", str(model), "x.csv", "--out", str(tmp_path / "x.txt"), *fp32]) == 2
    assert "end the name in .npy, .jsonl or .parquet" in capsys.readouterr().err
    assert main(["embed", str(model), "-", "--out", "-", "--max-length", "41", *fp32]) == 2
    assert "max_length is 41" in capsys.readouterr().err

    class Pipe(io.StringIO):
        buffer = io.BytesIO(b"body\nword1 word2\nword3 word4 word5\n")

    monkeypatch.setattr("sys.stdin", Pipe())
    assert main(["embed", str(model), "-", "--out", "-", "--columns.text", "body", "--max-length", "4", *fp32]) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [(line["body"], len(line["embedding"]), line["truncated_tokens"]) for line in lines] == [
        ("word1 word2", 32, 0),
        ("word3 word4 word5", 32, 1),
    ]
    assert "1 text truncated, 1 token not read" in captured.err
