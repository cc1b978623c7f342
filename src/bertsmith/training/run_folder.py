"""The run folder: what it belongs to, who works in it, and what it holds in the end.

recipe.yaml                 the resolved settings of what is trained
run.json                    what decides the result (settings, data, start), and the device and precision it began with
metrics.jsonl, tensorboard/
events.jsonl                what it was started on each time, and every warning (`events`)
step-00000500/, best-00000400/, damaged-step-00000600/      `checkpoints`
trials/                     trainings side by side, each a run folder without a model, until all are done
stopped                     there while the run is stopped by a signal, and not finished
model/                      the finished model, as transformers reads it
best/                       of pre-training, the best one on held-out text, where that is another
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import LOCK_FILE, Held, locked
from bertsmith.base.log import first_of, say, warn
from bertsmith.training.checkpoints import Position, step_folders
from bertsmith.training.records.events import Events
from bertsmith.training.records.meters import forget_after, read_metrics
from bertsmith.training.records.names import (
    BEST_FOLDER,
    EVENTS_FILES,
    METRICS_FILE,
    MODEL_FOLDER,
    RECIPE_FILE,
    RUN_FILE,
    START,
    STARTED_ON,
    STOPPED_MARK,
    TASK,
    flat,
)
from bertsmith.weights.huggingface import check_replaceable, read_config
from bertsmith.weights.stored import CONFIG_FILE, read_tensors, stored_files

# What a run would write, or a folder of another kind has. A recipe there may be the user's own.
_OF_OTHERS = (METRICS_FILE, MODEL_FOLDER, RECIPE_FILE, CONFIG_FILE, "corpus.json")
_SHOWN, _LONGEST = 8, 40
# Of a run whose checkpoints may be whole.
_RUN_FILE_FIX = (
    "put back a copy of run.json; or give the same command another --out, stop it, and copy the run.json that it wrote"
)
_SHAPE = "recipe.model."
_IN_RECIPE = ("recipe.", "settings.")
# What earlier versions took for a part of what decides the result, and this one for how it is computed.
_ONCE_FIXED = {
    "recipe.compile": "compile",
    "recipe.micro_batch_tokens": "micro_batch_tokens",
    "settings.micro_batch_tokens": "micro_batch_tokens",
}


@dataclass(frozen=True)
class Run:
    """A run, which may be given where its folder may. folder: with metrics.jsonl and the step folders; its finished
    model lies in `model`."""

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def model(self) -> Path:
        """The finished model, a folder that transformers reads."""
        return self.folder / MODEL_FOLDER

    @property
    def best(self) -> Path:
        """The model with the lowest held-out loss of pre-training's last phase; missing where that is the finished."""
        return self.folder / BEST_FOLDER

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, all or those of a kind: "start", "train", "evaluation", "final", "end"."""
        return [each for each in read_metrics(self.folder / METRICS_FILE) if kind in (None, each["kind"])]

    def is_finished(self) -> bool:
        """Whether the model was written and the metrics say that the run ended."""
        return bool(self.metrics("end")) and (self.model / CONFIG_FILE).exists()

    def is_finished_and_whole(self) -> bool:
        """As `is_finished`. Raises BertsmithError where the finished model's weights cannot be read any more."""
        if not self.is_finished():
            return False
        try:
            read_tensors(self.model)
        except BertsmithError as error:
            fix = f"remove {self.model}: the same command then writes it from the last checkpoint"
            lost = "put back a copy; the checkpoints of a finished run are removed, so it is not written again"
            what = f"this run is finished, and its model is damaged: {error.what}"
            raise BertsmithError(what, error.where, fix if step_folders(self.folder) else lost) from error
        return True


@dataclass(frozen=True)
class RunFacts:
    """What a run folder records of its run.

    identity: all that decides what the run comes to. recipe: the text of `recipe.yaml`. started_on: device, precision
    and what else decides the last bits, kept when the run is resumed. events: entered before anything may warn. guard:
    of the folder; None where it is nobody else's, as in a measurement.
    """

    identity: Mapping[str, Any]
    recipe: str
    started_on: Mapping[str, str]
    events: Events = field(default_factory=Events)
    guard: Guard | None = None

    def hold(self) -> None:
        """As of `Guard`, and raises as that."""
        if self.guard is not None:
            self.guard.hold()

    def is_ours(self) -> bool:
        """As of `Guard`."""
        return self.guard is None or self.guard.is_ours()


