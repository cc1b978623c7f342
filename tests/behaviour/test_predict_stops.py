"""What is said of finished parts where a signal ends the work, or an earlier state of the code wrote them."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import locked
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main
from bertsmith.inference.parts import folder, workers
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from made_commands import Command

SECONDS = 240
MANY = 100_000


def many_rows(path: Path) -> Path:
    """So many that nobody answers them all before a signal comes."""
    path.write_text("".join(json.dumps({"text": f"word1 word{n % 7} [MASK]"}) + "\n" for n in range(MANY)))
    return path


def stopped(
    verb: str, model: Path, source: str, out: Path, *flags: str, number: int = signal.SIGTERM, to_group: bool = False
) -> tuple[int, str]:
    """The status of a verb that gets a signal once a part is finished, and what it said last. A pipe is held open."""
    call = [verb, str(model), source, "--out", str(out), "--part-rows", "20", "--device", "cpu", *flags]
    with ThreadPoolExecutor(2) as pool, Command(*call, own_group=True) as command:  # which is killed before the wait
        said = pool.submit(command.stderr.read)
        if source == "-":
            rows = "".join(f'{{"text": "word1 [MASK] word{n % 7}"}}\n' for n in range(1000))
            pool.submit(command.stdin.write, rows)
        while not PartsFolder(out).finished_parts():
            assert command.poll() is None, said.result()
            time.sleep(0.02)
        (os.killpg if to_group else os.kill)(command.pid, number)
        return command.wait(), said.result()


@pytest.mark.parametrize(
    ("verb", "name", "number", "flags", "to_group"),
    [
        ("predict", "out.jsonl", signal.SIGTERM, (), False),
        ("embed", "out.npy", signal.SIGINT, ("--quiet",), False),
        ("predict", "out.csv", signal.SIGTERM, ("--workers", "2"), True),
    ],
)
def test_a_signal_ends_the_work_with_what_is_kept(verb, name, number, flags, to_group, model, tmp_path):
    """to_group: as a scheduler sends it, to the workers too."""
    source, out = many_rows(tmp_path / "rows.jsonl"), tmp_path / name
    status, said = stopped(verb, model, str(source), out, *flags, number=number, to_group=to_group)
    parts = PartsFolder(out).finished_parts()
    assert status == (130 if number == signal.SIGINT else 143)
    assert f"warning: {number.name} received: the work stops and says what is kept of it\n" in said
    kept = f"stopped; finished parts are kept in {out}.parts ({parts:,} of them): --resume continues from there"
    assert said.splitlines()[-1] == kept
    assert "Traceback" not in said
    assert "killed" not in said
    assert not out.exists()


def test_of_a_pipe_a_signal_leaves_nothing(model, tmp_path):
    status, said = stopped("predict", model, "-", tmp_path / "out.jsonl")
    assert status == 143
    assert said.splitlines()[-1] == "stopped; nothing is kept of this work"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("of", "name", "number", "count"),
    [
        (PartsFolder, "put_in_place", signal.SIGTERM, 1),
        (PartsFolder, "remove", signal.SIGINT, 1),
        (BaseProcess, "join", signal.SIGTERM, 2),
    ],
)
def test_a_signal_that_comes_when_the_file_is_complete_changes_nothing(
    of, name, number, count, model, tmp_path, monkeypatch, capfd, quick_workers
):
    """It comes twice, as of somebody who is in a hurry."""
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "word1 [MASK]"}\n' * 40 + "broken\n")
    work = getattr(of, name)

    def signalled(*args):
        for _ in range(2):
            signal.raise_signal(number)
        return work(*args)

    monkeypatch.setattr(of, name, signalled)
    flags = [f"--workers={count}", "--on-error", "skip", "--part-rows", "20", "--device", "cpu"]
    assert main(["predict", str(model), str(source), "--out", str(out), *flags]) == 0
    said = capfd.readouterr().err
    assert f"warning: {number.name} received: {out} is complete, and the work ends as usual\n" in said
    assert f"warning: 1 unusable row left out, see {out}.errors.jsonl" in said
    assert "40 rows predicted" in said.splitlines()[-1]
    assert len(out.read_text().splitlines()) == 40
    assert not PartsFolder(out).path.exists()


def _loads_for_ever(device):
    time.sleep(SECONDS)


def test_another_ctrl_c_does_not_wait_for_workers(tmp_path, monkeypatch):
    """The first one comes while they load their models, the second one while they are waited for."""
    monkeypatch.setattr(workers, "_LEAVE_SECONDS", SECONDS)
    main_thread, waiting_in, over = threading.get_ident(), ["_received", "join"], threading.Event()

    def interrupt_twice():
        for name in waiting_in:
            while name not in {each.name for each in traceback.extract_stack(sys._current_frames()[main_thread])}:
                if over.wait(0.01):
                    return
            os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt_twice)
    interrupting.start()
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            workers.processes(_loads_for_ever, ["cpu", "cpu"], PartsFolder(tmp_path / "out.jsonl"), "stop"),
        ):
            pass
        assert not multiprocessing.active_children()
    finally:
        over.set()
        interrupting.join()
        for child in multiprocessing.active_children():
            child.kill()


def test_parts_of_a_pipe_are_removed_when_no_worker_writes_more(model, tmp_path, monkeypatch, quick_workers):
    source, out, ended, left = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", threading.Event(), []
    os.mkfifo(source)
    pipe = os.open(source, os.O_RDWR)  # held open: there may be more to come
    os.write(pipe, b'{"text": "word1 [MASK]"}\n' * 100)
    remove = PartsFolder.remove

    def counting(self):
        left.append(len(multiprocessing.active_children()))
        remove(self)

    def stop():
        while not ended.is_set():
            if PartsFolder(out).finished_parts():
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(0.02)

    monkeypatch.setattr(PartsFolder, "remove", counting)
    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        with pytest.raises(StoppedAfterSaving, match="nothing is kept"):
            predict_file(model, source, out, rows=RowOptions(workers=2, part_rows=20), device="cpu")
    finally:
        ended.set()
        stopping.join()
        os.close(pipe)
    assert left[0] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_of_a_pipe_a_full_disk_leaves_nothing(model, tmp_path):
    """The disk takes every part, and not the file that they are joined into."""
    out = tmp_path / "out.jsonl"
    call = ["predict", str(model), "-", "--out", str(out), "--part-rows", "20", "--device", "cpu"]
    rows = "".join(f'{{"text": "word1 [MASK] word{n % 7}"}}\n' for n in range(200))
    with Command(*call) as command:
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (30_000, 30_000))
        _, said = command.communicate(rows)
        assert command.wait() == 2
    assert "could not write: File too large" in said
    assert "are kept" not in said
    assert not list(tmp_path.iterdir())


def test_no_message_about_a_pipe_names_resume(model, tmp_path, monkeypatch):
    """It would be refused."""
    source, pipe, out, write = tmp_path / "rows.jsonl", tmp_path / "pipe", tmp_path / "out.jsonl", PartsFolder.write
    os.mkfifo(pipe)
    source.write_text('{"text": "word1 [MASK]"}\n' * 20 + "broken\n")
    with pytest.raises(BertsmithError, match="not JSON"):
        predict_file(model, source, out, rows=RowOptions(part_rows=10), device="cpu")
    with pytest.raises(BertsmithError, match="parts of an earlier run are there") as refused:
        predict_file(model, pipe, out, device="cpu")
    assert refused.value.fix == "delete this folder to begin anew"
    PartsFolder(out).remove()

    def write_and_damage(self, number, answered):
        write(self, number, answered)
        os.truncate(self.path / f"{number:08}.part", 5)

    monkeypatch.setattr(PartsFolder, "write", write_and_damage)
    writer = threading.Thread(target=pipe.write_text, args=('{"text": "word1 [MASK]"}\n',))
    writer.start()
    with pytest.raises(BertsmithError, match="this finished part is damaged") as refused:
        predict_file(model, pipe, out, device="cpu")
    writer.join()
    assert refused.value.fix == "give the same command and its rows once more"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pipe", "rows.jsonl"]


def test_parts_of_an_earlier_state_are_refused_together(model, tmp_path):
    """Their accounts lack what is counted now."""
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "word1 [MASK]"}\n' * 40 + "broken\n")
    with pytest.raises(BertsmithError, match="not JSON"):
        predict_file(model, source, out, rows=RowOptions(part_rows=10), device="cpu")
    parts = PartsFolder(out).path
    for path in (each for each in parts.glob("*.json") if each.stem != "made_from"):
        path.write_text(
            json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "empty_texts"})
        )
    made_from = json.loads((parts / "made_from.json").read_text())
    made_from["bertsmith"] = made_from["bertsmith"].replace(", empty_texts", "")
    (parts / "made_from.json").write_text(json.dumps(made_from))
    with pytest.raises(BertsmithError, match="made from another bertsmith ") as refused:
        predict_file(model, source, out, rows=RowOptions(part_rows=10, resume=True), device="cpu")
    assert refused.value.where == str(parts)
    assert refused.value.fix == "give the command as it was, or delete this folder to begin anew"


def test_parts_that_another_process_makes_or_joins_beside_this_one(model, tmp_path, monkeypatch):
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "word1 [MASK]"}\n' * 20 + "broken\n")
    with pytest.raises(BertsmithError, match="not JSON"):
        predict_file(model, source, out, rows=RowOptions(part_rows=10), device="cpu")
    with pytest.raises(BertsmithError, match="parts of an earlier run"):
        PartsFolder(out).refuse_to_begin(resume=False)  # before a model is loaded
    with pytest.raises(BertsmithError, match="parts of an earlier run"), PartsFolder(out).held({}, resume=False):
        pass  # which it made while this one loaded its model

    def locked_late(path, **kwargs):
        PartsFolder(out).remove()
        return locked(path, **kwargs)

    monkeypatch.setattr(folder, "locked", locked_late)
    PartsFolder(out).refuse_to_begin(resume=False)
