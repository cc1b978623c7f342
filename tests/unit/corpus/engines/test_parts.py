"""Parts made once, duplicates found range by range, shards cut evenly, and the engine that runs it all."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures.process import _ExecutorManagerThread
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.engines.local import LocalEngine, check_engine
from bertsmith.corpus.engines.parts import MARK, by_other_versions, finished, make_once, part_folder
from bertsmith.corpus.filters.duplicates import dropped_rows, find_duplicates
from bertsmith.corpus.filters.ranges import RANGE_ROWS, RangeTask, ranges_for
from bertsmith.corpus.shards import write_shard
from bertsmith.corpus.sources.find import SourceFile
from bertsmith.corpus.stages.assemble import Piece, plan_shards
from bertsmith.corpus.stages.clean import CleanedPart, CleanTask, clean_part, plan_parts
from bertsmith.rows.lines import Slice


def test_a_part_is_made_once_and_again_when_made_of_something_else(tmp_path: Path) -> None:
    made: list[str] = []

    def make(folder: Path) -> dict[str, Any]:
        made.append("x")
        (folder / "data").write_text("data")
        return {"n": len(made)}

    folder = tmp_path / "part"
    assert make_once(folder, "a", make) == {"n": 1}
    assert make_once(folder, "a", make) == {"n": 1}
    assert make_once(folder, "b", make) == {"n": 2}
    for damaged in ("cut", "dat\0"):
        (folder / "data").write_text(damaged)
        assert finished(folder, "b") is None
    assert make_once(folder, "b", make) == {"n": 3}
    (folder / MARK).write_text("{")
    assert make_once(folder, "b", make) == {"n": 4}


@pytest.mark.parametrize("damaged", ["", "{", "[1, 2]", "null", '"text"', "7"])
def test_a_part_whose_mark_is_damaged_is_none_of_another_version(tmp_path: Path, damaged: str) -> None:
    folder = part_folder(tmp_path / "stage", 0)
    make_once(folder, "a", lambda aside: {})
    assert not by_other_versions(tmp_path)
    (folder / MARK).write_text(damaged)
    assert finished(folder, "a") is None
    assert not by_other_versions(tmp_path)
    other = part_folder(tmp_path / "stage", 1)
    make_once(other, "a", lambda aside: {})
    mark = json.loads((other / MARK).read_text())
    (other / MARK).write_text(json.dumps(mark | {"versions": "others"}))
    assert by_other_versions(tmp_path)
    assert finished(other, "a") is None


def test_of_two_that_make_a_part_both_return_what_is_there(tmp_path: Path) -> None:
    """Where what making it returns is not always the same, the later one must not speak of what it threw away."""

    def make(folder: Path) -> dict[str, Any]:
        make_once(tmp_path / "part", "a", lambda other: {"by": "the first to finish"})
        return {"by": "the other"}

    assert make_once(tmp_path / "part", "a", make) == {"by": "the first to finish"}
    assert finished(tmp_path / "part", "a") == {"by": "the first to finish"}


def test_a_part_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    make_once(folder, "a", lambda aside: {"n": 1})

    def fail(aside: Path) -> dict[str, Any]:
        (aside / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(BertsmithError, match="No space left"):
        make_once(folder, "b", fail)
    assert finished(folder, "a") == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["part"]


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_parts_cover_every_byte_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, bool, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("sources")
    listed = [
        SourceFile(
            str(folder / str(number)), str(number), "line" if sliced else "file", "gz" if packed else "", size, ""
        )
        for number, (size, sliced, packed) in enumerate(files)
    ]
    for file in listed:
        Path(file.path).write_bytes(b"x" * file.size_bytes)
    slices = [part for parts in plan_parts(listed, 100) for part in parts]
    for file in listed:
        own = [part for part in slices if part.path == file.path]
        assert own[0].begin == 0
        assert own[-1].end is None
        assert [part.end for part in own[:-1]] == [part.begin for part in own[1:]]
        assert len(own) == 1 or (not file.codec and file.kind == "line")
    assert [part.path for part in slices] == sorted(
        (part.path for part in slices), key=lambda path: int(Path(path).name)
    )
    assert all(plan_parts(listed, 100)), "no part is empty"


def cleaned_part(folder: Path, number: int, lines: list[str]) -> Path:
    source = folder / f"{number}.txt"
    source.write_text("\n".join(lines))
    task = CleanTask(folder / f"part{number}", "x", (Slice(str(source), source.name, "line"),), ReadOptions("line"), 1)
    clean_part(task)
    return task.folder


@pytest.mark.parametrize("ranges", [1, 3])
def test_later_copies_are_found_whatever_the_ranges(tmp_path: Path, ranges: int) -> None:
    draw = np.random.default_rng(5)
    lines = [[f"text number {n}" for n in draw.integers(0, 40, size=30)] for _ in range(4)]
    parts = tuple(cleaned_part(tmp_path, number, each) for number, each in enumerate(lines))
    tasks = [RangeTask(tmp_path / f"range{index}", "x", "duplicates", index, ranges, parts) for index in range(ranges)]
    found = sum(find_duplicates(task)["dropped"] for task in tasks)
    seen, expected = set[str](), list[list[int]]()
    for each in lines:
        expected.append([index for index, line in enumerate(each) if line in seen or line in each[:index]])
        seen.update(each)
    drops = [dropped_rows([task.folder for task in tasks], part)[:, 1].tolist() for part in range(4)]
    assert drops == expected
    assert found == sum(map(len, expected))
    assert ranges_for(RANGE_ROWS + 1) == 2


def test_cleaned_documents_read_back(tmp_path: Path) -> None:
    part = CleanedPart.open(cleaned_part(tmp_path, 0, ["première", "  second [SEP]  ", "third"]))
    documents = dict(part.documents([0, 2]))
    assert {index: document.text for index, document in documents.items()} == {0: "première", 2: "third"}
    assert documents[0].id == "0.txt@0"
    assert part.lengths[1].tolist()[1:3] == [12, 16]


def test_what_is_held_out_stays_held_out_in_a_larger_corpus(tmp_path: Path) -> None:
    lines = [f"document number {number}" for number in range(2000)]
    small, large = (CleanedPart.open(cleaned_part(tmp_path, n, each)) for n, each in enumerate((lines[:1000], lines)))
    assert np.array_equal(small.held_out(0.1), large.held_out(0.1)[:1000])
    assert 60 < small.held_out(0.1).sum() < 140
    assert not small.held_out(0.0).any()
    assert large.held_out(0.2)[large.held_out(0.1)].all(), "a larger share holds the smaller one"
    both = (large.held_out(0.5) & large.sampled(0.5)).sum()
    assert 400 < both < 600, "the sample does not depend on what is held out"


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.lists(st.integers(1, 30), max_size=8), max_size=5), shard_tokens=st.integers(1, 120))
def test_shards_hold_every_document_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], shard_tokens: int
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    folders = []
    for number, lengths in enumerate(parts):
        part = folder / str(number)
        part.mkdir()
        arrays = (np.zeros(sum(lengths), np.uint16), np.array(lengths, np.uint16), np.ones(len(lengths), np.uint32))
        write_shard(part, "train", arrays)
        folders.append(part)
    shards = plan_shards(folders, "train", sum(map(sum, parts)), shard_tokens)
    pieces = [piece for shard in shards for piece in shard]
    documents = [(piece.part, index) for piece in pieces for index in range(piece.first, piece.last)]
    assert documents == [(folders[n], index) for n, lengths in enumerate(parts) for index in range(len(lengths))]
    sizes = [sum(piece.last - piece.first for piece in shard) for shard in shards]
    assert all(size >= 2 for size in sizes) or len(shards) == 1


def test_shards_are_of_even_size(tmp_path: Path) -> None:
    arrays = (np.zeros(10_000, np.uint16), np.full(1000, 10, np.uint16), np.ones(1000, np.uint32))
    write_shard(tmp_path, "train", arrays)
    shards = plan_shards([tmp_path], "train", 10_000, 3000)
    assert shards == [[Piece(tmp_path, 0, 334)], [Piece(tmp_path, 334, 667)], [Piece(tmp_path, 667, 1000)]]


def _square(number: int) -> int:
    return number * number


def _fail_at_three(number: int) -> int:
    if number == 3:
        raise BertsmithError("three", "task 3", "leave it out")
    return number


def _die_once(folder: Path) -> int:
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def _die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _threads(number: int) -> str:
    return f"{os.environ['TOKENIZERS_PARALLELISM']} {multiprocessing.parent_process() is not None}"


def test_the_engine_returns_results_in_order_and_tells_each() -> None:
    for workers in (1, 2):
        told: dict[int, int] = {}
        with LocalEngine(workers) as engine:
            assert engine.run(_square, range(9), told.__setitem__) == [n * n for n in range(9)]
            assert engine.run(_square, []) == []
            assert set(engine.run(_threads, range(3))) == {f"false {workers == 2}"}
        assert told == {n: n * n for n in range(9)}
    with pytest.raises(BertsmithError, match="engine 'locl'"):
        check_engine("locl")


def test_errors_of_parts_and_killed_workers(tmp_path: Path) -> None:
    with LocalEngine(2) as engine:
        with pytest.raises(BertsmithError, match="task 3"):
            engine.run(_fail_at_three, range(8))
        pids = engine.run(_die_once, [tmp_path] * 5)
        assert len(pids) == 5
        with pytest.raises(BertsmithError, match="killed 2 times"):
            engine.run(_die, range(4))


@pytest.mark.parametrize("seen", ["before it starts", "as it has started"])
def test_a_worker_that_starts_while_another_is_killed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """Python 3.11 ends the workers that it knows, then waits for all; from 3.12 on no other starts between the two."""
    died, begun, ended = threading.Event(), threading.Event(), threading.Event()
    started = list[object]()
    start = SpawnProcess.start
    terminate, shut_down = _ExecutorManagerThread.terminate_broken, _ExecutorManagerThread.shutdown_workers

    def start_late(process: SpawnProcess) -> None:
        started.append(process)
        if len(started) == 2:
            died.wait(20)
            if seen == "before it starts":
                begun.set()
                ended.wait(2)
        start(process)
        if len(started) == 2:
            begun.set()
            ended.wait(2)

    def terminate_late(manager: Any, cause: Any) -> None:
        died.set()
        begun.wait(20)
        terminate(manager, cause)

    def shut_down_early(manager: Any) -> None:
        shut_down(manager)
        for _ in range(0 if ended.is_set() else 200):
            ended.set()
            if len(manager.processes) == 2:
                break
            time.sleep(0.01)

    monkeypatch.setattr(SpawnProcess, "start", start_late)
    monkeypatch.setattr(_ExecutorManagerThread, "terminate_broken", terminate_late)
    monkeypatch.setattr(_ExecutorManagerThread, "shutdown_workers", shut_down_early)
    with LocalEngine(2) as engine, pytest.raises(BertsmithError, match="killed 2 times"):
        engine.run(_die, [2, 0])


def test_workers_that_cannot_be_started_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refused)
    with LocalEngine(2) as engine, pytest.raises(BertsmithError, match=r"could not be started .*unavailable") as caught:
        engine.run(_square, range(4))
    assert caught.value.where == "workers = 2"
