"""The disk that a preparation needs is estimated, reported, and refused where it is not free."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus import prepare as prepare_module
from bertsmith.corpus.disk import Need, check_disk, estimate
from bertsmith.corpus.options import ExcludeAction, PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.unpack import is_unpacked
from bertsmith.corpus.stages.publish import publish
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    **{"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress},
    ".utf16": lambda raw: raw.decode().encode("utf-16"),
}


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@cache
def text(lines: int, seed: int = 3) -> str:
    """Lines of one length all through, as a sample can tell it."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(2000)]
    return "\n".join(" ".join(draw.choices(words, k=draw.randint(50, 400))).capitalize() + "." for _ in range(lines))


def peak_of(source: Path, out: Path, options: PrepareOptions, tokenizer: Path | None) -> int:
    """What lies in the folder when the corpus is put together and the work is not yet removed: the most there is."""
    seen = []

    def look(folder: Path) -> None:
        seen.append(used(folder))
        publish(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "publish", look)
        prepare(source, out, options=options, tokenizer=tokenizer)
    return seen[0]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one for such text."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_vocabulary(text(500).split("\n"), 2048).save(folder)
    return folder


@pytest.mark.parametrize("packing", ["", ".gz", ".bz2", ".utf16"])
def test_estimated_within_a_tenth(tmp_path: Path, tokenizer: Path, packing: str) -> None:
    source = tmp_path / f"text.txt{packing}"
    raw = text(2000).encode()
    source.write_bytes(PACKINGS[packing](raw))
    options = PrepareOptions(documents="line", vocabulary_size=2048, workers=1)
    found, _ = find_files([source], options.reading)
    need = estimate(found, options, Tokenizer.load(tokenizer), tmp_path / "work")
    assert list((tmp_path / "work").iterdir()) == [], "the sample is removed"
    peak = peak_of(source, tmp_path / "corpus", options, tokenizer)
    assert need.peak_bytes == pytest.approx(peak, rel=0.1)
    assert need.corpus_bytes == pytest.approx(used(tmp_path / "corpus"), rel=0.1)


@pytest.mark.parametrize("part", ["wiki/enwiki-2015/AA", "books/gutenberg"])
def test_real_text_estimated_within_a_tenth(real_data: Callable[[str], Path], tmp_path: Path, part: str) -> None:
    """A few real files; the whole folders are in the documents."""
    source = tmp_path / "source"
    source.mkdir()
    for path in sorted(path for path in real_data(part).rglob("*") if path.is_file())[:6]:
        shutil.copy(path, source)
    vocabulary = real_data("vocab/bert-base-uncased/vocab.txt")
    options = PrepareOptions(workers=1)
    found, _ = find_files([source], options.reading)
    need = estimate(found, options, Tokenizer.load(vocabulary), tmp_path / "work")
    assert need.peak_bytes == pytest.approx(peak_of(source, tmp_path / "corpus", options, vocabulary), rel=0.1)


