"""Multiple choice: which of several texts continues a context (SWAG, CODAH).

Each choice is a sequence of its own, [CLS] context [SEP] start of the ending, choice [SEP], whose pooled output becomes
one number; a softmax over the numbers of a row gives its probabilities. Rows may have different numbers of choices.
With windows a long one is several sequences, and its number is the mean of theirs. Legend: N records, S sequences, U
units, C the most choices of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, say, warn
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import soft_sum
from bertsmith.model.losses import LossSum, cross_entropy_sum
from bertsmith.tasks.kinds.pooled import Classifier, truths_of
from bertsmith.tasks.reading.bad_rows import BadRow
from bertsmith.tasks.reading.cells import LacksColumn, choices_in, listed_in
from bertsmith.tasks.reading.labels import class_name, place_of_letter
from bertsmith.tasks.reading.pairs import are_pairs, check_pairs
from bertsmith.tasks.reading.records import (
    NUMBERED_CHOICES,
    Columns,
    Record,
    Row,
    RowReader,
    id_of,
    label_of,
    row_of,
    text_of,
)
from bertsmith.tasks.reading.shapes import is_missing
from bertsmith.tasks.report.parts import about_records
from bertsmith.tasks.report.report import Classified, report_choices
from bertsmith.tasks.scoring.calibration import probabilities
from bertsmith.tasks.scoring.classes import accuracy
from bertsmith.tasks.sequences import Inputs, Ints, Sequences, batch_window_means, encode_several, window_means
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task
from bertsmith.tokens.tokenizer import Tokenizer

_MOST_NUMBERED = 26
_FROM_0 = "; choices are counted from 0"
# Of columns, behind their name; "choice2024" is none of them.
_NUMBERS = {str(number) for number in range(100)}
# Of a choice that a row has not, for a softmax at any temperature; minus infinity less minus infinity is not a number.
_NO_CHOICE = -1e4


@dataclass(frozen=True)
class ChoiceRecord(Record):
    """text: what all choices continue. text_b: what each of them begins with, if anything. label: the number of the
    right one, from 0. letter: whether it is named by that, or by what the row calls it. fewer: whether the
    row has fewer choices than columns for them."""

    choices: tuple[str, ...] = ()
    letter: bool = False
    fewer: bool = False


@dataclass(frozen=True)
class Choice(Task):
    """most: C of the training rows. pairs: whether choices have a start in common. counts: training rows by the number
    of their right choice, the most frequent first."""

    kind = "choice"
    architectures = ("BertForMultipleChoice",)
    head = "classifier"
    metrics = ("accuracy",)

    most: int = 0
    pairs: bool | None = None
    counts: Mapping[str, int] | None = None
    overlap: int | None = None

    @classmethod
    def wanted(cls, columns: Columns, labelled: bool) -> dict[str, str]:
        # Of several columns the first one: `record` names another that is not there.
        named = {} if columns.choices == Columns.choices else {"choices": columns.choices.split(",")[0]}
        return super().wanted(columns, labelled) | named

    @classmethod
    def prompts(cls, columns: Columns) -> list[str]:
        """Choices in one column are a list as JSON."""
        return [columns.text, *columns.choices.split(",")]

    @classmethod
    def used(cls, columns: Columns) -> tuple[str, ...]:
        numbered = (f"{name}{number}" for name in NUMBERED_CHOICES for number in range(_MOST_NUMBERED))
        return *super().used(columns), *columns.choices.split(","), *numbered

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> ChoiceRecord:
        row = row_of(row, columns.text)
        choices, names, fewer = _choices(row, columns)
        plain = RowReader.record(row, columns, False, where)
        label, letter = _right(label_of(row, columns.label), choices, names) if labelled else (None, False)
        named = id_of(row, columns)
        return ChoiceRecord(plain.text, plain.text_b, label, where, named, choices=choices, letter=letter, fewer=fewer)

    @classmethod
    def check_bad_rows(cls, records: Sequence[Record], bad: Sequence[BadRow], name: str | Path) -> None:
        """Labels that count from 1 name another choice in every row, not only where there is none of that number. Says
        how many rows have fewer choices than columns for them."""
        beyond = sum(error.what.endswith(_FROM_0) for error, _ in bad)
        first = sum(record.label == 0 for record in records)
        if beyond > max(first, 1):  # one alone is a slip
            what = f"{beyond:,} labels are the number of choices in their row and {first:,} are 0, as if counted from 1"
            fix = f"if they do, subtract 1 from all labels{_FROM_0}; or write letters, A for the first choice"
            raise BertsmithError(what, name, fix)
        if fewer := [record.where for record in records if isinstance(record, ChoiceRecord) and record.fewer]:
            what = f"in {len(fewer):,} of {len(records):,} rows the last cells for choices are empty"
            say(f"{what}, such as {fewer[0]}; these rows have fewer choices")

    @classmethod
    def texts(cls, record: Record) -> tuple[str | None, ...]:
        assert isinstance(record, ChoiceRecord)
        return record.text, record.text_b, *record.choices

    @classmethod
    def unit(cls, record: Record) -> tuple[str | None, ...]:
        """What is chosen for, whatever the choices are."""
        return record.text, record.text_b

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        rows = [record for record in records if isinstance(record, ChoiceRecord)]
        _warn_of_numbers(rows)
        counts = Counter(str(record.label) for record in rows)
        most = max(len(record.choices) for record in rows)
        return cls(most, are_pairs(records), dict(counts.most_common()), settings.overlap)

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        task = facts.task
        return cls(task.get("most_choices", 0), task.get("pairs"), overlap=task.get("window_overlap"))

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Classifier:
        return Classifier(config, 1, compute)

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, max_length: int) -> Sequences:
        if self.pairs is not None:
            check_pairs(records, self.pairs)
        pairs = []
        for record in records:
            assert isinstance(record, ChoiceRecord)
            start = "" if record.text_b is None else f"{record.text_b} "
            pairs.append([Record(record.text, start + choice, None, record.where) for choice in record.choices])
        return encode_several(pairs, tokenizer, max_length, self.overlap)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> Ints:
        return np.array([record.label for record in records], dtype=np.int64)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        return cross_entropy_sum(self._choices(scores, inputs, -torch.inf), targets)

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        ours, theirs = (self._choices(each, inputs, _NO_CHOICE) for each in (scores, teacher))
        return soft_sum(ours, theirs, temperature)

    def _choices(self, scores: Tensor, inputs: Inputs, none: float) -> Tensor:
        """The scores of the choices of each unit, [U, C]; `none` behind its last one."""
        table = scores.new_full((inputs.units, self.most), none)
        return table.index_put((inputs.texts.unit, inputs.texts.place), batch_window_means(scores, inputs)[:, 0])

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        return {"accuracy": accuracy(_table(scores, examples.sequences).argmax(1), truths_of(examples))}

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        table = _table(scores, examples.sequences)
        names = tuple(f"choice {place}" for place in range(table.shape[1]))
        found = Classified(names, table, truths_of(examples), table.argmax(1))
        listed = [_numbered_texts(record) for record in examples.records]
        report_choices(folder, about_records(examples.part, examples.records), found, listed)

    def baseline(self, metric: str, examples: Examples) -> float:
        most_frequent = int(next(iter(self.counts or {"0": 0})))
        truths = truths_of(examples)
        return accuracy(np.full_like(truths, most_frequent), truths)

    def description(self) -> list[str]:
        counts = sorted((self.counts or {}).items(), key=lambda each: int(each[0]))
        by_place = ", ".join(f"{place} ({rows:,})" for place, rows in counts)
        return [f"rows of up to {self.most} choices; train rows by the right choice, from 0: {by_place}"]

    def facts(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "most_choices": self.most, "window_overlap": self.overlap}

    def shown(self, record: Record) -> str:
        return _numbered_texts(record)[int(record.label)]

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"label", "choice", "score", "scores"} for each row: the number of the likeliest choice and its text, its
        probability, and every choice's."""
        found = []
        for record, row in zip(records, _table(scores, sequences), strict=True):
            assert isinstance(record, ChoiceRecord)
            logits = row[: len(record.choices)]
            best, each = int(logits.argmax()), probabilities(logits[None])[0].tolist()
            found.append({"label": best, "choice": record.choices[best], "score": each[best], "scores": each})
        return found


