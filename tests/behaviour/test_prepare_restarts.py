"""Promise: the same bytes for any number of workers, after any number of kills, and nothing finished is ever spoilt."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.engines import parts
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.stages import clean
from made_corpora import (
    OPTIONS,
    children,
    contents,
    hold,
    interrupted_after,
    made_parts,
    start,
    start_command,
    start_script,
    wait_for,
)


def test_the_same_bytes_for_any_number_of_workers(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """More of them than the two cores that a test is promised."""
    prepare(source, tmp_path / "corpus", options=PrepareOptions(**OPTIONS, workers=3))
    assert contents(tmp_path / "corpus") == undisturbed


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("stage", "parts"), [("cleaned", 3), ("tokens", 5), ("shards", 1)])
def test_kill_the_parent_and_run_again(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], stage: str, parts: int
) -> None:
    out = tmp_path / "corpus"
    with start(source, out, hold(out, stage, parts)) as process:
        caught = wait_for(lambda: made_parts(out, stage) >= parts, process)
        assert caught, "the preparation ended before it could be killed"
        workers = children(process)
        assert workers
        assert process.poll() is None
    assert wait_for(lambda: all(map(gone, workers))), "workers end with their parent"
    assert not (out / "corpus.json").exists()
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_a_worker_and_the_run_goes_on(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """The pool is made anew, by a script without a `__main__` guard, which workers must not import."""
    out = tmp_path / "corpus"
    process = start_script(source, out, tmp_path, hold(out, "cleaned", 2))
    assert wait_for(lambda: made_parts(out, "cleaned") >= 2, process)
    os.kill(children(process)[0], signal.SIGKILL)
    (tmp_path / "go").touch()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "a worker process was killed" in errors
    assert contents(out) == undisturbed


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_command_which_says_how_to_go_on(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], number: signal.Signals, status: int
) -> None:
    out = tmp_path / "corpus"
    with start_command(source, out, "--workers", "2") as process:
        assert wait_for(lambda: made_parts(out, "cleaned") >= 2, process)
        process.send_signal(number)
        _, errors = process.communicate()
        assert process.wait() == status
    assert errors.splitlines()[-2:] == [
        f"warning: {number.name} received: parts that are under way are finished or dropped",
        "stopped; finished parts are kept, and the same command continues from them",
    ]
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


def prepare_up_to(stage: str, source: Path, out: Path) -> None:
    """A preparation that is stopped when all parts of a stage are made."""
    with interrupted_after(stage):
        prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))


def test_finished_parts_are_not_made_again(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    out, marks = tmp_path / "corpus", dict[Path, int]()
    for stage in ("clean_part", "find_duplicates", "count_part_words", "tokenise_part", "assemble_shard"):
        prepare_up_to(stage, source, out)
        now = {path: path.stat().st_mtime_ns for path in out.glob(".work/**/part.done")}
        assert marks.items() < now.items(), "old parts are as they were, and there are new ones"
        marks = now
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


def test_parts_of_another_version_are_made_again(
    source: Path,
    tmp_path: Path,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else a corpus would hold texts by two sets of rules."""
    out = tmp_path / "corpus"
    with monkeypatch.context() as earlier:
        earlier.setattr(parts, "versions", lambda: (("bertsmith", "0.0.1"),))
        earlier.setattr(clean, "clean_text", lambda text, name, changed: text.strip().upper())
        prepare_up_to("clean_part", source, out)
    caplog.set_level("INFO")
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert "is made again, since their rules may be others" in caplog.text
    assert contents(out) == undisturbed


