"""The cases themselves, each run as `python -m bertsmith.bench.cases SPEC`: a side loads what it needs, then works.

A spec is a JSON file of a `CaseSpec`; the result is written in its place.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertsmith.bench.batches import cases
from bertsmith.bench.prepare import sides
from bertsmith.bench.process import CaseSpec, Work

SIDES: dict[str, Callable[[CaseSpec], Work]] = {**cases.SIDES, **sides.SIDES}


def main(path: Path) -> None:
    """Runs the case of a spec and leaves its result in the spec's place."""
    values = json.loads(path.read_text(encoding="utf-8"))
    spec = CaseSpec(**values | {name: Path(values[name]) for name in ("source", "out", "tokenizer")})
    try:
        work = SIDES[spec.side](spec)
    except ModuleNotFoundError as error:
        result: dict[str, Any] = {"missing": (error.name or "a package").partition(".")[0]}
    else:
        startup = cpu_seconds()
        result = work() | {"startup_seconds": startup}
    path.write_text(json.dumps(result), encoding="utf-8")


def cpu_seconds() -> float:
    """User and system time of this process and of those it waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
