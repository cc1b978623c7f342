"""What the folder of a run tells, whether the run is finished, stopped, killed, still training or about to begin."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, first_of, say
from bertsmith.report.curves import Curves
from bertsmith.report.markup import distinct
from bertsmith.tasks.report.parts import OUT_OF_FOLD, REPORT
from bertsmith.tasks.results import FinetuneResult
from bertsmith.training.records.names import (
    ENVIRONMENT,
    ERROR,
    EVENTS_FILES,
    METRICS_FILE,
    MODEL_FOLDER,
    RECIPE_FILE,
    RUN_FILE,
    START,
    STARTED_ON,
    STOPPED_MARK,
    TASK,
    TRIALS_FOLDER,
    fault_of,
    flat,
)
from bertsmith.weights.names import CONFIG_FILE, FINETUNE_FILE

PARTS = ("dev", "test", OUT_OF_FOLD)


@dataclass
class RunRead:
    """A run as its folder tells of it.

    name: what it is called on the page. number: its place there, from 0. key: its letter, "" where it is the only one.
    recipe: by dotted names. belongs_to: what `run.json` says that it was started with, beside the recipe. measured: the
    records that are no lines of training. last_line: the last line of training. events: in the order of their steps;
    None where the run kept none. unreadable: lines that are no records, by file. result: of a fine-tuning run that
    ended. tables: the JSON of its report, by part and by name. problems: what could not be read, in words.
    ended_by_error: whether an error is the last that happened.
    """

    name: str
    number: int
    key: str
    folder: Path
    recipe_text: str
    recipe: dict[str, Any]
    belongs_to: dict[str, Any]
    started_on: dict[str, Any]
    curves: Curves = field(default_factory=Curves)
    measured: list[dict[str, Any]] = field(default_factory=list)
    last_line: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] | None = None
    unreadable: dict[str, int] = field(default_factory=dict)
    result: FinetuneResult | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    ended_by_error: bool = False

    @property
    def is_finetuned(self) -> bool:
        """Whether it learns a task."""
        return TASK in self.belongs_to

    @property
    def kind(self) -> str:
        """Such as "fine-tuning (classify), with a teacher"."""
        base = f"fine-tuning ({self.belongs_to[TASK]})" if self.is_finetuned else "pre-training"
        return base + (", with a teacher" if any(name.startswith("teacher.") for name in self.belongs_to) else "")

    @property
    def step(self) -> int:
        """The last one that anything is known of."""
        return max((each["step"] for each in (self.last_line, *self.measured) if each), default=0)

    @property
    def state(self) -> str:
        """Whether it is finished, and if not, why as far as that is known."""
        ended = any(each["kind"] == "end" for each in self.measured)
        if ended and (self.folder / MODEL_FOLDER / CONFIG_FILE).exists():
            return "finished"
        if (self.folder / STOPPED_MARK).exists():
            return "stopped by a signal after saving, to be resumed"
        if self.ended_by_error:
            return "ended by an error, which stands with the warnings"
        if not self.last_line and not self.measured:
            inside = sorted(path.parent.name for path in self.folder.glob(f"{TRIALS_FOLDER}/*/{RUN_FILE}"))
            beside = f"trains side by side, or was ended: see {', '.join(inside)} in its folder {TRIALS_FOLDER}"
            return beside if inside else "started, without figures yet"
        return "not finished: it is training still, or was killed"

    def events_of(self, *kinds: str) -> list[dict[str, Any]]:
        return [each for each in self.events or () if each["kind"] in kinds]

    @property
    def starts(self) -> list[dict[str, Any]]:
        """On what it was started, and resumed."""
        return self.events_of(ENVIRONMENT)


def read_runs(folders: Sequence[Path]) -> list[RunRead]:
    """Every run once, in the given order. Raises BertsmithError for a folder that is not a run's."""
    once: dict[Path, Path] = {}
    for folder in folders:
        once.setdefault(folder.resolve(), folder)
    if len(once) < len(folders):
        say(f"{counted(len(folders) - len(once), 'folder')} named twice: each run is shown once")
    for folder in once.values():
        _check_run(folder)
    names = distinct([path.parts[1:] or ("run",) for path in once])
    keys = [key_of(number) for number in range(len(once))] if len(once) > 1 else [""]
    named = zip(once.values(), names, keys, strict=True)
    return [_read(folder, name, number, key) for number, (folder, name, key) in enumerate(named)]


