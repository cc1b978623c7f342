"""Promises of prediction: no row is misread in silence, what is cut is counted, and rows are answered as they come."""

from __future__ import annotations

import csv
import gzip
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.reading.records import Columns
from made_commands import Command, started_anew
from made_rows import QUICK, rows

TRAIN, DEV = rows(64, 1), rows(24, 2)
SHORT = replace(QUICK, epochs=1)


@pytest.fixture(scope="module")
def single(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("single") / "run"
    bertsmith.finetune("classify", model, TRAIN, DEV, out, settings=SHORT)
    return out


@pytest.fixture(scope="module")
def pairs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pairs") / "run"
    train, dev = ([{**row, "text_b": "word1"} for row in made] for made in (TRAIN, DEV))
    bertsmith.finetune("classify", model, train, dev, out, settings=SHORT)
    return out


def predictor(folder: Path, **options: object) -> Predictor:
    return Predictor(folder, "cpu", precision="fp32", **options)  # type: ignore[arg-type]


def test_the_folder_says_whether_it_was_trained_on_pairs(single: Path, pairs: Path) -> None:
    for folder, expected in ((single, False), (pairs, True)):
        assert json.loads((folder / "model" / "task.json").read_text())["pairs"] is expected


def test_one_text_for_a_model_of_pairs_is_refused_and_the_reverse(single: Path, pairs: Path) -> None:
    with pytest.raises(BertsmithError, match="this row has one text, and the training rows have two") as caught:
        predictor(pairs)([{"text": "word1", "text_b": "word2"}, {"text": "word1"}])
    assert caught.value.where == "row 2"
    with pytest.raises(BertsmithError, match="this row has two texts, and the training rows have one"):
        predictor(single)([{"text": "word1", "text_b": "word2"}])


def test_pair_rows_that_lack_the_second_text_are_refused_in_training(model: Path) -> None:
    train = [{**row, "text_b": "word1"} if number else row for number, row in enumerate(TRAIN)]
    for one, other in ((train, DEV), ([{**row, "text_b": "word1"} for row in TRAIN], DEV)):
        with pytest.raises(BertsmithError, match="and the training rows have"):
            bertsmith.finetune("classify", model, one, other, None, settings=SHORT)


def test_a_single_row_is_one_row(single: Path) -> None:
    ours = predictor(single)
    expected = ours([DEV[0]["text"]])
    assert len(expected) == 1
    assert ours(DEV[0]["text"]) == ours({"text": DEV[0]["text"]}) == expected


def test_a_model_folder_and_its_run_folder_are_the_same_model(single: Path) -> None:
    assert predictor(single)(DEV) == predictor(single / "model")(DEV)


def test_what_is_cut_is_counted_in_what_predict_returns_and_writes(single: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    long = " ".join(["word1"] * 35)
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("word1", long, long + " word2")))
    found = predict_file(single, source, tmp_path / "out.jsonl", device="cpu")
    assert (found.rows, found.truncated_rows, found.truncated_tokens) == (3, 2, 5 + 6)
    written = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["truncated_tokens"] for each in written] == [0, 5, 6]
    predict_file(single, source, tmp_path / "out.csv", device="cpu")
    assert [line.rsplit(",", 1)[1] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]] == ["0", "5", "6"]


