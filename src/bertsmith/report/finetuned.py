"""What the page tells of a fine-tuned model: seeds, classes, confusion, calibration and likely label errors.

Everything but the seeds is in the files of the run's `report`, which `tasks/report` describes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertsmith.report.figures import Runs, swatch, title_for
from bertsmith.report.markup import NOTHING, Markup, details, element, joined, number, paragraph, section, table
from bertsmith.report.parts import Limits, noted, shown_of, title_of
from bertsmith.report.reading import PARTS, RunRead
from bertsmith.report.svg import Chart, Line, Style, draw, floats
from bertsmith.tasks.report.parts import CALIBRATION, CONFUSION, DOUBTS_FILE, INTERVALS_FILE, OUT_OF_FOLD, PER_CLASS
from bertsmith.tasks.report.plots import short_name
from bertsmith.tasks.results import FinetuneResult
from bertsmith.tasks.scoring.classes import f1_of

INTERVALS, DOUBTS = (name.removesuffix(".json") for name in (INTERVALS_FILE, DOUBTS_FILE))
_ROWS_OF = {
    "dev": "Dev rows, which chose the epoch and the seed",
    "test": "Test rows, which chose nothing",
    OUT_OF_FOLD: "Training rows, each by a model that did not train on it",
}
_MOST_UPRIGHT = 3  # classes whose names stand side by side, as in confusion.png
_MOST_BINS = 100  # more than a report has
_TEXTS = ("text", "text_b", "word")
_DOUBT_FIGURES = ("self_confidence", "margin", "difference", "deviations", "probability", "loss", "cosine", "rank")


def finetuned(runs: Runs, limits: Limits) -> list[Markup]:
    """A section for each run of a task."""
    return [_of(run, limits) for run in runs if run.is_finetuned]


def _of(run: RunRead, limits: Limits) -> Markup:
    title = joined(["Task", *([": ", title_of(run)] if run.key else [])])
    if run.result is None:
        seeds = [paragraph("The run is not finished, so no seed was chosen yet; its figures so far are held-out ones.")]
    else:
        seeds = [paragraph(run.result.line()), _seeds(run.result), *_trials(run.result), _rows(run.result)]
    parts = [_part(run, part, limits) for part in PARTS if part in run.tables]
    if run.result is not None and not parts:
        parts = [paragraph("There are no tables of classes: the task has none, or the run was made without a report.")]
    return section(f"task-{run.number}", title, *seeds, *parts)


def _seeds(result: FinetuneResult) -> Markup:
    """Every seed's scores, and what they come to."""
    tests = {each.seed: each.best.test[result.metric] for each in result.seeds if each.best.test is not None}
    head = ["seed", "best epoch", f"dev {result.metric} there", *(["test there"] if tests else []), "dev, last epoch"]
    rows = [
        [
            f"{each.seed}{' (kept)' if each.seed == result.kept.seed else ''}",
            number(each.best_epoch),
            number(each.score),
            *([number(tests.get(each.seed))] if tests else []),
            number(last),
        ]
        for each, last in zip(result.seeds, result.last_scores, strict=True)
    ]
    columns = [result.scores, *([result.test_scores] if tests else []), result.last_scores]
    rows.append(["mean", NOTHING, *(number(statistics.fmean(scores)) for scores in columns)])
    # A single score says nothing of how far others would be from it.
    spread = [number(statistics.stdev(scores)) if len(scores) > 1 else NOTHING for scores in columns]
    rows.append(["deviation", NOTHING, *spread])
    baseline = f"{result.baseline_name}: {number(result.baseline)}"
    return joined([table("Seeds", head, rows), *noted(f"Without looking at the text, {baseline}.")])


def _trials(result: FinetuneResult) -> list[Markup]:
    """The trainings on folds, and on shares of the rows."""
    found = []
    for what, name, figures in (("folds", "fold", result.folds), ("shares", "percent", result.shares)):
        if figures:
            names = list(dict.fromkeys(key for each in figures.values() for key in each))
            rows = [[label, *(number(each.get(key)) for key in names)] for label, each in figures.items()]
            caption = f"{what.capitalize()} of the training rows, after the last step"
            found.append(table(caption, [name, *map(title_for, names)], rows))
            if early := result.early_ends(what):
                found += noted(f"{early}: do not compare these figures with those of the seeds.")
    return found


def _rows(result: FinetuneResult) -> Markup:
    rows = [
        [part, f"{count:,}", f"{result.truncated[part].rows:,}", f"{result.truncated[part].tokens:,}"]
        for part, count in result.rows.items()
    ]
    return table("Rows", ["part", "rows", "of them truncated", "tokens lost"], rows)


