"""The rows of a file, answered in parts and joined into a file that is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, TypeChecked, check_class
from bertsmith.base.locks import LOCK_FILE
from bertsmith.base.log import Progress, counted, say, warn
from bertsmith.base.stopping import StoppedAfterSaving, StopSignal, stop_on_signals
from bertsmith.base.versions import version_of
from bertsmith.inference.backends.model import check_loaded
from bertsmith.inference.parts.folder import Join, PartsFolder
from bertsmith.inference.parts.part import Account, OnError, Part
from bertsmith.inference.parts.reading import PART_CHARACTERS, parts_of
from bertsmith.inference.parts.stream import stream
from bertsmith.inference.parts.workers import Here, Load, Workers, processes
from bertsmith.tasks.reading.bad_rows import NOT_UTF8, listed, to_utf8
from bertsmith.tasks.reading.files import is_pipe, name_of
from bertsmith.tasks.reading.records import RowReader

_SIGNALLED = "the work stops and says what is kept of it"


@dataclass(frozen=True)
class RowOptions(TypeChecked):
    """How the rows of a file are worked through.

    workers: processes of one thread, each with a model of its own. gpus: as many GPUs, each with a process and a model;
    "all" for all there are. on_error: what happens at a row that cannot be used. resume: finished parts of an earlier
    run are kept. part_rows: the most of a part, which is done again as a whole after a kill; 0 is the job's own number.
    """

    workers: int = 1
    gpus: str = ""
    on_error: OnError = "stop"
    resume: bool = False
    part_rows: int = 0

    def check(self, source: str | Path, out: str | Path) -> None:
        """Raises BertsmithError for what does not belong together."""
        for name, least in (("workers", 1), ("part_rows", 0)):
            if getattr(self, name) < least:
                raise BertsmithError(f"{name} is {getattr(self, name)}", name, f"use a whole number from {least}")
        if self.gpus and self.workers > 1:
            raise BertsmithError("--workers and --gpus exclude each other", "workers", "every GPU has one worker")
        if str(out) == "-" and (self.resume or self.workers > 1 or self.gpus):
            what = "--resume, --workers and --gpus write parts beside a file, and there is none"
            raise BertsmithError(what, "standard output", "name a file with --out")
        if str(out) == "-" and sys.stdout is None:
            raise BertsmithError("standard output is closed", "standard output", "leave it open, or use --out FILE")
        if str(out) != "-":
            PartsFolder(Path(out)).check()
        if self.resume and is_pipe(source):
            raise BertsmithError("what came through a pipe cannot be resumed", name_of(source), "name a file")
        if str(out) != "-" and str(source) != "-" and PartsFolder(Path(out)).owns(Path(source)):
            raise BertsmithError("the input would be replaced or removed by the output", out, "choose another --out")

    def check_loaded(self, loading: Mapping[str, Any]) -> None:
        """Raises BertsmithError for several workers, and for what a model is loaded with, where one is loaded."""
        if self.workers > 1 or self.gpus:
            raise BertsmithError("each of several workers loads a model", "model", "give its folder, not a loaded one")
        check_loaded(loading)

    def check_loading(self, loading: Mapping[str, Any]) -> None:
        """Raises BertsmithError for GPUs together with another device or an engine that has none."""
        device, backend = loading.get("device", "auto"), loading.get("backend", "torch")
        if self.gpus and device not in ("auto", "cuda"):
            what = f"--gpus gives each worker its device, and --device is {device}"
            raise BertsmithError(what, "--gpus", "leave out one of them")
        if self.gpus and backend != "torch":
            raise BertsmithError(f"{backend} runs on the CPU here, not on --gpus", "--gpus", "use --workers there")

    def devices(self, device: str) -> list[str]:
        """The device of each worker. Raises BertsmithError for more GPUs than there are."""
        if not self.gpus:
            return [device] * self.workers
        import torch

        there = torch.cuda.device_count()
        wanted = there if self.gpus == "all" else {f"{each}": each for each in range(there + 1)}.get(self.gpus, 0)
        if not 1 <= wanted <= there:
            fix = f"{counted(there, 'CUDA device')} found; use all or a number"
            raise BertsmithError(f"gpus is {self.gpus}", "gpus", fix)
        return [f"cuda:{number}" for number in range(wanted)]


@dataclass(frozen=True)
class Job:
    """What is done with rows. load: gives the loaded model. model: its folder. device: one for all workers. doing: in
    words. part_rows: the most of a part, where the user does not say. fits: is given each finished part; raises
    BertsmithError for one that cannot be joined with the others."""

    load: Load
    model: Path
    device: str
    join: Join
    doing: str
    part_rows: int = 4096
    fits: Callable[[Path], object] = lambda path: None


def usable_options(source: str | Path, out: str | Path, rows: RowOptions | None) -> RowOptions:
    """The options of a work, the usual ones for None. Raises BertsmithError for paths that are none, such as a list of
    rows, and for options of another class."""
    for name, value in (("source", source), ("out", out)):
        files.as_path(value, name)
    check_class(rows, RowOptions, "rows")
    return rows or RowOptions()


def answer_rows(job: Job, source: str | Path, out: str | Path, options: RowOptions) -> Account:
    """Answers the rows of a file, or of standard input ("-"), into a file or to standard output ("-").

    Finished parts stay where a row, a worker, the disk or a signal ends the work, and `resume` continues from them.
    Raises BertsmithError, and where a file is written StoppedAfterSaving at a signal, with what is kept; a signal that
    comes once the file is complete changes nothing.
    """
    options.check(source, out)
    options = replace(options, part_rows=options.part_rows or job.part_rows)
    before = _input_facts(source)
    with Progress(job.doing, None, "rows") as progress:
        if str(out) != "-":
            with stop_on_signals(_SIGNALLED, at_once=True) as stop:
                try:
                    done = _into_file(job, source, Path(out), options, progress, stop)
                except KeyboardInterrupt:
                    kept = _kept(PartsFolder(Path(out)), source) or "nothing is kept of this work"
                    raise StoppedAfterSaving(f"stopped; {kept}", stop.interrupted) from None
        else:
            work = job.load(job.device)
            done = stream(work, source, options.part_rows, options.on_error, progress)
            _check_some(done, source, work.reader)
    if not is_pipe(source) and _input_facts(source) != before:
        warn(f"{source} was changed while it was read: what was written may not be of the rows that it has now")
    done.warn_of_empty()
    return done


def _into_file(
    job: Job, source: str | Path, out: Path, options: RowOptions, progress: Progress, stop: StopSignal
) -> Account:
    folder = PartsFolder(out, is_pipe(source))
    if folder.out != out:
        say(f"{out} is a link: the file that it leads to is written, {folder.out}")
    folder.refuse_to_begin(options.resume)
    with _workers(job, folder, options) as workers:
        made_from = {
            # With what an account has: it may change between two versions.
            "bertsmith": f"{version_of('bertsmith')}, with accounts of {', '.join(Account().to_json())}",
            "model": _model_facts(job.model, folder),
            "input": _input_facts(source),
            "part size": f"{options.part_rows:,} rows or {PART_CHARACTERS:,} characters",
        }
        with folder.held({**made_from, **workers.facts}, options.resume) as finished:
            if options.on_error == "stop":
                _refuse_left_out(finished)
            if options.resume:
                kept = f"parts that are finished: {len(finished):,}"
                say(kept if finished else "no finished parts are there: beginning anew")
            with _keeping(folder, source, workers):
                done, parts = _answered(
                    workers, source, options, finished, progress, lambda number: job.fits(folder.part(number))
                )
                if not done.rows:
                    folder.remove()
                _check_some(done, source, workers.reader)
                folder.check_whole(parts)
                if done.skipped:
                    folder.write_bad(parts)
                else:
                    folder.bad.unlink(missing_ok=True)
                folder.join(parts, lambda file, payloads: job.join(file, payloads, done))
                stop.end_as_usual(f"{folder.out} is complete, and the work ends as usual")
                folder.put_in_place()
    if done.skipped:
        what = f"{counted(done.skipped, 'unusable row')} left out, see {folder.bad}"
        warn(listed(what, done.first_skipped, done.skipped))
    return done


def _workers(job: Job, folder: PartsFolder, options: RowOptions) -> AbstractContextManager[Workers]:
    devices = options.devices(job.device)
    if len(devices) > 1:
        return processes(job.load, devices, folder, options.on_error)
    return nullcontext(Here(job.load(devices[0]), folder, options.on_error))


def _answered(
    workers: Workers,
    source: str | Path,
    options: RowOptions,
    finished: dict[int, Account],
    progress: Progress,
    fits: Callable[[int], object],
) -> tuple[Account, int]:
    """The account of all rows, and how many parts there are. fits: as of `Job`, of the number of a part."""
    accounts = dict(finished)
    parts = 0

    def missing() -> Iterator[Part]:
        nonlocal parts
        for part in parts_of(source, workers.columns, workers.reader, options.part_rows, options.on_error):
            parts = part.number + 1
            if part.number not in finished:
                yield part

    progress.skip(sum(each.rows + each.skipped for each in finished.values()))
    for number in finished:
        fits(number)
    for number, account in workers.run(missing()):
        fits(number)
        accounts[number] = account
        progress.advance(account.rows + account.skipped)
    done = Account()
    for number in range(parts):
        done.add(accounts[number])
    return done, parts


def _refuse_left_out(finished: Mapping[int, Account]) -> None:
    """Raises BertsmithError for finished parts that rows were left out of: "stop" would have ended there."""
    left_out = [each for _, each in sorted(finished.items()) if each.skipped]
    if left_out:
        what = f"rows were left out of the finished parts, and --on-error is stop: {left_out[0].first_skipped[0]}"
        raise BertsmithError(what, "--on-error", "resume with --on-error skip, or delete the parts to begin anew")


@contextmanager
def _keeping(folder: PartsFolder, source: str | Path, workers: Workers) -> Iterator[None]:
    """Says what is kept where an error ends the block; one about the parts themselves says what to do with them. Of
    what came through a pipe, which cannot be read again, nothing is kept."""
    try:
        yield
    except BaseException as error:
        workers.end()  # before parts are removed or counted
        if is_pipe(source):
            folder.remove()
        of_parts = isinstance(error, BertsmithError) and error.where == str(folder.path)
        if isinstance(error, Exception) and not of_parts and (kept := _kept(folder, source)):
            say(kept)
        raise


def _kept(folder: PartsFolder, source: str | Path) -> str:
    """What is kept of unfinished work, in words; "" for nothing."""
    if not (parts := folder.finished_parts()):
        return ""
    how = "what came through a pipe cannot be resumed" if is_pipe(source) else "--resume continues from there"
    return f"finished parts are kept in {folder.path} ({parts:,} of them): {how}"


def _check_some(done: Account, source: str | Path, reader: type[RowReader]) -> None:
    """Raises BertsmithError where all rows were left out: then it is not the rows that are wrong."""
    if not done.rows and done.skipped:
        what = listed(f"none of the rows can be used ({done.skipped:,})", done.first_skipped, done.skipped)
        fix = "; ".join(filter(None, ("name the right columns, or another model", reader.remedy)))
        if all(NOT_UTF8 in each for each in done.first_skipped):
            fix = to_utf8(None if is_pipe(source) else source)
        raise BertsmithError(what, name_of(source), fix)


def _input_facts(source: str | Path) -> dict[str, Any]:
    """What tells an input from another one, or from what it was before."""
    try:
        stat = os.stat(source)
    except OSError:  # which the reader says better
        return {}
    return {"path": str(Path(source).resolve()), "bytes": stat.st_size, "changed_ns": stat.st_mtime_ns}


def _model_facts(folder: Path, written: PartsFolder) -> str:
    """A checksum of all files of a model folder but for those that are written here."""
    checksum = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOCK_FILE and not written.owns(path):
            checksum.update(f"{path.relative_to(folder)} {files.sha256(path)}\n".encode())
    return checksum.hexdigest()
