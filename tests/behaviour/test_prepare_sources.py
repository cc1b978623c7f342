"""Promise: the same text gives the same corpus whatever it comes as; poisonous rows and files cost themselves alone."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.corpus import pipeline
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import SPLITS, Corpus, verify
from bertsmith.corpus.stages.clean import plan_parts
from bertsmith.rows import lines, tables
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary
from made_commands import Command
from made_corpora import balanced, hold, wait_for

TEXTS = [f'Document {n} tells of "quotes", commas,\nlines and {n * 7919 % 1009} things.' for n in range(300)]
LONGEST, LONG = 1_000_000, 1_500_000


def options(**changes: Any) -> PrepareOptions:
    return PrepareOptions(**{"workers": 1, "held_out": 0.1, "part_bytes": 4000, "shard_tokens": 3000, **changes})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_vocabulary(TEXTS, 320)


def as_csv(texts: Sequence[str]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["n", "text"], *([n, text] for n, text in enumerate(texts))])
    return file.getvalue().encode()


def as_jsonl(texts: Sequence[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def as_parquet(texts: Sequence[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts)}), file, row_group_size=50)
    return file.getvalue()


def tokens(corpus: Corpus) -> list[Any]:
    """All tokens of a corpus, by split, in order."""
    verify(corpus)
    return [
        np.concatenate([corpus.open_shard(split, n).tokens for n in range(len(corpus.shards(split)))]).tolist()
        for split in SPLITS
    ]


WRITERS: dict[str, Callable[[Sequence[str]], bytes]] = {
    "a.csv": as_csv,
    "a.tsv": lambda texts: as_csv(texts).replace(b"\r\n", b"\n"),
    "a.csv.zst": lambda texts: zstandard.compress(as_csv(texts)),
    "a.parquet": as_parquet,
    "a.utf16.jsonl": lambda texts: as_jsonl(texts).decode().encode("utf-16"),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> list[Any]:
    """The tokens of the texts, read as JSON lines."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "a.jsonl").write_bytes(as_jsonl(TEXTS))
    return tokens(prepare(folder / "a.jsonl", folder / "corpus", tokenizer=tokenizer, options=options()))


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_the_same_text_gives_the_same_tokens_for_any_kind_and_workers(
    name: str, tmp_path: Path, tokenizer: Tokenizer, expected: list[Any]
) -> None:
    (tmp_path / name).write_bytes(WRITERS[name](TEXTS))
    workers_and_parts = [(1, 1 << 20), (2 if name in ("a.csv", "a.parquet") else 1, 4000)]
    for workers, part_bytes in workers_and_parts:
        out = tmp_path / f"out-{workers}-{part_bytes}"
        wanted = options(workers=workers, part_bytes=part_bytes)
        corpus = prepare(tmp_path / name, out, tokenizer=tokenizer, options=wanted)
        assert tokens(corpus) == expected
        assert balanced(corpus)["kept"]["documents"] == len(TEXTS)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.zst", "a.utf16.jsonl"])