def _part(run: RunRead, part: str, limits: Limits) -> Markup:
    """The tables of the rows of a part, by the files that are there."""
    makers: dict[str, Callable[[Any, Limits], Markup]] = {
        INTERVALS: lambda found, _: _intervals(found),
        PER_CLASS: _classes,
        CONFUSION: _confusion,
        CALIBRATION: lambda found, _: _calibration(found, f"calibration-{run.number}-{part}"),
        DOUBTS: lambda found, limits: _doubts(found, limits, part),
    }
    tables = run.tables[part]
    made: list[Markup] = [element("h3", _ROWS_OF[part])]
    for name, make in makers.items():
        if name in tables:
            try:
                made.append(make(tables[name], limits))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                made += noted(f"{part}/{name}.json is not in the form that is known ({error!r}).")
    others = sorted(name for name in tables if name not in makers)
    if others:
        made += noted(f"Not shown: {', '.join(f'{name}.json' for name in others)}.")
    return joined(made)


def _note(found: Mapping[str, Any]) -> str:
    return f" ({found['note']})" if found.get("note") else ""


def _intervals(found: Mapping[str, Any]) -> Markup:
    rows = [
        [title_for(name), *(number(each[side]) for side in ("value", "low", "high"))]
        for name, each in found["figures"].items()
        if not name.startswith(f1_of(""))
    ]
    caption = f"Figures with {found['confidence']:.0%} intervals{_note(found)}"
    return table(caption, ["figure", "value", "from", "to"], rows)


def _classes(found: Mapping[str, Any], limits: Limits) -> Markup:
    classes = found["classes"]
    lowest = sorted(range(len(classes)), key=lambda each: classes[each]["f1"])[: limits.rows]
    kept = [classes[each] for each in sorted(lowest)]
    figures = [name for name in ("precision", "recall", "f1", "threshold") if any(name in each for each in kept)]
    head = ["label", *figures, "95% of f1", "true", "predicted"]
    rows = [
        [
            element("bdi", str(each["label"])),
            *(number(each.get(name)) for name in figures),
            f"{number(each.get('f1_low'))} to {number(each.get('f1_high'))}",
            number(each["support"]),
            number(each["predicted"]),
        ]
        for each in kept
    ]
    note = shown_of(len(kept), len(classes), "class", "those with the lowest F1")
    return joined([table(f"Classes{_note(found)}", head, rows), *noted(note)])


def _confusion(found: Mapping[str, Any], limits: Limits) -> Markup:
    if "labels" in found:  # rows with any number of labels: each label by itself
        labels = found["labels"]
        mistaken = sorted(range(len(labels)), key=lambda each: -labels[each]["missed"] - labels[each]["wrong"])
        most = [labels[each] for each in sorted(mistaken[: limits.rows])]
        rows = [
            [element("bdi", str(each["label"])), *(number(each[side]) for side in ("found", "missed", "wrong"))]
            for each in most
        ]
        head = ["label", "has it and gets it", "has it and does not get it", "gets it only"]
        note = shown_of(len(most), len(labels), "label", "those with the most mistakes")
        return joined([table(f"Labels given{_note(found)}", head, rows), *noted(note)])
    counts: Mapping[str, Mapping[str, int]] = found["predicted_by_true_label"]
    names = list(dict.fromkeys([*counts, *(other for row in counts.values() for other in row)]))
    kept = [name for name in names if name in _most_mistaken(counts, names, limits.classes)]
    note = shown_of(len(kept), len(names), "class", "those with the most mistakes")
    caption = f"Confusion{_note(found)}: a row a true label, a column a predicted one"
    vertical = len(kept) > _MOST_UPRIGHT and "vertical"
    left, above = (
        [element("bdi", short_name(name), title=name, class_=class_) for name in kept] for class_ in (False, vertical)
    )
    rows = [[side, *_cells(counts.get(name, {}), kept)] for side, name in zip(left, kept, strict=True)]
    shown = table(caption, ["true \\ predicted", *above], rows, class_="matrix")
    return joined([shown, *noted(note)])


def _most_mistaken(counts: Mapping[str, Mapping[str, int]], names: Sequence[str], most: int) -> set[str]:
    mistakes = dict.fromkeys(names, 0)
    for true, row in counts.items():
        for predicted, count in row.items():
            if true != predicted:
                mistakes[true] += count
                mistakes[predicted] += count
    return set(sorted(names, key=lambda name: -mistakes[name])[:most])


def _cells(row: Mapping[str, int], names: Sequence[str]) -> list[Markup]:
    """Counts, shaded by their share of the true label."""
    whole = sum(row.values())
    return [
        element("span", f"{count:,}", class_="cell", style=f"--share:{count / whole:.2f}")
        if (count := row.get(name, 0))
        else Markup("·")
        for name in names
    ]


