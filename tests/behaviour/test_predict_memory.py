"""What prediction keeps in memory: the matrices of a model once, and of a file no more than a part."""

from __future__ import annotations

import gc
import json
import math
import queue
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith import Embedder
from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.embed import VectorOptions
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.reading import PART_CHARACTERS, parts_of
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.parts.stream import _Waiting
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.pooled import Classifier, config_labels
from bertsmith.tasks.reading.records import Columns, Record, RowReader
from bertsmith.tasks.sequences import encode, load_tokenizer
from bertsmith.tasks.task import Runner
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import FolderContents, load_model, read_config, save_model
from made_rows import PIECES, WORDS

WIDTH, INNER, LAYERS = 48, 80, 2
CONFIG = BertConfig(
    vocab_size=len(PIECES), hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
    intermediate_size=INNER, max_position_embeddings=40,
)  # fmt: skip
TEXTS = [" ".join(WORDS[number : number + 1 + 2 * number]) for number in range(9)]
TOKENS = VectorOptions(layers=(-1,))
MATRICES = {(WIDTH, WIDTH), (3 * WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    model = Classifier(CONFIG, 2)
    initialise(model, 0.3, seed=0)
    save_model(
        model, FolderContents(Classify.architectures[0], tokenizer.save, config_labels(["bad", "good"])), tmp_path / "m"
    )
    return tmp_path / "m"


@pytest.fixture
def nothing_older() -> Iterator[None]:
    """What is there before the test is not looked at again: to go through it each time would take most of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def matrices() -> Counter[torch.dtype]:
    """The bytes of all matrices of the encoder's shapes that were made in the test and are alive, each memory counted
    once."""
    gc.collect()
    found, seen = Counter[torch.dtype](), set[int]()
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and tuple(each.shape) in MATRICES:
            storage = each.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                found[each.dtype] += storage.nbytes()
    return found


def of_one_copy(dtype: torch.dtype) -> Counter[torch.dtype]:
    numbers = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER) + WIDTH * WIDTH
    return Counter({dtype: numbers * dtype.itemsize})


@pytest.mark.usefixtures("nothing_older")
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_weights_are_kept_in_the_dtype_of_products_alone(folder, precision, dtype):
    predictor = Predictor(folder, "cpu", precision=precision)
    predictor(TEXTS)
    assert matrices() == of_one_copy(dtype)
    embedder = Embedder(folder, "cpu", precision=precision)
    embedder(TEXTS)
    assert matrices() == of_one_copy(dtype) + of_one_copy(dtype)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_the_scores_are_those_of_wide_weights_to_the_bit(folder, precision, dtype):
    device = choose_device("cpu", precision)
    wide = load_model(lambda config: Classifier(config, 2, device.compute), folder)
    records = [Record(text, None, None, f"row {number}") for number, text in enumerate(TEXTS)]
    sequences = encode(records, load_tokenizer(folder, read_config(folder)), 40)
    runner = Runner(device.torch_device, 64)
    expected = runner.scores(wide, sequences)
    assert wide.encoder.pooler.weight.dtype == torch.float32
    wide.encoder.keep_weights_once()
    assert wide.encoder.pooler.weight.dtype == dtype
    assert not wide.encoder.pooler.weight.requires_grad
    assert np.array_equal(runner.scores(wide, sequences), expected)


def lines(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def test_parts_of_long_rows_have_fewer_rows(tmp_path):
    source, short = tmp_path / "rows.jsonl", tmp_path / "short.jsonl"
    broken, third = "{" * PART_CHARACTERS + "\n", "x" * (PART_CHARACTERS // 3)
    source.write_text(lines([third] * 5 + ["short"] * 9) + broken + lines(["short"] * 3))
    for on_error, expected in (("skip", [(0, 3), (3, 7), (10, 5), (15, 3)]), ("stop", [(0, 3), (3, 7), (10, 5)])):
        parts = list(parts_of(source, Columns(), RowReader, 7, on_error))
        assert [(part.first, len(part.rows)) for part in parts] == expected
        assert [part.number for part in parts] == list(range(len(parts)))
    short.write_text(lines(["short enough " * 10] * 5000))
    assert [len(part.rows) for part in parts_of(short, Columns(), RowReader, 4096, "stop")] == [4096, 904]
    short.write_text(lines(["a page of text " * 200] * 1000))  # 3,000 characters, so that minutes of work are a part
    assert [len(part.rows) for part in parts_of(short, Columns(), RowReader, 4096, "stop")] == [333, 333, 333, 1]


def test_long_rows_that_cannot_be_read_do_not_wait_in_memory(tmp_path, monkeypatch):
    most, source = 1_000_000, tmp_path / "rows.jsonl"
    monkeypatch.setattr("bertsmith.inference.parts.reading.PART_CHARACTERS", most)
    broken = [f"{number:02}" + "{" * (most // 2) + "\n" for number in range(60)]
    source.write_text("".join([*broken[:30], lines(["good"] * 2), *broken[30:], lines(["good"])]))
    found = list[bytes]()
    tracemalloc.start()
    try:
        for part in parts_of(source, Columns(), RowReader, 4096, "skip"):
            found += [row[:3] for _, row in part.rows if isinstance(row, bytes)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [line[:3].encode() for line in broken]
    assert peak < 8 * most
    cells = {"other": ["\ud83d", "\ude00", math.inf, None, 2**70, 0.1, {"é": "\ud800é"}]}
    source.write_text(json.dumps(cells) + "\n" + lines(["good"]))
    (part,) = parts_of(source, Columns(), RowReader, 4096, "skip")
    assert part.rows[0][1] == cells
    source.write_text("".join(broken))
    with pytest.raises(BertsmithError, match="30 of 30 rows cannot be used"):
        list(parts_of(source, Columns(), RowReader, 30, "skip"))


@pytest.mark.parametrize(("name", "workers"), [("out.jsonl", 1), ("out.jsonl", 2), ("tokens.jsonl", 1)])
def test_parts_of_long_rows_are_continued_to_the_bytes_of_an_unbroken_run(
    name, workers, folder, tmp_path, monkeypatch, quick_workers
):
    """The lines of tokens have the number of their row in the file."""
    source, out, whole = tmp_path / "rows.jsonl", tmp_path / name, tmp_path / f"whole-{name}"
    source.write_text(lines([*TEXTS * 3, "", *TEXTS]))
    monkeypatch.setattr("bertsmith.inference.parts.reading.PART_CHARACTERS", 150)

    def work(to: Path, **options: object) -> None:
        answered, more = (predict_file, {}) if name == "out.jsonl" else (embed_file, {"vectors": TOKENS})
        answered(folder, source, to, rows=RowOptions(**options), device="cpu", precision="fp32", **more)

    with pytest.raises(BertsmithError, match="empty"):
        work(out, part_rows=8)
    assert PartsFolder(out).finished_parts() > 27 / 8
    made_from = PartsFolder(out).path / "made_from.json"
    now = made_from.read_text()
    made_from.write_text(json.dumps(json.loads(now) | {"part size": 8}))  # as it was when rows alone were counted
    with pytest.raises(BertsmithError, match="another part size"):
        work(out, part_rows=8, resume=True, on_error="skip")
    made_from.write_text(now)
    work(out, part_rows=8, resume=True, on_error="skip", workers=workers)
    work(whole, part_rows=8, on_error="skip")
    assert out.read_bytes() == whole.read_bytes()
    if name == "tokens.jsonl":
        places = [json.loads(line)["linex_index"] for line in whole.read_text().splitlines()]
        assert places == [place for place in range(37) if place != 27]


def test_no_more_of_a_pipe_is_read_ahead_than_the_text_of_a_part():
    waiting, long_row, end = _Waiting(100), (("row 1", {"text": "long"}), PART_CHARACTERS // 2), (None, 0)
    for _ in range(2):
        waiting.put_nowait(long_row)
    with pytest.raises(queue.Full):
        waiting.put_nowait(end)
    assert waiting.get_nowait() == long_row
    waiting.put_nowait(end)
    assert [waiting.get_nowait(), waiting.get_nowait()] == [long_row, end]
    assert waiting.empty()


_MEMORY = """
import resource, sys
from bertsmith.cli import main
status = main(sys.argv[1:])
with open("/proc/self/statm") as file:
    kept = int(file.read().split()[1]) * resource.getpagesize() // 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, kept)
sys.exit(status)
"""


def kilobytes(model: Path, verb: str, to: str, rows: int, folder: Path) -> tuple[int, int]:
    """The highest memory of a command that answers so many rows of many lengths, and what it has at its end."""
    draw, source = random.Random(rows), folder / f"rows-{rows}.jsonl"
    with open(source, "w") as file:
        for _ in range(rows):
            file.write(json.dumps({"text": " ".join(draw.choices(WORDS, k=draw.randrange(1, 36)))}) + "\n")
    call = [verb, str(model), str(source), "--out", str(folder / f"{rows}.{to}"), "--part-rows", "1000", "--quiet"]
    call += ["--device", "cpu", "--precision", "fp32"]
    done = subprocess.run([sys.executable, "-c", _MEMORY, *call], capture_output=True, text=True, check=True)
    peak, kept = map(int, done.stdout.split())
    print(f"{verb}, {to}: {rows:,} rows took at most {peak / 1e3:.0f} MB and ended with {kept / 1e3:.0f} MB")
    return peak, kept


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("verb", "to", "growth"), [("embed", "npy", 1.1), ("predict", "jsonl", 1.2), ("predict", "csv", 1.2)]
)
def test_memory_does_not_grow_with_the_file(verb, to, growth, folder, tmp_path):
    """Without a bound on what is remembered of shapes, 10 times the rows took twice the memory; where what was freed
    was not given back after each part, 1.4 times. Within a part the allocator takes 50 to 100 MB more."""
    peak, kept = kilobytes(folder, verb, to, 100_000, tmp_path)
    fewer_peak, fewer_kept = kilobytes(folder, verb, to, 15_000, tmp_path)
    assert kept < 1.1 * fewer_kept
    assert peak < growth * fewer_peak
