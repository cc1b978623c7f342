"""The engine that the options name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import locked
from bertsmith.corpus.engines.array_jobs import ArrayEngine, Seat, held_together
from bertsmith.corpus.engines.claims import SessionOver
from bertsmith.corpus.engines.local import Engine, LocalEngine
from bertsmith.corpus.engines.nodes import versions
from bertsmith.corpus.engines.parts import WORK, fingerprint


@contextmanager
def open_engine(
    out: Path, plan: str, engine: str, address: str | None, array_task: str | None, workers: int | None
) -> Iterator[Engine]:
    """The engine for a corpus folder, closed at the end. plan: a hash of what is made. The others: see PrepareOptions.

    Raises BertsmithError where the engine is not installed, or its cluster not there.
    """
    work = (out / WORK).absolute()
    if array_task is not None:
        seat = Seat.parse(array_task)
        with ArrayEngine(work, seat, fingerprint(plan, versions()), workers) as array, _unless_published(out):
            yield array
    elif engine == "ray":
        from bertsmith.corpus.engines.ray_cluster import RayEngine  # here, so that Ray is needed by none but its users

        with RayEngine(work, address, workers) as ray:
            yield ray
    else:
        with LocalEngine(workers) as local:
            yield local


@contextmanager
def _unless_published(out: Path) -> Iterator[None]:
    """Ends the block where another task published the corpus meanwhile, at which the work under it went away."""
    try:
        yield
    except (SessionOver, OSError, BertsmithError) as error:
        if (out / "corpus.json").is_file():
            shutil.rmtree(out / WORK, ignore_errors=True)  # what this task began anew after it went away
            return
        if isinstance(error, SessionOver):
            what = "the claims of this array's tasks were removed while they worked"
            raise BertsmithError(what, out / WORK, "run them again: finished parts are kept") from error
        raise


def held(array_task: str | None, out: Path) -> AbstractContextManager[object]:
    """Holds the corpus folder for this run: for it alone, or for it and the other tasks of its array."""
    return locked(out) if array_task is None else held_together(out)
