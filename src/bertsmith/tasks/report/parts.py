"""What every report has: the rows that it is about, intervals of its figures, and doubtful labels with their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.report import plots
from bertsmith.tasks.scoring.classes import ClassTable, f1_of
from bertsmith.tasks.scoring.label_errors import MOST, Doubt
from bertsmith.tasks.scoring.resampling import CONFIDENCE, RESAMPLES, Figures, Interval, intervals

REPORT = "report"
"""The folder of a run for what its task writes of the dev and the test rows."""
PER_CLASS, CONFUSION, CALIBRATION = "per_class", "confusion", "calibration"
OUT_OF_FOLD = "folds"
"""The name of the training rows with scores of models that did not train on them."""
INTERVALS_FILE, DOUBTS_FILE = "intervals.json", "likely_label_errors.json"
_DRAWN = (PER_CLASS, CONFUSION, CALIBRATION, "intervals")
_OF_QUESTIONS = ("predictions.json", "nbest_predictions.json", "null_odds.json")
CROSS_FITTED = "each row is decided by thresholds that were tuned on other rows, over 5 folds"


@dataclass(frozen=True)
class About:
    """The rows of a report.

    part: "dev", "test" or `OUT_OF_FOLD`. shown: of each row what a person sees of it: "where", "text" and others.
    groups: of each row, where rows of a group are not independent.
    """

    part: str
    shown: Sequence[Mapping[str, Any]]
    groups: Sequence[Any] | None = None

    @property
    def out_of_fold(self) -> bool:
        """Whether each fold has the scores of a model that was trained on the other ones (cross-validation)."""
        return self.part == OUT_OF_FOLD

    def head(self, note: str = "") -> dict[str, Any]:
        """What each file begins with."""
        found: dict[str, Any] = {"rows": self.part, "count": len(self.shown)}
        if self.groups is not None:
            found["groups"] = len(set(self.groups))
        return {**found, "note": note} if note else found

    def title(self, what: str) -> str:
        """What stands above a picture; without a name of the rows where they are not of a run."""
        rows = "out-of-fold training rows" if self.out_of_fold else f"{self.part} rows".strip()
        return f"{what}: {len(self.shown):,} {rows}"


def report_files(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a report in a folder, of whatever task, each with what changes when it is written again: its inode,
    because a file is written beside the old one, and its time, which some file systems keep in seconds."""
    names = (*(f"{name}.{kind}" for name in _DRAWN for kind in ("json", "png")), DOUBTS_FILE, *_OF_QUESTIONS)
    there = {name: (folder / name).stat() for name in names if (folder / name).is_file()}
    return {name: (found.st_ino, found.st_mtime_ns) for name, found in there.items()}


def groups_of(records: Sequence[Record]) -> list[str] | None:
    """The group of each record, a group of its own for one without; None where there are none at all."""
    if all(record.group is None for record in records):
        return None
    return [record.where if record.group is None else f"group {record.group}" for record in records]


def about_records(part: str, records: Sequence[Record]) -> About:
    """Records as the rows of a report."""
    shown = [
        {name: value for name, value in fields.items() if value is not None}
        for fields in ({"where": r.where, "id": r.id, "text": r.text, "text_b": r.text_b} for r in records)
    ]
    return About(part, shown, groups_of(records))


def write_intervals(folder: Path, about: About, figures: Figures, note: str = "") -> dict[str, Interval]:
    """`intervals.json`: every figure with its 95% bootstrap interval; `intervals.png`: those that are not of one class
    or label, which `per_class` has."""
    found = intervals(figures, len(about.shown), about.groups)
    how = f"percentiles of {RESAMPLES:,} resamples of {'rows' if about.groups is None else 'groups'}"
    values = {name: asdict(each) for name, each in found.items()}
    head = {**about.head(note), "method": how, "confidence": CONFIDENCE}
    files.write_json(folder / INTERVALS_FILE, {**head, "figures": values})
    of_all = {name: each for name, each in found.items() if not name.startswith(f1_of(""))}
    title = about.title(f"{CONFIDENCE:.0%} intervals")
    plots.interval_plot((folder / INTERVALS_FILE).with_suffix(".png"), of_all, title)
    return found


def class_rows(table: ClassTable, names: Sequence[str], found: Mapping[str, Interval]) -> list[dict[str, Any]]:
    """The lines of a per-class table, each with the interval of its F1; NaN where a class does not occur."""
    rows = table.rows(tuple(names))
    for row in rows:
        interval = found[f1_of(row["label"])]
        row |= {"f1_low": interval.low, "f1_high": interval.high}
    return rows


def write_doubts(folder: Path, about: About, doubts: Sequence[Mapping[str, Any]], how: str) -> None:
    """`likely_label_errors.json`. doubts: {"row", ...}, to which the row's text and place are added."""
    found = [
        {**about.shown[each["row"]], **{name: value for name, value in each.items() if name != "row"}}
        for each in doubts[:MOST]
    ]
    files.write_json(folder / DOUBTS_FILE, {**about.head(), "found_by": how, "likely_label_errors": found})


def doubt_of(doubt: Doubt, names: Sequence[str]) -> dict[str, Any]:
    """A doubtful label with names in place of classes."""
    return {**asdict(doubt), "given": names[doubt.given], "suggested": names[doubt.suggested]}
