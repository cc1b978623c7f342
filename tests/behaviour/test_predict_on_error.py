"""Rows that cannot be used: the first one ends the work, or all of them are left out, named and counted."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.kinds.masked_words import MaskedWords
from bertsmith.tasks.reading.bad_rows import SHOWN
from made_heads import KINDS, made_head
from made_rows import PIECES

CPU = {"device": "cpu", "precision": "fp32"}
SKIP = RowOptions(on_error="skip", part_rows=3)
GOOD = [f"word{number} [MASK]" for number in range(8)]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def bad_file(path: Path) -> Path:
    """Good rows, and between them one of each fault, in lines 2, 4, 5, 8 and 12."""
    bad = {
        2: '{"text": "no mask"}',
        4: "{broken",
        5: '{"body": "word1 [MASK]"}',
        8: '{"text": "[MASK]", "prediction": 1}',
        12: json.dumps({"text": "word1 " * 60 + "[MASK]"}),
    }
    rest = iter([json.dumps({"text": text}) for text in GOOD])
    path.write_text("".join((bad.get(number) or next(rest)) + "\n" for number in range(1, 14)))
    return path


@pytest.mark.parametrize("part_rows", [3, 100])
def test_bad_rows_are_left_out_named_and_counted(model, tmp_path, said, part_rows):
    source, out = bad_file(tmp_path / "rows.jsonl"), tmp_path / "out.jsonl"
    done = predict_file(model, source, out, rows=replace(SKIP, part_rows=part_rows), **CPU)
    assert (done.rows, done.skipped) == (8, 5)
    assert [row["text"] for row in lines(out)] == GOOD
    errors = lines(tmp_path / "out.jsonl.errors.jsonl")
    assert [each["where"] for each in errors] == [f"{source}:{number}" for number in (2, 4, 5, 8, 12)]
    faults = ("no [MASK]", "not JSON", "no column 'text'", "has a column 'prediction'", "past the tokens")
    assert all(fault in str(each["why"]) for fault, each in zip(faults, errors, strict=True))
    assert (errors[1]["row"], errors[2]["row"]) == ("{broken", {"body": "word1 [MASK]"})
    assert f"{source}:2: there is no [MASK]" in said.text
    assert "8 rows predicted; 5 rows left out" in said.text


def test_rows_that_have_a_prediction_are_refused_but_for_a_csv_file(model, tmp_path):
    """As exports of labelling tools have one."""
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.csv"
    source.write_text(json.dumps({"text": GOOD[0], "prediction": [{"label": "a"}]}) + "\n")
    with pytest.raises(BertsmithError, match="has a column 'prediction' already") as caught:
        predict_file(model, source, tmp_path / "out.jsonl", **CPU)
    assert "rename or remove that column, or write to a .csv file" in caught.value.fix
    assert "skip" not in caught.value.fix
    assert predict_file(model, source, out, **CPU).rows == 1
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    assert json.loads(row["prediction"]) == [{"label": "a"}]


def test_rows_of_a_csv_file_have_their_cells_by_name_and_all_of_them(model, tmp_path):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.csv"
    first, turned = {"text": GOOD[0], "id": "a"}, {"id": "b", "text": GOOD[1]}
    source.write_text(f"{{broken\n{json.dumps(first)}\n{json.dumps(turned)}\n")
    for part_rows in (2, 100):  # the columns are those of the first row that can be read, in all parts
        predict_file(model, source, out, rows=replace(SKIP, part_rows=part_rows), **CPU)
        rows = csv.DictReader(io.StringIO(out.read_text()))
        assert [(row["text"], row["id"]) for row in rows] == [(GOOD[0], "a"), (GOOD[1], "b")]
    for other in ({"text": GOOD[1]}, {**turned, "more": "c"}):
        source.write_text(f"{json.dumps(first)}\n{json.dumps(other)}\n")
        with pytest.raises(BertsmithError, match="this row has other columns than the first one"):
            predict_file(model, source, out, **CPU)


def test_a_file_with_answers_of_before_is_not_told_to_leave_out_its_rows(model, tmp_path):
    """Which are all of them."""
    (tmp_path / "rows.csv").write_text(f"text,predicted_guesses\n{GOOD[0]},x\n")
    with pytest.raises(BertsmithError, match="this file has a column 'predicted_guesses' already") as caught:
        predict_file(model, tmp_path / "rows.csv", tmp_path / "out.csv", **CPU)
    assert caught.value.fix == "rename that column"


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_a_column_that_cannot_be_written_is_named(model, tmp_path, name):
    """As one of bytes in a parquet file, such as pictures beside their texts; and where its name is at fault."""
    source, rows = tmp_path / "rows.parquet", [{"text": GOOD[0], "n": 1, "picture": b"\xff\xd8"}]
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), source)
    call = embed_file if name.endswith("parquet") else predict_file
    with pytest.raises(BertsmithError, match="column 'picture' of this row holds bytes that are not UTF-8") as caught:
        call(model, source, tmp_path / name, **CPU)
    assert caught.value.where == f"{source}, row 1"
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"text": GOOD[0]}) + "\n" + json.dumps({"text": GOOD[0], "\ud800": 1}) + "\n")
    if name != "out.csv":
        assert call(model, source, tmp_path / name, rows=SKIP, **CPU).skipped == 1
        (bad,) = lines(tmp_path / f"{name}.errors.jsonl")
        assert "of this row holds half of a surrogate pair" in str(bad["why"])


@pytest.mark.parametrize("bad", [2, 4, 8, 12])
def test_the_first_bad_row_of_the_file_ends_the_work(model, tmp_path, bad):
    source = bad_file(tmp_path / "rows.jsonl")
    kept = [line for number, line in enumerate(source.read_text().splitlines(), 1) if number >= bad]
    source.write_text("\n" * (bad - 1) + "\n".join(kept) + "\n")
    with pytest.raises(BertsmithError) as caught:
        predict_file(model, source, tmp_path / "out.jsonl", **CPU)
    assert caught.value.where == f"{source}:{bad}"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_errors_of_an_earlier_run_do_not_stay(model, tmp_path):
    source, out = bad_file(tmp_path / "rows.jsonl"), tmp_path / "out.jsonl"
    predict_file(model, source, out, rows=SKIP, **CPU)
    source.write_text(json.dumps({"text": GOOD[0]}) + "\n")
    predict_file(model, source, out, rows=SKIP, **CPU)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


@pytest.mark.parametrize("wrong", ["column", "content"])
def test_a_file_without_a_usable_row_is_refused(model, tmp_path, wrong):
    row = {"body": "word1 [MASK]"} if wrong == "column" else {"text": "word1"}
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 7)
    with pytest.raises(BertsmithError, match="rows can" if wrong == "content" else "3 of 3 rows cannot be used"):
        predict_file(model, tmp_path / "rows.jsonl", tmp_path / "out.jsonl", rows=SKIP, **CPU)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("out", ["out.jsonl", "-"])
def test_rows_without_a_mask_are_told_that_the_model_is_only_pre_trained(model, tmp_path, on_error, out):
    (tmp_path / "rows.csv").write_text("text\nlovely word1\nawful\n")
    out = out if out == "-" else tmp_path / out
    with pytest.raises(BertsmithError, match=r"no \[MASK\] in this row") as caught:
        predict_file(model, tmp_path / "rows.csv", out, rows=RowOptions(on_error=on_error), **CPU)
    assert "this model is only pre-trained, and gives words for each [MASK]" in caught.value.fix
    assert "`bertsmith finetune` makes a classifier" in caught.value.fix


def test_a_fine_tuned_model_is_not_called_pre_trained(tmp_path):
    (tmp_path / "rows.csv").write_text("text,text_b\n,word1\n")
    folder = made_head("classify", tmp_path / "model")
    for on_error in ("stop", "skip"):
        with pytest.raises(BertsmithError, match="is empty") as caught:
            predict_file(folder, tmp_path / "rows.csv", "-", rows=RowOptions(on_error=on_error), **CPU)
        assert "pre-trained" not in caught.value.fix


def test_the_row_that_ends_the_work_is_told_with_the_flag_that_leaves_it_out(model, tmp_path):
    skip = "or use --on-error skip, which leaves such rows out and lists them"
    no_json = '{"text": "word1 [MASK]", "n": NaN}'  # only its line cannot be written
    for wrong, at_stop in (('{"text": " "}', True), ("{broken", True), (no_json, True), ('{"body": "a"}', False)):
        (tmp_path / "rows.jsonl").write_text(f'{{"text": "word1 [MASK]"}}\n{wrong}\n')
        for out, part_rows in (("-", 0), (tmp_path / "out.jsonl", 0), (tmp_path / "ones.jsonl", 1)):
            with pytest.raises(BertsmithError) as caught:
                predict_file(model, tmp_path / "rows.jsonl", out, rows=RowOptions(part_rows=part_rows), **CPU)
            assert caught.value.where.endswith("rows.jsonl:2")
            assert caught.value.fix.split("; ").count(skip) == int(at_stop)
            PartsFolder(Path(out)).remove()


@pytest.mark.parametrize(
    ("kind", "column", "lacks", "fix"),
    [
        ("tag", "body", "no column 'tokens' of words and no column 'text'; found: body", "tokens or --columns.text"),
        ("choice", "text", "no column 'choices', nor any choice0, .*; found: text", "choices"),
    ],
)
def test_a_file_without_a_column_is_told_how_to_name_it(kind, column, lacks, fix, tmp_path):
    """And not of --on-error skip, which would leave out all of its rows."""
    folder = made_head(kind, tmp_path / "model")
    (tmp_path / "rows.csv").write_text(f"{column}\nword1\nword2\n")
    of_file = partial(predict_file, folder, tmp_path / "rows.csv", "-", **CPU)
    for call in (of_file, partial(Predictor(folder, **CPU), [{column: "word1"}])):
        with pytest.raises(BertsmithError, match=lacks) as caught:
            call()
        assert caught.value.fix.startswith(f"name one with --columns.{fix}, in Python Columns(")
        assert "--on-error" not in caught.value.fix


def test_a_table_has_its_header_once_although_its_first_and_last_parts_are_left_out(model, tmp_path):
    bad = [["no mask", n] for n in range(4)]
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text", "n"], *bad, *([text, 9] for text in GOOD), *bad])
    done = predict_file(model, tmp_path / "rows.csv", tmp_path / "out.csv", rows=SKIP, **CPU)
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["text", "n", "predicted_guesses", "truncated_tokens"]
    assert [row[0] for row in rows[1:]] == GOOD
    assert (done.rows, done.skipped) == (8, 8)


def test_the_name_of_a_column_that_cannot_be_written_is_an_error_of_its_row(model, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": GOOD[0], "\ud800": 1}) + "\n")
    with pytest.raises(BertsmithError, match="half of a surrogate pair") as caught:
        predict_file(model, tmp_path / "rows.jsonl", tmp_path / "out.csv", **CPU)
    assert caught.value.where == f"{tmp_path / 'rows.jsonl'}:1"


def test_vectors_leave_bad_rows_out_too(model, tmp_path):
    rows = [{"text": "word1"}, {"text": ""}, {"text": 5}, {"text": "word2"}, {"embedding": 1, "text": "word3"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert embed_file(model, tmp_path / "rows.jsonl", tmp_path / "out.npy", rows=SKIP, **CPU).skipped == 2
    assert np.load(tmp_path / "out.npy", allow_pickle=False).shape == (3, 32)
    assert embed_file(model, tmp_path / "rows.jsonl", tmp_path / "out.jsonl", rows=SKIP, **CPU).skipped == 3
    assert [row["text"] for row in lines(tmp_path / "out.jsonl")] == ["word1", "word2"]


def overflowing(folder: Path, kind: str) -> tuple[Path, Path, list[int]]:
    """A model whose numbers overflow at word8, rows for it, and the numbers of those with that word."""
    made_head(kind, folder / "drawn")
    weights = safetensors.torch.load_file(folder / "drawn" / "model.safetensors")
    (words,) = (name for name in weights if "word_embeddings" in name)
    weights[words][PIECES.index("word8")] = torch.tensor([3e38, -3e38] * 16)
    safetensors.torch.save_file(weights, folder / "drawn" / "model.safetensors", {"format": "pt"})
    made = KINDS[kind][3] * 3
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    found = [number for number, row in enumerate(made, 1) if "word8" in json.dumps(row)]
    assert found == [4, 5, 9, 10, 14, 15]
    return folder / "drawn", folder / "rows.jsonl", found


@pytest.mark.parametrize("kind", ["classify", "many labels", "regress", "tag", "qa", "choice", "score", "embed"])
def test_scores_that_are_not_finite_are_errors_of_their_rows(kind, tmp_path):
    folder, source, bad = overflowing(tmp_path, kind)
    for work in [predict_file, embed_file] if kind == "embed" else [predict_file]:
        done = work(folder, source, tmp_path / "out.jsonl", rows=replace(SKIP, part_rows=7), **CPU)
        assert (done.rows, done.skipped) == (9, 6)
        errors = lines(tmp_path / "out.jsonl.errors.jsonl")
        assert [each["where"] for each in errors] == [f"{source}:{number}" for number in bad]
        assert {each["why"] for each in errors} == {"the model's scores of this row are not finite (NaN or infinity)"}
        with pytest.raises(BertsmithError, match="of this row are not finite") as caught:
            work(folder, source, tmp_path / "other.jsonl", **CPU)
        assert caught.value.where == f"{source}:4"


def test_all_rows_whose_masked_words_are_not_finite_are_found_at_once(model, tmp_path, monkeypatch):
    bad, calls, guess = PIECES.index("word8"), [], MaskedWords._guess

    def broken(self, model, sequences, members, device):
        calls.append(len(members))
        rows, probabilities, pieces = guess(self, model, sequences, members, device)
        probabilities[[bad in sequences.ids[row] for row in rows]] = np.nan
        return rows, probabilities, pieces

    monkeypatch.setattr(MaskedWords, "_guess", broken)
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": f"word{number % 10} [MASK]"}) + "\n" for number in range(60)))
    rows = replace(SKIP, part_rows=60)
    done = predict_file(model, source, tmp_path / "out.jsonl", rows=rows, budget_tokens=32, **CPU)
    assert (done.rows, done.skipped) == (54, 6)
    assert len(calls) > 10
    assert sum(calls) == 60 + 54  # once with these rows, once without


@pytest.mark.parametrize("work", [predict_file, embed_file])
def test_a_number_that_json_does_not_have_is_not_written(model, tmp_path, work):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "[MASK]", "n": 1}\n{"text": "[MASK]", "n": {"a": [NaN]}}\n{"text": "[MASK]"}\n')
    with pytest.raises(BertsmithError, match="'n' of this row holds a number that JSON does not have") as caught:
        work(model, source, out, **CPU)
    assert caught.value.where == f"{source}:2"
    assert work(model, source, out, rows=SKIP, **CPU).skipped == 1
    for name in ("out.jsonl", "out.jsonl.errors.jsonl"):
        for line in (tmp_path / name).read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    assert '"n": {"a": [NaN]}' in str(lines(tmp_path / "out.jsonl.errors.jsonl")[0]["row"])


@pytest.mark.parametrize("to", ["csv", "jsonl"])
def test_an_answer_that_is_not_finite_is_not_written(model, to, tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("text,n\na [MASK],1\n")
    monkeypatch.setattr(Predictor, "answered", lambda *_: [{"guesses": [], "score": math.inf, "truncated_tokens": 0}])
    with pytest.raises(BertsmithError, match="answer to this row holds a number that is not finite") as caught:
        predict_file(model, tmp_path / "rows.csv", tmp_path / f"out.{to}", **CPU)
    assert caught.value.where == f"{tmp_path / 'rows.csv'}:2"


def test_a_pipe_leaves_bad_rows_out_and_ends_with_status_0(model, monkeypatch, capsys):
    class Pipe(io.StringIO):
        buffer = io.BytesIO(b'{"text": "a [MASK]"}\n{broken\n{"text": "none"}\n{"text": "b [MASK]"}\n')

    monkeypatch.setattr("sys.stdin", Pipe())
    assert main(["predict", str(model), "-", "--device", "cpu", "--precision", "fp32", "--on-error", "skip"]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["text"] for line in captured.out.splitlines()] == ["a [MASK]", "b [MASK]"]
    assert "left out: standard input:2: this line is not JSON" in captured.err
    assert captured.err.splitlines()[-1] == "2 rows predicted; 2 rows left out"


def test_of_many_bad_rows_the_first_ones_are_named(model, tmp_path, said, capfd):
    (tmp_path / "rows.jsonl").write_text('{"text": "none"}\n' * (SHOWN + 9) + '{"text": "[MASK]"}\n')
    assert predict_file(model, tmp_path / "rows.jsonl", "-", rows=SKIP, **CPU).skipped == SHOWN + 9
    assert said.text.count("left out: ") == SHOWN


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--resume"], "write parts beside a file"),
        (["--workers", "2"], "write parts beside a file"),
        (["--workers", "0", "--out", "x.jsonl"], "workers is 0"),
        (["--gpus", "99", "--out", "x.jsonl"], "gpus is 99"),
        (["--gpus", "9" * 5000, "--out", "x.jsonl"], "gpus is 999"),
        (["--gpus", "", "--out", "x.jsonl"], "--gpus is empty"),
        (["--gpus", "1", "--workers", "2", "--out", "x.jsonl"], "exclude each other"),
        (["--gpus", "1", "--device", "cpu", "--out", "x.jsonl"], "--gpus gives each worker its device"),
        (["--gpus", "1", "--backend", "onnx", "--out", "x.jsonl"], "not on --gpus"),
        (["--out", "rows.jsonl"], "would be written over"),
    ],
)
def test_flags_that_do_not_belong_together_are_refused(model, tmp_path, monkeypatch, capsys, flags, what):
    monkeypatch.chdir(tmp_path)
    bad_file(tmp_path / "rows.jsonl")
    assert main(["predict", str(model), "rows.jsonl", *flags]) == 2
    assert what in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_standard_output_that_is_closed_is_refused_at_the_start(model, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(BertsmithError, match="standard output is closed"):
        predict_file(tmp_path / "no model is loaded", tmp_path / "rows.jsonl", "-")


def test_standard_output_is_utf8_whatever_the_locale(model, tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text('{"text": "\u00e9 [MASK]"}\n', encoding="utf-8")
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    predict_file(model, tmp_path / "rows.jsonl", "-", **CPU)
    assert json.loads(written.getvalue().decode())["text"] == "\u00e9 [MASK]"
