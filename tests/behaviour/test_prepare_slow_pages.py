"""Promise: a page that takes too long is tried again alone; if that fails too it is named, and the corpus says so."""

from __future__ import annotations

import bz2
import json
import re
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.corpus.inspect import inspect
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.corpus.stages import clean as cleaned
from bertsmith.corpus.wiki.dumps import SLOW
from made_corpora import contents, hold, interrupted_after, start, wait_for
from made_dumps import BIG, BIG_TEXT, seconds_of_slow_page, slow_dump

OPTIONS: dict[str, Any] = {"held_out": 0.1, "vocabulary_size": 512, "part_bytes": 60_000, "shard_tokens": 40_000}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_dump(tmp_path_factory.mktemp("source") / "wiki.xml")


@pytest.fixture(scope="module")
def seconds() -> float:
    return seconds_of_slow_page()


def options(page_seconds: float, workers: int | None = 1, **changes: Any) -> PrepareOptions:
    return PrepareOptions(**OPTIONS, page_seconds=page_seconds, workers=workers, **changes)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    corpus = prepare(source, out, options=options(60.0))
    assert corpus.account["reproducible"] is True
    assert not corpus.doubt
    return contents(out)


def set_aside(out: Path) -> list[Path]:
    """The marks of parts that were set aside."""
    return list((out / ".work" / "slow").glob("*/part.done"))


@pytest.mark.parametrize("changes", [{"workers": 1}, {"workers": 2}, {"workers": 1, "array_task": "1/2"}])
def test_what_passes_the_second_time_gives_the_same_bytes(
    source: Path,
    tmp_path: Path,
    seconds: float,
    undisturbed: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
) -> None:
    with caplog.at_level("INFO", "bertsmith"):
        prepare(source, tmp_path / "corpus", options=options(seconds / 3, **changes))
    said = [record.message for record in caplog.records if record.message.startswith("slow pages: 1 took more than")]
    assert len(said) == 1
    assert f"wiki.xml@{BIG}: Rows & rows, byte " in said[0]
    assert contents(tmp_path / "corpus") == undisturbed


