"""Parts of a large file: after kills, full disks and lost workers the same bytes come out, and nothing is left."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.embed import Embedder, VectorOptions
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.part import Answered
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.reading.records import Columns
from made_kills import drawing
from made_locks import holder
from made_rows import WORDS
from made_runs import fork_server

CPU = {"device": "cpu", "precision": "fp32"}
SMALL = RowOptions(part_rows=7)
RESUMED = RowOptions(part_rows=7, resume=True)


def masked_rows(path: Path, count: int = 60, bad: tuple[int, ...] = ()) -> Path:
    """Rows of many lengths with a mask each; those of the numbers `bad` have none, or are not JSON."""
    draw, lines = random.Random(3), []
    for number in range(count):
        words = [*draw.choices(WORDS, k=draw.randrange(1, 30)), "[MASK]"]
        line = json.dumps({"text": " ".join(words[:-1] if number in bad else words), "n": number})
        lines.append("{broken" if number in bad and number % 2 else line)
    path.write_text("\n".join(lines) + "\n")
    return path


def finished(out: Path) -> int:
    return PartsFolder(out).finished_parts()


def predicted(model: Path, source: Path, out: Path, options: RowOptions) -> None:
    predict_file(model, source, out, rows=options, **CPU)


def embedded(model: Path, source: Path, out: Path, options: RowOptions) -> None:
    """Reads so few tokens that many rows are cut. The vectors of tokens for a file of that name."""
    layers = (-1,) if "tokens" in out.name else ()
    embed_file(model, source, out, rows=options, vectors=VectorOptions(max_length=12, layers=layers), **CPU)


def killed(work: Callable[..., None], *args: object, after_parts: int, delay_seconds: float) -> None:
    """Calls `work` in a process that kills itself so long after it has written so many parts."""
    process = fork_server().Process(target=_kills_itself, args=(work, args, after_parts, delay_seconds))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _kills_itself(work: Callable[..., None], args: tuple[object, ...], after_parts: int, delay_seconds: float) -> None:
    write, written = PartsFolder.write, 0

    def counted(self: PartsFolder, number: int, answered: Answered) -> None:
        nonlocal written
        write(self, number, answered)
        written += 1
        if written == after_parts:
            threading.Timer(delay_seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    PartsFolder.write = counted  # type: ignore[method-assign]
    work(*args)
    time.sleep(2 * delay_seconds)  # the moment came after the end
    os.kill(os.getpid(), signal.SIGKILL)


EVERY_KIND = pytest.mark.parametrize(
    ("work", "name"),
    [
        *((predicted, f"out.{kind}") for kind in ("jsonl", "csv")),
        *((embedded, name) for name in ("out.npy", "out.parquet", "out.jsonl", "tokens.jsonl")),
    ],
)


@EVERY_KIND
def test_a_killed_run_ends_with_the_bytes_of_an_unbroken_one(work, name, model, tmp_path):
    draw, source = drawing(), masked_rows(tmp_path / "rows.jsonl")
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    work(model, source, tmp_path / f"whole-{name}", SMALL)
    out = tmp_path / "broken" / name
    options = SMALL
    for _ in range(2):
        killed(work, model, source, out, options, after_parts=draw.choice([1, 2, 3]), delay_seconds=draw.random() / 50)
        options = RESUMED
    work(model, source, out, options)
    assert out.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert [each.name for each in out.parent.iterdir() if not each.name.startswith(".")] == [name]


def flip_a_byte(path: Path) -> None:
    kept = bytearray(path.read_bytes())
    kept[len(kept) // 2] ^= 1
    path.write_bytes(kept)


@EVERY_KIND
def test_damaged_parts_are_named_and_done_again(work, name, model, tmp_path, said):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    source, out, whole = masked_rows(tmp_path / "rows.jsonl", bad=(55,)), tmp_path / name, tmp_path / f"whole-{name}"
    with pytest.raises(BertsmithError, match="not JSON"):
        work(model, source, out, SMALL)
    parts = PartsFolder(out).path
    cut, flipped, missing, unmarked, other_account, *whole_ones = sorted(parts.glob("*.part"))
    os.truncate(cut, 50)
    flip_a_byte(flipped)
    missing.unlink()
    account = other_account.with_suffix(".json")
    account.write_text(account.read_text().replace('"rows": 7', '"rows": 8'))
    values = json.loads(unmarked.with_suffix(".json").read_text())
    unmarked.with_suffix(".json").write_text(json.dumps({name: values[name] for name in values if name != "sha256"}))
    work(model, source, out, RowOptions(part_rows=7, resume=True, on_error="skip"))
    for path, why in (
        (cut, "it has 50 bytes, and "),
        (flipped, "its checksum is not that"),
        (missing, "it is missing"),
        (unmarked, "it has no checksum"),
        (other_account, "its checksum is not that"),
    ):
        assert f"{path} is damaged ({why}" in said.text
    assert not any(f"{each} is damaged" in said.text for each in whole_ones)
    assert f"parts that are finished: {len(whole_ones)}" in said.text
    assert whole_ones
    work(model, source, whole, RowOptions(part_rows=7, on_error="skip"))
    assert out.read_bytes() == whole.read_bytes()


@EVERY_KIND
def test_a_part_that_is_damaged_before_it_is_joined_is_named(work, name, model, tmp_path, monkeypatch):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    source, out, whole = masked_rows(tmp_path / "rows.jsonl", 20), tmp_path / name, tmp_path / f"whole-{name}"
    work(model, source, whole, SMALL)
    write, damaged = PartsFolder.write, PartsFolder(out).path / "00000001.part"

    def write_and_damage(self: PartsFolder, number: int, answered: Answered) -> None:
        write(self, number, answered)
        if number == 1:
            os.truncate(damaged, 50)

    with monkeypatch.context() as patched:
        patched.setattr(PartsFolder, "write", write_and_damage)
        with pytest.raises(BertsmithError, match="this finished part is damaged: it has 50 bytes") as caught:
            work(model, source, out, SMALL)
    assert caught.value.where == str(damaged)
    assert not out.exists()
    work(model, source, out, RESUMED)
    assert out.read_bytes() == whole.read_bytes()


def test_lost_bad_rows_are_a_damage_too(model, tmp_path, said):
    source, out, whole = masked_rows(tmp_path / "rows.jsonl", bad=(3, 41)), tmp_path / "out.jsonl", tmp_path / "w.jsonl"
    kept_by_a_full_disk(model, source, out, "skip")
    (PartsFolder(out).path / "00000000.bad").unlink()
    for path, options in ((out, RESUMED), (whole, SMALL)):
        predicted(model, source, path, replace(options, on_error="skip"))
    assert "00000000.part is damaged (its checksum" in said.text
    assert PartsFolder(out).bad.read_bytes() == PartsFolder(whole).bad.read_bytes()
    assert out.read_bytes() == whole.read_bytes()


def test_parts_are_named_where_the_work_is_not_resumed_or_was_another(model, tmp_path, said):
    source, out = masked_rows(tmp_path / "rows.jsonl", bad=(40,)), tmp_path / "out.jsonl"
    with pytest.raises(BertsmithError, match=r"no \[MASK\]"):
        predicted(model, source, out, SMALL)
    assert finished(out) == 5
    assert "(5 of them): --resume continues" in said.text
    with pytest.raises(BertsmithError, match=r"finished parts of an earlier run are there \(5 of them\)"):
        predicted(model, source, out, SMALL)
    with holder(PartsFolder(out).path), pytest.raises(BertsmithError, match="another process is writing these parts"):
        predicted(model, source, out, SMALL)  # not that they are to be deleted
    with pytest.raises(BertsmithError, match="another part size"):
        predicted(model, source, out, RowOptions(part_rows=8, resume=True))
    with pytest.raises(BertsmithError, match="another top"):
        predict_file(model, source, out, rows=RESUMED, top=2, **CPU)
    shorter, retrained = (shutil.copytree(model, tmp_path / name) for name in ("shorter", "retrained"))
    (shorter / "task.json").write_text('{"max_length": 20}')
    flip_a_byte(retrained / "model.safetensors")
    for other in (shorter, retrained):
        with pytest.raises(BertsmithError, match="another model"):
            predicted(other, source, out, RESUMED)
    predicted(model, source, out, RowOptions(part_rows=7, resume=True, on_error="skip"))
    assert len(out.read_text().splitlines()) == 59
    assert not PartsFolder(out).path.exists()


def test_parts_of_vectors_that_do_not_say_what_was_cut_are_not_continued(model, tmp_path):
    source, out = masked_rows(tmp_path / "rows.jsonl", bad=(41,)), tmp_path / "out.jsonl"
    with pytest.raises(BertsmithError, match="not JSON"):
        embedded(model, source, out, SMALL)
    written = PartsFolder(out).path / "made_from.json"
    made_from = json.loads(written.read_text())
    made_from.pop("added columns")  # as it was before rows had "truncated_tokens"
    written.write_text(json.dumps(made_from))
    with pytest.raises(BertsmithError, match="another added columns"):
        embedded(model, source, out, RESUMED)


def kept_by_a_full_disk(model: Path, source: Path, out: Path, on_error: str) -> None:
    """Finishes every part, and keeps them because the file that they are joined into cannot be written."""
    process = fork_server().Process(target=_on_a_full_disk, args=(model, source, out, on_error))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not out.exists()


def test_parts_that_rows_were_left_out_of_are_not_continued_with_stop(model, tmp_path):
    """The bad row of number 41 cannot be read, and ends its part early where the work is to stop at it."""
    source, out = masked_rows(tmp_path / "rows.jsonl", bad=(41, 50)), tmp_path / "out.jsonl"
    kept_by_a_full_disk(model, source, out, "skip")
    with pytest.raises(BertsmithError, match=rf"{source}:42: this line is not JSON"):
        predicted(model, source, out, RESUMED)
    assert finished(out) == 9
    assert not out.exists()
    resumed = RowOptions(part_rows=7, resume=True, on_error="skip")
    predicted(model, source, out, resumed)
    assert len(out.read_text().splitlines()) == 58


def test_work_that_stopped_may_be_continued_with_skip(model, tmp_path):
    source, out, whole = masked_rows(tmp_path / "rows.jsonl", bad=(41,)), tmp_path / "out.jsonl", tmp_path / "w.jsonl"
    with pytest.raises(BertsmithError, match="not JSON"):
        predicted(model, source, out, SMALL)
    predicted(model, source, out, RowOptions(part_rows=7, resume=True, on_error="skip"))
    predicted(model, source, whole, RowOptions(part_rows=7, on_error="skip"))
    assert out.read_bytes() == whole.read_bytes()


def test_a_loaded_model_is_continued_by_its_like_alone(model, tmp_path):
    source, out = masked_rows(tmp_path / "rows.jsonl", bad=(40,)), tmp_path / "out.jsonl"
    loaded = Predictor(model, top=2, **CPU)
    with pytest.raises(BertsmithError, match=r"no \[MASK\]"):
        predict_file(loaded, source, out, rows=SMALL)
    for other, name in (
        (Predictor(model, top=3, **CPU), "top"),
        (Predictor(model, top=2, budget_tokens=64, **CPU), "budget_tokens"),
        (loaded.with_columns(Columns(text="body")), "columns"),
        (loaded.for_likelihood(), "kind"),
    ):
        with pytest.raises(BertsmithError, match=f"made from another {name} "):
            predict_file(other, source, out, rows=RESUMED)
    with pytest.raises(BertsmithError, match=re.escape("({'text': 'text'} then, {'text': 'body'} now)")):
        predict_file(loaded.with_columns(Columns(text="body")), source, out, rows=RESUMED)
    with pytest.raises(BertsmithError, match="loaded already, so this would have no effect: top"):
        predict_file(loaded, source, out, rows=RESUMED, top=3)
    with pytest.raises(BertsmithError, match="loaded already, so this would have no effect: precision"):
        embed_file(Embedder(model, **CPU), source, tmp_path / "out.npy", precision="bf16")
    predict_file(loaded, source, out, rows=RowOptions(part_rows=7, resume=True, on_error="skip"))
    assert len(out.read_text().splitlines()) == 59


def test_what_another_run_left_of_a_part_is_not_used(model, tmp_path):
    """A run that was killed in part 7 left its bad rows, and part 2 has lost its predictions."""
    source, out, whole = masked_rows(tmp_path / "rows.jsonl", bad=(40,)), tmp_path / "out.jsonl", tmp_path / "w.jsonl"
    with pytest.raises(BertsmithError, match=r"no \[MASK\]"):
        predicted(model, source, out, SMALL)
    (PartsFolder(out).path / "00000007.bad").write_text("left\n")
    (PartsFolder(out).path / "00000002.part").unlink()
    assert finished(out) == 4
    predicted(model, source, out, RowOptions(part_rows=7, resume=True, on_error="skip"))
    predicted(model, source, whole, RowOptions(part_rows=7, on_error="skip"))
    assert out.read_bytes() == whole.read_bytes()
    assert PartsFolder(out).bad.read_bytes() == PartsFolder(whole).bad.read_bytes()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"rows": 7}', "of another kind"])
def test_a_part_whose_account_is_damaged_is_named_and_done_again(model, tmp_path, content, caplog):
    source, out, whole = masked_rows(tmp_path / "rows.jsonl", bad=(40,)), tmp_path / "out.jsonl", tmp_path / "w.jsonl"
    with pytest.raises(BertsmithError, match=r"no \[MASK\]"):
        predicted(model, source, out, SMALL)
    account = PartsFolder(out).path / "00000002.json"
    account.write_text(content if content != "of another kind" else account.read_text().replace("7", '"7"'))
    caplog.clear()
    predicted(model, source, out, RowOptions(part_rows=7, resume=True, on_error="skip"))
    why = "00000002.json does not say what became of its rows"
    assert f"{account.with_suffix('.part')} is damaged ({why}): its rows are done again" in caplog.text
    predicted(model, source, whole, RowOptions(part_rows=7, on_error="skip"))
    assert out.read_bytes() == whole.read_bytes()


def test_predictions_in_the_model_folder_do_not_change_the_model(model, tmp_path):
    source, folder = masked_rows(tmp_path / "rows.jsonl", bad=(40,)), tmp_path / "model"
    shutil.copytree(model, folder)
    out = folder / "out.jsonl"
    out.write_text("of an earlier run\n")
    with pytest.raises(BertsmithError, match=r"no \[MASK\]"):
        predicted(folder, source, out, SMALL)
    predicted(folder, source, out, RowOptions(part_rows=7, resume=True, on_error="skip"))
    assert len(out.read_text().splitlines()) == 59


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.errors.jsonl", "out.jsonl.parts/rows.jsonl"])
def test_an_input_that_would_be_replaced_or_removed_is_refused(model, tmp_path, name):
    source = tmp_path / name
    source.parent.mkdir(exist_ok=True)
    masked_rows(source)
    with pytest.raises(BertsmithError, match="would be replaced or removed by the output"):
        predicted(model, source, tmp_path / "out.jsonl", SMALL)
    assert source.is_file()


def test_an_input_that_changed_is_not_continued(model, tmp_path):
    source, out = masked_rows(tmp_path / "rows.jsonl", bad=(40,)), tmp_path / "out.jsonl"
    with pytest.raises(BertsmithError):
        predicted(model, source, out, SMALL)
    as_long = source.read_bytes().replace(b"word1", b"word2")
    for change in (lambda: source.write_bytes(as_long), lambda: masked_rows(source)):
        change()
        with pytest.raises(BertsmithError, match="another input"):
            predicted(model, source, out, RESUMED)
    assert finished(out) == 5


def _on_a_full_disk(model: Path, source: Path, out: Path, on_error: Literal["stop", "skip"]) -> None:
    """The disk takes every part, and not the file that they are joined into."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    with pytest.raises(BertsmithError, match="could not write"):
        predicted(model, source, out, RowOptions(part_rows=7, on_error=on_error))


