"""Vectors other than the folder's own: pooling, scaling, layers of tokens; and parquet files."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith import Embedder
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.embed import VectorOptions
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.run import RowOptions
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import load_encoder
from made_heads import made_head
from made_rows import PIECES, WORDS

CPU = {"device": "cpu", "precision": "fp32"}
TEXTS = [" ".join(WORDS[number : number + 1 + 3 * number]) for number in range(6)]


def rows_file(path: Path) -> Path:
    rows = [{"text": text, "n": number, "half": number / 2} for number, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def hidden_of(model: Path, text: str) -> np.ndarray:
    ids = torch.tensor([[2, *map(PIECES.index, text.split()), 3]])
    return load_encoder(model).encode_padded(ids)[0].detach().numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooling_and_scaling_are_chosen_and_logged_where_they_differ(model, pooling, said):
    embedder = Embedder(model, **CPU, vectors=VectorOptions(pooling, unit=True))
    for text, vector in zip(TEXTS, embedder(TEXTS), strict=True):
        hidden = hidden_of(model, text)
        expected = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0)}[pooling]
        assert np.allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)
    assert "scaled to length 1: True (asked for; the folder's own is False)" in said.text
    assert (f"pooling: {pooling} (asked for; the folder's own is mean)" in said.text) == (pooling != "mean")


def test_vectors_are_pooled_and_scaled_as_the_folder_says(tmp_path):
    folder = made_head("embed", tmp_path / "model")  # max, and length 1
    for text, vector in zip(TEXTS, Embedder(folder, **CPU)(TEXTS), strict=True):
        expected = hidden_of(folder, text).max(0)
        assert np.allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)


def test_the_vectors_of_tokens_are_those_of_transformers_layers(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(model).eval()
    call = ["embed", str(model), str(rows_file(tmp_path / "rows.jsonl")), "--out", str(tmp_path / "out.jsonl")]
    assert main([*call, "--layers", "-1,-2", "--part-rows", "4", "--device", "cpu", "--precision", "fp32"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == list(range(6))
    for text, line in zip(TEXTS, lines, strict=True):
        pieces = ["[CLS]", *text.split(), "[SEP]"]
        assert [each["token"] for each in line["features"]] == pieces
        with torch.no_grad():
            states = theirs(torch.tensor([[*map(PIECES.index, pieces)]]), output_hidden_states=True).hidden_states
        for place, token in enumerate(line["features"]):
            assert [each["index"] for each in token["layers"]] == [-1, -2]
            for each in token["layers"]:
                assert np.allclose(each["values"], states[each["index"]][0, place].numpy(), atol=2e-6)


def test_what_is_not_done_to_texts_or_by_an_export_is_refused(tmp_path):
    folder = made_head("embed", tmp_path / "model")
    with pytest.raises(BertsmithError, match="gives the hidden states of its last layer alone"):
        Embedder(folder, **CPU, backend="onnx", vectors=VectorOptions(layers=(0,)))
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert Embedder(folder, **CPU)(["word1"]).shape == (1, 32), "this tokenizer lower-cases texts itself"
    Tokenizer.from_vocabulary(PIECES, lowercase=False).save(folder)
    with pytest.raises(BertsmithError, match="this folder lower-cases texts for a tokenizer that has capital letters"):
        Embedder(folder, **CPU)


def test_a_text_has_from_three_tokens_to_as_many_as_the_model_has_positions(tmp_path):
    folder = made_head("embed", tmp_path / "model")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 99}')
    assert Embedder(folder, **CPU).max_length == 40
    for length in (3, 40):
        assert Embedder(folder, **CPU, vectors=VectorOptions(max_length=length)).max_length == length
    for length in (2, 41):
        with pytest.raises(BertsmithError, match=f"max_length is {length}, and the model reads from 3 to 40 tokens"):
            Embedder(folder, **CPU, vectors=VectorOptions(max_length=length))


def test_a_text_whose_vector_is_not_finite_is_named(model):
    embedder = Embedder(model, **CPU)
    with torch.no_grad():
        embedder._model.encoder.embeddings.word.weight[PIECES.index("lovely")] = torch.nan
    with pytest.raises(BertsmithError, match="not finite") as caught:
        embedder(["word1", "word2 lovely", "word3"])
    assert caught.value.where == "row 2"


def test_the_vectors_of_no_tokens_are_as_wide_as_those_of_some(model):
    embedder = Embedder(model, **CPU, vectors=VectorOptions(layers=(-1, 0)))
    assert embedder([]).shape == (0, embedder(["word1"]).shape[1])


def test_the_number_of_a_row_is_its_own_where_others_are_left_out(model, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "word1"}\n{broken\n{"text": ""}\n{"text": "word2"}\n')
    options = RowOptions(on_error="skip", part_rows=3)
    vectors = VectorOptions(layers=(0,))
    embed_file(model, tmp_path / "rows.jsonl", tmp_path / "out.jsonl", rows=options, vectors=vectors, **CPU)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 3]


@pytest.mark.parametrize(("name", "layers"), [("out.jsonl", ()), ("out.parquet", ()), ("out.jsonl", (-1,))])
def test_each_row_says_how_much_of_it_was_cut(model, tmp_path, name, layers):
    if name.endswith(".parquet"):
        parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"text": " ".join(["word1"] * count)} for count in (38, 39, 1, 45)]  # the model reads 38 beside 2 others
    rows.insert(2, {"text": ""})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options, vectors = RowOptions(on_error="skip", part_rows=2), VectorOptions(layers=layers)
    done = embed_file(model, tmp_path / "rows.jsonl", tmp_path / name, rows=options, vectors=vectors, **CPU)
    if name.endswith(".parquet"):
        assert str(parquet.read_schema(tmp_path / name).field("truncated_tokens").type) == "int64"
        written = parquet.read_table(tmp_path / name).to_pylist()
    else:
        written = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    assert [each["truncated_tokens"] for each in written] == [0, 1, 0, 7]
    assert (done.truncated_rows, done.truncated_tokens) == (2, 8)


def test_a_parquet_file_has_the_columns_of_the_rows_and_a_list_of_fixed_size(model, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    source = rows_file(tmp_path / "rows.jsonl")
    for name in ("out.parquet", "out.npy"):
        embed_file(model, source, tmp_path / name, rows=RowOptions(part_rows=4), **CPU)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["text", "n", "half", "embedding", "truncated_tokens"]
    assert table.schema.field("embedding").type.list_size == 32
    assert table["text"].to_pylist() == TEXTS
    vectors = np.load(tmp_path / "out.npy", allow_pickle=False)
    assert np.array_equal(np.float32(table["embedding"].to_pylist()), vectors)


def test_a_column_of_vectors_is_refused_where_rows_are_copied_alone(model, tmp_path):
    pytest.importorskip("pyarrow")
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "word1", "embedding": 1}\n')
    with pytest.raises(BertsmithError, match="column 'embedding' already"):
        embed_file(model, source, tmp_path / "out.parquet", **CPU)
    vectors = VectorOptions(layers=(-1,))
    assert embed_file(model, source, tmp_path / "tokens.jsonl", vectors=vectors, **CPU).rows == 1


@pytest.mark.parametrize("name", ["out.parquet", "out.npy", "out.jsonl"])
def test_files_are_written_into_a_folder_whose_name_is_not_utf8(name, model, tmp_path):
    pytest.importorskip("pyarrow")
    source, folder = rows_file(tmp_path / "rows.jsonl"), tmp_path / "caf\udce9"
    for out in (folder / name, tmp_path / name):
        call = ["embed", str(model), str(source), "--out", str(out), "--part-rows", "4"]
        assert main([*call, "--device", "cpu", "--precision", "fp32"]) == 0
    assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()


def test_columns_of_a_parquet_file_have_one_type_over_all_parts(model, tmp_path, said):
    parquet = pytest.importorskip("pyarrow.parquet")

    def embedded(*values: object, **options: Any) -> None:
        rows = [{"text": "word1", "x": value} for value in values]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        embed_file(model, tmp_path / "rows.jsonl", tmp_path / "out.parquet", rows=RowOptions(**options), **CPU)

    rows = [{"text": "word1"}, {"text": "word2", "late": 1}, {"text": "word3", "late": "\ud800"}]
    rows.append({"late": 2, "text": "word4"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for part_rows in (0, 1):
        options = RowOptions(on_error="skip", part_rows=part_rows)
        assert embed_file(model, tmp_path / "rows.jsonl", tmp_path / "out.parquet", rows=options, **CPU).skipped == 1
        written = parquet.read_table(tmp_path / "out.parquet").select(["text", "late"]).to_pylist()
        assert written == [{"text": "word1", "late": None}, rows[1], rows[3]]
    embedded(None, 1, 2.5, part_rows=1)
    assert parquet.read_table(tmp_path / "out.parquet")["x"].to_pylist() == [None, 1.0, 2.5]
    for values in ((1, "one"), (2**53 + 1, 0.5), (1, 2**63), (1, [2**70]), ({},), ([{"a": {}}],)):
        with pytest.raises(BertsmithError, match="no one type"):
            embedded(*values, part_rows=1)
        for path in (tmp_path / "out.parquet.parts").glob("*"):
            path.unlink()
    with pytest.raises(BertsmithError, match="no one type"):  # no row alone is at fault, to be left out
        embedded(1, "one", on_error="skip")
    said.clear()
    with pytest.raises(BertsmithError, match="no one type") as caught:
        embedded(1, "one", part_rows=1)
    assert caught.value.where == str(tmp_path / "out.parquet.parts")
    assert caught.value.fix.endswith("delete this folder, whose parts cannot be joined")
    assert "--resume" not in said.text  # it would end so again


@pytest.mark.parametrize("workers", [1, 2])
def test_a_part_with_another_type_ends_the_work_at_once(model, tmp_path, workers, quick_workers):
    """It did when all parts were finished, after hours; and where it is resumed, before any work."""
    pytest.importorskip("pyarrow")
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.parquet"
    source.write_text("".join(json.dumps({"text": "word1", "x": n or "one"}) + "\n" for n in range(2000)))
    # How far workers are when the second part is looked at is a matter of the machine.
    for resume, parts in ((False, range(2, 3 if workers == 1 else 2000)), (True, None)):
        before = PartsFolder(out).finished_parts()
        with pytest.raises(BertsmithError, match="no one type") as caught:
            embed_file(model, source, out, rows=RowOptions(workers, part_rows=1, resume=resume), **CPU)
        assert caught.value.where == str(tmp_path / "out.parquet.parts")
        assert PartsFolder(out).finished_parts() in (parts or [before])


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--layers", "-3", "--out", "x.jsonl"], "layer -3 is not one of the model's 2"),
        (["--layers", "one", "--out", "x.jsonl"], "--layers is 'one'"),
        (["--layers", "", "--out", "x.jsonl"], "--layers is empty"),
        (["--layers", "-1", "--out", "x.npy"], "written as JSON lines"),
        (["--layers", "-1", "--pooling", "cls", "--out", "x.jsonl"], "neither pooled nor scaled"),
        (["--normalise", "--no-normalise", "--out", "x.npy"], "exclude each other"),
        (["--pooling", "sum", "--out", "x.npy"], "--pooling is 'sum'"),
    ],
)
def test_options_that_cannot_be_met_are_refused(model, tmp_path, monkeypatch, capsys, flags, what):
    monkeypatch.chdir(tmp_path)
    rows_file(tmp_path / "rows.jsonl")
    assert main(["embed", str(model), "rows.jsonl", *flags]) == 2
    message = capsys.readouterr().err
    assert what in message
    assert "None" not in message
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("last", ["word2", " "])
def test_tokens_of_a_pipe_have_the_numbers_of_their_rows(model, monkeypatch, capsysbinary, last):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in (*["word1"] * 40, last))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    options = {"rows": RowOptions(part_rows=3), "vectors": VectorOptions(layers=(-1,))}
    with nullcontext() if last.strip() else pytest.raises(BertsmithError, match="is empty"):
        embed_file(model, "-", "-", **options, **CPU)
    found = [json.loads(line)["linex_index"] for line in capsysbinary.readouterr().out.splitlines()]
    assert found == list(range(41 if last.strip() else 40))
