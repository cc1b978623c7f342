"""`bertsmith report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bertsmith.cli.verb import Call, Verb


@dataclass(frozen=True)
class ReportFlags:
    """Flags of `report`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders that `pretrain`, `finetune` or `distill` wrote, finished or not."""
    out: Path
    """The page, an HTML file; an earlier report there is replaced, any other file is not."""


def _report(call: Call) -> None:
    flags = call.read(ReportFlags)
    from bertsmith.report.report import write_report

    print(write_report(flags.runs, flags.out))


VERBS = {
    "report": Verb(
        "One page with the curves, tables, environment and warnings of one or several runs, to read in any browser.",
        "  bertsmith report runs/mini --out mini.html\n  bertsmith report runs/first runs/second --out both.html",
        _report,
    ),
}
