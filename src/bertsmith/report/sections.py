"""The parts of the page that every run has: final figures, held-out figures, recipes, environment, warnings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertsmith.base.log import counted, duration, size
from bertsmith.report.figures import MEMORY, PEAK, TOKENS, WAIT, Runs, title_for
from bertsmith.report.markup import NOTHING, Markup, details, element, joined, number, paragraph, section, some, table
from bertsmith.report.parts import Limits, noted, shown_of, title_of
from bertsmith.report.reading import RunRead
from bertsmith.training.records.names import ERROR, STAGES, WARNING

_KINDS = {"start": "before the first step", "before": "before training", "final": "finished", "evaluation": ""}
_DIGITS = re.compile(r"\d[\d.,]*")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_SHORT = 12  # characters of a checksum
_COMMIT = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")  # of which git takes the first ones, too


def side_by_side(caption: str, runs: Runs, facts: Sequence[Mapping[str, str]]) -> Markup:
    """A table of the facts of each run, a column a run; a row that no run has anything for is left out."""
    head = ["", *map(title_of, runs)]
    names = dict.fromkeys(name for own in facts for name in own)
    cells = {name: [own.get(name) for own in facts] for name in names}
    rows = [[name, *(cell or NOTHING for cell in each)] for name, each in cells.items() if any(each)]
    return table(caption, head, rows, left=len(head))


def final_figures(runs: Runs) -> Markup:
    """State, totals and last figures of every run."""
    facts = [_totals(run) | _last(run) for run in runs]
    remarks = [
        paragraph(element("bdi", run.name), ": ", words, class_="note") for run in runs for words in _problems(run)
    ]
    return section("figures", "Runs", side_by_side("Final figures", runs, facts), *remarks)


def _totals(run: RunRead) -> dict[str, str]:
    totals = run.curves.totals
    found = {"state": run.state, "kind": run.kind, "last step": f"{run.step:,}"}
    if totals.seconds:
        found |= {
            "tokens": f"{totals.tokens:,.0f}",
            "time in steps": duration(totals.seconds),
            f"mean {title_for(TOKENS)}": number(totals.tokens / totals.seconds),
            f"mean {title_for(WAIT)}": f"{totals.waited_seconds / totals.seconds:.2%}",
            "most memory, first rank": size(totals.memory_bytes) if totals.memory_bytes else "",
        }
    if totals.share_seconds:
        found[f"mean {title_for(PEAK)}"] = f"{totals.share_seconds / totals.seconds:.1%}"
    warned = len(run.events_of(WARNING))
    return {**found, "warnings": "not recorded" if run.events is None else f"{warned:,}"}


def _last(run: RunRead) -> dict[str, str]:
    """The last line of training, and the finished model's figures on what is held out, or else the last ones."""
    found = {f"training: {name}": value for name, value in _figures(run.last_line) if _is_score(name)}
    if run.result is not None:
        for part, figures in run.result.tuned.items():
            found |= {
                f"kept model, {title_for(part)}: {title_for(name)}": number(value) for name, value in figures.items()
            }
        return found
    last = [each for each in run.measured if each["kind"] == "evaluation"][-1:]
    for record in [each for each in run.measured if each["kind"] == "final"] or last:
        at = f", {record['sequence_length']} tokens" if "sequence_length" in record else ""
        where = "dev, last" if run.is_finetuned else "held out"
        found |= {f"{where}{at}: {name}": value for name, value in _figures(record)}
    return found


def _is_score(name: str) -> bool:
    return name.endswith(("loss", "accuracy", "norm", "rate", "scale", "updates"))


def _figures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (title_for(name), number(value))
        for name, value in record.items()
        if name not in ("kind", "step", "sequence_length", MEMORY, *STAGES)
        and not name.endswith("_step")
        and isinstance(value, int | float)
    ]


def _problems(run: RunRead) -> Iterable[str]:
    for name, count in run.unreadable.items():
        yield f"{counted(count, 'line')} of {name} cannot be read, such as one that was cut short, and not shown."
    yield from (f"{each}." for each in run.problems)


def held_out(runs: Runs, limits: Limits) -> Markup:
    """Every measurement of every run."""
    made = [part for run in runs for part in _held_out_of(run, limits)]
    return section("held-out", "Held-out figures", *(made or [paragraph("Nothing was measured yet.")]))


def _held_out_of(run: RunRead, limits: Limits) -> list[Markup]:
    records = [each for each in run.measured if each["kind"] in _KINDS]
    title = [element("h3", title_of(run))] if run.key else []
    if not records:
        return [*title, paragraph("Nothing was measured yet.")] if title else []
    # Those that most measurements have come first: of a start and an end there are some that no other has.
    names = [name for name, _ in Counter(name for record in records for name, _ in _figures(record)).most_common()]
    kept = [records[each] for each in some(len(records), limits.rows)]
    rows = [[_when(each), *(dict(_figures(each)).get(name, NOTHING) for name in names)] for each in kept]
    note = shown_of(len(kept), len(records), "measurement", "the first, the last, and others evenly")
    shown = table(f"Held-out figures of {run.name}", ["after step", *names], rows)
    return [*title, shown, *noted(note)]


def _when(record: Mapping[str, Any]) -> str:
    stages = [f"{name} {record[name]}" for name in STAGES if name in record]
    own = [f"its step {record[f'{name}_step']:,}" for name in STAGES[1:] if f"{name}_step" in record]
    at = [f"{record['sequence_length']} tokens"] if "sequence_length" in record else []
    words = [word for word in (_KINDS[record["kind"]], *stages, *own, *at) if word]
    return f"{record['step']:,}" + (f" ({', '.join(words)})" if words else "")


