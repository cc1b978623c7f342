"""The files of a report: figures worked out again from the rows, pictures of any size, and any label's name."""

import json
import logging
import sys

import numpy as np
import pytest

from bertsmith.tasks.answering.figures import figures_of_each
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.report import plots
from bertsmith.tasks.report.parts import About, about_records
from bertsmith.tasks.report.report import (
    Answered,
    Classified,
    Labelled,
    report_answers,
    report_choices,
    report_classes,
    report_labels,
    report_numbers,
    report_tags,
)
from bertsmith.tasks.scoring.calibration import calibrate, probabilities, yes_probabilities

sklearn = pytest.importorskip("sklearn.metrics")
NAMES = ("costs $5 and $6", "line\nbreak", "退款", "d" * 80, "never")


def classified(rows=120, seed=0):
    """Scores of five classes, the last of which no row has or is taken for."""
    draw = np.random.default_rng(seed)
    true = draw.integers(0, 4, rows)
    logits = draw.normal(size=(rows, 5)) * 2 + 3 * np.eye(5)[true]
    logits[:, 4] = -20
    return Classified(NAMES, logits.astype(np.float32), true, logits.argmax(1))


def about(rows, part="dev", groups=None):
    shown = [{"where": f"dev.csv:{row + 2}", "text": f"text {row}"} for row in range(rows)]
    return About(part, shown, groups)


def read(folder, name):
    # NaN and infinity are no JSON.
    return json.loads((folder / name).read_text(encoding="utf-8"), parse_constant=lambda found: pytest.fail(found))


def is_png(path):
    data = path.read_bytes()
    return data.startswith(b"\x89PNG") and data.endswith(b"IEND\xaeB`\x82") and len(data) > 5000


FILES = {
    "per_class.json", "per_class.png", "confusion.json", "confusion.png", "calibration.json", "calibration.png",
    "intervals.json", "intervals.png", "likely_label_errors.json",
}  # fmt: skip


def test_a_classifiers_report(tmp_path, caplog):
    of = classified()
    with caplog.at_level(logging.INFO, "bertsmith"):
        report_classes(tmp_path, about(120), of, calibrate(of.logits, of.true))
    assert any("no glyphs" in message for message in caplog.messages)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert all(is_png(path) for path in tmp_path.glob("*.png"))
    rows = read(tmp_path, "per_class.json")["classes"]
    assert [row["label"] for row in rows] == list(NAMES)
    expected = sklearn.f1_score(of.true, of.predicted, labels=range(5), average=None, zero_division=0)
    assert [row["f1"] for row in rows] == pytest.approx(list(expected))
    assert all(row["f1_low"] <= row["f1"] <= row["f1_high"] for row in rows[:4])
    assert (rows[4]["f1_low"], rows[4]["support"]) == (None, 0)
    matrix = read(tmp_path, "confusion.json")
    found = matrix["predicted_by_true_label"]
    counts = sklearn.confusion_matrix(of.true, of.predicted, labels=range(5))
    assert [[found[a].get(b, 0) for b in NAMES] for a in NAMES] == counts.tolist()
    wrong = [each["count"] for each in matrix["confusions"]]
    assert wrong == sorted(wrong, reverse=True)
    assert sum(wrong) == int((of.true != of.predicted).sum())
    figures = read(tmp_path, "intervals.json")
    assert (figures["rows"], figures["count"], figures["confidence"]) == ("dev", 120, 0.95)
    accuracy = figures["figures"]["accuracy"]
    assert accuracy["value"] == pytest.approx(np.mean(of.true == of.predicted))
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert figures["figures"]["f1 of never"]["value"] is None
    measured = read(tmp_path, "calibration.json")
    assert measured["cross_fitted"]
    assert sum(each["rows"] for each in measured["before"]["bins"]) == 120


@pytest.mark.usefixtures("no_figures")
def test_the_likeliest_label_errors_have_text_place_and_both_labels(tmp_path):
    of = classified()
    report_classes(tmp_path, about(120), of, calibrate(of.logits, of.true))
    found = read(tmp_path, "likely_label_errors.json")
    losses = -np.log(probabilities(of.logits)[np.arange(120), of.true])
    losses[of.true == of.predicted] = -1
    worst = np.argsort(-losses)[:20]
    assert [each["where"] for each in found["likely_label_errors"]] == [f"dev.csv:{row + 2}" for row in worst]
    for row, each in zip(worst, found["likely_label_errors"], strict=True):
        assert each["text"] == f"text {row}"
        assert (each["given"], each["suggested"]) == (NAMES[of.true[row]], NAMES[of.predicted[row]])
        assert each["loss"] == pytest.approx(losses[row], rel=1e-5)
    assert "highest losses" in found["found_by"]
    folds = tmp_path / "folds"
    report_classes(folds, about(120, "folds"), of, calibrate(of.logits, of.true))
    assert "confident learning" in read(folds, "likely_label_errors.json")["found_by"]


