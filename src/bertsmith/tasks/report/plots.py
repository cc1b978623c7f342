"""The figures of a report. Every one stays readable with two classes or a hundred, and with long names.

Legend: C classes.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.figures import INSTALL, new_figure, save_figure
from bertsmith.base.log import log_choice, say
from bertsmith.tasks.scoring.calibration import Reliability
from bertsmith.tasks.scoring.classes import Confusion, share
from bertsmith.tasks.scoring.resampling import Floats, Interval

MOST_CLASSES = 100
_MOST_NUMBERS = 40  # classes whose counts still fit into their cells
_NAME = 26  # characters
_BLUE, _ORANGE, _GREY = "#2166ac", "#d6604d", "#888888"


def confusion_plot(path: Path, found: Confusion, names: Sequence[str], title: str) -> None:
    """A matrix of how often classes were taken for others, coloured by the share of each true class; of more than 100
    classes those with the most mistakes."""
    wrong = found.true != found.predicted
    sides = np.concatenate([found.true[wrong], found.predicted[wrong]])
    mistakes = np.bincount(sides, np.tile(found.counts[wrong], 2), len(names))
    kept, title = _most(mistakes, title, "classes with the most mistakes")
    counts, support = found.among(kept), found.table().support[kept]
    shares, names = share(counts, np.repeat(support[:, None], len(kept), 1)), [short_name(names[at]) for at in kept]
    numbers = len(names) <= _MOST_NUMBERS
    cell = 0.6 if len(names) <= 5 else 0.4 if numbers else 0.17
    margin = 1.2 + 0.075 * max(map(len, names))
    size = margin + cell * len(names)
    axes = _axes(path, size + 1.2, size + 0.5)
    if axes is None:
        return
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    points = 9 if numbers else 6
    _name_ticks(axes.set_xticks, names, points, rotation=90 if len(names) > 3 else 0)
    _name_ticks(axes.set_yticks, names, points)
    axes.set(xlabel="predicted", ylabel="true")
    if numbers:
        for row, column in zip(*np.nonzero(counts), strict=True):
            dark = shares[row, column] > 0.5
            written = f"{counts[row, column]:.0f}"
            points = 9 if len(written) < 5 else 6
            colour = "white" if dark else "black"
            axes.text(column, row, written, ha="center", va="center", fontsize=points, color=colour)
    else:
        between, end = np.arange(len(names) - 1) + 0.5, len(names) - 0.5
        axes.vlines(between, -0.5, end, color="#e6e6e6", linewidth=0.3)
        axes.hlines(between, -0.5, end, color="#e6e6e6", linewidth=0.3)
    shrink = min(0.7, 4 / (cell * len(names)))
    axes.figure.colorbar(image, ax=axes, label="share of the true class", shrink=shrink)
    _save(axes, path, title)


def class_plot(path: Path, rows: Sequence[dict[str, Any]], title: str) -> None:
    """Precision, recall and F1 of each class, the F1 with its interval; rows: as `per_class.json` has them. Of more
    than 100 classes those with the lowest F1."""
    kept, title = _most(-np.array([row["f1"] for row in rows]), title, "classes with the lowest F1")
    rows = [rows[place] for place in kept]
    names = [f"{short_name(row['label'])}  ({row['support']:,})" for row in rows]
    axes = _axes(path, 6.5 + 0.06 * max(map(len, names)), 1.6 + 0.24 * len(rows))
    if axes is None:
        return
    places = np.arange(len(rows))
    known = [place for place, row in enumerate(rows) if np.isfinite(row["f1_low"])]
    axes.hlines(known, *([rows[k][side] for k in known] for side in ("f1_low", "f1_high")), color=_BLUE, linewidth=2.5)
    for name, marker, colour in (("precision", "<", _ORANGE), ("recall", ">", _GREY), ("f1", "o", _BLUE)):
        label = "F1, with its 95% interval" if name == "f1" else name
        axes.plot([row[name] for row in rows], places, marker, color=colour, label=label, markersize=5, alpha=0.9)
    _name_ticks(axes.set_yticks, names, 8)
    axes.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.5), xlabel="(in brackets: how many have the label)")
    axes.grid(axis="x", color="#e6e6e6")
    axes.figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    _save(axes, path, title)


def interval_plot(path: Path, figures: Mapping[str, Interval], title: str) -> None:
    """Each figure with its interval, as far as they are defined."""
    known = {name: each for name, each in figures.items() if np.isfinite([each.value, each.low, each.high]).all()}
    if not known:
        path.unlink(missing_ok=True)
        return
    axes, places = _axes(path, 6.5, 1.2 + 0.3 * len(known)), np.arange(len(known))
    if axes is None:
        return
    axes.hlines(places, *([getattr(each, side) for each in known.values()] for side in ("low", "high")), color=_BLUE)
    axes.plot([each.value for each in known.values()], places, "o", color=_BLUE, markersize=5)
    _name_ticks(axes.set_yticks, [f"{name}  {each.value:.4g}" for name, each in known.items()], 8)
    axes.set(ylim=(len(known) - 0.5, -0.5))
    axes.grid(axis="x", color="#e6e6e6")
    _save(axes, path, title)


def calibration_plot(path: Path, before: Reliability, after: Reliability | None, title: str) -> None:
    """How often confident predictions are right: accuracy over confidence, before and after a temperature, and below
    it how many rows have which confidence."""
    both = _axes(path, 5.4, 6, nrows=2, sharex=True, height_ratios=(3, 1))
    if both is None:
        return
    upper, lower = both
    upper.plot([0, 1], [0, 1], ":", color=_GREY, label="perfectly calibrated")
    shown = [(before, _ORANGE, "before" if after else "as it is"), *([(after, _BLUE, "after")] if after else [])]
    for number, (each, colour, name) in enumerate(shown):
        full = [one for one in each.bins if one.rows]
        label = f"{name}: ECE {each.ece:.3f}, NLL {each.nll:.3f}"
        x, y = [one.confidence for one in full], [one.accuracy for one in full]
        upper.plot(x, y, "-", color=colour, linewidth=1.2, label=label)
        sizes = [15 + 100 * one.rows / max(other.rows for other in full) for one in full]
        upper.scatter(x, y, s=sizes, color=colour, alpha=0.6, edgecolors="none", clip_on=False, zorder=3)
        width = (each.bins[0].high - each.bins[0].low) / (len(shown) + 0.5)
        places = [one.low + (number + 0.75) * width for one in full]
        lower.bar(places, [one.rows for one in full], width=width, color=colour, alpha=0.8)
    upper.set(xlim=(0, 1), ylim=(-0.02, 1.02), ylabel="share that is right")
    upper.figure.legend(loc="outside lower center", fontsize=8)
    lower.set(xlabel="probability of the prediction", ylabel="rows")
    for axes in both:
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
    _save(upper, path, title)


def decision_plot(path: Path, table: Sequence[dict[str, Any]], title: str) -> None:
    """Of each label the rows that are found, missed and wrongly given; table: {"label", "found", "missed", "wrong"} of
    each. Of more than 100 labels those with the most mistakes."""
    mistakes = np.array([row["missed"] + row["wrong"] for row in table])
    kept, title = _most(mistakes, title, "labels with the most mistakes")
    table = [table[place] for place in kept]
    names = [short_name(row["label"]) for row in table]
    axes = _axes(path, 6.5 + 0.06 * max(map(len, names)), 1.6 + 0.24 * len(table))
    if axes is None:
        return
    start = np.zeros(len(table))
    for name, colour in (("found", _BLUE), ("missed", _GREY), ("wrong", _ORANGE)):
        width = np.array([row[name] for row in table], dtype=np.float64)
        label = {"found": "has the label and gets it", "missed": "has it and does not get it"}.get(name, "gets it only")
        axes.barh(np.arange(len(table)), width, left=start, color=colour, label=label, height=0.75)
        start += width
    _name_ticks(axes.set_yticks, names, 8)
    axes.set(ylim=(len(table) - 0.5, -0.5), xlabel="rows")
    axes.figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    _save(axes, path, title)


def number_plot(path: Path, predicted: Floats, true: Floats, tenths: Sequence[dict[str, float]], title: str) -> None:
    """True numbers over predicted ones, and their means in ten bins; tenths: {"predicted", "true"} of each."""
    axes = _axes(path, 5.4, 5.4)
    if axes is None:
        return
    ends = [float(min(predicted.min(), true.min())), float(max(predicted.max(), true.max()))]
    axes.plot(ends, ends, ":", color=_GREY, label="perfect")
    alpha = float(np.clip(200 / len(true), 0.05, 0.6))
    axes.scatter(predicted, true, s=8, color=_BLUE, alpha=alpha, edgecolors="none")
    means = [[each[side] for each in tenths] for side in ("predicted", "true")]
    axes.plot(*means, "o-", color=_ORANGE, label="means of tenths of the rows")
    axes.set(xlabel="predicted", ylabel="true")
    axes.legend(fontsize=8)
    axes.grid(color="#e6e6e6")
    _save(axes, path, title)


def _axes(path: Path, width: float, height: float, **layout: Any) -> Any:
    """The axes of a new figure, as its `subplots` gives them; None where matplotlib is not installed."""
    figure = new_figure(width, height)
    if figure is None:
        log_choice("figures of the report", "none", f"matplotlib is not installed: {INSTALL}")
        path.unlink(missing_ok=True)  # one of an earlier report
        return None
    return figure.subplots(**layout)


def _save(axes: Any, path: Path, title: str) -> None:
    axes.set_title(title, fontsize=10, parse_math=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_figure(axes.figure, path)
    if any("missing from" in str(each.message) for each in caught):
        say(f"{path.name}: the font has no glyphs for some characters of the labels; the JSON file has them all")


def _most(values: NDArray[Any], title: str, what: str) -> tuple[list[int], str]:
    """The places of the highest values, at most `MOST_CLASSES`, in their own order; and the title, which says what they
    are where they are not all."""
    if len(values) <= MOST_CLASSES:
        return list(range(len(values))), title
    kept = sorted(np.argsort(-values, kind="stable")[:MOST_CLASSES].tolist())
    return kept, f"{title}\nthe {len(kept)} of {len(values):,} {what}"


def _name_ticks(set_ticks: Any, names: Sequence[str], points: float, rotation: int = 0) -> None:
    # Without parse_math a label with two dollar signs would be set as a formula, or fail.
    set_ticks(np.arange(len(names)), names, fontsize=points, rotation=rotation, parse_math=False)


def short_name(name: str, most: int = _NAME) -> str:
    """A name on one line without its middle, where it has more than so many characters."""
    name = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}"
