"""Rows made ready for fine-tuning: read, encoded, and shown to the user as the model will see them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, say, warn
from bertsmith.model.config import BertConfig
from bertsmith.tasks.reading.bad_rows import BadRow, SkippedRows, check_list
from bertsmith.tasks.reading.files import is_pipe, name_of, named_rows, no_list
from bertsmith.tasks.reading.overlap import text_key
from bertsmith.tasks.reading.parts import Parts, hold_out, name_of_part, read_parts, warn_of_copies, warn_of_groups
from bertsmith.tasks.reading.records import Columns, Record, Source, first_columns
from bertsmith.tasks.report.parts import CROSS_FITTED
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, Task
from bertsmith.tokens.special_ids import SpecialIds
from bertsmith.tokens.tokenizer import Tokenizer

_SHOWN_ROWS, _SHOWN_CHARACTERS = 3, 160
# Of dev, under which a score says little: the standard error of a share of 30 rows is up to 9%.
_FEW_ROWS = 30
# Metrics that are means of a figure from 0 to 1 of each row.
_MEANS = ("accuracy", "subset_accuracy", "exact_match", "f1", "best_exact", "best_f1")


def given_parts(train: Source | None, dev: Source | None, test: Source | None) -> dict[str, Source]:
    """The rows that there are, by part."""
    named = {"train": train, "dev": dev, "test": test}
    return {part: rows for part, rows in named.items() if rows is not None}


def check_sources(sources: Mapping[str, Any]) -> None:
    """Raises BertsmithError for rows that cannot be read more than once: standard input, and iterators."""
    for part, source in sources.items():
        if is_pipe(source):
            what = f"the {part} rows cannot come from {name_of(source)}, a pipe, because they are read more than once"
            raise BertsmithError(what, part, "write them to a file first")
        if not isinstance(source, str | Path | Sequence):
            raise no_list(source, f"the {part} rows", "give a file, or a list of rows")


def most_tokens(kind: type[Task], settings: FinetuneSettings, config: BertConfig) -> int:
    """Of a sequence. Says where the model has fewer positions than are wanted."""
    wanted, positions = settings.max_length or kind.usual_length, config.max_position_embeddings
    if positions < wanted:
        say(f"sequences have at most {positions} tokens, not {wanted}: the model has no more positions")
    return min(wanted, positions)


def encode_sources(
    kind: type[Task],
    sources: Mapping[str, Source],
    tokenizer: Tokenizer,
    max_length: int,
    settings: FinetuneSettings,
) -> tuple[Task, dict[str, Examples]]:
    """The task that the training rows define, and the rows of each part ("train", "dev", "test"); without a source of
    dev rows these are held out of the training rows.

    Logs how many rows there are, what was cut, columns that are not used, and some rows. Raises BertsmithError for rows
    that cannot be used.
    """
    records = read_records(kind, sources, settings)
    task = kind.of_records(records["train"], settings)
    warn_of_few_rows(records, task.metric_of(settings))
    parts = {}
    for part, those in records.items():
        parts[part] = replace(task.examples(those, tokenizer, max_length), part=part)
        sequences = parts[part].sequences
        several = f" in {len(sequences.ids):,} sequences" if len(sequences.ids) > len(those) else ""
        tokens = int(sequences.lengths.sum())
        say(f"{part}: {counted(len(those), 'row')}{several}, {tokens:,} tokens, {sequences.truncation()}")
        warn_of_empty(parts[part], tokenizer.special)
    if task.overlap is not None and 2 * task.overlap > max_length:
        say(f"windows of {max_length} tokens share at most half of what they hold of a text, not {task.overlap} tokens")
    for line in task.description():
        say(line)
    if task.tunes_each_time:
        say(f"dev figures: {CROSS_FITTED}")
    _show(parts["train"], task, tokenizer)
    return task, parts


def by_windows(task: Task) -> str:
    """What --windows would do about long texts, in words; "" where they are read in windows already."""
    if task.overlap is not None or task.always_in_windows:
        return ""
    return f"--windows reads {'the longer of two texts' if task.pairs else 'long texts'} whole"


def read_records(kind: type[Task], sources: Mapping[str, Source], settings: FinetuneSettings) -> Parts:
    """The records of all parts, those to learn from as far as they can be. Logs what was found about them."""
    skipped = None
    if settings.skip_bad_rows is not None:
        read = (source for source in sources.values() if isinstance(source, str | Path))
        check_list(Path(settings.skip_bad_rows), read)
        skipped = SkippedRows(settings.bad_share)
    records = read_parts(sources, settings.columns, kind, skipped)
    if settings.columns.id != Columns.id and all(record.id is None for record in records["train"]):
        what = f"no training row has a column '{settings.columns.id}'"
        raise BertsmithError(what, "columns.id", "name the column that names rows, or leave it out")
    if settings.columns.group != Columns.group and all(record.group is None for record in records["train"]):
        what = f"no training row has a value in column '{settings.columns.group}'"
        raise BertsmithError(what, "columns.group", "name a column of the training rows, or leave it out")
    kind.check_labels(records["train"], settings)
    told: list[str] = []
    for part, source in sources.items():
        names = first_columns(source, settings.columns, skipped)
        unused = [each for each in names if each not in kind.used(settings.columns)]
        if unused and unused != told:
            listed = ", ".join(each or "one without a name" for each in unused)
            say(f"columns of {name_of_part(source, part)} that are not used: {listed}")
        told = told or unused
    if "dev" not in sources and settings.dev_share is not None:
        records = hold_out(records, settings.columns, kind, settings.dev_share, settings.seed)
    warn_of_copies(records, kind)
    warn_of_groups(records, settings.columns.group)
    _warn_of_one_class(records, kind)
    records["train"] = _learnable(records["train"], kind, skipped)
    if skipped is not None and settings.skip_bad_rows is not None:
        skipped.write(Path(settings.skip_bad_rows))
    return records


def warn_of_empty(examples: Examples, special: SpecialIds) -> None:
    """Counts and names rows with a text of which the model reads no token that it knows (`Sequences.empty_rows`)."""
    names, labelled = [record.where for record in examples.records], f"{examples.part} rows".strip()
    for each in all_empty_in_words(examples.sequences, names, special, labelled):
        warn(each, of_all_ranks=True)


def empty_in_words(what: str, count: int, rows: int, first: str, labelled: str = "") -> str:
    """How many of so many rows are of a kind of `Sequences.empty_rows`. first: the name of the first one. labelled:
    what labelled rows are called; others were answered."""
    found = f"{labelled or 'rows'} with {what}: {count:,} of {rows:,}, such as {first}"
    return found if labelled else f"{found}; the answer says nothing of such a text"


def all_empty_in_words(
    sequences: Sequences, names: Sequence[str], special: SpecialIds, labelled: str = ""
) -> list[str]:
    """Each kind of `Sequences.empty_rows` that there is, of records with these names; as of `empty_in_words`."""
    found = sequences.empty_rows(special) if names else {}
    return [
        empty_in_words(what, len(rows), len(names), names[rows[0]], labelled)
        for what, rows in found.items()
        if len(rows)
    ]


def warn_of_few_rows(records: Parts, metric: str) -> None:
    """Where dev has few rows. metric: that selects the best weights."""
    count = len(records.get("dev", ()))
    if 0 < count < _FEW_ROWS:
        one = f"so that a single one moves {metric} by up to {1 / count:.1%}"
        moved = one if metric in _MEANS else "too few to say much"
        what = f"dev has {counted(count, 'row')}, {moved}; use more, or --folds 5, which measures on all training rows"
        warn(what, of_all_ranks=True)


def _warn_of_one_class(records: Parts, kind: type[Task]) -> None:
    """Where all rows that are measured on are alike in what training rows differ in."""
    first = {part: kind.stratum(rows[0]) for part, rows in records.items()}
    alike = {part: all(kind.stratum(each) == first[part] for each in rows) for part, rows in records.items()}
    for part, label in first.items():
        if alike[part] and not alike["train"]:
            named = f" ({label})" if isinstance(label, str) else ""
            what = f"all rows of {part} have the same label{named}: their figures say nothing of others"
            warn(what, of_all_ranks=True)


def _learnable(rows: Sequence[Record], kind: type[Task], skipped: SkippedRows | None) -> list[Record]:
    """Training rows without those that cannot be learned from, which are among the skipped ones. Raises BertsmithError
    where these are too many."""
    bad: list[BadRow] = []
    found = list(kind.learnable(rows, lambda error, row: bad.append((error, row))))
    if skipped is not None and bad:
        skipped.add(bad, len(found), "the training rows")
    return found


def checksums(sources: Mapping[str, Source], parts: Mapping[str, Examples]) -> dict[str, str]:
    """SHA-256 of the rows of each part. Warns where two parts are the same rows."""
    found = {part: rows_checksum(source) for part, source in sources.items()}
    for part, other in (("dev", "train"), ("test", "dev"), ("test", "train")):
        if part in found and found[part] == found.get(other):
            what = f"the {part} rows are the {other} rows"
            warn(f"{what}, so their score says nothing about other text", of_all_ranks=True)
    return found | {part: _held_out_checksum(parts[part]) for part in parts if part not in found}


def _held_out_checksum(examples: Examples) -> str:
    """Of texts and labels, so that it does not depend on where the file is. By their own Unicode form, as in runs of
    versions that knew no other."""
    rows = ((text_key((each.text, each.text_b), any_form=False).hex(), str(each.label)) for each in examples.records)
    return hashlib.sha256(json.dumps(list(rows)).encode()).hexdigest()


def rows_checksum(source: Source) -> str:
    """SHA-256 of a file, or of rows of Python."""
    if isinstance(source, str | Path):
        return files.sha256(Path(source))
    rows = [row for _, row in named_rows(source)]  # of which all names are texts: others cannot be sorted with these
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()


def _show(examples: Examples, task: Task, tokenizer: Tokenizer) -> None:
    """The first rows; of one in several sequences the first sequence."""
    for number, record in enumerate(examples.records[:_SHOWN_ROWS]):
        first = examples.sequences.ids[examples.sequences.row_offsets[number]]
        text = " ".join(tokenizer.pieces[piece] for piece in first)
        cut = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 4] + " ..."
        say(f"  {record.where}: {cut} -> {task.shown(record)}")