@pytest.fixture(scope="module")
def given_up(source: Path, seconds: float, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus for which the big page took too long both times."""
    return prepare(source, tmp_path_factory.mktemp("given_up") / "corpus", options=options(seconds / 100))


def test_what_fails_twice_is_named_and_the_rest_goes_on(source: Path, given_up: Corpus, seconds: float) -> None:
    counts = given_up.counts
    assert counts["read"]["documents"] == 61
    assert counts["kept"]["documents"] == 60
    assert {what: entry["count"] for what, entry in counts["dropped"].items()} == {SLOW: 1}
    assert counts["dropped"][SLOW]["bytes"] == len(BIG_TEXT.encode())
    assert given_up.account["reproducible"] is False
    told = given_up.account["given_up"]
    assert told["page_seconds"] == seconds / 100
    (name,) = told["pages"]
    assert name.startswith(f"wiki.xml@{BIG}: Rows & rows, byte ")
    byte = int(name.rpartition(" ")[2].replace(",", ""))
    assert source.read_bytes()[byte:].startswith(b"<page>\n    <title>Rows &amp; rows</title>")
    assert name in inspect(given_up)
    assert "not reproducible: 1 page" in inspect(given_up)


def test_all_that_is_said_of_it_says_so(
    source: Path, given_up: Corpus, seconds: float, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["verify", str(given_up.folder)]) == 0
    assert "not reproducible: 1 page" in capsys.readouterr().out
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**OPTIONS, "workers": 1}.items()]
    for out in (tmp_path / "corpus", given_up.folder):  # made now, and found
        assert main(["prepare", str(source), f"--out={out}", f"--page-seconds={seconds / 100}", *flags]) == 0
        assert "warning: this corpus is not reproducible: 1 page" in capsys.readouterr().err


def test_workers_agree_where_the_same_page_is_given_up(
    source: Path, tmp_path: Path, given_up: Corpus, seconds: float
) -> None:
    prepare(source, tmp_path / "corpus", options=options(seconds / 100, workers=2))
    assert contents(tmp_path / "corpus") == contents(given_up.folder)


def test_another_limit_is_another_corpus_only_where_pages_were_given_up(
    source: Path, tmp_path: Path, given_up: Corpus, undisturbed: dict[str, str]
) -> None:
    with pytest.raises(
        BertsmithError, match=r"page_seconds: .* in the folder, and pages were given up, 60\.0 requested"
    ):
        prepare(source, given_up.folder, options=options(60.0))
    prepare(source, tmp_path / "corpus", options=options(60.0))
    prepare(source, tmp_path / "corpus", options=options(30.0))
    assert contents(tmp_path / "corpus") == undisturbed


def made_once(out: Path) -> dict[Path, int]:
    """The marks of cleaned parts, and when each was made."""
    return {path: path.stat().st_mtime_ns for path in (out / ".work" / "cleaned").glob("*/part.done")}


@pytest.mark.parametrize(("stage", "parts"), [("clean_part", None), ("clean_again", 0), ("clean_again", None)])
def test_stopped_between_the_tries(
    source: Path,
    tmp_path: Path,
    seconds: float,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    parts: int | None,
) -> None:
    out, tries = tmp_path / "corpus", list[float]()
    clean_into = cleaned.clean_into

    def counted(folder: Path, task: cleaned.CleanTask) -> dict[str, Any]:
        tries.append(task.options.page_seconds)
        return clean_into(folder, task)

    with interrupted_after(stage, parts):
        prepare(source, out, options=options(seconds / 3))
    assert len(set_aside(out)) == 1
    monkeypatch.setattr(cleaned, "clean_into", counted)
    with interrupted_after("tokenise_part", 0):
        prepare(source, out, options=options(seconds / 3))
    left = [] if (stage, parts) == ("clean_again", None) else [10 * seconds / 3]
    assert tries == pytest.approx(left), "what was tried is not tried again"
    prepare(source, out, options=options(seconds / 3))
    assert contents(out) == undisturbed


@pytest.mark.parametrize("stage", ["clean_again", "tokenise_part", "assemble_shard"])
def test_what_was_given_up_is_read_by_a_run_with_a_higher_limit(
    source: Path, tmp_path: Path, seconds: float, undisturbed: dict[str, str], stage: str
) -> None:
    out = tmp_path / "corpus"
    with interrupted_after(stage):
        prepare(source, out, options=options(seconds / 100))
    before = made_once(out)
    with interrupted_after("find_duplicates", 0):
        prepare(source, out, options=options(60.0))
    assert len(dict(made_once(out).items() - before.items())) == 1, "no part but that of the page is made again"
    prepare(source, out, options=options(60.0))
    assert contents(out) == undisturbed


@pytest.mark.skipif(sys.platform != "linux", reason="kills with SIGKILL")
def test_killed_while_the_page_is_tried_again(
    source: Path, tmp_path: Path, seconds: float, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "corpus"
    holds = hold(out, "slow", 1)
    with start(source, out, holds, **OPTIONS, documents="file", page_seconds=seconds / 3) as process:
        assert wait_for(lambda: bool(set_aside(out)), process), "the preparation ended before it could be killed"
        assert process.poll() is None
    assert not (out / "corpus.json").exists()
    prepare(source, out, options=options(seconds / 3))
    assert contents(out) == undisturbed


def test_in_a_thread_the_limit_is_polled_and_that_is_said(
    source: Path, tmp_path: Path, seconds: float, undisturbed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "bertsmith"):
        call = partial(prepare, source, tmp_path / "corpus", options=options(seconds / 3))
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert contents(tmp_path / "corpus") == undisturbed
    assert "slow pages: 1 took more" in caplog.text
    assert "time a page may take: looked at between paragraphs only" in caplog.text


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none(wrong: float) -> None:
    with pytest.raises(BertsmithError, match="page_seconds is"):
        options(wrong).check()


def test_a_page_of_a_packed_dump_is_named_by_its_block(source: Path, tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "wiki.bz2"
    path.write_bytes(bz2.compress(source.read_bytes()))
    corpus = prepare(path, tmp_path / "corpus", options=options(seconds / 100))
    (name,) = json.loads((corpus.folder / "corpus.json").read_text())["given_up"]["pages"]
    assert re.fullmatch(rf"wiki\.bz2@{BIG}: Rows & rows, in the block at byte 4", name), name