@pytest.mark.parametrize("action", ["drop", "report"])
def test_the_searches_are_estimated_within_a_tenth(tmp_path: Path, tokenizer: Path, action: ExcludeAction) -> None:
    """Short documents, a third of them with evaluation text: what the searches write is a third of all there is."""
    pytest.importorskip("datasketch", reason="datasketch is not installed: pip install 'bertsmith[near]'")
    lines = [part for line in text(900).split("\n") for part in (line[:400], line[400:800]) if len(part) > 200]
    draw = random.Random(5)
    (tmp_path / "text.txt").write_text("\n".join(lines))
    (tmp_path / "test.txt").write_text("\n".join(draw.sample(lines, len(lines) // 3)))
    options = PrepareOptions(
        documents="line", exclude=(tmp_path / "test.txt",), exclude_action=action, near_duplicates=True, workers=1
    )
    found, _ = find_files([tmp_path / "text.txt"], options.reading)
    need = estimate(found, options, Tokenizer.load(tokenizer), tmp_path / "work")
    without = estimate(found, PrepareOptions(documents="line"), Tokenizer.load(tokenizer), tmp_path / "other")
    peak = peak_of(tmp_path / "text.txt", tmp_path / "corpus", options, tokenizer)
    assert need.peak_bytes == pytest.approx(peak, rel=0.1)
    assert need.corpus_bytes == pytest.approx(used(tmp_path / "corpus"), rel=0.1)
    assert need.peak_bytes > 1.3 * without.peak_bytes
    assert (need.corpus_bytes < 0.9 * without.corpus_bytes) == (action == "drop")


def test_documents_longer_than_all_the_sample_are_estimated_within_a_tenth(tmp_path: Path, tokenizer: Path) -> None:
    """Two books as two rows: both begin where no window of the sample looks."""
    source = tmp_path / "books.jsonl"
    source.write_text("".join(json.dumps({"text": text(5000, seed)}) + "\n" for seed in (3, 4)))
    options = PrepareOptions(vocabulary_size=2048, workers=1)
    found, _ = find_files([source], options.reading)
    need = estimate(found, options, Tokenizer.load(tokenizer), tmp_path / "work")
    assert need.peak_bytes == pytest.approx(peak_of(source, tmp_path / "corpus", options, tokenizer), rel=0.1)


def test_a_short_row_beside_a_very_long_one_does_not_stand_for_all(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "' + "word " * 2_000_000 + '"}\n{"text": "' + "short " * 9 + '"}\n')
    options = PrepareOptions(vocabulary_size=2048)
    found, _ = find_files([tmp_path / "text.jsonl"], options.reading)
    assert 10e6 < estimate(found, options, None, tmp_path / "work").peak_bytes < 40e6


def test_parquet_files_without_rows_do_not_stand_for_all(tmp_path: Path) -> None:
    """As Spark leaves them: of many files, the first may hold none."""
    arrow, parquet = (pytest.importorskip(name, reason="no pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    for name, rows in (("b", text(400).split("\n")), ("c", text(400, 4).split("\n"))):
        parquet.write_table(arrow.table({"text": rows}), tmp_path / f"{name}.parquet")
    options = PrepareOptions(vocabulary_size=2048)
    without = estimate(find_files([tmp_path], options.reading)[0], options, None, tmp_path / ".work")
    parquet.write_table(arrow.table({"text": arrow.array([], arrow.string())}), tmp_path / "a.parquet")
    found, _ = find_files([tmp_path], options.reading)
    need = estimate(found, options, None, tmp_path / ".work")
    assert need.peak_bytes == pytest.approx(without.peak_bytes, rel=0.01)


@pytest.mark.parametrize(("group_rows", "part_bytes"), [(500, 4 << 20), (20_000, 1 << 18)])
def test_parquet_is_estimated_within_a_tenth(tmp_path: Path, tokenizer: Path, group_rows: int, part_bytes: int) -> None:
    """Of row groups that are read as they are, and of one so large that it is written again."""
    arrow, parquet = (pytest.importorskip(name, reason="no pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    source = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": text(4000).split("\n")}), source, row_group_size=group_rows)
    options = PrepareOptions(vocabulary_size=2048, workers=1, part_bytes=part_bytes)
    found, _ = find_files([source], options.reading)
    assert is_unpacked(found[0], options.reading, options.part_bytes) == (group_rows > 4000)
    need = estimate(found, options, Tokenizer.load(tokenizer), tmp_path / "work")
    assert need.peak_bytes == pytest.approx(peak_of(source, tmp_path / "corpus", options, tokenizer), rel=0.1)


def test_a_source_of_rows_that_are_none_is_estimated_as_nothing(tmp_path: Path) -> None:
    arrow, parquet = (pytest.importorskip(name, reason="no pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(arrow.table({"text": arrow.array([], arrow.string())}), tmp_path / "a.parquet")
    options = PrepareOptions(vocabulary_size=256)
    found, _ = find_files([tmp_path], options.reading)
    assert estimate(found, options, None, tmp_path / ".work").peak_bytes < 100_000


class _Disk(NamedTuple):
    free: int


def test_too_small_a_disk_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.txt").write_text(text(50))
    free = [1000]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Disk(free[0]))
    call: dict[str, Any] = {"options": PrepareOptions(documents="line", vocabulary_size=512, workers=1)}
    with pytest.raises(BertsmithError, match=r"of disk while this runs, only 1\.0 kB") as caught:
        prepare(tmp_path / "text.txt", tmp_path / "corpus", **call)
    assert "--out" in caught.value.fix
    assert not list((tmp_path / "corpus" / ".work").glob("*"))
    free[0] = 10**9
    caplog.clear()
    with caplog.at_level("INFO", "bertsmith"):
        prepare(tmp_path / "text.txt", tmp_path / "corpus", **call)
    said = [record.message for record in caplog.records if record.message.startswith("disk: ")]
    assert len(said) == 1
    assert "1.0 GB free" in said[0]


def test_work_that_is_there_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half").write_bytes(bytes(600))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Disk(500))
    check_disk(Need(1000, 100), tmp_path)
    with pytest.raises(BertsmithError, match="of disk while this runs"):
        check_disk(Need(1200, 100), tmp_path)
