"""Which charts there are, and what each draws of the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertsmith.base.log import counted
from bertsmith.report.curves import HELD_OUT, TEST_ROWS, TRAINING, Curve
from bertsmith.report.markup import Markup, details, element, joined, number, paragraph, section, table
from bertsmith.report.parts import Limits, style_of, title_of
from bertsmith.report.reading import RunRead
from bertsmith.report.svg import DASHES, Chart, Line, Style, draw, floats

Runs = Sequence[RunRead]

LEARNING_RATE, TOKENS, WAIT, MEMORY, PEAK = (
    "learning_rate",
    "tokens_per_second",
    "data_wait_share",
    "memory_bytes",
    "peak_share",
)
# What frequencies alone reach: lines to compare with, of the figure that each stands beside.
_BESIDE = {
    "masked_loss": ("unigram_loss", "by frequency alone"),
    "masked_accuracy": ("most_frequent_accuracy", "always the most frequent piece"),
    "masked_accuracy_alphabetic": ("most_frequent_alphabetic_accuracy", "always the most frequent piece"),
}
_NO_CURVES = {"unigram_entropy", "guessing_loss", *(name for name, _ in _BESIDE.values())}
_SPELT = {"r2": "R²", "rmse": "RMSE, the lower the better", "mae": "MAE, the lower the better"}
_MARKS = {TRAINING: "", HELD_OUT: "full", TEST_ROWS: "hollow"}


@dataclass(frozen=True)
class Figure:
    """A figure that has a chart. factor: what its values are multiplied by, to be in the unit that the title names."""

    name: str
    title: str
    factor: float = 1.0
    from_zero: bool = True


_RATES = (
    Figure(LEARNING_RATE, "Learning rate"),
    Figure("gradient_norm", "Norm of the gradient"),
    Figure("loss_scale", "Loss scale of fp16"),
    Figure("skipped_updates", "Updates skipped because fp16 overflowed, in all"),
)
_SPEED = (
    Figure(TOKENS, "Throughput, tokens a second"),
    Figure(WAIT, "Time spent waiting for data, %", 100),
    Figure(MEMORY, "Memory of the first rank, the most so far, GB", 1e-9),
    Figure(PEAK, "Share of the device's peak, %", 100),
)


def curves(runs: Runs, limits: Limits) -> Markup:
    """All charts, with a legend that switches runs off where there are several."""
    groups = [("Losses", _losses(runs)), ("What is predicted right", _scores(runs)), ("Updates", _RATES)]
    made = [
        element("h3", title) + element("div", *charts, class_="charts")
        for title, figures in [*groups, ("Speed and memory", _SPEED)]
        if (charts := [drawn for figure in figures if (drawn := _figure(figure, runs, limits))])
    ]
    if not made:
        return section("curves", "Curves", paragraph("There are no figures yet."))
    return section("curves", "Curves", _legend(runs), *map(Markup, made), *_notes(runs, limits))


def title_for(name: str) -> str:
    """A figure's name in words: "masked_loss" is "masked loss"."""
    return name.replace("_", " ")


def _is_loss(name: str) -> bool:
    return name == "loss" or name.endswith("_loss")


def _names(runs: Runs, *sources: str) -> list[str]:
    every = dict.fromkeys(name for run in runs for name in run.curves.names(*sources))
    return [name for name in every if name not in _NO_CURVES]


def _losses(runs: Runs) -> list[Figure]:
    found = [name for name in _names(runs, TRAINING, HELD_OUT, TEST_ROWS) if _is_loss(name)]
    sums = {"loss": "Loss, all together"} if len(found) > 1 else {"loss": "Loss"}
    return [Figure(name, sums.get(name, f"Loss: {title_for(name.removesuffix('_loss'))}"), 1, False) for name in found]


def _scores(runs: Runs) -> list[Figure]:
    trained = [name for name in _names(runs, TRAINING) if name.endswith("accuracy")]
    measured = [name for name in _names(runs, HELD_OUT, TEST_ROWS) if not _is_loss(name)]
    titles = {name: title_for(name) for name in [*trained, *measured]}
    return [
        Figure(name, _SPELT.get(name, title[:1].upper() + title[1:]), 1, not name.endswith("byte"))
        for name, title in titles.items()
    ]


def _figure(figure: Figure, runs: Runs, limits: Limits) -> Markup | None:
    found = list(_found(figure.name, runs))
    if not found:
        return None
    lines, beside = [_line(figure, *each) for each in found], list(_beside(figure.name, runs))
    staged = any(stage for *_, stage, _ in found)
    chart = Chart(
        figure.name,
        figure.title,
        [*beside, *lines],
        x="step within a training" if staged else "step",
        from_zero=figure.from_zero,
        notches=_notches(runs),
    )
    shown = list(dict.fromkeys((_MARKS[source], _word(source, run)) for _, source, run, *_ in found))
    return element(
        "figure",
        element("figcaption", figure.title, _sources(shown, beside)),
        draw(chart, limits.points),
        details("Numbers", _numbers(figure, lines)),
    )


