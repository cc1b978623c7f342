"""`bertsmith report`: from the folders of runs to one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import counted, say, size
from bertsmith.report.page import DOCTYPE, generator, page
from bertsmith.report.parts import Limits
from bertsmith.report.reading import read_runs

MOST_BYTES = 2_000_000
_HEAD_BYTES = 1000
# Halved so often, a curve still has its first, last, lowest and highest point.
_TRIES = 8


def write_report(runs: Sequence[StrPath] | StrPath, out: StrPath) -> Path:
    """Writes a page of under 2 MB that shows these runs, or one, and returns its path; an earlier report there is
    replaced.

    Raises BertsmithError for a folder that is not a run's, for an `out` that is something else than a report, and for
    more runs than such a page holds.
    """
    out = files.as_path(out, "out")
    _check_out(out)
    runs = [runs] if isinstance(runs, str | os.PathLike) or not isinstance(runs, Iterable) else runs
    folders = [files.as_path(run, "a run") for run in runs]
    if not folders:
        raise BertsmithError("no run is named", "report", "name one or several folders of runs")
    read = read_runs(folders)
    limits = Limits()
    for _ in range(_TRIES):
        text = page(read, limits)
        count = len(text.encode())
        if count < MOST_BYTES:
            files.write_text(out, text)
            less = "" if limits == Limits() else "; long tables and curves are shortened, which the page says"
            say(f"report: {counted(len(read), 'run')}, {size(count)}{less}")
            return out
        limits = limits.halved()
    what = f"a page of these {len(read)} runs would take {size(count)}, and the most is {size(MOST_BYTES)}"
    raise BertsmithError(what, out, "name fewer runs")


def _check_out(out: Path) -> None:
    files.check_file(out)
    if not out.exists():
        return
    with files.read_errors(out), open(out, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.startswith(DOCTYPE.encode()) or str(generator()).encode() not in head:
        what = "there is a file already, and it is not a report, so it is not replaced"
        raise BertsmithError(what, out, "choose another --out, or remove it")
