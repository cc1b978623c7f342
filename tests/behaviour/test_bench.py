"""The benches at a tiny size: every side reads the same bytes, every row is whole, and no figure is asserted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench import measure as measuring
from bertsmith.bench import text
from bertsmith.bench.batches.cases import sequence_hashes
from bertsmith.bench.made_corpus import open_or_prepare
from bertsmith.bench.measure import CaseSpec, measure, measure_peer
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.prepare.bench import bench_prepare
from bertsmith.bench.prepare.nvidia import Pieces, mask, pairs
from bertsmith.bench.process import Child
from bertsmith.bench.run import run_bench
from bertsmith.bench.table import Table
from bertsmith.bench.text import cut_texts
from bertsmith.cli import main
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare

SIDES = "bertsmith.bench.prepare.sides"
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "that", "all", "was", "well", "in", "its", "house"]
pytestmark = pytest.mark.usefixtures("no_data")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """A folder of small texts."""
    folder, draw = tmp_path_factory.mktemp("source"), random.Random(3)
    for number in range(30):
        sentences = [" ".join(draw.choices(WORDS, k=draw.randint(4, 14))).capitalize() + "." for _ in range(12)]
        (folder / f"{number:02}.txt").write_text(f"Text {number}. " + " ".join(sentences) + "\n", encoding="utf-8")
    return str(folder)


def test_bench_prepare_measures_every_side_over_the_same_text(source, tmp_path, capsys):
    report = tmp_path / "rows.json"
    args = ["bench", "prepare", "--source", source, "--sizes", "0.04", "--workers", "1", "--json", str(report)]
    assert main(args) == 0
    said = capsys.readouterr().out
    assert "command: bertsmith bench prepare --source" in said
    assert "processor: " in said
    found = json.loads(report.read_text())
    assert found["machine"]["cores"].isdigit()
    rows = [row for row in found["rows"] if "failed" not in row or not row["failed"]]
    sides = Counter(row["side"] for row in rows)
    assert sides["ours"] == sides["nvidia"] == sides["tokenizers"] == 1
    read = {}
    for row in rows:
        assert row["result"]["text_bytes"] == row["text_bytes"]
        assert row["result"]["documents"] == row["documents"]
        if row["side"] != "nvidia":
            read.setdefault(row["text_bytes"], set()).add(row["documents"])
        assert row["cpu_seconds"] > 0
        assert row["disk_bytes"] > 0
        assert row["result"]["tokens"] > 0
        assert row["bytes_per_cpu_second"] == pytest.approx(row["text_bytes"] / row["cpu_seconds"])
        if sys.platform == "linux":
            assert row["peak_bytes"] > 10_000_000
    assert len(read) == 1, "all but the slow side share a text"
    assert "x as fast" in said


@pytest.mark.slow
def test_bench_batches_tells_speed_index_start_and_that_batches_agree(source, tmp_path, capsys):
    report = tmp_path / "rows.json"
    args = ["bench", "batches", "--source", source, "--sizes", "0.3", "--lengths", "128", "--workers", "1"]
    assert main([*args, "--markdown", "--json", str(report)]) == 0
    rows = {row["case"]: row for row in json.loads(report.read_text())["rows"]}
    assert set(rows) == {"index", "epoch", "start", "large", "agree", "collator"}
    names = {"references", "dealing as it comes", "dealing", "shards cut", "shards", "all but shards"}
    for large in (rows["large"]["result"][each] for each in ("seconds", "wall_seconds")):
        assert large.keys() == names
        assert {len(each) for each in large.values()} == {5}
    index, epoch = rows["index"], rows["epoch"]
    assert 0 < epoch["result"]["tokens"] <= index["result"]["tokens"]
    assert index["disk_bytes"] >= 2 * index["result"]["instances"]
    assert len(rows["start"]["result"]["start_seconds"]) == 5
    assert rows["agree"]["result"]["workers_agree"] is True
    assert rows["agree"]["result"]["ranks_agree"] is True
    said = capsys.readouterr().out
    assert "| yes | yes |" in said
    assert "for a step of 65,536 sequences" in said
    assert "| as it comes, at 128 |" in said
    assert "| into one shape, at 128 |" in said
    assert "bertsmith bench batches" in said


def test_a_corpus_in_the_data_folder_is_named_without_the_place_of_that(source, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path))
    prepare(source, tmp_path / "corpus", options=PrepareOptions(vocabulary_size=512, workers=1))
    assert open_or_prepare(BenchOptions(corpus=tmp_path / "corpus"), 0, tmp_path)[1] == "$BERTSMITH_DATA/corpus"


def test_a_side_that_read_something_else_ends_the_bench(source, tmp_path, monkeypatch):
    real = measuring.measure

    def short(spec: CaseSpec):
        Path(spec.source).write_text("half of the text that was here is gone\n" * 2, encoding="utf-8")
        return real(spec)

    monkeypatch.setattr("bertsmith.bench.prepare.bench.measure", short)
    with pytest.raises(BertsmithError, match="the comparison would not be one"):
        bench_prepare(BenchOptions((source,), sizes=(0.02,), workers=1), tmp_path)


def test_only_the_peers_that_are_asked_for_are_measured(source, tmp_path):
    report = bench_prepare(BenchOptions((source,), sizes=(0.02,), workers=1, against=()), tmp_path)
    assert [row["side"] for row in report.rows] == ["ours"]
    with pytest.raises(BertsmithError, match="no 'nvida'") as raised:
        bench_prepare(BenchOptions((source,), sizes=(0.02,), against=("nvida",)), tmp_path)
    assert "'nvidia'" in raised.value.fix


@pytest.mark.parametrize("sizes", [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0)])
def test_sizes_rise(sizes, source, tmp_path):
    with pytest.raises(BertsmithError, match="sizes are"):
        bench_prepare(BenchOptions((source,), sizes=sizes), tmp_path)


def test_a_length_that_is_named_twice_is_measured_once():
    assert BenchOptions(lengths=(48, 32, 48)).sequence_lengths() == (48, 32)


def test_an_unknown_bench_and_a_failing_side_are_said(tmp_path):
    with pytest.raises(BertsmithError, match="there is no bench 'prepair'") as raised:
        run_bench("prepair", BenchOptions(), [])
    assert "'prepare'" in raised.value.fix
    with pytest.raises(BertsmithError, match=r"(?s)ended with status 1.*No such file"):
        measure(CaseSpec(SIDES, "tokenizers", tmp_path / "none", tmp_path / "out", tmp_path / "none", {}))


def test_a_peer_that_is_not_installed_is_a_row_that_says_so(tmp_path, monkeypatch):
    """A module of the same name that cannot be found stands before the real one."""
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "datasets.py").write_text("raise ModuleNotFoundError('hidden', name='datasets')\n")
    monkeypatch.setenv("PYTHONPATH", str(hide))
    found = measure_peer(CaseSpec(SIDES, "datasets", tmp_path, tmp_path / "out", tmp_path, {"length": 128}))
    assert found.failed == "datasets is not installed"
    assert found.cpu_seconds == 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_and_processes_are_those_of_the_whole_family(tmp_path):
    code = (
        "import subprocess, sys\n"
        "if len(sys.argv) > 1:\n    block = bytearray(b'x' * 60_000_000); sys.stdin.read()\n"
        "else:\n    [each.wait() for each in [subprocess.Popen([sys.executable, __file__, 'x']) for _ in range(2)]]\n"
    )
    (tmp_path / "family.py").write_text(code)
    child = subprocess.Popen([sys.executable, str(tmp_path / "family.py")], stdin=subprocess.PIPE)
    with measuring._Memory(child.pid) as memory:
        while memory.peak_bytes <= 120_000_000:  # until the test's own limit of time
            time.sleep(0.01)
        child.communicate()
    assert memory.peak_bytes < 400_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_bench_that_is_interrupted_leaves_no_process(tmp_path, monkeypatch):
    started = []

    def interrupted(self: Child, do: str):
        started.append(self.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(CaseSpec("bertsmith.bench.batches.cases", "index", tmp_path, tmp_path / "out", tmp_path, {}))
    assert not Path(f"/proc/{started[0]}").exists()


def test_a_bench_that_is_terminated_leaves_no_folder(source, tmp_path, monkeypatch, capsys):
    left = []

    def terminated(self: Child, do: str):
        left.extend(tmp_path.glob("bertsmith-bench-*/*"))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Child, "ask", terminated)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["bench", "prepare", "--source", source, "--sizes", "1", "--against"]) == 143
    assert left
    assert not list(tmp_path.glob("bertsmith-bench-*"))
    said = "warning: SIGTERM received: the bench deletes what it wrote, and stops\nthe bench has stopped\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_source_that_is_too_small_is_gone_through_again_with_marks(tmp_path, source, monkeypatch):
    looks = []
    monkeypatch.setattr(text, "find_files", lambda *args, find=text.find_files: looks.append(args) or find(*args))
    texts = cut_texts((source,), [10_000, 60_000], tmp_path)
    assert len(looks) == 1, "its files are looked for once, not in every round"
    small, large = (text.path.read_text() for text in texts)
    assert large.startswith(small)
    lines = large.splitlines()
    assert len(lines) == texts[1].documents == len(set(lines))
    assert sum(len(line.encode()) for line in lines) == texts[1].text_bytes >= 60_000
    assert any(line.startswith("Round 1 of this text. ") for line in lines)


def test_the_nvidia_style_pairs_use_every_sentence_and_fit():
    draw, documents, first = random.Random(5), [], 10
    for _ in range(40):
        lengths = [draw.randint(1, 12) for _ in range(draw.randint(1, 10))]
        documents.append([list(range(first + 100 * at, first + 100 * at + n)) for at, n in enumerate(lengths)])
        first += 2000
    made = list(pairs(documents, 64, draw))
    assert all(a and len(a) + len(b) <= 61 for a, b, _ in made)
    shown = {piece for a, b, _ in made for piece in (*a, *b)}
    assert len(shown) > 0.9 * sum(len(sentence) for document in documents for sentence in document)
    assert 0.5 < np.mean([is_random for _, _, is_random in made]) < 1
    assert all(a[0] // 2000 == b[0] // 2000 for a, b, is_random in made if not is_random and b)


def test_the_nvidia_style_masks_are_fifteen_percent_and_never_special():
    pieces, draw = Pieces(cls=1, sep=2, mask=3, rows=50), random.Random(1)
    kinds = Counter()
    for _ in range(300):
        ids = [1, *range(10, 10 + 60), 2, *range(80, 80 + 63), 2]
        before = list(ids)
        places, labels = mask(ids, pieces, 20, draw)
        assert len(places) == 19
        assert labels == [before[place] for place in places]
        assert all(before[place] not in (1, 2) for place in places)
        assert all(now == then for at, (now, then) in enumerate(zip(ids, before, strict=True)) if at not in places)
        kinds.update("mask" if ids[at] == 3 else "same" if ids[at] == before[at] else "other" for at in places)
    assert kinds["mask"] / kinds.total() == pytest.approx(0.8, abs=0.03)
    assert kinds["same"] / kinds.total() == pytest.approx(0.1, abs=0.03)


def test_a_table_for_people_and_one_for_pages():
    table = Table("Title", ["", "a", "b"], [["row", "1", "22"]])
    assert table.as_text() == "Title\n        a   b\n  row  1  22".replace("        a", "       a")
    assert table.as_markdown().splitlines() == [
        "**Title**",
        "",
        "|  | a | b |",
        "| --- | ---: | ---: |",
        "| row | 1 | 22 |",
    ]


def test_sequences_that_differ_in_one_mask_have_other_hashes():
    class Batch:
        input_ids = np.arange(6)
        token_type_ids = np.zeros(6, np.int64)
        position_ids = np.array([0, 1, 2, 0, 1, 2])
        layout = type("Layout", (), {"offsets": np.array([0, 3, 6])})
        masked_positions = np.array([1, 4])
        masked_labels = np.array([7, 7])
        next_sentence_labels = np.array([0, 1])

    other = Batch()
    other.masked_labels = np.array([7, 8])
    assert sequence_hashes(Batch())[0] == sequence_hashes(other)[0]
    assert sequence_hashes(Batch())[1] != sequence_hashes(other)[1]
