"""What is said of finished parts where a signal ends the work, or an earlier state of the code wrote them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file

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
    command = [sys.executable, "-m", "bertsmith", verb, str(model), source, "--out", str(out), "--part-rows", "20"]
    process = subprocess.Popen(
        [*command, "--device", "cpu", *flags], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    rows = "".join(f'{{"text": "word1 [MASK] word{n % 7}"}}\n' for n in range(1000)) if source == "-" else ""
    feeding = threading.Thread(target=process.stdin.write, args=(rows,), daemon=True)
    feeding.start()
    try:
        while not PartsFolder(out).finished_parts():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


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
    assert f"warning: {number.name} received: the work stops and says what is kept of it" in said
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