class Guard:
    """Sees that a run's folder stays with this start of the run, whose name its `run.json` has.

    Locks alone do not tell: others that came meanwhile may have ended, and the same command may have been started anew.
    """

    def __init__(self, folder: Path, start: str, lock: Held | None = None, above: Guard | None = None) -> None:
        """start: alike on all ranks. lock: of the folder, on the first rank. above: of the folder that it lies in."""
        self.start, self._folder, self._lock, self._above = start, folder, lock, above
        self._claimed: tuple[Mapping[str, Any], str] | None = None
        self._refused = False
        self._alone = threading.Lock()  # checkpoints are written in a thread

    def inside(self, folder: Path) -> Guard:
        """Of a folder in this one, which this rank alone writes."""
        return Guard(folder, self.start, above=self)

    def claim(self, known: Mapping[str, Any], recipe: str) -> None:
        """Writes whose folder this is. known: what `run.json` holds."""
        self._take()
        self._claimed = (known, recipe)
        self._write()

    def hold(self) -> None:
        """Takes the folder again, and writes again whose it is, where somebody has removed or renamed that; without it
        a checkpoint could not be resumed. Raises BertsmithError where another start, or another process, has it."""
        try:
            lacked = self._taken_again()
        except BertsmithError:
            self._refused = True
            raise
        self._refused = False
        if lacked:
            path = self._folder / RUN_FILE
            warn(f"{path} was removed, renamed or damaged while the run trains; it is there again")

    def _taken_again(self) -> bool:
        """Whether `run.json` had to be written again."""
        if self._above is not None:
            self._above.hold()
        with self._alone:
            self._refuse_others()
            self._take()
            self._refuse_others()  # who had it until then
            lacks = self._claimed is not None and self._found() is None
            if lacks:
                self._write()
        return lacks

    def is_ours(self) -> bool:
        """Whether the folder is there and this start has it, as far as `hold` knows."""
        try:
            ours = not self._refused and self._found() == self.start
            return ours and (self._above is None or self._above.is_ours())
        except BertsmithError:
            return False

    def _take(self) -> None:
        if self._lock is not None and self._lock.is_lost():
            self._lock.take_again()

    def _write(self) -> None:
        assert self._claimed is not None
        known, recipe = self._claimed
        files.make_folder(self._folder)
        files.write_json(self._folder / RUN_FILE, known)
        files.write_text(self._folder / RECIPE_FILE, recipe)

    def _refuse_others(self) -> None:
        if self._found() not in (None, self.start):
            fix = "move that one away, or end this run: its checkpoints are where its folder was moved to"
            raise BertsmithError("this folder is another run's now", self._folder, fix)

    def _found(self) -> str | None:
        """The start that has the folder, "" for one without a name; None where `run.json` says nothing."""
        path = self._folder / RUN_FILE
        try:
            known = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):  # files are written whole, so nobody writes it now
            return None
        except OSError as error:
            raise BertsmithError(f"this file cannot be read ({error.strerror})", path, "see to the disk") from error
        started_on = known.get(STARTED_ON) if isinstance(known, dict) else None
        return str(started_on.get(START, "")) if isinstance(started_on, dict) else ""


@contextmanager
def opened(folder: Path, facts: RunFacts, resume: bool) -> Iterator[RunFacts]:
    """Holds a folder for one run as long as the block runs; gives its facts with what the run there was started on, {}
    for a new one.

    Raises BertsmithError, alike on all ranks, where another process works in the folder, where a run is there and
    `resume` is not set, and where the folder is another run's.
    """
    ranks.by_first(lambda: check_free(folder, resume))
    locks: list[Held] = []  # of the first rank
    with ExitStack() as held:

        def check() -> tuple[dict[str, str], str]:
            locks.append(held.enter_context(locked(folder, doing="training in this folder")))
            held.callback(_remove_if_unused, folder)
            return _check(folder, facts.identity, resume), secrets.token_hex(8)

        started_on, start = ranks.by_first(check)
        yield replace(facts, started_on=started_on, guard=Guard(folder, start, locks[0] if locks else None))


def _remove_if_unused(folder: Path) -> None:
    """Removes a folder that holds nothing but its lock: the run that was to be there did not start."""
    if folder.is_dir() and [each.name for each in folder.iterdir()] == [LOCK_FILE]:
        shutil.rmtree(folder, ignore_errors=True)


def check_free(folder: Path, resume: bool) -> None:
    """Raises BertsmithError for a folder where a run must not start: with a run that is not resumed, with a model,
    checkpoints, metrics, a recipe or a corpus and no `run.json`, with a name that is not UTF-8, or where nothing can be
    written. Leaves nothing in a folder that is refused."""
    files.check_utf8(folder)
    files.check_place(folder / RUN_FILE)
    if (folder / RUN_FILE).exists():
        if not resume:
            fix = "add --resume, or choose another --out"
            raise BertsmithError("there is a run in this folder already", folder, fix)
        return
    strays = [each.name for each in step_folders(folder)]
    strays += [name for name in _OF_OTHERS if (folder / name).exists()]
    if strays:
        what = f"this folder holds {first_of(strays)} and no run.json, so it is not a run's"
        raise BertsmithError(
            what, folder, f"choose another --out, or move them away; if it was a run's, {_RUN_FILE_FIX}"
        )


def _check(folder: Path, identity: Mapping[str, Any], resume: bool) -> dict[str, str]:
    check_free(folder, resume)
    started_on = check_same_run(folder, identity)
    for path in (folder / METRICS_FILE, folder / RECIPE_FILE, *folder.glob(EVENTS_FILES)):
        if path.exists() and not path.is_file():  # a pipe would be waited for, for ever
            what = "this is not a file, nor a link to one, and the run keeps a file of this name"
            raise BertsmithError(what, path, "move it away, and put the file back if there is a copy")
    files.put_back(folder)  # a step folder, before the newest is looked for
    return started_on