@pytest.mark.usefixtures("no_figures")
def test_a_report_over_groups_says_so_and_is_wider(tmp_path):
    of = classified()
    twice = Classified(NAMES, *(np.repeat(each, 2, axis=0) for each in (of.logits, of.true, of.predicted)))
    calibration = calibrate(of.logits, of.true)
    report_classes(tmp_path / "rows", about(240), twice, calibration)
    report_classes(tmp_path / "groups", about(240, groups=np.repeat(range(120), 2).tolist()), twice, calibration)
    widths = {}
    for name in ("rows", "groups"):
        found = read(tmp_path / name, "intervals.json")
        widths[name] = found["figures"]["accuracy"]["high"] - found["figures"]["accuracy"]["low"]
        assert f"resamples of {name}" in found["method"]
    assert found["groups"] == 120
    assert widths["groups"] > 1.2 * widths["rows"]


def test_the_report_of_rows_with_several_labels(tmp_path):
    draw = np.random.default_rng(0)
    true = draw.random((150, 3)) < [0.5, 0.2, 0.1]
    logits = (draw.normal(size=(150, 3)) + 3 * true - 1.5).astype(np.float32)
    thresholds = (0.3, 0.5, 0.8)
    predicted = yes_probabilities(logits) >= np.array(thresholds)
    report_labels(tmp_path, about(150), Labelled(("a", "b", "c"), logits, true, predicted, thresholds))
    assert {path.name for path in tmp_path.iterdir()} == FILES
    rows = read(tmp_path, "per_class.json")["classes"]
    assert [row["f1"] for row in rows] == pytest.approx(sklearn.f1_score(true, predicted, average=None).tolist())
    assert [row["threshold"] for row in rows] == list(thresholds)
    decisions = read(tmp_path, "confusion.json")["labels"]
    for place, each in enumerate(decisions):
        matrix = sklearn.confusion_matrix(true[:, place], predicted[:, place])
        assert (each["found"], each["missed"], each["wrong"]) == (matrix[1, 1], matrix[1, 0], matrix[0, 1])
    micro = read(tmp_path, "intervals.json")["figures"]["micro_f1"]
    assert micro["value"] == pytest.approx(sklearn.f1_score(true, predicted, average="micro"))
    assert sum(each["rows"] for each in read(tmp_path, "calibration.json")["bins"]) == 450
    doubts = read(tmp_path, "likely_label_errors.json")["likely_label_errors"]
    assert [each["loss"] for each in doubts] == sorted((each["loss"] for each in doubts), reverse=True)
    for each in doubts:
        row, place = int(each["text"].split()[1]), "abc".index(each["label"])
        assert each["given"] == ("yes" if true[row, place] else "no") != each["suggested"]


def test_the_report_of_numbers(tmp_path):
    draw = np.random.default_rng(1)
    true = draw.random(200) * 5
    predicted = true + draw.normal(size=200) * 0.1
    true[17] += 4
    report_numbers(tmp_path, about(200), predicted, true)
    assert is_png(tmp_path / "calibration.png")
    worst = read(tmp_path, "likely_label_errors.json")["likely_label_errors"][0]
    assert worst["where"] == "dev.csv:19"
    assert worst["deviations"] > 20
    missed = true - predicted
    deviation = 1.4826 * np.median(np.abs(missed - np.median(missed)))
    assert worst["deviations"] == pytest.approx(missed[17] / deviation)
    assert worst["difference"] == pytest.approx(worst["given"] - worst["suggested"])
    parts = read(tmp_path, "calibration.json")["parts"]
    assert [each["rows"] for each in parts] == [20] * 10
    assert [each["predicted"] for each in parts] == sorted(each["predicted"] for each in parts)
    assert np.mean([each["true"] for each in parts]) == pytest.approx(true.mean())


