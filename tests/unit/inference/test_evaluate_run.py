"""What `evaluate` says of rows that the model was trained on, and leaves alone of the run that it belongs to."""

import json
import shutil
from dataclasses import replace

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.evaluate import evaluate
from bertsmith.tasks.finetune import finetune
from made_rows import QUICK, rows

ON_CPU = {"device": "cpu", "precision": "fp32"}
OWN = "the rows that the model was trained on"


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A run on a file."""
    folder = tmp_path_factory.mktemp("run")
    train = folder / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows(32, 1)))
    finetune("classify", model, train, rows(16, 2), folder / "labels", settings=replace(QUICK, epochs=1))
    return folder / "labels"


def test_rows_that_the_model_was_trained_on_are_warned_of(run, said):
    for model in (run, run / "model"):
        evaluate(model, run.parent / "train.jsonl", **ON_CPU)
        assert [each for each in said.messages if OWN in each]
        said.clear()
        evaluate(model, rows(16, 2), **ON_CPU)
        assert not [each for each in said.messages if OWN in each]


def test_a_model_below_another_file_of_that_name_and_one_called_by_a_dot_are_measured(run, tmp_path, monkeypatch):
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "run.json").write_text("{")
    assert evaluate(tmp_path / "model", rows(16, 2), **ON_CPU).rows == 16
    monkeypatch.chdir(run / "model")
    with pytest.raises(BertsmithError, match="the report of the run itself"):
        evaluate(".", rows(16, 2), report="../report/dev", **ON_CPU)


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_the_run_itself_is_not_written_over(run):
    report = run / "report" / "dev"
    with pytest.raises(BertsmithError, match="the report of the run itself") as caught:
        evaluate(run, rows(16, 2), report=report, **ON_CPU)
    assert caught.value.fix == "name another folder"
    assert not report.exists()
    for _ in range(2):  # a part that the run has not itself
        evaluate(run, rows(16, 2), report=run / "report" / "test", **ON_CPU)


@pytest.mark.usefixtures("no_figures")
def test_files_that_an_earlier_report_alone_has_are_named(run, tmp_path, said):
    """Those about questions, beside the report of a classifier, would be taken for its own."""
    evaluate(run, rows(16, 2), report=tmp_path, **ON_CPU)
    evaluate(run, rows(16, 3), report=tmp_path, **ON_CPU)
    assert "earlier report" not in said.text
    for name in ("null_odds.json", "notes.json"):
        (tmp_path / name).write_text("{}")
    evaluate(run, rows(16, 2), report=tmp_path, **ON_CPU)
    (named,) = (each for each in said.messages if "files of an earlier report" in each)
    assert named.endswith(f"stay in {tmp_path}, not about these rows: null_odds.json")