def _calibration(found: Mapping[str, Any], name: str) -> Markup:
    if "parts" in found:
        return _numbers_calibration(found, name)
    sides = {"before": found["before"], "after": found["after"]} if "before" in found else {"as it is": found}
    lines, told = [_diagonal(0.0, 1.0)], []
    for place, (side, each) in enumerate(sides.items()):
        full = [one for one in each["bins"] if one["rows"]]
        xs, ys = ([one[key] for one in full] for key in ("confidence", "accuracy"))
        colour = int(side != "after")  # blue is what the finished model does, as in calibration.png
        lines.append(Line(side, floats(xs), floats(ys), Style(colour, place, side), "full" if place else "hollow"))
        told += [[side, _range(one), *(number(one[key]) for key in ("rows", "confidence", "accuracy"))] for one in full]
    facts = [
        f"{side}: calibration error {number(each['ece'])}, NLL {number(each['nll'])}" for side, each in sides.items()
    ]
    if "fitted" in found:
        used = "used" if found["kept"] else "not used"
        facts += [f"temperature {number(found['fitted'])} ({used})", found["remark"]]
    title = f"Calibration{_note(found)}: share that is right, over the probability of the prediction"
    chart = Chart(name, title, lines, "probability of the prediction", True, ends=(0.0, 1.0))
    bins = table("Bins of the calibration", ["", "probability", "rows", "mean probability", "share right"], told)
    return _charted(chart, lines, facts, bins)


def _range(one: Mapping[str, Any]) -> str:
    return f"{one['low']:.3f} to {one['high']:.3f}"


def _numbers_calibration(found: Mapping[str, Any], name: str) -> Markup:
    """Of a task whose labels are numbers: mean truth over mean prediction."""
    xs, ys = ([one[key] for one in found["parts"]] for key in ("predicted", "true"))
    lines = [
        _diagonal(min(*xs, *ys), max(*xs, *ys)),
        Line("means", floats(xs), floats(ys), Style(0, 0, "means"), "full"),
    ]
    rows = [
        [f"{place}", *(number(one[key]) for key in ("rows", "predicted", "true"))]
        for place, one in enumerate(found["parts"], 1)
    ]
    title = "Calibration: mean true number over mean predicted one, in ten parts of the rows"
    chart = Chart(name, title, lines, "predicted")
    return _charted(chart, lines, [], table("Parts of the calibration", ["part", "rows", "predicted", "true"], rows))


def _diagonal(low: float, high: float) -> Line:
    return Line("perfect", floats([low, high]), floats([low, high]), faint=True)


def _charted(chart: Chart, lines: Sequence[Line], facts: Sequence[str], numbers: Markup) -> Markup:
    legend = element("span", *map(swatch, lines), class_="sources")
    caption = element("figcaption", chart.title, legend)
    figure = element("figure", caption, draw(chart, _MOST_BINS))
    said = [paragraph("; ".join(facts), ".")] if facts else []
    return joined([element("div", figure, class_="charts"), *said, details("Numbers", numbers)])


def _doubts(found: Mapping[str, Any], limits: Limits, part: str) -> Markup:
    """The likeliest label errors, with their texts."""
    doubts = found["likely_label_errors"]
    if not doubts:
        return paragraph("No label is doubtful.")
    figures = [name for name in _DOUBT_FIGURES if name in doubts[0]]
    named = [name for name in ("label", "given", "suggested") if name in doubts[0]]
    rows = [
        [
            str(each.get("where", NOTHING)),
            *(element("bdi", _label(each[name])) for name in named),
            joined(_text(str(each[name]), limits, part) for name in _TEXTS if each.get(name)),
            *(number(each[key]) for key in figures),
        ]
        for each in doubts
    ]
    head = ["where", *named, "text", *map(title_for, figures)]
    return table(f"Likeliest label errors, by {found['found_by']}", head, rows, left=len(head) - len(figures))


def _label(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _text(text: str, limits: Limits, part: str) -> Markup:
    """A text, or its beginning with the whole on demand, as far as a page has room for it."""
    if len(text) <= limits.brief:
        return element("div", text, class_="text", dir="auto")
    kept = text[: limits.text]
    what = f"{len(text):,} characters"
    rest = f"{len(kept):,} of {what}; the rest is in report/{part}/{DOUBTS_FILE}."
    cut = [paragraph(rest)] if len(kept) < len(text) else []
    summary = joined([text[: limits.brief].rstrip(), f"… (the first {limits.brief:,} of {what})"])
    return element("div", details(summary, element("div", kept), *cut), class_="text", dir="auto")
