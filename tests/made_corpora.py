"""Made-up text that is prepared in seconds, and what tests ask about a preparation, or do to it."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.tally import EXAMPLES
from bertsmith.corpus.engines.local import LocalEngine
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.flags import flag
from made_commands import Command

OPTIONS: dict[str, Any] = {
    "documents": "line",
    "held_out": 0.1,
    "vocabulary_size": 512,
    "part_bytes": 11_000,
    "shard_tokens": 11_000,
}
# Has a preparation that has made so many parts of a stage come no further until there is a file `go` beside its corpus,
# or those that started it are gone: held up itself, a test would else find it finished.
HOLD = """
import os, time
from pathlib import Path
from bertsmith.corpus.engines.local import LocalEngine
def holding(run, work=Path({out!r}) / ".work", go=Path({out!r}).with_name("go"), parent=os.getppid()):
    def is_held():
        made = len(list(work.glob("{stage}/*/part.done")))
        return made >= {parts} and not go.exists() and os.getppid() == parent
    def held(self, function, tasks, finished=lambda number, result: None):
        def ended(number, result):
            finished(number, result)
            while is_held():
                time.sleep(0.01)
        return run(self, function, tasks, ended)
    return held
LocalEngine.run = holding(LocalEngine.run)
"""
SCRIPT = """
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.options import PrepareOptions
prepare({source!r}, {out!r}, options=PrepareOptions(**{options!r}))
"""


def made_text(path: Path) -> Path:
    """A file of 700 documents of made-up words, fifty of them copies."""
    draw = random.Random(7)
    words = ["".join(draw.choices("aeioubcdfglmnrst", k=draw.randint(2, 9))) for _ in range(1500)]
    lines = [" ".join(draw.choices(words, k=draw.randint(5, 60))).capitalize() + "." for _ in range(650)]
    lines += draw.choices(lines, k=50)
    path.write_text("\n".join(lines))
    return path


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file of a corpus, the lock left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def hold(out: Path, stage: str, parts: int) -> str:
    """Python that has a preparation into this folder stop there, as HOLD says."""
    return HOLD.format(out=str(out), stage=stage, parts=parts)


def start(source: Path, out: Path, holds: str = "", **changes: Any) -> Command:
    """A preparation in a process of its own. holds: as of `hold`."""
    options = {**OPTIONS, "workers": 2, **changes}
    return Command(str(source), str(out), json.dumps(options), holds, does=_prepare)


def _prepare(source: str, out: str, options: str, holds: str) -> None:
    exec(holds, {})
    prepare(source, out, options=PrepareOptions(**json.loads(options)))


def start_script(source: Path, out: Path, folder: Path, holds: str = "", **changes: Any) -> subprocess.Popen[str]:
    """The same by a script without a `__main__` guard, as people write them."""
    options = {**OPTIONS, "workers": 2, **changes}
    script = folder / f"script{len(list(folder.glob('script*.py')))}.py"
    script.write_text(holds + SCRIPT.format(source=str(source), out=str(out), options=options))
    return subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)


def start_command(source: Path, out: Path, *flags: str) -> Command:
    """The same from a command line."""
    options = [text for name, value in OPTIONS.items() for text in (flag(name), str(value))]
    return Command("prepare", str(source), "--out", str(out), *options, *flags)


Running = Command | subprocess.Popen[str]


def wait_for(condition: Callable[[], bool], process: Running | None = None) -> bool:
    """Waits at most a minute; false where the process ended before."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if condition():
            return True
        if process is not None and process.poll() is not None:
            return False
        time.sleep(0.005)
    raise AssertionError("waited in vain")


def balanced(corpus: Corpus) -> dict[str, Any]:
    """The counts of a corpus, in which what was read is what was kept and what was dropped, with examples of these."""
    counts = corpus.counts
    dropped = counts["dropped"].values()
    for what, each in (("documents", "count"), ("bytes", "bytes")):
        assert counts["kept"][what] + sum(entry[each] for entry in dropped) == counts["read"][what]
    assert all(len(entry["examples"]) == min(EXAMPLES, entry["count"]) for entry in dropped)
    return counts


@contextmanager
def interrupted_after(stage: str, parts: int | None = None) -> Iterator[None]:
    """Stops the preparation inside it when so many parts of a stage are made, or all; it must come to that."""
    run = LocalEngine.run

    def interrupted(self: LocalEngine, function: Any, tasks: Any, *finished: Any) -> Any:
        if function.__name__ != stage:
            return run(self, function, tasks, *finished)
        run(self, function, tasks[:parts], *finished)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


def made_parts(out: Path, stage: str) -> int:
    """How many parts of a stage are finished."""
    return len(list((out / ".work" / stage).glob("*/part.done")))


def children(process: Running) -> list[int]:
    """The worker processes, without the one that multiprocessing keeps to clean up. Linux only."""
    found = []
    try:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        found = [int(pid) for pid in listed if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    except OSError:  # a process ended meanwhile
        pass
    return found


def damaged_parquet(path: Path, texts: list[str]) -> None:
    """A file of texts in row groups of 100, of which the second cannot be read from some place on."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": texts})
    parquet.write_table(table, path, row_group_size=100, compression="zstd", use_dictionary=False)
    with parquet.ParquetFile(path) as file:
        page = file.metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[page + 60 : page + 120] = bytes(60)
    path.write_bytes(content)
