"""The rows of a run: those of each part, dev rows held out of the training rows, and rows that come twice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, first_of, say, warn
from bertsmith.tasks.reading.bad_rows import SkippedRows, listed
from bertsmith.tasks.reading.files import Source
from bertsmith.tasks.reading.labels import class_name
from bertsmith.tasks.reading.overlap import Item, contradictions, rows_in_both, text_key
from bertsmith.tasks.reading.pairs import are_pairs, with_as_many_texts
from bertsmith.tasks.reading.records import Columns, Record, RowReader, first_columns, read_records
from bertsmith.tasks.reading.split import are_numbers, split, strata

Parts = dict[str, list[Record]]
_SHOWN = 5
_FEWEST_GROUPS = 5  # of which dev has one at its usual share
_ALIKE = "case and white space aside"


def read_parts(
    sources: Mapping[str, Source], columns: Columns, reader: type[RowReader], skipped: SkippedRows | None
) -> Parts:
    """The records of "train" and of what else there is. Raises BertsmithError as `read_records` does, for a file
    without the line of names that the training rows have, and as `with_as_many_texts` does, by most training rows."""
    first = first_columns(sources["train"], columns, skipped)
    for part, source in sources.items():
        names = first if part == "train" else first_columns(source, columns, skipped)
        if columns.header and first and names and not set(names) & set(first):
            line = " | ".join(names)[:200]
            what = f"the {part} rows have no column of the training rows; they have: {line}"
            fix = f"name its columns as those of the training rows (of a table, in its first line): {', '.join(first)}"
            raise BertsmithError(what, name_of_part(source, part), fix)
    parts = {
        part: read_records(source, columns, True, reader, skipped, name_of_part(source, part))
        for part, source in sources.items()
    }
    parts = _with_groups(parts, columns)
    pairs = are_pairs(parts["train"])
    return {
        part: with_as_many_texts(rows, pairs, skipped, name_of_part(sources[part], part))
        for part, rows in parts.items()
    }


def _with_groups(parts: Parts, columns: Columns) -> Parts:
    """The parts without groups where the column that has the usual name, and maybe not the meaning, has a few values
    alone, as control and treatment: none of them should be dev as a whole."""
    groups = {each.group for each in parts["train"]} - {None}
    if columns.group != Columns.group or not 0 < len(groups) < _FEWEST_GROUPS:
        return parts
    few = f"{counted(len(groups), 'value')}, too few to tell which rows belong together"
    say(f"column '{columns.group}' is not used: {few}; --columns.group names another one, whatever it has")
    return {part: [replace(each, group=None) for each in rows] for part, rows in parts.items()}


def name_of_part(source: Source, part: str) -> str:
    """What the rows of a part are called in messages."""
    rows = f"the {'training' if part == 'train' else part} rows"
    return str(source) if isinstance(source, str | Path) else rows


def hold_out(parts: Parts, columns: Columns, reader: type[RowReader], share: float, seed: int) -> Parts:
    """The parts with "dev", taken out of "train", and says how. Raises BertsmithError where that cannot be."""
    rows = parts["train"]
    classes, units, grouped = divisible(rows, reader)
    found = split(classes, units, share, seed, grouped)
    together = counted(len(set(units)), "different text")
    if grouped:
        alone = sum(each.group is None for each in rows)
        together = f"{counted(len({each.group for each in rows} - {None}), 'group')} by column '{columns.group}'"
        together += f" and {counted(alone, 'row')} without one" if alone else ""
    numbers = are_numbers([reader.stratum(each) for each in rows])
    by = "of each fifth of the numbers, " if numbers else "by label, " if len(set(classes)) > 1 else ""
    percent = f"{100 * len(found.dev) / len(rows):.3g}%"
    say(f"dev: {len(found.dev):,} of {len(rows):,} rows of train ({percent}, {by}{together}; seed {seed})")
    if found.only_train:
        in_train = " in train" if numbers else ""
        few = first_of((f"{name} ({count:,}{in_train})" for name, count in found.only_train.items()), _SHOWN)
        what = "with numbers from" if numbers else "of these labels, which train has too few of:"
        warn(f"dev has no row {what} {few}", of_all_ranks=True)
    train, dev = ([rows[place] for place in side] for side in (found.train, found.dev))
    return {"train": train, "dev": dev} | {part: those for part, those in parts.items() if part != "train"}


def divisible(rows: Sequence[Record], reader: type[RowReader]) -> tuple[list[Hashable], list[Hashable], bool]:
    """What `split` takes: the class of each row, what it may not be parted from, and whether groups were named."""
    grouped = any(each.group is not None for each in rows)
    units: list[Hashable] = [
        text_key(reader.unit(each)) if each.group is None else f"group {each.group}" for each in rows
    ]
    return strata([reader.stratum(each) for each in rows]), units, grouped


def warn_of_copies(parts: Parts, reader: type[RowReader]) -> None:
    """Counts and names rows whose texts stand in several parts, and texts of the training rows with several labels."""
    items = {part: [_item(each, reader) for each in rows] for part, rows in parts.items()}
    for part, other in (("dev", "train"), ("test", "train"), ("test", "dev")):
        if part in items and other in items:
            found = rows_in_both(items[part], items[other])
            what = f"{len(found):,} of {len(items[part]):,} {part} rows have the text of {other} rows"
            _warn(f"{what} ({_ALIKE}), so their score may be optimistic", found)
            shared = _with_text_of(parts[part], parts[other], reader)
            if shared:
                what = f"{len(shared):,} of {len(items[part]):,} {part} rows have one of their texts in {other} rows"
                warn(f"{what}, such as {shared[0].where}, so their score may be optimistic", of_all_ranks=True)
    found = contradictions([each for each in items["train"] if each.label])
    _warn(f"training rows give {counted(len(found), 'text')} several labels ({_ALIKE})", found)


def warn_of_groups(parts: Parts, column: str) -> None:
    """Counts and names groups whose rows stand in several parts."""
    for part, other in (("dev", "train"), ("test", "train"), ("test", "dev")):
        first: dict[str, Record] = {}
        for each in parts.get(other, ()):
            if each.group is not None:
                first.setdefault(each.group, each)
        both = {each.group: each for each in reversed(parts.get(part, ())) if each.group in first}
        what = f"{counted(len(both), 'group')} of column '{column}' with {part} rows and {other} rows"
        named = [f"{group}: {both[group].where}, {first[group].where}" for group in first if group in both]
        _warn(f"{what}, so the score of {part} may be optimistic", named)


def _with_text_of(part: Sequence[Record], other: Sequence[Record], reader: type[RowReader]) -> list[Record]:
    """The rows of a part of which a text by itself (`RowReader.alone`) stands in a row of the other."""
    known = {text_key([text]) for each in other for text in reader.alone(each)}
    return [each for each in part if any(text_key([text]) in known for text in reader.alone(each))]


def _item(record: Record, reader: type[RowReader]) -> Item:
    """Labels other than a class or a number are not compared: a question may have several right answers."""
    label = record.label
    shown = class_name(label) if isinstance(label, str) else f"{label:g}" if isinstance(label, int | float) else ""
    return Item(record.where, text_key(reader.texts(record)), shown)


def _warn(what: str, rows: Sequence[str]) -> None:
    if rows:
        warn(listed(what, rows), of_all_ranks=True)