def _choices(row: Row, columns: Columns) -> tuple[tuple[str, ...], list[str], bool]:
    """(The choices of a row, what a cell that lists them calls them, whether cells behind them are empty). ValueError
    where there are not two at least."""
    names = columns.choices.split(",")
    if len(names) == 1 and names[0] in row:
        found = choices_in(listed_in(row[names[0]], names[0]))
        if found is None:
            what = f"column '{names[0]}' holds no list of choices"
            raise ValueError(f"{what}; write one as JSON, or name a column for each choice")
        row = {f"{names[0]}[{place}]": choice for place, choice in enumerate(found[0])}
        return _texts(row, list(row)), found[1], False
    if len(names) == 1:
        names = next(filter(None, (_numbered(row, name) for name in NUMBERED_CHOICES)), [])
        if not names:
            what = f"no column '{columns.choices}', nor any choice0, choice1 ... or ending0, ending1 ..."
            raise LacksColumn(what, row, "choices")
    filled = [place for place, name in enumerate(names, start=1) if not _is_empty(row, name)]
    last = max(filled, default=0)
    return _texts(row, names[:last]), [], last < len(names)


def _is_empty(row: Row, name: str) -> bool:
    """Whether a cell is there and has nothing in it."""
    return name in row and (is_missing(row[name]) or (isinstance(row[name], str) and not row[name].strip()))