def test_the_chart_of_numbers_has_the_predicted_ones_on_its_lower_axis(tmp_path, monkeypatch):
    drawn, save = {}, plots.save_figure

    def kept(figure, path):
        drawn[path.name] = figure
        save(figure, path)

    monkeypatch.setattr(plots, "save_figure", kept)
    predicted, true = np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])
    report_numbers(tmp_path, about(3), predicted, true)
    (axes,) = drawn["calibration.png"].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    points = np.column_stack([predicted, true])
    assert np.array_equal(axes.collections[0].get_offsets(), points)
    assert np.array_equal(axes.lines[1].get_xydata(), points), "each is a part by itself"


def test_the_report_of_a_tagger_draws_sentences_again(tmp_path):
    words = classified(90)
    sentence = np.repeat(range(30), 3).tolist()
    right, predicted, true = (np.full((30, 2), count) for count in ([1, 0], [1, 1], [2, 0]))
    report_tags(tmp_path, about(90, groups=sentence), words, about(30), (right, predicted, true), ("PER", "LOC"))
    assert {path.name for path in tmp_path.iterdir()} == FILES
    table = read(tmp_path, "per_class.json")
    assert table["count"] == 30
    assert [row["f1"] for row in table["classes"]] == pytest.approx([2 / 3, 0])
    figures = read(tmp_path, "intervals.json")["figures"]
    assert figures["micro_precision"]["value"] == pytest.approx(0.5)
    assert read(tmp_path, "confusion.json")["count"] == 90
    assert sum(each["rows"] for each in read(tmp_path, "calibration.json")["bins"]) == 90


def test_the_report_of_choices_names_them_and_counts_their_places(tmp_path):
    draw = np.random.default_rng(0)
    counts = draw.integers(2, 5, 90)
    true = draw.integers(0, counts)
    logits = draw.normal(size=(90, 4)) + 2 * np.eye(4)[true]
    logits[np.arange(4) >= counts[:, None]] = -np.inf
    choices = [[f"{place}: choice {row} {place}" for place in range(count)] for row, count in enumerate(counts)]
    of = Classified(tuple("0123"), logits.astype(np.float32), true, logits.argmax(1))
    report_choices(tmp_path, about(90, "folds"), of, choices)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    figures = read(tmp_path, "intervals.json")["figures"]
    assert list(figures) == ["accuracy", *(f"f1 of {place}" for place in range(4))]
    assert figures["accuracy"]["value"] == pytest.approx(np.mean(of.true == of.predicted))
    assert figures["accuracy"]["low"] < figures["accuracy"]["value"] < figures["accuracy"]["high"]
    rows = read(tmp_path, "per_class.json")["classes"]
    assert [row["support"] for row in rows] == np.bincount(true).tolist()
    assert [row["predicted"] for row in rows] == np.bincount(of.predicted).tolist()
    bins = read(tmp_path, "calibration.json")["bins"]
    assert sum(each["rows"] * each["accuracy"] for each in bins if each["rows"]) == pytest.approx(
        (of.true == of.predicted).sum()
    )
    found = read(tmp_path, "likely_label_errors.json")
    losses = -np.log(probabilities(of.logits)[np.arange(90), true])
    worst = sorted(np.flatnonzero(true != of.predicted), key=lambda row: -losses[row])[:20]
    assert [each["given"] for each in found["likely_label_errors"]] == [choices[row][true[row]] for row in worst]
    assert [each["suggested"] for each in found["likely_label_errors"]] == [
        choices[row][of.predicted[row]] for row in worst
    ]


def answered(unanswerable):
    """Answers to 60 questions, of which every third has none if that is asked."""
    draw = np.random.default_rng(0)
    given = ["" if unanswerable and row % 3 == 0 else f"gold {row}" for row in range(60)]
    found = [
        "" if unanswerable and row % 4 == 0 else text if row % 5 else f"near {row}" for row, text in enumerate(given)
    ]
    exact = np.array([ours == theirs for ours, theirs in zip(found, given, strict=True)])
    answerable = np.array([bool(text) for text in given]) if unanswerable else None
    return Answered(given, found, draw.random(60), exact, draw.random(60) * 5, answerable)


