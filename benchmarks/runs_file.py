"""What the scripts that compare scores share: their flags, and a file of runs of which none is done twice.

Every run is written to the JSON file when it ends, and one that is there is not run again, so a killed script continues
where it was. Several processes may write to one file.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base import files
from bertsmith.base.device import choose_device
from bertsmith.base.locks import alone_in
from bertsmith.base.versions import code_state, first_core, read_cpuinfo, version_of
from bertsmith.recipes.loader import as_yaml
from bertsmith.recipes.schema import Recipe

_PACKAGES = ("bertsmith", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy")


def flags(text: str | None, *folders: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of a script with the verbs `run` and `table`, and that of `run`. text: its help. folders: that `run`
    must be given, and whose table can be drawn; without any it takes --data."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run, table = verbs.add_parser("run"), verbs.add_parser("table")
    for each in folders:
        run.add_argument(f"--{each}", type=Path, required=True)
    if folders:
        table.add_argument("--png", type=Path)
    else:
        run.add_argument("--data", type=Path, default=Path(os.environ.get("BERTSMITH_DATA", "")))
    run.add_argument("--out", type=Path, required=True)
    table.add_argument("scores", type=Path)
    return parser, run


def once(out: Path, key: dict[str, Any], names: Sequence[str], run: Callable[[], dict[str, Any]]) -> None:
    """A run, unless the file has it. key: all that decides what it comes to, of which `names` tell runs apart. run:
    gives the rest of its row, the "score" among it. Ends the script where the run was done with another key."""
    name = ", ".join(f"{part} {key[part]}" for part in names)
    if _has(out, _rows(out), key, names):
        return
    start = time.perf_counter()
    found = {"seconds": 0.0, **run()}
    found["seconds"] = round(found["seconds"] or time.perf_counter() - start, 1)
    with _alone(out.parent):
        # Again, for another process may have written to the file meanwhile.
        rows = _rows(out)
        if not _has(out, rows, key, names):
            files.write_json(out, [*rows, {**key, **found, **machine()}])
    print(f"{name}: {found['score']:.4f} in {found['seconds']:.0f} s", flush=True)


def _rows(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = files.read_json(out) if out.is_file() else []
    return rows


def _has(out: Path, rows: Sequence[dict[str, Any]], key: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether a run is among the rows. Ends the script where it is, with another key."""
    for row in rows:
        if all(row[part] == key[part] for part in names):
            if any(row.get(part) != value for part, value in key.items()):
                name = ", ".join(f"{part} {key[part]}" for part in names)
                sys.exit(f"{out}: {name} was run with other settings or rows; write to another file")
            return True
    return False


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for others that write a row into this folder, then keeps them waiting."""
    while True:
        with alone_in(folder) as alone:
            if alone:
                yield
                return
        time.sleep(0.05)


def identity(recipe: Recipe) -> str:
    """A hash of all fields of a recipe, those of its preset among them."""
    return hashlib.sha256(as_yaml(asdict(recipe)).encode()).hexdigest()[:16]


def machine() -> dict[str, Any]:
    """What a run was made with. auto: the precision that "auto" is here."""
    cpu = first_core(read_cpuinfo(), "model name") or "unknown"
    facts = {"cpu": cpu, "cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS")}
    facts["commit"] = code_state()
    versions = {name: found for name in _PACKAGES if (found := version_of(name))}
    return {"versions": versions, **facts, "auto": choose_device("auto", "auto").precision}


def deviation(scores: Sequence[float] | np.ndarray) -> float:
    """With K - 1 below; NaN for a single one."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
