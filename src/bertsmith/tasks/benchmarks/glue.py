"""GLUE as a whole: the zip that its server takes, and the mean over its tasks."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.rows.compressed import CORRUPT
from bertsmith.tasks.benchmarks.benchmark import Benchmark, benchmarks

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
_HEADER = "index\tprediction\n"
# Of a zip's members, so that the same predictions give the same bytes; the earliest that a zip can say.
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Predictions:
    """What a model says of the rows of a part. ids: as its file has them. answers: the names of classes, or numbers."""

    ids: Sequence[str]
    answers: Sequence[str | float]


@dataclass(frozen=True)
class GlueScore:
    """tasks: of each task that was measured whole, the mean of its published metrics. missing: what was not measured,
    as "rte" or "mrpc binary_f1"."""

    tasks: Mapping[str, float]
    missing: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Over the tasks that were measured whole; not GLUE's score where any is missing."""
        return float(np.mean(list(self.tasks.values()))) if self.tasks else math.nan


def glue_score(figures: Mapping[str, Mapping[str, float]]) -> GlueScore:
    """GLUE's score of the figures of each task: the mean over tasks, two metrics of one task averaged first.

    The server counts WNLI; papers that leave it out say so. AX is no part of the score.
    """
    tasks, missing = {}, []
    for name in GLUE_TASKS:
        found, wanted = figures.get(name), benchmarks()[name].metrics
        if found is None:
            missing.append(name)
        elif set(wanted) - found.keys():
            missing += [f"{name} {metric}" for metric in wanted if metric not in found]
        else:
            tasks[name] = float(np.mean([found[metric] for metric in wanted]))
    return GlueScore(tasks, tuple(missing))


def add_to_submission(path: Path, benchmark: Benchmark, parts: Mapping[str, Predictions]) -> list[str]:
    """Puts the predictions for the test parts of a benchmark into a zip, whose other files stay as they are.

    Returns the files that the server still wants. A file is "index<TAB>prediction" and a line for each row: the name
    of a class, or a number within the benchmark's range. Warns where there are not as many rows as the server expects.
    Raises BertsmithError for a benchmark that is not GLUE's, an answer that is none of its classes, and a file that is
    not a zip.
    """
    known = submission_files(path, benchmark)
    members = known | {benchmark.submission[part]: _text(benchmark, part, found) for part, found in parts.items()}

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(members):
                archive.writestr(zipfile.ZipInfo(name, _DATE), members[name], zipfile.ZIP_DEFLATED)

    files.write_whole(path, write)
    wanted = [name for each in benchmarks().values() for name in each.submission.values()]
    return [name for name in wanted if name not in members]


def submission_files(path: Path, benchmark: Benchmark) -> dict[str, str]:
    """The files that a submission has already. Raises BertsmithError where it is no zip of predictions, where its name
    is not that of one, and for a benchmark that is not GLUE's."""
    if not benchmark.submission:
        names = [each.name for each in benchmarks().values() if each.submission]
        raise BertsmithError(f"{benchmark.name} is not a task of GLUE", path, f"use one of: {', '.join(names)}")
    if path.suffix.lower() != ".zip":
        raise BertsmithError(f"'{path.suffix}' is not a zip", path, "give the submission a name that ends in .zip")
    if not path.exists():
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name).decode() for name in archive.namelist()}
    except (zipfile.BadZipFile, RuntimeError, *CORRUPT) as error:
        fix = "name a new file, or a submission that this command wrote"
        raise BertsmithError(f"this is not a zip of predictions ({error})", path, fix) from error


def _text(benchmark: Benchmark, part: str, found: Predictions) -> str:
    expected = benchmark.rows.get(part)
    if expected is not None and expected != len(found.ids):
        what = f"the server wants {expected:,} predictions for {part}, and these are {len(found.ids):,}"
        warn(f"{benchmark.name}: {what}")
    rows = zip(found.ids, found.answers, strict=True)
    lines = (f"{identity}\t{_answer(benchmark, answer)}\n" for identity, answer in rows)
    return _HEADER + "".join(lines)


def _answer(benchmark: Benchmark, answer: str | float) -> str:
    if benchmark.labels:
        if answer not in benchmark.labels:
            what = f"the model says '{answer}', which is not a class of {benchmark.name}"
            fix = f"use a model of {benchmark.trained_as or benchmark.name}: {', '.join(benchmark.labels)}"
            raise BertsmithError(what, "the model", fix)
        return str(answer)
    low, high = benchmark.clip
    return f"{min(max(float(answer), low), high):.5f}"