def recipes(runs: Runs) -> Markup:
    """What differs between the recipes of several runs, and each recipe whole."""
    parts: list[Markup] = []
    if len(runs) > 1:
        every = [{**run.recipe, **_started_with(run)} for run in runs]
        names = dict.fromkeys(name for fields in every for name in fields)
        differing = [name for name in names if len({str(fields.get(name, "")) for fields in every}) > 1]
        facts = [{name: str(fields.get(name, "")) for name in differing} for fields in every]
        same = f"{len(names) - len(differing):,} other fields are the same in all of them."
        parts += (
            [side_by_side("What differs", runs, facts), paragraph(same)] if differing else [paragraph("None differs.")]
        )
    for run in runs:
        if run.recipe_text:
            whole = element("pre", run.recipe_text, tabindex="0")
            parts.append(details(joined(["Recipe of ", title_of(run)]), whole))
    title = "Recipe differences" if len(runs) > 1 else "Recipe"
    return section("recipes", title, *(parts or [paragraph("There is no recipe.")]))


def _started_with(run: RunRead) -> dict[str, str]:
    """What the run was started with beside its recipe: checksums by their beginnings."""
    told = {name: str(value) for name, value in run.belongs_to.items()}
    return {name: f"{text[:_SHORT]}…" if _CHECKSUM.fullmatch(text) else text for name, text in told.items()}


def environments(runs: Runs) -> Markup:
    """On what each run was started, and resumed where that is another."""
    facts = [_environment(run) for run in runs]
    old = [run.name for run in runs if not run.starts]
    note = f"Of {', '.join(old)} versions and devices are not known: runs of earlier versions did not record them."
    shown = side_by_side("What runs were made on", runs, facts)
    return section("environment", "Environment", shown, *noted(note if old else ""))


def _environment(run: RunRead) -> dict[str, str]:
    found: dict[str, dict[str, int]] = {}
    for start in run.starts:
        for name, value in start.items():
            if name not in ("kind", "step", "time"):
                found.setdefault(title_for(name), {}).setdefault(_fact(value), start["step"])
    told = {
        name: "; ".join(f"{text} (from step {step:,})" if len(values) > 1 else text for text, step in values.items())
        for name, values in found.items()
    }
    starts = [f"{each.get('time', 'at an unknown time')} at step {each['step']:,}" for each in run.starts]
    shown = [starts[place] for place in some(len(starts), 8)]
    more = f" ({len(shown)} of {len(starts)} starts)" if len(shown) < len(starts) else ""
    if told.get("git folder") == told.get("git code"):
        told.pop("git folder", None)
    own = {title_for(name): str(value) for name, value in run.started_on.items() if title_for(name) not in told}
    return {"started": "; ".join(shown) + more, **told, **own, **_started_with(run)}


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} x {name}" if count != 1 else str(name) for name, count in value.items())
    return _COMMIT.sub(r"\1", str(value))


def warnings(runs: Runs, limits: Limits) -> Markup:
    """Every warning of every run, and the errors that ended it; those that differ in numbers only stand together."""
    parts: list[Markup] = []
    for run in runs:
        title = [element("h3", title_of(run))] if run.key else []
        given = run.events_of(ERROR, WARNING)
        if run.events is None:
            body = paragraph("Not recorded: this run was made by a version that only printed its warnings.")
        elif not given:
            body = paragraph("None.")
        else:
            body = _warned(run, given, limits)
        parts += [*title, body]
    return section("warnings", "Warnings", *parts)


def _warned(run: RunRead, given: Sequence[dict[str, Any]], limits: Limits) -> Markup:
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in given:
        alike.setdefault((each["kind"], _DIGITS.sub("0", each["message"])), []).append(each)
    groups = list(alike.values())
    kept = [groups[place] for place in some(len(groups), limits.rows)]
    rows = [[_after(group), f"{len(group):,}", _messages(group, limits)] for group in kept]
    note = shown_of(len(kept), len(groups), "different warning", "the first, the last, and others evenly")
    shown = table(f"Warnings of {run.name}", ["after step", "times", "message"], rows, left=3)
    return joined([shown, *noted(note)])


def _after(group: Sequence[Mapping[str, Any]]) -> str:
    first, last = group[0]["step"], group[-1]["step"]
    ranks = sorted({f"rank {each['rank']}" for each in group if "rank" in each})
    return ", ".join([f"{first:,}" if first == last else f"{first:,} to {last:,}", *ranks])


def _messages(group: Sequence[Mapping[str, Any]], limits: Limits) -> Markup:
    first = joined(["error: " if group[0]["kind"] == ERROR else "", _cut(group[0]["message"], limits)])
    if len({each["message"] for each in group}) == 1:
        return element("div", first, class_="text")
    kept = [group[place] for place in some(len(group), limits.rows)]
    lines = [element("li", f"{each['step']:,}: {_cut(each['message'], limits)}") for each in kept]
    note = shown_of(len(kept), len(group), "warning", "the first, the last, and others evenly")
    others = details(f"all {len(group):,}", element("ul", *lines), note)
    return element("div", first, others, class_="text")


def _cut(message: str, limits: Limits) -> str:
    """A message as far as it is shown."""
    less = len(message) - limits.text
    return message if less <= 0 else f"{message[: limits.text]}… ({less:,} more characters)"
