"""Thresholds and temperatures of a classifier: on which rows they are tuned, measured and reported."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, FolderFacts


def records(*labels):
    return [Record("a", None, label, f"rows.csv:{line}") for line, label in enumerate(labels, start=2)]


def two_classes(positives=8, rows=40):
    """Scores of two classes, of which the rare one is told apart at 0.25 and never reaches 0.5."""
    true = np.arange(rows) < positives
    p = np.where(true, 0.3, 0.2)
    logits = np.log(np.stack([p, 1 - p], axis=1)).astype(np.float32)
    return logits, records(*np.where(true, "rare", "usual"))


def of_dev(task, those, part="dev"):
    counts = np.zeros(len(those), np.int64)
    sequences = Sequences([np.arange(3)] * len(those), counts, counts, np.arange(len(those)))
    return Examples(those, sequences, task.targets(those, sequences), sequences.row_offsets, part)


def test_a_threshold_is_tuned_only_where_the_user_wants_it():
    logits, those = two_classes()
    plain = Classify.of_records(those, FinetuneSettings(positive="rare"))
    found = plain.tuned(logits, of_dev(plain, those))
    assert found.threshold == 0.5
    assert found.evaluate(logits, of_dev(plain, those))["binary_f1"] == 0
    settings = FinetuneSettings(positive="rare", thresholds="tuned", temperature=False)
    task = Classify.of_records(those, settings)
    tuned = task.tuned(logits, of_dev(task, those))
    assert tuned.threshold == pytest.approx(0.25)
    assert tuned.temperature == 1
    assert tuned.evaluate(logits, of_dev(task, those))["binary_f1"] == 1
    again = Classify.of_folder(FolderFacts(task.config(), tuned.facts(), None))
    answers = again.answers_of(logits, those, of_dev(task, those).sequences)
    assert [each["label"] for each in answers] == [each.label for each in those]
    assert answers[0]["score"] == pytest.approx(0.3)


@pytest.mark.usefixtures("no_figures")
def test_a_threshold_and_a_report_are_of_the_probabilities_that_are_answered(tmp_path):
    """Those after the temperature, whether it is in the weights already or not."""
    logits, those = two_classes()
    logits = 4 * logits
    task = Classify.of_records(those, FinetuneSettings(positive="rare", thresholds="tuned"))
    tuned = task.tuned(logits, of_dev(task, those))
    assert tuned.temperature > 2
    assert tuned.evaluate(logits, of_dev(task, those))["binary_f1"] == 1
    put = replace(tuned, in_weights=True)
    for part in ("dev", "test"):
        tuned.write(logits, of_dev(task, those, part), tmp_path / part / "beside")
        put.write(logits / np.float32(tuned.temperature), of_dev(task, those, part), tmp_path / part / "within")
        beside, within = (
            json.loads((tmp_path / part / name / "calibration.json").read_text()) for name in ("beside", "within")
        )
        assert within["temperature"] == pytest.approx(beside["temperature"], rel=1e-3)
        assert within["before"]["nll"] == pytest.approx(beside["before"]["nll"], rel=1e-3)
        assert beside["fitted"] == pytest.approx(tuned.temperature)
        assert beside["after"]["nll"] < beside["before"]["nll"]
        table = json.loads((tmp_path / part / "within" / "intervals.json").read_text())["figures"]
        assert table["binary_f1"]["value"] == 1


@pytest.mark.usefixtures("no_figures")
def test_what_is_tuned_is_measured_on_rows_of_other_groups(tmp_path, said):
    """All rare rows are of one group, so that nothing can be tuned for them on others."""
    logits, those = two_classes()
    task = Classify.of_records(those, FinetuneSettings(positive="rare", thresholds="tuned"))
    assert task.cross_fitted(logits, of_dev(task, those))["binary_f1"] == 1
    groups = [replace(each, group=each.label if row < 20 else "others") for row, each in enumerate(those)]
    assert task.cross_fitted(logits, of_dev(task, groups))["binary_f1"] == 0
    task.tuned(logits, of_dev(task, groups)).write(logits, of_dev(task, groups), tmp_path)
    assert "of 3 folds" in said.text
    assert "of 3 folds" in json.loads((tmp_path / "calibration.json").read_text())["remark"]


def test_too_few_positive_rows_leave_the_threshold(caplog):
    logits, those = two_classes(positives=4)
    task = Classify.of_records(those, FinetuneSettings(positive="rare", thresholds="tuned"))
    with caplog.at_level("INFO", "bertsmith"):
        assert task.tuned(logits, of_dev(task, those)).threshold == 0.5
    assert any("4 dev rows have it, too few" in message for message in caplog.messages)


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_a_tuned_threshold_is_of_other_rows_on_dev_alone(tmp_path, said):
    logits, those = two_classes()
    task = Classify.of_records(those, FinetuneSettings(positive="rare", thresholds="tuned"))
    tuned = task.tuned(logits, of_dev(task, those))
    assert re.search(r"calibration error on dev [0-9.]+ before, [0-9.]+ after \('after' is measured", said.text)
    for part in ("dev", "test"):
        tuned.write(logits, of_dev(task, those, part), tmp_path / part)
        assert ("tuned on other rows" in (tmp_path / part / "per_class.json").read_text()) == (part == "dev")
        remark = json.loads((tmp_path / part / "calibration.json").read_text())["remark"]
        assert ("not fitted to these rows" in remark) == (part == "test")