def test_a_part_that_a_power_cut_spoilt_is_made_again(
    source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "corpus"
    prepare_up_to("tokenise_part", source, out)
    for stage, name in (("cleaned", "texts.bin"), ("tokens", "train.tokens.npy")):
        path = next(iter(sorted((out / ".work" / stage).glob(f"*/{name}"))))
        path.write_bytes(bytes(path.stat().st_size))
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


@pytest.mark.parametrize("successes", [0, 15, 65])
def test_a_full_disk_stops_cleanly_and_running_again_ends_the_same(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch, successes: int
) -> None:
    out, save, left = tmp_path / "corpus", np.lib.format.write_array, [successes]

    def full(file: Any, array: Any, *args: Any, **options: Any) -> None:
        if left[0] == 0:
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        save(file, array, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", full)
        with pytest.raises(BertsmithError, match="No space left") as caught:
            prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert "run the command again" in caught.value.fix
    assert not (out / "corpus.json").exists()
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


def test_two_runs_into_one_folder_refuse_each_other(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    with start(source, out, hold(out, "cleaned", 1), workers=1) as process:
        assert wait_for(lambda: (out / ".work" / "cleaned").is_dir(), process)
        with pytest.raises(BertsmithError, match="another process is preparing"):
            prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
        (tmp_path / "go").touch()
        _, errors = process.communicate()
        assert process.wait() == 0, errors


def test_a_finished_corpus_is_opened_or_refused_never_overwritten(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, text = tmp_path / "corpus", tmp_path / "text.txt"
    text.write_bytes(source.read_bytes())
    options = PrepareOptions(**OPTIONS, workers=1)
    prepare(text, out, options=options)
    before = contents(out)
    with caplog.at_level("INFO", "bertsmith"):
        prepare([str(text)], out, options=PrepareOptions(**OPTIONS, workers=2))
    assert "nothing to do" in caplog.text
    for change, message in (
        ({"held_out": 0.2}, "held_out: 0.1 in the folder, 0.2 requested"),
        ({"vocabulary_size": 1024}, "vocabulary_size: 512 in the folder, 1024 requested"),
    ):
        with pytest.raises(BertsmithError, match=message) as caught:
            prepare(text, out, options=PrepareOptions(**{**OPTIONS, **change}))
        assert "--out" in caught.value.fix
    tokenizer = out / "tokenizer"
    with pytest.raises(BertsmithError, match="tokenizer: trained in the folder"):
        prepare(text, out, tokenizer=tokenizer, options=options)
    with text.open("a") as file:
        file.write("\nOne more line that was added since.")
    with pytest.raises(BertsmithError, match="changed since"):
        prepare(text, out, options=options)
    assert contents(out) == before


def test_other_options_reuse_what_still_holds_of_unfinished_work(source: Path, tmp_path: Path) -> None:
    """Killed before it was published, then asked for with another shard size: the result is that of a fresh run."""
    out, fresh = tmp_path / "corpus", tmp_path / "fresh"
    prepare_up_to("assemble_shard", source, out)
    other = PrepareOptions(**{**OPTIONS, "shard_tokens": 90_000, "held_out": 0.3}, workers=1)
    prepare(source, out, options=other)
    prepare(source, fresh, options=other)
    assert contents(out) == contents(fresh)


@pytest.mark.parametrize("moves", [0, 1, 3])
def test_stopped_while_the_finished_corpus_is_moved_into_place(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], moves: int
) -> None:
    out, replace, left = tmp_path / "corpus", Path.replace, [moves]

    def stopped(self: Path, target: Path) -> Path:
        if target.parent == out:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    if moves == 1:  # what was made for other options is not passed off as this
        other = PrepareOptions(**{**OPTIONS, "held_out": 0.2}, workers=1)
        assert prepare(source, out, options=other).account["made_of"]["options"]["held_out"] == 0.2
        return
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


def test_a_corpus_below_its_own_source_is_the_same_and_found_finished(source: Path, tmp_path: Path) -> None:
    """As `bertsmith prepare .` makes it: neither the work nor the corpus is ever taken for text."""
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "text.txt").write_bytes(source.read_bytes())
    options, out = PrepareOptions(**OPTIONS, workers=1), texts / "corpus"
    prepare(texts, tmp_path / "elsewhere", options=options)
    with interrupted_after("clean_part", 3):
        prepare(texts, out, options=options)
    prepare(texts, out, options=options)
    assert contents(out) == contents(tmp_path / "elsewhere")
    made = (out / "corpus.json").stat().st_mtime_ns
    prepare(texts, out, options=options)
    assert (out / "corpus.json").stat().st_mtime_ns == made
