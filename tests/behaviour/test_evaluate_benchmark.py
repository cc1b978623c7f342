"""A model of a benchmark is measured on every labelled part that a folder has, and answers for the GLUE server."""

from __future__ import annotations

import csv
import io
import json
import zipfile

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.evaluate_benchmark import evaluate_benchmark
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.benchmarks.inputs import benchmark_settings
from made_benchmarks import made_codah, made_mnli, made_mrpc
from made_questions import squad
from made_rows import made_model

QUICK = {"learning_rate": 3e-3, "max_length": 40, "device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, an encoder, and runs of MRPC, MNLI and a fold of CODAH."""
    folder = tmp_path_factory.mktemp("glue")
    model = made_model(folder / "encoder")
    made_mrpc(folder / "glue")
    made_mnli(folder / "glue")
    made_codah(folder / "codah", fold=1)
    for name, data, fold, epochs in (("mrpc", "glue", 0, 4), ("mnli", "glue", 0, 4), ("codah", "codah", 1, 1)):
        settings = benchmark_settings(name, epochs=epochs, **QUICK)
        bertsmith.finetune(name, model, data=folder / data, fold=fold, out=folder / "runs" / name, settings=settings)
    return folder


def answers(path):
    """{file: the rows behind its header}, as the server would read them."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            rows = list(csv.reader(io.StringIO(archive.read(name).decode()), delimiter="\t"))
            assert rows[0] == ["index", "prediction"]
            found[name] = rows[1:]
    return found


def last(run, part="dev"):
    return json.loads((run / "finetune.json").read_text())["tuned"][part]


def test_all_parts_are_measured_and_the_server_gets_its_files(folder, tmp_path, said):
    path = tmp_path / "submission.zip"
    run = folder / "runs" / "mnli"
    score = evaluate_benchmark(run, folder / "glue", submission=path, device="cpu", precision="fp32")
    assert score.benchmark == "mnli"
    assert score.rows == {"dev": 12, "dev_mismatched": 12, "ax_dev": 6}
    assert score.figures["accuracy"] == pytest.approx(last(run)["accuracy"])
    assert score.figures["mismatched_accuracy"] == pytest.approx(last(run, "mismatched")["accuracy"])
    assert -1 <= score.figures["ax_matthews"] <= 1
    assert "mnli: dev has 12 rows and the published one 9,815" in said.text
    found = answers(path)
    assert {name: len(rows) for name, rows in found.items()} == {"MNLI-m.tsv": 12, "MNLI-mm.tsv": 12, "AX.tsv": 6}
    assert [row[0] for row in found["AX.tsv"]] == [str(number) for number in range(6)]
    assert "STS-B.tsv" in score.missing
    score = evaluate_benchmark(folder / "runs" / "mrpc", folder / "glue", submission=path, device="cpu")
    assert {"MRPC.tsv", "MNLI-m.tsv"} <= set(answers(path))
    rows = [line.split("\t") for line in (folder / "glue/MRPC/test.tsv").read_text().splitlines()[1:]]
    texts = [{"text": row[3], "text_b": row[4]} for row in rows]
    columns = {"text": "text", "text_b": "text_b"}
    expected = [each["label"] for each in Predictor(folder / "runs" / "mrpc", "cpu", columns=columns)(texts)]
    assert [row[1] for row in answers(path)["MRPC.tsv"]] == expected
    assert score.missing is not None
    assert "MNLI-m.tsv" not in score.missing


def test_the_command_line_measures_a_folder(folder, tmp_path, capsys):
    command = ["evaluate", str(folder / "runs" / "mrpc"), "--data", str(folder / "glue"), "--device", "cpu"]
    assert main([*command, "--json", str(tmp_path / "out.json"), "--submission", str(tmp_path / "a.zip")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert figures["binary_f1"] == pytest.approx(last(folder / "runs" / "mrpc")["binary_f1"])
    captured = capsys.readouterr()
    assert "accuracy" in captured.out
    assert "the server wants CoLA.tsv" in captured.err
    assert main([*command, "--columns.text", "x", "--null-scores", "x.json"]) == 2
    assert "--null-scores and --columns are not read for the folder of a benchmark" in capsys.readouterr().err
    file = ["evaluate", str(folder / "runs" / "mrpc"), "--data", str(folder / "glue/MRPC/dev.tsv")]
    assert main([*file, "--benchmark", "mrpc"]) == 2
    assert "--benchmark is not read for a file of rows" in capsys.readouterr().err
    assert main([*command, "--benchmark", "mprc"]) == 2
    assert "did you mean 'mrpc'?" in capsys.readouterr().err


def test_a_submission_that_cannot_be_written_is_refused_before_anything_is_answered(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "predict", lambda *given: pytest.fail("answered"))
    monkeypatch.setattr(Predictor, "evaluate", lambda *given: pytest.fail("measured"))
    (tmp_path / "text.zip").write_text("no zip")
    for run, data, path, what in (
        ("mrpc", "glue", tmp_path / "a.tsv", "'.tsv' is not a zip"),
        ("mrpc", "glue", tmp_path / "text.zip", "not a zip of predictions"),
        ("codah", "codah", tmp_path / "b.zip", "codah is not a task of GLUE"),
    ):
        with pytest.raises(BertsmithError, match=what):
            evaluate_benchmark(folder / "runs" / run, folder / data, submission=path, fold=1, device="cpu")


def test_test_rows_with_labels_are_measured_fold_by_fold(folder):
    run = folder / "runs" / "codah"
    score = evaluate_benchmark(run, folder / "codah", fold=1, device="cpu", precision="fp32")
    assert score.rows == {"dev": 40, "test": 40}
    assert score.figures["test_accuracy"] == pytest.approx(last(run, "test")["accuracy"])
    with pytest.raises(BertsmithError, match=r"codah needs train\.tsv, dev\.tsv, test\.tsv"):
        evaluate_benchmark(run, folder / "codah", device="cpu")


def test_a_folder_without_labelled_rows_is_refused_where_no_answers_are_asked_for(folder, tmp_path):
    made_mrpc(tmp_path / "glue")
    (tmp_path / "glue/MRPC/dev.tsv").unlink()
    run = folder / "runs" / "mrpc"
    with pytest.raises(BertsmithError, match="no labelled rows of mrpc are in this folder"):
        evaluate_benchmark(run, tmp_path / "glue", device="cpu")
    score = evaluate_benchmark(run, tmp_path / "glue", submission=tmp_path / "found.zip", device="cpu")
    assert (score.rows, list(answers(tmp_path / "found.zip"))) == ({}, ["MRPC.tsv"])


def test_a_model_of_another_task_is_refused(folder, tmp_path):
    mrpc = folder / "runs" / "mrpc"
    with pytest.raises(BertsmithError, match="the training rows have no label"):
        evaluate_benchmark(mrpc, folder / "glue", benchmark="mnli", device="cpu")
    (folder / "plain" / "model").mkdir(parents=True)
    for path in (mrpc / "model").iterdir():
        values = path.read_bytes()
        if path.name == "task.json":
            values = json.dumps(
                {key: value for key, value in json.loads(values).items() if key != "benchmark"}
            ).encode()
        (folder / "plain" / "model" / path.name).write_bytes(values)
    with pytest.raises(BertsmithError, match="not fine-tuned on a benchmark by its name"):
        evaluate_benchmark(folder / "plain", folder / "glue", device="cpu")
    found = evaluate_benchmark(folder / "plain", folder / "glue", benchmark="mrpc", device="cpu")
    assert found.rows == {"dev": 16}


def test_rows_for_the_server_of_which_nothing_is_read_are_warned_of_once(folder, tmp_path, said, monkeypatch):
    """In a text of a pair, and whatever number of rows is answered at once."""
    made_mrpc(tmp_path / "glue")
    path = tmp_path / "glue/MRPC/test.tsv"
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    for number in (2, 7):
        lines[number][4] = "\U0001f600"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    monkeypatch.setattr("bertsmith.inference.evaluate_benchmark._ROWS_AT_ONCE", 3)
    evaluate_benchmark(folder / "runs/mrpc", tmp_path / "glue", submission=tmp_path / "found.zip", device="cpu")
    assert [each for each in said.messages if "rows with a text" in each] == [
        "warning: rows with a text of which the vocabulary has nothing ([UNK] alone): 2 of 8, "
        f"such as {path}:3; the answer says nothing of such a text"
    ]


@pytest.mark.parametrize("lacks", ["column", "cell"])
def test_a_row_for_the_server_without_its_number_is_named(folder, tmp_path, lacks):
    made_mrpc(tmp_path / "glue")
    path = tmp_path / "glue/MRPC/test.tsv"
    head, first, *rest = (line.split("\t") for line in path.read_text().splitlines())
    lines = [line[1:] for line in (head, first, *rest)] if lacks == "column" else [head, ["", *first[1:]], *rest]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    with pytest.raises(BertsmithError, match="this row has nothing in a column 'index'") as caught:
        evaluate_benchmark(folder / "runs/mrpc", tmp_path / "glue", submission=tmp_path / "found.zip", device="cpu")
    assert caught.value.where == f"{path}:2"
    assert not (tmp_path / "found.zip").exists()


def test_predictions_of_any_program_are_scored_as_the_official_scripts_do(tmp_path, capsys):
    """The same two questions as a file of SQuAD 1.1, and with one that has no answer."""
    rows = [
        {"id": "a", "question": "who", "context": "the cat sat", "answers": [{"text": "the cat", "answer_start": 0}]},
        {"id": "b", "question": "who", "context": "a dog ran", "answers": [{"text": "dog", "answer_start": 2}]},
    ]
    none = {"id": "c", "question": "who", "context": "it rained", "answers": [], "is_impossible": True}
    (tmp_path / "v1.1.json").write_text(json.dumps(squad([{**row, "is_impossible": False} for row in rows])))
    (tmp_path / "v2.0.json").write_text(json.dumps(squad([*({**row, "is_impossible": False} for row in rows), none])))
    predictions, odds = tmp_path / "predictions.json", tmp_path / "odds.json"

    def scored(data, answers, *flags):
        predictions.write_text(json.dumps(answers))
        command = ["evaluate", str(predictions), "--data", str(tmp_path / data), "--json", str(tmp_path / "found.json")]
        status = main([*command, *flags])
        told = capsys.readouterr().err
        return json.loads((tmp_path / "found.json").read_text())["figures"] if not status else told

    assert scored("v1.1.json", {"a": "Cat!", "b": "dog ran"}) == {"exact_match": 50.0, "f1": pytest.approx(250 / 3)}
    assert scored("v1.1.json", {"a": "a cat", "z": "x"}) == {"exact_match": 50.0, "f1": 50.0}, "b is missing: 0"
    answers = {"a": "cat", "b": "dog ran", "c": "rain"}
    found = scored("v2.0.json", answers)
    assert found["exact_match"] == pytest.approx(100 / 3)
    assert (found["HasAns_f1"], found["NoAns_exact"]) == (pytest.approx(250 / 3), 0.0)
    assert "best_f1" not in found
    odds.write_text(json.dumps({"a": -2.0, "b": 0.5, "c": 3.0}))
    found = scored("v2.0.json", answers, "--null-scores", str(odds))
    assert (found["NoAns_exact"], found["best_exact"], found["best_exact_thresh"]) == (
        100.0,
        pytest.approx(200 / 3),
        -2.0,
    )
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(100 * (2 + 2 / 3) / 3), 0.5)
    odds.write_text(json.dumps({"a": -2.0, "b": 0.5}))  # c has no prediction, and needs none
    found = scored("v2.0.json", {"a": "cat", "b": "dog ran"}, "--null-scores", str(odds))
    assert (found["best_exact"], found["best_f1"]) == (50.0, pytest.approx(250 / 3))
    odds.write_text(json.dumps({"a": -2.0, "b": True, "c": 1}))
    told = scored("v2.0.json", answers, "--null-scores", str(odds))
    assert "the value of question b is True, not a number" in told
    odds.write_text(json.dumps({"a": -2.0}))
    assert "lacks 2 of the questions that are answered, such as b" in scored(
        "v2.0.json", answers, "--null-scores", str(odds)
    )
    assert "answers none of the 2 questions, such as the one with the id a" in scored("v1.1.json", {"z": "x"})
    assert "the value of question a is 3, not an answer as text" in scored("v1.1.json", {"a": 3})
    assert "no object of ids and values" in scored("v1.1.json", ["cat"])
    unread = ("--report", str(tmp_path), "--device", "cpu")
    assert "--device and --report are not read for a file of answers" in scored("v1.1.json", {"a": "cat"}, *unread)