def test_large_packed_files_are_unpacked_and_give_the_same(name: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    pack = {**WRITERS, "a.jsonl.gz": lambda texts: gzip.compress(as_jsonl(texts), mtime=0)}[name]
    (tmp_path / name).write_bytes(pack(TEXTS))
    many, one = (
        prepare(tmp_path / name, tmp_path / f"out-{size}", tokenizer=tokenizer, options=options(part_bytes=size))
        for size in (500, 1 << 20)
    )
    assert tokens(many) == tokens(one)
    assert balanced(many) == balanced(one)


def run(arguments: list[str], given: bytes, folder: Path) -> tuple[int, str]:
    """The status of a command line, run in this process and in the folder with this as standard input, and what it
    says."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.chdir(folder)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        status = main(arguments)
    return status, said.getvalue()


def test_standard_input_is_a_source_that_can_be_gone_on_with(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    arguments = ["prepare", "-", "--tokenizer", "tokenizer", "--out", "corpus", "--held-out", "0.1", "--workers", "1"]
    status, said = run(arguments, as_csv(TEXTS), tmp_path)
    assert status == 0, said
    assert "source: csv, field 'text', from standard input" in said
    corpus = Corpus.open(tmp_path / "corpus")
    assert balanced(corpus)["kept"]["documents"] == len(TEXTS)
    assert corpus.account["made_of"]["sources"] == ["-"]
    status, said = run(arguments, as_csv(TEXTS), tmp_path)
    assert status == 0, said
    assert "from the same sources and options; nothing to do" in said
    status, said = run(arguments, as_csv(TEXTS[1:]), tmp_path)
    assert status == 2
    assert "made differently" in said
    assert not (tmp_path / "corpus" / ".work").exists(), "nothing of the refused input stays"


def held(folder: str, holds: str, *arguments: str) -> int:
    """The command line in a folder. holds: as of `hold`."""
    os.chdir(folder)
    exec(holds, {})
    return main(arguments)


def test_a_killed_run_goes_on_without_its_standard_input(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    rows = as_jsonl([f"{text} And {n}." for n in range(10) for text in TEXTS])
    (tmp_path / "in.jsonl").write_bytes(rows)
    expected = tokens(
        prepare(tmp_path / "in.jsonl", tmp_path / "expected", tokenizer=tokenizer, options=PrepareOptions(workers=1))
    )
    arguments = ["prepare", "-", "--tokenizer", "tokenizer", "--out", "corpus", "--workers", "1"]
    kept = tmp_path / "corpus" / ".work" / "standard-input"
    with Command(str(tmp_path), hold(tmp_path / "corpus", "*", 1), *arguments, does=held) as process:
        with process.stdin:
            process.stdin.write(rows.decode())
        assert wait_for(lambda: any(len(path.name) == 64 for path in kept.glob("*")), process)
    assert process.wait() != 0, "the preparation ended before it could be killed"
    status, said = run(arguments, b"", tmp_path)
    assert status == 0, said
    assert "resuming with the" in said
    assert tokens(Corpus.open(tmp_path / "corpus")) == expected
    assert not (tmp_path / "corpus" / ".work").exists()


@pytest.mark.parametrize("given", [b"", bytes(range(256))], ids=["empty", "not text"])
def test_wrong_standard_input_leaves_no_folder(given: bytes, tmp_path: Path) -> None:
    status, _ = run(["prepare", "-", "--out", "corpus"], given, tmp_path)
    assert status == 2
    assert not (tmp_path / "corpus").exists()


def test_names_that_are_not_utf8_are_read_and_shown_by_their_escapes(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    for name, write in {"\udce9.csv": as_csv, "\udce9.jsonl": as_jsonl, "\udce9.parquet": as_parquet}.items():
        (folder / name).write_bytes(write([f"{text} Of {name[1:]}." for text in TEXTS]))
    (folder / "r\udce9sum\udce9.txt").touch()
    evaluation = tmp_path / "ex\udce9.txt"
    evaluation.write_text("one two three four five six seven eight nine ten eleven twelve thirteen")
    tokenizer.save(tmp_path / "t\udce9")
    arguments = ["prepare", str(folder), "--exclude", str(evaluation), "--tokenizer", str(tmp_path / "t\udce9")]
    arguments += ["--out", str(tmp_path / "c\udce9"), "--workers", "1"]
    assert main(arguments) == 0
    corpus = Corpus.open(tmp_path / "c\udce9")
    assert balanced(corpus)["kept"]["documents"] == 3 * len(TEXTS)
    assert corpus.account["made_of"]["sources"] == [str(folder)]
    capsys.readouterr()
    assert main(arguments) == 0
    assert "from the same sources and options; nothing to do" in capsys.readouterr().err
    assert main(["inspect", str(corpus.folder)]) == 0
    shown = capsys.readouterr().out
    assert r"such as caf\udce9/r\udce9sum\udce9.txt" in shown
    assert "(3 files)" in shown
    assert r"ex\udce9.txt: found in 0 documents" in shown
    assert main(["vocab", str(folder), "--out", str(tmp_path / "v\udce9"), "--size", "320"]) == 0
    written = json.loads((tmp_path / "v\udce9" / "vocabulary.json").read_bytes())
    assert written["sources"] == [str(folder)]


def test_the_lock_of_a_run_is_not_work_that_was_there(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.csv").write_bytes(as_csv(TEXTS))
    tokenizer.save(tmp_path / "tokenizer")
    made = ["--tokenizer", str(tmp_path / "tokenizer"), "--out", str(tmp_path / "corpus"), "--workers", "1"]
    assert main(["prepare", str(tmp_path / "text.csv"), *made]) == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("disk: about")]
    assert "there already" not in line


def poison(folder: Path) -> None:
    """Sources of all kinds with something in them that must not stop the rest."""
    folder.mkdir()
    good = [f"A good document that follows, number {n}." for n in range(6)]
    (folder / "cell.csv").write_bytes(as_csv([good[0], "long " * (LONG // 5), good[1]]))
    deep = b'{"text": ' + b"[" * 200_000 + b"\n" + b'{"text": ' + b"9" * 5000 + b"}\n"
    (folder / "deep.jsonl").write_bytes(deep + as_jsonl([good[2]]))
    (folder / "line.jsonl").write_bytes(
        as_jsonl([good[3]]) + b'{"text": "' + b"x" * LONG + b'"}\n' + as_jsonl([good[4]])
    )
    cut = gzip.compress(as_jsonl([good[5], *(f"{n} and {n * n}, which is more text." for n in range(2000))]), mtime=0)
    (folder / "zcut.jsonl.gz").write_bytes(cut[: len(cut) // 2])


def test_text_that_is_lost_in_long_lines_is_warned_of(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 500)
    (tmp_path / "one.txt").write_text("A line without an end, again and again. " * 50)
    corpus = prepare(tmp_path / "one.txt", tmp_path / "out", tokenizer=tokenizer, options=options(workers=1))
    assert corpus.account["counts"]["read"]["bytes"] == 500
    assert "lines longer than 500 B, cut off there: 1; 1.5 kB are lost (one.txt, byte 0); break them" in caplog.text


def test_a_source_that_changes_while_it_is_read_is_named(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(as_jsonl([f"A document of some length, number {n}." for n in range(9)]))

    def plan(*arguments: Any) -> Any:
        path.write_bytes(path.read_bytes() + as_jsonl(["One document more, which was not there."]))
        return plan_parts(*arguments)

    monkeypatch.setattr(pipeline, "plan_parts", plan)
    corpus = prepare(path, tmp_path / "out", tokenizer=tokenizer, options=options(workers=1))
    assert corpus.account["counts"]["changed"]["files that changed while they were read"]["examples"] == ["one.jsonl"]
    assert "files that changed while they were read: 1 (one.jsonl); the corpus may hold parts of both" in caplog.text


def test_poison_is_counted_and_named_and_the_rest_goes_on(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((lines, "LONGEST_LINE"), (tables, "LONGEST_ROW")):
        monkeypatch.setattr(module, name, LONGEST)
    poison(tmp_path / "in")
    corpus = prepare(tmp_path / "in", tmp_path / "out", tokenizer=tokenizer, options=options(part_bytes=1 << 20))
    counts = balanced(corpus)
    dropped = {what: (entry["count"], entry["examples"]) for what, entry in counts["dropped"].items()}
    assert dropped["rows longer than 1.0 MB"] == (1, ["in/cell.csv, byte 53"])
    count, examples = dropped["rows that are not JSON"]
    assert count == 4
    assert examples == ["in/deep.jsonl, byte 0", "in/deep.jsonl, byte 200,010", "in/line.jsonl, byte 52"]
    damaged = counts["changed"]["compressed files that are damaged, read up to the damage"]
    assert damaged["count"] == 1
    assert damaged["examples"][0].startswith("in/zcut.jsonl.gz, after byte ")
    assert counts["kept"]["documents"] > 6 + 500
    with pytest.raises(BertsmithError, match="longer than"):
        prepare(tmp_path / "in", tmp_path / "strict", tokenizer=tokenizer, options=options(strict=True))