def _texts(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    if len(names) < 2:
        raise ValueError(f"there is {len(names) or 'no'} choice; two are the fewest")
    return tuple(text_of(row, name) for name in names)


def _numbered(row: Row, name: str) -> list[str]:
    """The columns of a row that are called so, numbered from 0. ValueError for one behind a gap, up to 99, where the
    row has something."""
    found = list(takewhile(row.__contains__, (f"{name}{number}" for number in count())))
    others = (each for each in row if each.startswith(name) and each[len(name) :] in _NUMBERS and each not in found)
    if found and (behind := next((each for each in others if not _is_empty(row, each)), None)):
        raise ValueError(f"there is a column '{behind}' and no column '{name}{len(found)}'")
    return found


def _right(label: str, choices: Sequence[str], names: list[str]) -> tuple[int, bool]:
    """(The number of the right choice, whether the label is its letter or name): the label is one of the names of the
    choices, if they have some, or that number, or else the choice's text, or its letter. ValueError where it
    is none of these, or the text of two choices."""
    if label in names[: len(choices)]:
        return names.index(label), True
    number = class_name(label)
    if number.isdecimal() and int(number) < len(choices):
        return int(number), False
    found = _places(label, choices)
    if len(found) == 1:
        return found[0], False
    if found:
        raise ValueError(f"the label '{label}' is the text of the choices {', '.join(map(str, found))}")
    letter = place_of_letter(label)
    if letter is not None and letter < len(choices):
        return letter, True
    what = f"the label '{label}' is not the number of a choice, from 0 to {len(choices) - 1}, nor its letter or text"
    raise ValueError(what + (_FROM_0 if number == str(len(choices)) else ""))


def _places(text: str, choices: Sequence[str]) -> list[int]:
    """The numbers of the choices that are this text."""
    return [place for place, choice in enumerate(choices) if choice.strip() == text]


def _warn_of_numbers(records: Sequence[ChoiceRecord]) -> None:
    """Warns of what labels that are numbers may be meant for."""
    if len(records) > 1 and 0 not in {record.label for record in records}:
        warn("the first choice is never right in the training rows; if labels count from 1, subtract 1 from them")
    letters = [each for each in records if each.letter]
    if letters and len(letters) == len(records):
        say("labels are letters: A is the first choice, unless a row calls its choices otherwise")
    elif letters:
        what = f"in {len(letters):,} of {len(records):,} training rows the label is the letter of a choice"
        warn(f"{what}, such as {letters[0].where}, in the others it is a number or a text", of_all_ranks=True)
    numbers = [each for each in records if not each.letter]
    unclear = [each for each in numbers if set(_places(str(each.label), each.choices)) - {each.label}]
    if unclear:
        what = f"in {counted(len(unclear), 'training row')} the label is the number of a choice and the text of another"
        warn(f"{what}, such as {unclear[0].where}; the number is taken", of_all_ranks=True)


def _table(scores: Floats, sequences: Sequences) -> Floats:
    """The scores of each record's choices, float32[N, C]; -inf behind its last one."""
    counts = np.diff(sequences.text_offsets)
    table = np.full((len(counts), int(counts.max())), -np.inf, dtype=np.float32)
    table[np.arange(table.shape[1]) < counts[:, None]] = window_means(scores, sequences)[:, 0]
    return table


def _numbered_texts(record: Record) -> list[str]:
    """The choices of a row, each behind its number."""
    assert isinstance(record, ChoiceRecord)
    return [f"{place}: {choice}" for place, choice in enumerate(record.choices)]