def _found(name: str, runs: Runs) -> Iterator[tuple[Curve, str, RunRead, str, int]]:
    """(curve, source, run, stage, place of the stage) of each curve of a figure."""
    for run in runs:
        for place, stage in enumerate(run.curves.stages):
            for source in _MARKS:
                curve = run.curves.of.get((name, source, stage))
                if curve is not None:
                    yield curve, source, run, stage, place


def _line(figure: Figure, curve: Curve, source: str, run: RunRead, stage: str, place: int) -> Line:
    parts = [title_of(run) if run.key else "", stage, _word(source, run)]
    return Line(
        joined([part for part in parts if part], ", "),
        floats(curve.steps),
        floats(curve.values) * figure.factor,
        style_of(run, stage, place),
        _MARKS[source],
    )


def _word(source: str, run: RunRead) -> str:
    return "dev" if source == HELD_OUT and run.is_finetuned else source


def _beside(name: str, runs: Runs) -> Iterator[Line]:
    """What frequencies alone reach, where there is one run: of several it is not the same."""
    if name not in _BESIDE or len(runs) > 1:
        return
    other, words = _BESIDE[name]
    curve, shown = (runs[0].curves.of.get((each, HELD_OUT, "")) for each in (other, name))
    if curve is not None and shown is not None:
        xs = floats([shown.steps[0], shown.steps[-1]]) if len(shown.steps) > 1 else floats([0.0, shown.steps[0]])
        level = curve.values[-1]
        yield Line(f"{words} ({number(level)})", xs, floats([level, level]), Style(), faint=True)


def _notches(runs: Runs) -> list[tuple[float, str]]:
    """Where phases begin, of a run alone."""
    phases = list(runs[0].curves.phases.items()) if len(runs) == 1 else []
    return [(step, f"phase {label}") for label, step in phases[1:]]


def _sources(words: Sequence[tuple[str, str]], beside: Sequence[Line]) -> Markup:
    """How the kinds of curves of a chart, given as (marks, word), are distinguished, where there is more than one."""
    lines = [*(Line(word, floats([]), floats([]), marks=marks) for marks, word in words), *beside]
    if len(lines) < 2 and not any(line.marks for line in lines):
        return Markup("")
    return element("span", *map(swatch, lines), class_="sources")


def swatch(line: Line) -> Markup:
    """A short piece of a line, and its label."""
    kind = "faint" if line.faint else f"c{line.style.colour}" if line.style.key else "plain"
    parts = [element("line", x1=0, x2=26, y1=5, y2=5, stroke_dasharray=DASHES[line.style.dashes] or False)]
    if line.marks:
        parts.append(element("circle", cx="13", cy="5", r="2.6"))
    drawn = element("g", *parts, class_=f"line {kind} {line.marks}".strip())
    picture = element("svg", drawn, viewBox="0 0 26 10", class_="swatch", aria_hidden="true")
    return element("span", picture, " ", line.label, class_="swatched")


def _legend(runs: Runs) -> Markup:
    """Every curve's key; of several runs each with a box that hides its curves."""
    items: list[Markup] = []
    for run in runs:
        stages = run.curves.stages
        if not run.key and len(stages) < 2:
            continue
        for place, stage in enumerate(stages or [""]):
            words = [title_of(run) if run.key and place == 0 else "", stage]
            label = joined([each for each in words if each], ", ")
            item = swatch(Line(label, floats([]), floats([]), style_of(run, stage, place)))
            if run.key and place == 0:
                name = f"show-{run.number}"
                item = element("label", element("input", type="checkbox", id=name, checked=True), " ", item)
            items.append(item)
    return element("div", *items, class_="legend") if items else Markup("")


def _numbers(figure: Figure, lines: Sequence[Line]) -> Markup:
    """What a curve looks like, in numbers: for those who do not see it, and for exact values."""
    rows = []
    for line in lines:
        low, high = int(line.ys.argmin()), int(line.ys.argmax())
        each = ((line.xs[place], line.ys[place]) for place in (0, low, high, len(line.xs) - 1))
        told = [f"{number(float(y))} at {number(float(x))}" for x, y in each]
        rows.append([line.label, f"{len(line.xs):,}", *told])
    head = ["curve", "points", "first, at step", "lowest", "highest", "last"]
    return table(f"{figure.title}: numbers", head, rows)


def _notes(runs: Runs, limits: Limits) -> Iterator[Markup]:
    """What the curves leave out."""
    for run in runs:
        longest = max((len(curve.steps) for curve in run.curves.of.values()), default=0)
        if longest > limits.points:
            how = "of each of equal stretches the lowest and the highest, the first and the last"
            words = f": curves of more than {limits.points:,} points (the longest has {longest:,}) are thinned, {how}."
            yield paragraph(element("bdi", run.name), words, class_="note")
        if run.curves.undrawn_stages:
            named = ", ".join(run.curves.undrawn_stages)
            yield paragraph(element("bdi", run.name), f": {named} are in the tables below only.", class_="note")
        if run.curves.undrawn:
            words = f": {counted(run.curves.undrawn, 'value')} not drawn, because not finite or beyond 1e100."
            yield paragraph(element("bdi", run.name), words, class_="note")