def key_of(number: int) -> str:
    """The letter of a run: A, B, ..., Z, A2, B2, ..."""
    again, place = divmod(number, len(string.ascii_uppercase))
    return string.ascii_uppercase[place] + (str(again + 1) if again else "")


def _check_run(folder: Path) -> None:
    if (folder / RUN_FILE).is_file():
        return
    fix = "name a folder that pretrain, finetune or distill wrote"
    if not folder.is_dir():
        what = "this is a file, and a run is a folder" if folder.is_file() else "there is no such folder"
        raise BertsmithError(what, folder, fix)
    if (folder.parent / RUN_FILE).is_file():
        fix = f"name the run: {folder.parent}"
    elif inside := sorted(path.parent.name for path in folder.glob(f"*/{RUN_FILE}")):
        fix = f"name one of those inside: {first_of(inside, 4)}"
    raise BertsmithError(f"this folder is not a run's: it has no {RUN_FILE}", folder, fix)


def _read(folder: Path, name: str, number: int, key: str) -> RunRead:
    known = files.read_json(folder / RUN_FILE)
    if not isinstance(known, dict):
        raise BertsmithError("this file does not say what a run belongs to", folder / RUN_FILE, "leave this run out")
    started_on = known.pop(STARTED_ON, {})
    started_on = started_on if isinstance(started_on, dict) else {}
    started_on.pop(START, None)
    belongs_to = {key: value for key, value in known.items() if not key.startswith(("recipe.", "settings."))}
    text, recipe = _recipe(folder / RECIPE_FILE)
    run = RunRead(name, number, key, folder, text, recipe, belongs_to, started_on)
    for record in _records(run, folder / METRICS_FILE):
        _take(run, files.with_nan(record))
    found = sorted(folder.glob(EVENTS_FILES))
    if found:
        run.events = [
            {**record, **_rank_of(path)} for path in found for record in _records(run, path) if _is_event(record)
        ]
        of_first = [record for record in run.events if "rank" not in record]
        run.ended_by_error = bool(of_first) and of_first[-1]["kind"] == ERROR and of_first[-1]["step"] >= run.step
        run.events.sort(key=lambda record: record["step"])
    if run.is_finetuned:
        _read_results(run)
    return run


def _take(run: RunRead, record: dict[str, Any]) -> None:
    if record["kind"] in ("train", "evaluation"):
        run.curves.add(record)
    if record["kind"] == "train":
        run.last_line = record
    else:
        run.measured.append(record)


def _is_event(record: Mapping[str, Any]) -> bool:
    return record["kind"] == ENVIRONMENT or isinstance(record.get("message"), str)


def _rank_of(path: Path) -> dict[str, str]:
    """The rank that a file of events is of, where it is not the first one's: events.rank-3.jsonl."""
    _, _, number = path.stem.partition("rank-")
    return {"rank": number} if number else {}


def _recipe(path: Path) -> tuple[str, dict[str, Any]]:
    if not path.exists():  # a run of a few lines of Python
        return "", {}
    with files.read_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BertsmithError(f"this recipe is not valid YAML: {error}", path, "leave this run out") from error
    return text, flat(values) if isinstance(values, dict) else {}


def _records(run: RunRead, path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines; what is no record, as a line that was cut short, is counted."""
    if not path.exists():
        return
    with files.read_errors(path), open(path, "rb") as file:
        for line in file:
            try:
                record: Any = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if not fault_of(record):
                yield record
            else:
                run.unreadable[path.name] = run.unreadable.get(path.name, 0) + 1


def _read_results(run: RunRead) -> None:
    """Of a fine-tuning run that ended: its results, and the tables of its report."""
    path = run.folder / FINETUNE_FILE
    try:
        if path.exists():
            run.result = FinetuneResult.from_dict(files.read_json(path), run.folder)
    except (BertsmithError, TypeError, KeyError, AttributeError) as error:
        run.problems.append(f"{FINETUNE_FILE} is of another version, or damaged, so seeds are not shown ({error!r})")
    for part in PARTS:
        for table in sorted((run.folder / REPORT / part).glob("*.json")):
            try:
                run.tables.setdefault(part, {})[table.stem] = files.read_json(table)
            except BertsmithError as error:
                run.problems.append(f"{REPORT}/{part}/{table.name} is not shown: {error.what}")