def test_a_full_disk_loses_nothing(model, tmp_path):
    source, out = masked_rows(tmp_path / "rows.jsonl"), tmp_path / "out.jsonl"
    kept_by_a_full_disk(model, source, out, "stop")
    assert finished(out) == 9
    predicted(model, source, out, RESUMED)
    predicted(model, source, tmp_path / "whole.jsonl", SMALL)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_several_workers_give_the_bytes_and_the_errors_of_one(model, tmp_path, capfd, quick_workers):
    source = masked_rows(tmp_path / "rows.jsonl", bad=(11, 12, 37, 52))
    call = ["predict", str(model), str(source), "--device", "cpu", "--precision", "fp32", "--part-rows", "7"]
    told = {}
    for workers in ("1", "2"):
        out = tmp_path / f"{workers}.jsonl"
        assert main([*call, "--out", str(out), "--workers", workers, "--on-error", "skip"]) == 0
        told[workers] = [out.read_bytes(), Path(f"{out}.errors.jsonl").read_bytes()]
        told[workers].append(capfd.readouterr().err.replace(str(out), "OUT").splitlines()[-1])
        assert main([*call, "--out", str(tmp_path / f"stop-{workers}.jsonl"), "--workers", workers]) == 2
        told[workers].append(capfd.readouterr().err.splitlines()[-3:])
        assert finished(tmp_path / f"stop-{workers}.jsonl") >= 1
    assert told["1"] == told["2"]
    assert f"where: {source}:12" in "".join(told["1"][3])
    assert [json.loads(line)["where"] for line in told["1"][1].splitlines()] == [
        f"{source}:{n}" for n in (12, 13, 38, 53)
    ]


def _killer(out: Path, done: list[int]) -> None:
    """Kills a worker when a part is finished and many are left."""
    while not done:
        for child in multiprocessing.active_children():
            if child.daemon and finished(out):
                os.kill(child.pid, signal.SIGKILL)
                done.append(child.pid)
                return
        time.sleep(0.05)


def test_a_worker_that_dies_is_named(model, tmp_path, quick_workers):
    source, done = masked_rows(tmp_path / "rows.jsonl", 1000), list[int]()
    source.write_text(source.read_text() * 100)
    thread = threading.Thread(target=_killer, args=(tmp_path / "out.jsonl", done))
    thread.start()
    try:
        with pytest.raises(BertsmithError, match=r"worker \d of 2 \(process \d+\) was killed by SIGKILL"):
            predicted(model, source, tmp_path / "out.jsonl", RowOptions(workers=2, part_rows=50))
    finally:
        done.append(0)
        thread.join()
    assert not (tmp_path / "out.jsonl").exists()
    assert not multiprocessing.active_children()
