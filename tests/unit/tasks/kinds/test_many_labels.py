"""Rows with any number of labels: how they are read, encoded, drawn, tuned and answered."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.many_labels import ManyLabels
from bertsmith.tasks.reading.records import Columns, Record, read_records
from bertsmith.tasks.scoring.multilabel import label_metrics
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, FolderFacts

SEPARATED = Columns(label_separator=";")


def records(*labels):
    return [Record("a", None, label, f"rows.csv:{line}") for line, label in enumerate(labels, start=2)]


def task_of(*labels, **settings):
    return Classify.of_records(records(*labels), FinetuneSettings(**settings))


def examples(task, those, part="dev"):
    counts = np.zeros(len(those), np.int64)
    sequences = Sequences([np.arange(3)] * len(those), counts + 3, counts, np.arange(len(those)))
    return Examples(those, sequences, task.targets(those, sequences), sequences.row_offsets, part)


def logits(p):
    p = np.asarray(p, dtype=np.float64)
    return np.log(p / (1 - p)).astype(np.float32)


def test_labels_are_read_from_lists_and_from_separated_cells(tmp_path):
    rows = [{"text": "a", "label": ["x", " y", 3, "x"]}, {"text": "b", "label": []}, {"text": "c", "label": ["y"]}]
    assert [each.label for each in read_records(rows, reader=Classify)] == [("x", "y", "3"), (), ("y",)]
    path = tmp_path / "rows.csv"
    path.write_text('text,label\na,"x; y;"\nb,\nc,y\n')
    assert [each.label for each in read_records(path, SEPARATED, reader=Classify)] == [("x", "y"), (), ("y",)]


@pytest.mark.parametrize("rows", [[[1, 0, 0]], [["0", "1", "1"]], [[True, False, False]], [[0.0, 0.0]]])
def test_a_list_of_0_or_1_for_each_label_holds_no_names(rows):
    with pytest.raises(BertsmithError, match="column 'label' has a 0 or 1 for each label, "):
        read_records([{"text": "a", "label": each} for each in rows], reader=Classify)
    assert read_records([{"text": "a", "label": [1, 1]}], reader=Classify)[0].label == ("1",), "a label twice"


def test_labels_of_lists_that_hold_a_separator_are_not_to_be_separated(said):
    assert task_of(("a/b",), ("a", "b"), ("a",)).names == ("a", "a/b", "b")
    assert "--columns.label-separator" not in said.text, "which lists do not have"


def test_a_list_of_0_and_1_in_every_row_holds_no_names():
    with pytest.raises(BertsmithError, match="all training rows list 0 and 1, as if for each label"):
        task_of(("0", "1"), ("1", "0"))
    assert task_of(("0", "1"), ("1",)).names == ("0", "1"), "they may be numbers of labels"


ONE_HOT = Columns(label="x, y,z")


def test_labels_are_read_from_a_column_for_each(tmp_path, said):
    path = tmp_path / "rows.csv"
    path.write_text("text,x,y,z\na,1,0,no\nb,0,false,0.0\nc,Yes,TRUE,0\n")
    found = read_records(path, ONE_HOT, reader=Classify)
    assert [each.label for each in found] == [("x",), (), ("x", "y")]
    task = Classify.of_records(found, FinetuneSettings(columns=ONE_HOT))
    assert task.names == ("x", "y", "z"), "in the order of the columns"
    assert "no training row has the label z" in said.text
    assert {"x", "y", "z"} <= set(Classify.used(ONE_HOT))


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        ("1,0", "no column 'z'; found: text, x, y; name the column of labels with --columns.label"),
        ("1,2,0", "'y' holds '2'; .* 1 or 0"),
        ("1,,0", "'y' holds ''"),
    ],
)
def test_columns_of_labels_that_do_not_say_yes_or_no(tmp_path, cells, what):
    path = tmp_path / "rows.csv"
    path.write_text(f"text,x,y{',z' * (cells.count(',') > 1)}\na,{cells}\n")
    with pytest.raises(BertsmithError, match=what):
        read_records(path, ONE_HOT, reader=Classify)


def test_a_column_whose_name_has_commas_comes_first():
    row = {"text": "a", "x, y,z": "q", "x": 1, "y": 1, "z": 1}
    assert read_records([row], ONE_HOT, reader=Classify)[0].label == "q"


def test_all_labels_that_only_dev_has_are_named():
    for task, labels in (
        (task_of("a", "b"), ("b", "q", "r", "q")),
        (task_of(("a", "b")), (("b", "q"), ("r",), ("q",))),
    ):
        with pytest.raises(BertsmithError, match="the training rows have no label 'q', nor 'r'") as caught:
            examples(task, records(*labels))
        assert caught.value.where == ("rows.csv:3" if isinstance(task, Classify) else "rows.csv:2")
        assert "--labels" in caught.value.fix


@pytest.mark.parametrize(
    ("label", "mark"), [("a|New York", "|"), ("a, 1.0", ","), ("a b", " "), ("a|q", None), ("a|", None), ("axb", None)]
)
def test_known_labels_that_another_separator_joins_are_told_of_it(label, mark):
    for task in (task_of(("a", "b"), ("New York", "1")), task_of("a", "b", "New York", "1")):
        with pytest.raises(BertsmithError, match="the training rows have no label") as caught:
            task.targets(records((label,) if isinstance(task, ManyLabels) else label), None)
        told = mark is not None and isinstance(task, ManyLabels)
        assert caught.value.fix.endswith(f"--columns.label-separator '{mark}'") == told
        assert ("--labels" in caught.value.fix) != told


def test_a_separator_that_separates_nothing_is_warned_of(said):
    told = "';' (--columns.label-separator) separates no labels: no training row has two"
    task_of(("a", "b"), ("a",), columns=SEPARATED)
    assert told not in said.text
    task_of(("a|b",), ("a",), (), columns=SEPARATED)
    assert told in said.text


@pytest.mark.parametrize(("labels", "is_told"), [(("a", "b"), True), (("a", "ab"), False), (("a", "b", ""), False)])
def test_lists_of_one_label_each_are_said_to_be_learned_as_several(labels, is_told, said):
    task_of(*map(tuple, labels))
    assert ("every training row has exactly one label" in said.text) is is_told


def test_labels_are_read_from_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [["x", "y"], []]}), tmp_path / "rows.parquet")
    found = read_records(tmp_path / "rows.parquet", reader=Classify)
    assert [each.label for each in found] == [("x", "y"), ()]


def test_single_labels_stay_what_they_were():
    assert [each.label for each in read_records([{"text": "a", "label": "x;y"}], reader=Classify)] == ["x;y"]
    assert isinstance(task_of("a", "b"), Classify)
    for label in ("", None):
        with pytest.raises(BertsmithError, match="no label in column 'label'"):
            read_records([{"text": "a", "label": label}], reader=Classify)


@pytest.mark.parametrize("label", [["x", ["y"]], [float("nan")], [""], ["x", {"y": 1}], ["\ud800"]])
def test_what_is_no_label_in_a_list_is_named_by_its_row(label):
    with pytest.raises(BertsmithError, match="row 1"):
        read_records([{"text": "a", "label": label}], reader=Classify)


def test_the_task_of_rows_with_lists():
    task = task_of(("b", "a"), (), ("b", "1"), ("b", "1.0"))
    assert isinstance(task, ManyLabels)
    assert task.names == ("1", "a", "b")
    assert task.counts == {"b": 3, "1": 2, "a": 1}
    assert task.targets(records(("b", "+1"), (), "a"), None).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert task.labels(np.zeros((4, 3))) == 12
    assert task.config()["problem_type"] == "multi_label_classification"
    with pytest.raises(BertsmithError) as caught:
        task.targets(records(("b",), ("bb",)), None)
    assert caught.value.where == "rows.csv:3"
    assert caught.value.fix.startswith("did you mean 'b'? (")


def test_lists_among_dev_rows_of_a_task_with_one_label_are_refused():
    with pytest.raises(BertsmithError, match="list of 2 labels") as caught:
        task_of("a", "b").targets(records("a", ("a", "b")), None)
    assert caught.value.where == "rows.csv:3"


def test_a_few_lists_do_not_change_what_the_other_rows_are():
    with pytest.raises(BertsmithError, match="2 of 5 rows cannot be used:") as caught:
        task_of("a", ("a",), "b", (), "a")
    assert "rows.csv:3: this row has a list of 1 label, and most training rows have one label each" in caught.value.what
    assert isinstance(task_of("a", ("a",), "b", ()), ManyLabels)


def test_metrics_that_the_rows_do_not_have_are_refused():
    with pytest.raises(BertsmithError, match="subset_accuracy is of rows with several labels"):
        task_of("a", "b", metric="subset_accuracy")
    with pytest.raises(BertsmithError, match="metric 'accuracy' is not one of"):
        task_of(("a", "b"), ("b",), metric="accuracy")
    several = task_of(("a", "b"), ("b",))
    assert several.metric_of(FinetuneSettings()) == "micro_f1"
    assert Classify.metric_of(FinetuneSettings(metric="subset_accuracy")) == "subset_accuracy"
    with pytest.raises(BertsmithError, match="positive"):
        task_of(("a", "b"), ("b",), positive="a")
    with pytest.raises(BertsmithError, match="no temperature is fitted to rows of several labels"):
        task_of(("a", "b"), ("b",), temperature=False)


def test_an_epoch_counts_a_row_as_one_of_its_rarest_label():
    labels = [("often",)] * 60 + [("often", "rare")] * 6 + [()] * 24
    task = task_of(*labels, sampling="balanced")
    made = examples(task, records(*labels), "train")
    rows = task.order(made, 1, 1)
    assert np.array_equal(rows, task.order(made, 1, 1))
    kinds = [sum(low <= row < high for row in rows) for low, high in ((0, 60), (60, 66), (66, 90))]
    assert kinds == [30, 30, 30]
    natural = task_of(*labels).order(made, 1, 1)
    assert sorted(natural.tolist()) == list(range(90))


def test_weights_are_those_of_each_labels_two_sides():
    task = task_of(*[("a", "b")] * 3, ("a",), (), (), class_weights="balanced")
    assert task.rarity.weights == (pytest.approx((6 / 4, 6 / 8)), (1.0, 1.0))
    assert any("absence/presence" in line for line in task.description())


def tuned_task():
    """Label a is told apart at 0.2, b at 0.5 anyway, and c has too few rows."""
    truths = [("a", "b")] * 6 + [("b",)] * 6 + [()] * 8 + [("c",)] * 2
    task = task_of(*truths)
    p = np.full((22, 3), 0.1)
    p[:6, 0] = 0.3
    p[:12, 1] = 0.9
    p[20:, 2] = 0.4
    those = examples(task, records(*truths))
    return task, those, logits(p)


def test_thresholds_are_tuned_stored_and_used(caplog):
    task, those, scores = tuned_task()
    with caplog.at_level("INFO", "bertsmith"):
        tuned = task.tuned(scores, those)
    assert tuned.thresholds == pytest.approx((0.2, 0.5, 0.5))
    assert task.evaluate(scores, those)["micro_f1"] < tuned.evaluate(scores, those)["micro_f1"]
    assert any("0.5 stays for 1 of 3 labels" in message and message.endswith(": c") for message in caplog.messages)
    stored = {"columns": {"label_separator": "|"}, **tuned.facts()}
    again = ManyLabels.of_folder(FolderFacts(tuned.config(), stored, None))
    assert again.thresholds == tuned.thresholds
    first, *_, last = again.answers_of(scores, those.records, those.sequences)
    assert first["labels"] == ["a", "b"]
    assert first["scores"] == pytest.approx({"a": 0.3, "b": 0.9, "c": 0.1}, abs=1e-6)
    assert last["labels"] == []
    assert again.cells(first) == {**first, "labels": "a|b"}
    assert task.cells(first) == {**first, "labels": '["a", "b"]'}
    assert task_of(("a",), ("b",), thresholds="half").tuned(scores, those).thresholds == (0.5, 0.5)
    assert tuned.cross_fitted(scores, those)["macro_f1"] > task.evaluate(scores, those)["macro_f1"]
    # All rows with a are of one group: nothing can be tuned for it on others.
    groups = [replace(each, group="one" if "a" in each.label else each.where) for each in those.records]
    grouped = examples(task, groups)
    assert tuned.cross_fitted(scores, grouped) == task.evaluate(scores, those)
    assert task.tuned(scores, grouped) is task, "they do not raise the metric of other groups"


def test_thresholds_that_lower_the_metric_are_taken_only_on_demand(caplog):
    # At 0.5 nothing is given for b; its best F1 is that of giving it to everyone, which ruins the others' decisions.
    truths = [("a",)] * 20 + [("a", "b")] * 5 + [()] * 20
    p = np.array([[0.9, 0.4]] * 25 + [[0.1, 0.4]] * 20)
    for fits, expected in (("auto", (0.5, 0.5)), ("tuned", (0.5, 0.2)), ("half", (0.5, 0.5))):
        task = task_of(*truths, thresholds=fits)
        with caplog.at_level("INFO", "bertsmith"):
            found = task.tuned(logits(p), examples(task, records(*truths)))
        assert found.thresholds == pytest.approx(expected)
        while_training = task.cross_fitted(logits(p), examples(task, records(*truths)))
        assert while_training == (
            found.cross_fitted(logits(p), examples(task, records(*truths))) if fits == "tuned" else {}
        )
        assert task.tunes_each_time == (fits == "tuned")
    assert sum("do not raise micro_f1" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("stored", [[0.5], {"z": 0.5}, {"a": "high"}, {"a": -1}, {"a": True}, {"a": float("nan")}])
def test_thresholds_that_cannot_be_are_refused(stored):
    config = task_of(("a",), ("b",)).config()
    with pytest.raises(BertsmithError) as caught:
        ManyLabels.of_folder(FolderFacts(config, {"thresholds": stored}, None))
    assert caught.value.where == "task.json"


def test_the_baseline_gives_every_row_the_most_frequent_labels():
    truths = [("a", "b")] * 3 + [("a",)] * 3 + [("c",)]
    task = task_of(*truths)
    those = examples(task, records(*truths))
    # Giving a and b: 9 of 14 given and 10 meant. Giving a alone: 6 of 7 and 10.
    assert task.baseline("micro_f1", those) == pytest.approx(2 * 9 / 24)
    assert task.baseline("subset_accuracy", those) == pytest.approx(3 / 7)


@given(
    st.lists(st.sets(st.sampled_from("abcd")), min_size=1, max_size=12),
    st.permutations("abcd"),
    st.integers(1, 4),
    st.sampled_from(ManyLabels.metrics),
)
def test_the_baseline_is_the_best_of_every_number_of_labels_given(truths, order, known, metric):
    task = ManyLabels(tuple("abcd"), counts=dict.fromkeys(order[:known], 1))
    those = examples(task, records(*map(tuple, truths)))
    every = [[name in order[:number] for name in task.names] for number in range(known + 1)]
    true = np.array(those.targets) > 0
    expected = max(label_metrics(np.tile(each, (len(true), 1)), true)[metric] for each in every)
    assert task.baseline(metric, those) == pytest.approx(expected)


@pytest.mark.usefixtures("no_figures")
def test_the_report_of_dev_rows_is_of_cross_fitted_thresholds(tmp_path):
    task, those, scores = tuned_task()
    assert set(task.thresholds) == {0.5}
    task.tuned(scores, those).write(scores, those, tmp_path / "dev")
    text = (tmp_path / "dev" / "per_class.json").read_text()
    assert "tuned on other rows" in text
    other = examples(task, those.records, "test")
    task.tuned(scores, those).write(scores, other, tmp_path / "test")
    assert "tuned on other rows" not in (tmp_path / "test" / "per_class.json").read_text()
