"""The reports of a classifier, of a classifier with any number of labels, of a regressor, of a tagger, of multiple
choice and of questions.

Legend: N rows, C classes, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base import files
from bertsmith.tasks.report import plots
from bertsmith.tasks.report.parts import (
    CALIBRATION,
    CONFUSION,
    PER_CLASS,
    About,
    class_rows,
    doubt_of,
    write_doubts,
    write_intervals,
)
from bertsmith.tasks.scoring.calibration import (
    AnyFloats,
    Calibration,
    Reliability,
    as_two_classes,
    log_probabilities,
    reliability,
    reliability_of_answers,
)
from bertsmith.tasks.scoring.classes import class_figures, class_table, confusion, count_figures, f1_of
from bertsmith.tasks.scoring.label_errors import MOST, Doubt, confident_doubts, worst_by_loss
from bertsmith.tasks.scoring.multilabel import label_figures, label_table
from bertsmith.tasks.scoring.numbers import number_figures
from bertsmith.tasks.scoring.resampling import Bools, Figures, Floats, Ints
from bertsmith.tasks.scoring.squad import ANSWERED, UNANSWERABLE

_BY_LOSS = "the highest losses of rows that the model labels otherwise"
_BY_CONFIDENCE = "confident learning (Northcutt et al., 2021), lowest normalised margin first"
_BY_ANSWER = "the highest losses of questions whose answer is not exact"
_NO_ANSWER = "(no answer)"
_ECE = "the mean over rows of |confidence - accuracy| of their bin, in bins of equal width"


@dataclass(frozen=True)
class Classified:
    """names: of the C classes. logits: [N, C]. true, predicted: int64[N]. positive: the class of `binary_f1`. negative:
    the one that `micro_f1` leaves out."""

    names: tuple[str, ...]
    logits: AnyFloats
    true: Ints
    predicted: Ints
    positive: int | None = None
    negative: int | None = None


def report_classes(folder: Path, about: About, of: Classified, calibration: Calibration, note: str = "") -> None:
    """Writes `per_class`, `confusion` and `calibration` as JSON and PNG, `intervals.json` and
    `likely_label_errors.json` into the folder."""
    figures = class_figures(of.predicted, of.true, of.names, of.positive, of.negative)
    _write_classes(folder, about, of, figures, note)
    _write_calibration(folder, about, calibration)
    _write_class_doubts(folder, about, of)


def report_choices(folder: Path, about: About, of: Classified, choices: Sequence[Sequence[str]]) -> None:
    """The same of multiple choice, where a class is the place of a choice, from 0. choices: of each row."""
    figures = class_figures(of.predicted, of.true, of.names).only(("accuracy", *map(f1_of, of.names)))
    _write_classes(folder, about, of, figures)
    _write_measured(folder, about, reliability(of.logits, of.true), "of the choice that is taken")
    # Places are no classes, so that confident learning, which compares rows of a class, has nothing to compare.
    doubts = worst_by_loss(log_probabilities(of.logits), of.true)
    write_doubts(folder, about, [doubt_of(each, choices[each.row]) for each in doubts], _BY_LOSS)


@dataclass(frozen=True)
class Answered:
    """given, found: the true answers and the model's to N questions, as text, "" for none. probabilities: of the
    model's, float64[N]. exact: whether these are exact, bool[N]. losses: float64[N]. answerable: bool[N], whether there
    is a true answer; None where that is not asked, as in SQuAD 1.1."""

    given: Sequence[str]
    found: Sequence[str]
    probabilities: Floats
    exact: Bools
    losses: Floats
    answerable: Bools | None = None


def report_answers(folder: Path, about: About, of: Answered, figures: Figures, note: str = "") -> None:
    """Writes `intervals.json`, `calibration` as JSON and PNG and `likely_label_errors.json`; where questions may have
    no answer also `per_class` and `confusion`, of questions with and without one."""
    if of.answerable is None:
        write_intervals(folder, about, figures, note)
    else:
        names = (ANSWERED, UNANSWERABLE)
        none = np.array([not text for text in of.found], dtype=np.int64)
        sides = Classified(names, np.zeros((len(none), 2)), (~of.answerable).astype(np.int64), none)
        each = class_figures(sides.predicted, sides.true, names).only(tuple(map(f1_of, names)))
        _write_classes(folder, about, sides, figures.and_also(each), note)
    measured = reliability_of_answers(of.probabilities, of.exact)
    _write_measured(folder, about, measured, "right is an answer that is exact")
    order = np.argsort(-of.losses, kind="stable")
    doubts = [
        {
            "row": int(row),
            "given": of.given[row] or _NO_ANSWER,
            "suggested": of.found[row] or _NO_ANSWER,
            "probability": float(of.probabilities[row]),
            "loss": float(of.losses[row]),
        }
        for row in order[~of.exact[order]]
    ]
    write_doubts(folder, about, doubts, _BY_ANSWER)


def report_tags(
    folder: Path,
    words: About,
    of: Classified,
    sentences: About,
    counts: tuple[Ints, Ints, Ints],
    types: tuple[str, ...],
) -> None:
    """The same for words with a tag each: the table and the intervals are those of whole entities, for which whole
    sentences are drawn again, and the rest is that of the tags of single words. counts: how many entities of each of L
    types are right, predicted and true in each of N sentences, [N, L]."""
    found = write_intervals(folder, sentences, count_figures(*counts, types), "of whole entities")
    table = class_table(*(np.asarray(each.sum(0), dtype=np.float64) for each in counts))
    _write_table(folder, sentences, class_rows(table, types, found), "of whole entities")
    _write_confusion(folder, words, of, "tags of single words")
    _write_measured(folder, words, reliability(of.logits, of.true), "of the tags of single words")
    _write_class_doubts(folder, words, of)


@dataclass(frozen=True)
class Labelled:
    """names: of the L labels. logits: [N, L]. true, predicted: bool[N, L]. thresholds: of the L labels."""

    names: tuple[str, ...]
    logits: AnyFloats
    true: Bools
    predicted: Bools
    thresholds: Sequence[float]


def report_labels(folder: Path, about: About, of: Labelled, note: str = "") -> None:
    """The same for rows with any number of labels; `confusion` has each label by itself. Calibration is that of all
    decisions, a row and a label each."""
    found = write_intervals(folder, about, label_figures(of.predicted, of.true, of.names), note)
    rows = class_rows(label_table(of.predicted, of.true), of.names, found)
    for row, threshold in zip(rows, of.thresholds, strict=True):
        row["threshold"] = threshold
    _write_table(folder, about, rows, note)
    sides = (side.sum(0) for side in (of.predicted & of.true, of.predicted, of.true))
    decisions = [
        {"label": name, "found": int(both), "missed": int(meant - both), "wrong": int(said - both)}
        for name, both, said, meant in zip(of.names, *sides, strict=True)
    ]
    files.write_json(folder / f"{CONFUSION}.json", {**about.head(note), "labels": decisions})
    plots.decision_plot(folder / f"{CONFUSION}.png", decisions, about.title("Labels given"))
    measured = reliability(as_two_classes(of.logits), of.true.reshape(-1).astype(np.int64))
    _write_measured(folder, about, measured, "of all decisions, a row and a label each")
    _write_label_doubts(folder, about, of)


def report_numbers(folder: Path, about: About, predicted: Floats, true: Floats) -> None:
    """Writes `intervals.json`, `calibration` as JSON and PNG (is the truth as high on average as predicted?) and
    `likely_label_errors.json`, the largest differences."""
    write_intervals(folder, about, number_figures(predicted, true))
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(10, len(true)))
    tenths = [{"rows": len(p), "predicted": float(predicted[p].mean()), "true": float(true[p].mean())} for p in parts]
    kept = {**about.head("means of the rows in order of their prediction, in ten parts"), "parts": tenths}
    files.write_json(folder / f"{CALIBRATION}.json", kept)
    title = about.title("True and predicted numbers")
    plots.number_plot(folder / f"{CALIBRATION}.png", predicted, true, tenths, title)
    missed = true - predicted
    spread = float(np.median(np.abs(missed - np.median(missed))) * 1.4826)
    doubts = [
        {
            "row": int(row),
            "given": float(true[row]),
            "suggested": float(predicted[row]),
            "difference": float(missed[row]),
            "deviations": float(abs(missed[row]) / spread) if spread else None,
        }
        for row in np.argsort(-np.abs(missed), kind="stable")[:MOST]
    ]
    how = (
        "the largest differences between given and predicted number; 'deviations' counts them in standard deviations "
        "(1.4826 times the median absolute deviation of the differences)"
    )
    write_doubts(folder, about, doubts, how)


def _write_classes(folder: Path, about: About, of: Classified, figures: Figures, note: str = "") -> None:
    """The intervals of the figures, which have the F1 of each class, the table of classes and their confusion."""
    found = write_intervals(folder, about, figures, note)
    rows = class_rows(confusion(of.predicted, of.true, len(of.names)).table(), of.names, found)
    _write_table(folder, about, rows, note)
    _write_confusion(folder, about, of, note)


def _write_table(folder: Path, about: About, rows: Sequence[dict[str, Any]], note: str) -> None:
    files.write_json(folder / f"{PER_CLASS}.json", {**about.head(note), "classes": list(rows)})
    plots.class_plot(folder / f"{PER_CLASS}.png", rows, about.title("Precision, recall and F1"))


def _write_confusion(folder: Path, about: About, of: Classified, note: str) -> None:
    found = confusion(of.predicted, of.true, len(of.names))
    sides = (each.tolist() for each in (found.true, found.predicted, found.counts))
    pairs = [
        {"true": of.names[true], "predicted": of.names[predicted], "count": count}
        for true, predicted, count in zip(*sides, strict=True)
    ]
    by_true: dict[str, dict[str, int]] = {name: {} for name in of.names}
    for pair in pairs:
        by_true[pair["true"]][pair["predicted"]] = pair["count"]
    confusions = [pair for pair in pairs if pair["true"] != pair["predicted"]]
    confusions.sort(key=lambda pair: -pair["count"])
    kept = {**about.head(note), "confusions": confusions, "predicted_by_true_label": by_true}
    files.write_json(folder / f"{CONFUSION}.json", kept)
    plots.confusion_plot(folder / f"{CONFUSION}.png", found, of.names, about.title("Confusion"))


def _write_calibration(folder: Path, about: About, found: Calibration) -> None:
    files.write_json(folder / f"{CALIBRATION}.json", {**about.head(), "ece_is": _ECE, **asdict(found)})
    title = about.title(f"Calibration, temperature {found.fitted:.3g}{'' if found.kept else ' (not used)'}")
    plots.calibration_plot(folder / f"{CALIBRATION}.png", found.before, found.after, title)


def _write_measured(folder: Path, about: About, found: Reliability, note: str) -> None:
    files.write_json(folder / f"{CALIBRATION}.json", {**about.head(note), "ece_is": _ECE, **asdict(found)})
    plots.calibration_plot(folder / f"{CALIBRATION}.png", found, None, about.title("Calibration"))


def _write_class_doubts(folder: Path, about: About, of: Classified) -> None:
    find, how = (confident_doubts, _BY_CONFIDENCE) if about.out_of_fold else (worst_by_loss, _BY_LOSS)
    doubts = find(log_probabilities(of.logits), of.true)
    write_doubts(folder, about, [doubt_of(each, of.names) for each in doubts], how)


def _write_label_doubts(folder: Path, about: About, of: Labelled) -> None:
    """Each label of each row is a decision that may be wrong."""
    find, how = (confident_doubts, _BY_CONFIDENCE) if about.out_of_fold else (worst_by_loss, _BY_LOSS)
    found: list[tuple[float, Doubt, str]] = []
    for place, name in enumerate(of.names):
        logs = log_probabilities(as_two_classes(of.logits[:, place]))
        doubts = find(logs, of.true[:, place].astype(np.int64))
        found += [(each.margin if about.out_of_fold else -each.loss, each, name) for each in doubts]
    found.sort(key=lambda one: (one[0], one[1].row))
    write_doubts(folder, about, [{"label": name, **doubt_of(each, ("no", "yes"))} for _, each, name in found], how)