@pytest.mark.parametrize("unanswerable", [False, True])
def test_the_report_of_questions(tmp_path, unanswerable):
    of = answered(unanswerable)
    scores = np.stack([of.exact, np.where(of.exact, 1.0, 0.5)], axis=1)
    report_answers(tmp_path, about(60), of, figures_of_each(scores, of.answerable), "a note")
    of_classes = {name for name in FILES if name.startswith(("per_class", "confusion"))}
    assert {path.name for path in tmp_path.iterdir()} == FILES - (set() if unanswerable else of_classes)
    found = read(tmp_path, "intervals.json")
    assert found["note"] == "a note"
    figures = found["figures"]
    assert figures["exact_match"]["value"] == pytest.approx(100 * of.exact.mean())
    assert figures["f1"]["value"] == pytest.approx(100 * scores[:, 1].mean())
    assert figures["f1"]["low"] < figures["f1"]["value"] < figures["f1"]["high"]
    if unanswerable:
        assert figures["NoAns_exact"]["value"] == pytest.approx(100 * of.exact[~of.answerable].mean())
        assert figures["HasAns_f1"]["value"] == pytest.approx(100 * scores[of.answerable, 1].mean())
        matrix = read(tmp_path, "confusion.json")["predicted_by_true_label"]
        silent = sum(not ours and bool(theirs) for ours, theirs in zip(of.found, of.given, strict=True))
        assert matrix["with an answer"]["without an answer"] == silent
        assert read(tmp_path, "per_class.json")["classes"][1]["support"] == 20
    measured = read(tmp_path, "calibration.json")
    assert is_png(tmp_path / "calibration.png")
    assert sum(each["rows"] * each["accuracy"] for each in measured["bins"] if each["rows"]) == of.exact.sum()
    doubts = read(tmp_path, "likely_label_errors.json")["likely_label_errors"]
    wrong = sorted(np.flatnonzero(~of.exact), key=lambda row: -of.losses[row])[:20]
    assert [each["text"] for each in doubts] == [f"text {row}" for row in wrong]
    assert [each["given"] for each in doubts] == [of.given[row] or "(no answer)" for row in wrong]
    assert [each["suggested"] for each in doubts] == [of.found[row] or "(no answer)" for row in wrong]
    assert [each["probability"] for each in doubts] == pytest.approx([of.probabilities[row] for row in wrong])


@pytest.mark.parametrize("classes", [2, 40, 130])
def test_pictures_of_few_and_of_many_classes(tmp_path, classes):
    draw = np.random.default_rng(0)
    names = tuple(f"class {number} with a name that is long" for number in range(classes))
    true = draw.integers(0, classes, 300)
    logits = draw.normal(size=(300, classes)) + 4 * np.eye(classes)[true]
    report_classes(tmp_path, about(300), Classified(names, logits, true, logits.argmax(1)), calibrate(logits, true))
    assert all(is_png(path) for path in tmp_path.glob("*.png"))
    assert len(read(tmp_path, "confusion.json")["predicted_by_true_label"]) == classes


def test_of_many_classes_those_with_the_most_mistakes_are_drawn():
    mistakes = np.zeros(130)
    mistakes[120] = 3
    assert plots._most(mistakes, "All", "worst") == ([*range(99), 120], "All\nthe 100 of 130 worst")
    assert plots._most(mistakes[:100], "All", "worst") == (list(range(100)), "All")


def test_long_names_lose_their_middle():
    assert plots.short_name("a\tb\nc") == "a b c"
    assert plots.short_name("x" * 10 + "y" * 10 + "z" * 10, 11) == "xxxxx…zzzzz"
    assert len(plots.short_name("w" * 99, 26)) == 26


def test_without_matplotlib_there_is_json_and_one_line(tmp_path, caplog, monkeypatch):
    for name in [each for each in sys.modules if each.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("bertsmith.base.log._said", set())
    of = classified()
    (tmp_path / "confusion.png").write_bytes(b"of an earlier report")
    with caplog.at_level(logging.INFO, "bertsmith"):
        report_classes(tmp_path, about(120), of, calibrate(of.logits, of.true))
    assert {path.name for path in tmp_path.iterdir()} == {name for name in FILES if name.endswith(".json")}
    (message,) = (each for each in caplog.messages if "matplotlib" in each)
    assert "bertsmith[plots]" in message


def test_records_as_rows_of_a_report():
    plain = [Record("a", None, "x", "f:2"), Record("a", "b", "x", "f:3", "7")]
    found = about_records("test", plain)
    assert found.shown == [{"where": "f:2", "text": "a"}, {"where": "f:3", "id": "7", "text": "a", "text_b": "b"}]
    assert found.groups is None
    grouped = [Record("a", None, "x", f"f:{line}", group=group) for line, group in enumerate(("g", None, "g", None), 2)]
    first, alone, again, also_alone = about_records("test", grouped).groups
    assert len({first, alone, again, also_alone}) == 3
    assert first == again