def claim(folder: Path, facts: RunFacts, position: Position | None) -> None:
    """Marks a folder as the run's, no longer stopped, and removes what came after `position`.

    What a killed run left half written is removed, and what it was about to replace is put back. Raises BertsmithError
    where the finished model, or the best of pre-training, could not be written in the end, because something else is
    there.
    """
    check_replaceable(folder / MODEL_FOLDER)
    if TASK not in facts.identity:
        check_replaceable(folder / BEST_FOLDER)
    begun_on = {**facts.started_on, **({START: facts.guard.start} if facts.guard else {})}
    guard = facts.guard or Guard(folder, "")
    guard.claim({**facts.identity, STARTED_ON: begun_on}, facts.recipe)
    with files.disk_errors(folder):
        files.put_back(folder)
        (folder / STOPPED_MARK).unlink(missing_ok=True)
    for leftover in folder.glob(".*.part"):
        files.clear(leftover)
    done = position.step if position else 0
    known = (done, position.unmeasured, position.pending) if position else (-1,)
    last = forget_after(folder / METRICS_FILE, *known)
    if position is None and last > 0:
        told = f"what was logged of steps up to {last:,} is dropped"
        warn(f"there is no checkpoint in {folder}, so the run begins anew at its first step: {told}")
    elif last > done:  # after a kill: a run that a signal stops saves first
        say(f"the records of the steps after {done:,}, up to {last:,}, are dropped: these steps are taken again")


def mark_stopped(folder: Path, facts: RunFacts, why: str) -> None:
    """Writes the mark of a run that a signal has stopped after saving; a full disk, and a folder that is another
    run's now, are warned of, and no more."""
    try:
        facts.hold()
        files.write_text(folder / STOPPED_MARK, f"{why}\n")
    except BertsmithError as error:
        warn(f"the mark that the run was stopped could not be written: {error.what} ({error.where})")


def model_identity(folder: Path, name: str) -> dict[str, str]:
    """The checksums of a model that a run starts from, under `name`: it is the same one wherever it lies."""
    read_config(folder)  # refuses a folder without a model
    return {f"{name}.{path.name}": files.sha256(path) for path in (folder / CONFIG_FILE, *stored_files(folder))}


def settings_identity(settings: Mapping[str, Any], name: str, free: Collection[str]) -> dict[str, Any]:
    """Nested settings as flat names under `name`, without those in `free`, which do not change the result."""
    return {f"{name}.{each}": value for each, value in flat(settings).items() if each not in free}


def check_same_run(folder: Path, identity: Mapping[str, Any]) -> dict[str, str]:
    """Checks that a run folder belongs to this run, if to any.

    Returns what the run was started on, as given to `claim`; {} for a new run. Raises BertsmithError that lists what
    differs, and for a model, checkpoints or metrics without a `run.json`.
    """
    path = folder / RUN_FILE
    if not path.exists():
        check_free(folder, resume=True)
        return {}
    known = files.read_json(path, _RUN_FILE_FIX)
    if not isinstance(known, dict) or not isinstance(known.get(STARTED_ON, {}), dict):
        raise BertsmithError("this file does not say what a run belongs to", path, _RUN_FILE_FIX)
    started_on = {name: str(value) for name, value in known.pop(STARTED_ON, {}).items()}
    for name in _ONCE_FIXED.keys() & known.keys() - identity.keys():
        started_on.setdefault(_ONCE_FIXED[name], str(known.pop(name)))
    if not any(name.startswith(_SHAPE) for name in identity):  # earlier versions named it where a model's was kept
        known = {name: value for name, value in known.items() if not name.startswith(_SHAPE)}
    if (TASK in known) != (TASK in identity):
        kinds = ("pre-training", "fine-tuning")
        what = f"this folder holds a run of {kinds[TASK in known]}, not of {kinds[TASK in identity]}"
        raise BertsmithError(what, path, "choose another --out")
    # As it is written; but an infinity, which is written as null, is not what a run was not given.
    endless = {name: value for name, value in identity.items() if value == math.inf and name not in known}
    known, ours = (json.loads(files.as_json(each)) for each in (known, identity))
    ours |= endless
    differing = [name for name in sorted({*known, *ours}) if known.get(name) != ours.get(name)]
    if differing:
        details = "; ".join(
            f"{name} was {_short(known.get(name))}, is {_short(ours.get(name))}" for name in differing[:_SHOWN]
        )
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        told = any(name.startswith(_IN_RECIPE) for name in differing)
        same = f"use the same, as {folder / RECIPE_FILE} has it," if told else "use the same,"
        what = f"this run was started with something else: {details}{more}"
        raise BertsmithError(what, path, f"{same} or another --out for a new run")
    return started_on


def _short(value: Any) -> str:
    """A value for a message; of a checksum the beginning."""
    text = "not given" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
