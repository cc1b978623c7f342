"""What the page tells of the files that the reports of tasks are made of, of every kind of task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bertsmith.report.page import page
from bertsmith.report.parts import Limits
from bertsmith.report.reading import read_runs
from bertsmith.tasks.answering.figures import figures_of_each
from bertsmith.tasks.report.parts import About, write_doubts
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
from bertsmith.tasks.scoring.calibration import calibrate
from made_reports import Parsed, write_run

pytestmark = pytest.mark.usefixtures("no_figures")
NAMES = ("<b>costs $5</b>", "line\nbreak", "退款", "d" * 80)


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Parsed]:
    run = write_run(tmp_path / "run", task="classify")

    def show(write: Callable[[Path], None], part: str = "dev", limits: Limits = Limits()) -> Parsed:  # noqa: B008
        write(run / "report" / part)
        return Parsed(page(read_runs([run]), limits))

    return show


def classified(classes: int = 4, rows: int = 200) -> Classified:
    draw = np.random.default_rng(0)
    true = draw.integers(0, classes, rows)
    logits = (draw.normal(size=(rows, classes)) * 2 + 3 * np.eye(classes)[true]).astype(np.float32)
    names = NAMES if classes == len(NAMES) else tuple(f"class {number}" for number in range(classes))
    return Classified(names, logits, true, logits.argmax(1))


def about(rows: int, text: str = "a text") -> About:
    return About("dev", [{"where": f"dev.csv:{row + 2}", "text": text} for row in range(rows)])


def write_classes(of: Classified, text: str = "a text") -> Callable[[Path], None]:
    return lambda folder: report_classes(folder, about(len(of.true), text), of, calibrate(of.logits, of.true))


def doubts_of(found: Parsed) -> list[list[str]]:
    return next(rows for name, rows in found.tables.items() if name.startswith("Likeliest label errors"))


def assert_rising(chart: ElementTree.Element) -> None:
    """Its curves go over the predictions, of which the parts are in order."""
    for line in chart.iter("polyline"):
        across = [float(point.split(",")[0]) for point in (line.get("points") or "").split()]
        assert across == sorted(across)


def test_a_classifier(shown: Callable[..., Parsed]) -> None:
    of = classified()
    found = shown(write_classes(of))
    names = [" ".join(name.split()) for name in NAMES]
    classes = found.tables["Classes"]
    assert [row[0] for row in classes[1:]] == names
    assert classes[0] == ["label", "precision", "recall", "f1", "95% of f1", "true", "predicted"]
    matrix = found.tables["Confusion: a row a true label, a column a predicted one"]
    shortened = [*names[:3], "d" * 13 + "…" + "d" * 12]
    order = [shortened.index(name) for name in matrix[0][1:]]
    counts = np.zeros((4, 4), dtype=int)
    np.add.at(counts, (of.true, of.predicted), 1)
    read = {row[0]: [0 if cell == "·" else int(cell) for cell in row[1:]] for row in matrix[1:]}
    assert read == {name: counts[at, order].tolist() for at, name in enumerate(shortened)}
    assert {attributes.get("title") for _, attributes in found.elements} > {NAMES[3]}
    assert [row[-2:] for row in classes[1:]] == [[f"{counts[at].sum()}", f"{counts[:, at].sum()}"] for at in range(4)]
    assert found.column("Figures with 95% intervals")["accuracy"] == f"{np.mean(of.true == of.predicted):.4g}"
    assert found.tables["Figures with 95% intervals"][0] == ["figure", "value", "from", "to"]
    for _, value, low, high in found.tables["Figures with 95% intervals"][1:]:
        assert float(low) < float(value) < float(high)
    (chart,) = [each for each in found.charts if (each.get("class") or "") == "chart"]
    assert len(list(chart.iter("polyline"))) == 3, "before, after, and the diagonal"
    colours = [(each.get("class") or "").split()[1] for each in chart.iter("g") if "line" in (each.get("class") or "")]
    assert colours[1:] == ["c1", "c0"], "orange before and blue after, as in calibration.png"
    bins = found.tables["Bins of the calibration"][1:]
    assert sum(int(row[2]) for row in bins if row[0] == "before") == 200
    assert_rising(chart)
    assert f"({'used' if calibrate(of.logits, of.true).kept else 'not used'})" in found.text
    doubts = doubts_of(found)
    assert len(doubts) == 1 + min(20, int((of.true != of.predicted).sum()))


def test_long_texts_are_shown_in_part_and_whole_on_demand_as_far_as_there_is_room(shown: Callable[..., Parsed]) -> None:
    text = "".join(f"{number:06d}" for number in range(5000))
    found = shown(write_classes(classified(), text), limits=Limits(text=10_000))
    assert f"{text[:160]}… (the first 160 of 30,000 characters)" in found.text
    assert text[:10_000] in found.text
    assert text[:10_001] not in found.text
    assert "10,000 of 30,000 characters; the rest is in report/dev/likely_label_errors.json" in found.text


def test_many_classes_are_shortened_to_the_worst_and_that_is_told(shown: Callable[..., Parsed]) -> None:
    of = classified(200, 1000)
    found = shown(write_classes(of))
    right = of.true == of.predicted
    counts = [np.bincount(each, minlength=200) for each in (of.true[right], of.predicted, of.true)]
    f1 = 2 * counts[0] / np.maximum(counts[1] + counts[2], 1)
    mistakes = counts[1] + counts[2] - 2 * counts[0]
    matrix = found.tables["Confusion: a row a true label, a column a predicted one"]
    for rows, figures in ((found.tables["Classes"], f1), (matrix, -mistakes)):
        kept = np.isin(of.names, [row[0] for row in rows[1:]])
        assert figures[kept].max() <= figures[~kept].min()
    assert "150 of 200 classes are shown: those with the lowest F1." in found.text
    assert "30 of 200 classes are shown: those with the most mistakes." in found.text


def test_rows_with_several_labels(shown: Callable[..., Parsed]) -> None:
    draw = np.random.default_rng(0)
    true = draw.random((150, 3)) < [0.5, 0.2, 0.1]
    logits = (draw.normal(size=(150, 3)) + 3 * true - 1.5).astype(np.float32)
    of = Labelled(("a", "b", "c"), logits, true, logits > 0, (0.5, 0.5, 0.5))
    found = shown(lambda folder: report_labels(folder, about(150), of))
    assert found.tables["Classes"][0][4] == "threshold"
    given = found.tables["Labels given"][1:]
    both = (true & (logits > 0)).sum(0)
    missed, wrong = (true & ~of.predicted).sum(0), (~true & of.predicted).sum(0)
    expected = [[name, both[at], missed[at], wrong[at]] for at, name in enumerate("abc")]
    assert [[row[0], *map(int, row[1:])] for row in given] == expected
    assert doubts_of(found)[0][:4] == ["where", "label", "given", "suggested"]


def test_numbers(shown: Callable[..., Parsed]) -> None:
    draw = np.random.default_rng(0)
    predicted = draw.normal(size=100)
    found = shown(lambda folder: report_numbers(folder, about(100), predicted, predicted + draw.normal(size=100) / 4))
    assert len(found.tables["Parts of the calibration"]) == 11
    assert_rising(next(each for each in found.charts if each.get("class") == "chart"))
    assert doubts_of(found)[0] == ["where", "given", "suggested", "text", "difference", "deviations"]


def test_choices(shown: Callable[..., Parsed]) -> None:
    of, texts = classified(3, 60), [[f"{place}: choice {place}" for place in range(3)]] * 60
    found = shown(lambda folder: report_choices(folder, about(60), of, texts))
    assert found.column("Figures with 95% intervals").keys() == {"accuracy"}
    assert [row[0] for row in found.tables["Classes"][1:]] == list(of.names)
    assert doubts_of(found)[1][1] in texts[0]


def test_questions(shown: Callable[..., Parsed]) -> None:
    draw = np.random.default_rng(0)
    exact, answerable = draw.random(40) < 0.5, draw.random(40) < 0.7
    of = Answered(["gold"] * 40, ["near"] * 40, draw.random(40), exact, draw.random(40), answerable)
    scores = np.stack([exact, exact], axis=1).astype(np.float64)
    found = shown(lambda folder: report_answers(folder, about(40), of, figures_of_each(scores, answerable)))
    figures = found.column("Figures with 95% intervals")
    assert figures.keys() == {"exact match", "f1", "HasAns exact", "HasAns f1", "NoAns exact", "NoAns f1"}
    assert [row[0] for row in found.tables["Classes"][1:]] == ["with an answer", "without an answer"]
    doubts = doubts_of(found)
    assert doubts[0] == ["where", "given", "suggested", "text", "probability", "loss"]
    assert doubts[1][1:3] == ["gold", "near"]


def test_pairs_whose_text_comes_late(shown: Callable[..., Parsed]) -> None:
    """They have no label that another is suggested for."""
    found = shown(lambda folder: write_doubts(folder, about(3), [{"row": 1, "rank": 7}], "rank"))
    assert found.tables["Likeliest label errors, by rank"] == [["where", "text", "rank"], ["dev.csv:3", "a text", "7"]]


def test_tags(shown: Callable[..., Parsed]) -> None:
    of = classified(3, 120)
    draw = np.random.default_rng(1)
    counts = [draw.integers(0, 2, (40, 2)) for _ in range(2)]
    sides = counts[0] & counts[1], counts[0], counts[1]
    words = About("dev", [{"where": "x", "text": "a b c", "word": "b", "start": 2}] * 120, [n // 3 for n in range(120)])
    found = shown(lambda folder: report_tags(folder, words, of, about(40), sides, ("LOC", "PER")))
    assert [row[0] for row in found.tables["Classes (of whole entities)"][1:]] == ["LOC", "PER"]
    assert "Confusion (tags of single words): a row a true label, a column a predicted one" in found.tables


def test_files_that_are_not_tables_are_named(shown: Callable[..., Parsed]) -> None:
    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "predictions.json").write_text("{}")

    assert "Not shown: predictions.json." in shown(write).text