def test_a_table_that_was_written_is_read_as_it_was(single: Path, tmp_path: Path) -> None:
    texts = ["word1\rword2", "word1\nword2", "word1\r\nword2", 'word1 "word2", word3']
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.csv"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    predict_file(single, source, out, device="cpu")
    with open(out, newline="", encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts
    assert predict_file(single, out, tmp_path / "again.jsonl", device="cpu").rows == len(texts)


def test_cells_of_a_table_that_are_no_text_or_number_are_json(single: Path, tmp_path: Path) -> None:
    row = {"text": "word1", "n": 1.5, "empty": None, "yes": True, "list": ["é", {"a": None}], "object": {"a": "b"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    predict_file(single, tmp_path / "rows.jsonl", tmp_path / "out.csv", device="cpu", precision="fp32")
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    assert (found["n"], found["empty"], found["yes"], found["object"]) == ("1.5", "", "true", '{"a": "b"}')
    assert found["list"] == '["é", {"a": null}]'


def test_what_was_cut_of_dev_rows_is_counted_in_what_finetune_returns(model: Path) -> None:
    dev = [{**row, "text": row["text"] + " word1" * 40} for row in DEV]
    result = bertsmith.finetune("classify", model, TRAIN, dev, None, settings=SHORT)
    assert result.truncated["train"].rows == 0
    assert result.truncated["dev"].rows == len(DEV)
    assert result.to_dict()["truncated"]["dev"]["tokens"] == result.truncated["dev"].tokens > 40 * 8


def test_predict_takes_the_columns_as_finetune_does(single: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("review,id\n" + "".join(f"{row['text']},{n}\n" for n, row in enumerate(DEV)))
    call = ["predict", str(single), str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.jsonl")]
    call += ["--device", "cpu", "--precision", "fp32"]
    assert main(call) == 2
    assert main([*call, "--columns.text", "review"]) == 0
    written = [json.loads(line)["prediction"]["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [each["label"] for each in predictor(single)(DEV)]


@pytest.mark.parametrize("kind", ["tsv without a header", "csv with semicolons", "gz", "parquet"])
def test_files_of_every_kind_are_read_in_training_and_in_prediction(model: Path, tmp_path: Path, kind: str) -> None:
    columns = Columns()
    if kind == "tsv without a header":
        columns = Columns(text="2", label="1", header=False)
        train, dev = tmp_path / "train.tsv", tmp_path / "dev.tsv"
        for path, made in ((train, TRAIN), (dev, DEV)):
            path.write_text("".join(f"{row['label']}\t{row['text']}\n" for row in made))
    elif kind == "csv with semicolons":
        train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
        for path, made in ((train, TRAIN), (dev, DEV)):
            path.write_text("text;label\n" + "".join(f"{row['text']};{row['label']}\n" for row in made))
    elif kind == "gz":
        train, dev = tmp_path / "train.jsonl.gz", tmp_path / "dev.jsonl.gz"
        for path, made in ((train, TRAIN), (dev, DEV)):
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in made).encode()))
    else:
        pytest.importorskip("pyarrow")
        import pyarrow
        import pyarrow.parquet

        train, dev = tmp_path / "train.parquet", tmp_path / "dev.parquet"
        for path, made in ((train, TRAIN), (dev, DEV)):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), path)
    expected = bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=SHORT)
    settings = replace(SHORT, columns=columns)
    result = bertsmith.finetune("classify", model, train, dev, tmp_path / "run", settings=settings)
    assert result.seeds == expected.seeds
    found = predict_file(tmp_path / "run", dev, tmp_path / "out.jsonl", device="cpu")
    written = [json.loads(line)["prediction"]["label"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert found.rows == len(DEV)
    assert written == [each["label"] for each in predictor(tmp_path / "run", columns=Columns())(DEV)]


def typed_into(model: Path) -> list[str]:
    """Answers to what is typed."""
    return ["predict", str(model), "-", "--device", "cpu", "--precision", "fp32"]


def test_standard_input_is_answered_row_by_row(single: Path) -> None:
    """Each row is written only when the row before it was answered: a reader that waited for more would never end."""
    with Command(*typed_into(single), "--quiet") as command:
        for row in DEV[:3]:
            command.stdin.write(json.dumps(row) + "\n")
            command.stdin.flush()
            assert json.loads(command.stdout.readline())["text"] == row["text"]
        command.stdin.close()
        assert command.wait() == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_named_pipe_is_answered_and_cannot_be_resumed(single: Path, model: Path, tmp_path: Path, capsys) -> None:
    pipe, device = tmp_path / "pipe", {"device": "cpu", "precision": "fp32"}
    os.mkfifo(pipe)
    for work, out in ((predict_file, "-"), (predict_file, tmp_path / "a.jsonl"), (embed_file, tmp_path / "b.jsonl")):
        writer = threading.Thread(target=pipe.write_bytes, args=(b"text\nword1\nword2\n",))
        writer.start()
        assert work(single, pipe, out, **device).rows == 2  # type: ignore[operator]
        writer.join()
        text = capsys.readouterr().out if out == "-" else Path(out).read_text()
        assert [json.loads(line)["text"] for line in text.splitlines()] == ["word1", "word2"]
    with pytest.raises(BertsmithError, match="cannot be resumed"):
        predict_file(single, pipe, tmp_path / "c.jsonl", rows=RowOptions(resume=True), **device)
    with pytest.raises(BertsmithError, match="a pipe, because they are read more than once"):
        bertsmith.finetune("classify", model, pipe, DEV, tmp_path / "run", settings=SHORT)


@pytest.mark.parametrize("skip", [False, True])
def test_messages_about_a_pipe_name_it(single: Path, tmp_path: Path, skip: bool) -> None:
    call = [*typed_into(single), "--out", str(tmp_path / "out.jsonl"), *(("--on-error", "skip") if skip else ())]
    with Command(*call) as command:
        _, said = command.communicate("body\nword1\n" if skip else "")
        assert command.wait() == 2
    assert "where: standard input\n" in said


def test_a_two_label_classifier_without_names_is_read(single: Path, tmp_path: Path) -> None:
    """transformers leaves id2label out of a config.json with exactly two."""
    import shutil

    shutil.copytree(single / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for name in ("id2label", "label2id", "problem_type"):
        del config[name]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    ours = predictor(tmp_path / "model")(DEV)
    theirs = pytest.importorskip("transformers").AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert list(ours[0]["scores"]) == list(theirs.config.id2label.values()) == ["LABEL_0", "LABEL_1"]
    named = predictor(single)(DEV)
    assert [[*each["scores"].values()] for each in ours] == [[*each["scores"].values()] for each in named]


@pytest.mark.parametrize("bad", ['{"text": 5}', "{broken"])
def test_rows_before_a_bad_one_are_answered_and_the_command_ends_with_status_2(single: Path, bad: str) -> None:
    """Standard input stays open, as it does where a service pipes rows in."""
    with Command(*typed_into(single), "--quiet") as command:
        command.stdin.write("".join(json.dumps(row) + "\n" for row in DEV[:3]) + bad + "\n")
        command.stdin.flush()
        assert command.wait() == 2
        assert len(command.stdout.read().splitlines()) == 3


@pytest.mark.parametrize(("start", "typed"), [(started_anew, "text\n"), (Command, "")])
def test_a_pipe_without_rows_is_refused(single: Path, start: Any, typed: str) -> None:
    """The first one is started as by a shell: Python has opened its standard input itself."""
    with start(*typed_into(single)) as command:
        out, said = command.communicate(typed)
        assert command.wait() == 2
    assert "no rows found" in said
    assert "--columns.no-header" in said
    assert out == ""


@pytest.mark.parametrize("folder", ["out.jsonl", "out.jsonl.errors.jsonl"])
def test_a_folder_in_place_of_the_output_is_refused_before_any_work(single: Path, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    with pytest.raises(BertsmithError, match="this is a folder") as caught:
        predict_file(single, tmp_path / "not there.jsonl", tmp_path / "out.jsonl", device="cpu")
    assert caught.value.where == str(tmp_path / folder)


@pytest.mark.parametrize("length", [230, 250, 255, 300])
def test_a_name_that_is_too_long_for_what_stands_beside_it_is_refused(
    single: Path, tmp_path: Path, length: int
) -> None:
    out = tmp_path / f"{'x' * (length - 6)}.jsonl"
    with pytest.raises(BertsmithError, match="File name too long") as caught:
        predict_file(single, tmp_path / "not there.jsonl", out, device="cpu")
    assert "shorter name" in caught.value.fix


def test_a_link_in_place_of_the_output_is_written_through(single: Path, tmp_path: Path, said) -> None:
    (tmp_path / "rows.csv").write_text("text\nword1\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.jsonl").symlink_to("elsewhere/real.jsonl")
    for there in (False, True):
        assert (tmp_path / "out.jsonl").exists() is there
        predict_file(single, tmp_path / "rows.csv", tmp_path / "out.jsonl", device="cpu")
    assert (tmp_path / "out.jsonl").is_symlink()
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["real.jsonl"]
    assert "the file that it leads to is written" in said.text
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    with pytest.raises(BertsmithError, match="leads to itself"):
        predict_file(single, tmp_path / "rows.csv", tmp_path / "loop.jsonl", device="cpu")


@pytest.mark.parametrize("rows_", [[("a", "b")], ["x", ["y"]], [b"x"], [None]])
def test_what_is_not_a_row_is_refused(single: Path, rows_: list[object]) -> None:
    with pytest.raises(BertsmithError, match="of type"):
        predictor(single)(rows_)  # type: ignore[arg-type]


def test_unknown_columns_and_opposite_flags_are_refused(single: Path, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="did you mean 'text'"):
        predictor(single, columns={"txt": "a"})
    with pytest.raises(BertsmithError, match="no column 'text'; found: body") as caught:
        predictor(single)({"body": "word1"})
    assert 'columns={"text": ...}) names another' in caught.value.fix
    (tmp_path / "rows.csv").write_text("word1\nword2\n")
    call = ["predict", str(single), str(tmp_path / "rows.csv"), "--out", str(tmp_path / "out.jsonl")]
    assert main([*call, "--columns.no-header", "--columns.text", "1"]) == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert main([*call, "--columns.no-header", "--columns.header"]) == 2


def test_an_empty_second_text_is_none(single: Path) -> None:
    assert predictor(single)([{"text": "word1", "text_b": None}]) == predictor(single)(["word1"])


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "-"])
@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_answers_of_rows_without_a_token_are_counted(single, tmp_path, verb, out, capfd) -> None:
    """A text of control characters alone is answered like any other; in parts, of which two have such a row."""
    source = tmp_path / "rows.jsonl"
    texts = ["word1", "\x00\u200b", "word2", "\U0001f600 \u6f22", "word3 \U0001f600", "\x07"]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    to = out if out == "-" else str(tmp_path / (out if verb == "predict" else out.replace("csv", "npy")))
    status = main([verb, str(single), str(source), "--out", to, "--part-rows", "2", "--device", "cpu"])
    told = capfd.readouterr().err.splitlines()
    assert status == 0
    assert [line for line in told if line.startswith("warning: ")] == [
        f"warning: rows with {what}: {count} of 6, such as {source}:{line}; the answer says nothing of such a text"
        for count, what, line in (
            (2, "a text without any token", 2),
            (1, "a text of which the vocabulary has nothing ([UNK] alone)", 4),
        )
    ]
    assert told[-1] in ("6 rows predicted", "vectors of 6 texts")


def test_rows_without_a_token_of_finished_parts_are_counted_too(single, tmp_path, said) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("\x07", "word1", "\x07")) + '{"text": 1}\n'
    )
    with pytest.raises(BertsmithError, match="holds no text"):
        predict_file(predictor(single), source, out, rows=RowOptions(part_rows=1))
    assert "without any token" not in said.text
    done = predict_file(predictor(single), source, out, rows=RowOptions(part_rows=1, resume=True, on_error="skip"))
    assert done.empty_texts == {"a text without any token": [2, f"{source}:1"]}
    assert "warning: rows with a text without any token: 2 of 3" in said.text


@pytest.mark.parametrize("out", ["out.jsonl", "-"])
def test_an_input_that_changes_while_it_is_read_is_told(single, tmp_path, monkeypatch, said, out) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "word1"}\n' * 4)
    ours = predictor(single)
    usual = ours.predict

    def changing(rows):
        with open(source, "a") as file:
            file.write('{"text": "word2"}\n')
        return usual(rows)

    to = out if out == "-" else tmp_path / out
    predict_file(ours, source, to)
    assert "was changed" not in said.text
    monkeypatch.setattr(ours, "predict", changing)
    predict_file(ours, source, to)
    assert f"warning: {source} was changed while it was read" in said.text
