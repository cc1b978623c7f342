"""Sides in processes of their own, raced in turns; what fails is said, and nothing outlives the bench."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.process import Child, OutOfTime, SideFailed
from bertsmith.bench.step import race as step_race
from bertsmith.bench.step.instances import write_batches
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.plan import shape
from bertsmith.bench.step.race import Race, goes_on, race, start_side
from bertsmith.bench.step.results import Result, Work
from bertsmith.bench.step.side import TRANSFORMERS, StepSide

pytestmark = pytest.mark.usefixtures("forked_children")
VOCABULARY = 600
OURS = StepSide(model=shape("tiny", VOCABULARY))


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("sets") / "set.npz"
    write_batches(path, [pretrain_batch(lengths_of("ragged", 3, 64), VOCABULARY)])
    return {"few": path}


@pytest.fixture(scope="module")
def survivor(forked_children, sets, tmp_path_factory) -> Iterator[Child]:
    """A side that outlives its peers."""
    with side(OURS, sets, tmp_path_factory.mktemp("survivor") / "a") as made:
        yield made


def side(of: StepSide, sets: dict[str, Path], folder: Path, deadline: float = float("inf")) -> Child:
    return start_side(of, sets, folder, deadline)


def test_a_round_is_a_turn_of_each_and_their_number_is_odd(sets, tmp_path):
    fp32 = StepSide(model=OURS.model, precision="fp32")
    with side(OURS, sets, tmp_path / "a") as ours, side(fp32, sets, tmp_path / "b") as other:
        assert "threads" in ours.ready()["device"]
        found = race(ours, other, "few", passes=2, seconds=0.1)
        assert len(found.ours) == len(found.peer) >= 3
        assert len(found.ours) % 2 == 1
        assert all(seconds > 0 for seconds in (*found.ours, *found.peer))
        assert ours.ask("memory")["bytes"] > 10_000_000
        rate = ours.ask("rate", name="few")
        assert rate["flops"] > 1e8
        processes = [each._process.pid for each in (ours, other)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)


@pytest.mark.parametrize("after", [None, 1])
def test_a_peer_that_the_system_kills_in_any_round_is_a_row_that_says_so(sets, survivor, tmp_path, monkeypatch, after):
    with side(OURS, sets, tmp_path / "b") as other:
        other.ready()
        going = step_race.goes_on

        def kill_after(rounds: int, spent: float, seconds: float) -> bool:
            if rounds == after:
                other._process.kill()
            return going(rounds, spent, seconds)

        if after is None:
            other._process.kill()
        monkeypatch.setattr(step_race, "goes_on", kill_after)
        found = race(survivor, other, "few", passes=1, seconds=0.1)
        assert "memory" in found.failed
        assert len(found.ours) >= 3
        assert found.peer == ()
        with pytest.raises(SideFailed, match="memory"):
            other.ask("memory")


@pytest.mark.parametrize("seconds", [0.0, 1.0, 100.0])
def test_rounds_are_odd_at_least_three_and_at_most_nine(seconds):
    rounds = 0
    while goes_on(rounds, spent=0.3 * rounds, seconds=seconds):
        rounds += 1
    assert rounds == {0.0: 3, 1.0: 5, 100.0: 9}[seconds]


def test_the_row_is_that_of_the_round_with_the_median_ratio():
    found = Race(ours=(1.0, 2.0, 8.0), peer=(4.0, 10.0, 16.0))
    row = Result("a case", "bf16", Work(1000, 10, 5e9), found, 1, 2).row({"bf16": 1e10})
    assert (row["ours"], row["peer"], row["ratio"]) == (1000.0, 250.0, 4.0)
    assert row["peak_share"] == pytest.approx(0.5)
    assert row["sequences_per_second"] == 10
    alone = Result("alone", "bf16", Work(1000, 10, 5e9), Race(ours=(3.0, 1.0, 2.0)), 1).row({"bf16": 1e10})
    assert (alone["ours"], alone["peer"], alone["ratio"]) == (500.0, None, None)


def test_a_side_that_dies_is_quoted(sets, tmp_path):
    broken = StepSide(model=OURS.model | {"num_attention_heads": 3})
    said = r"(?s)ended with status 1.*not a multiple of num_attention_heads"
    with side(broken, sets, tmp_path / "a") as process, pytest.raises(BertsmithError, match=said):
        process.ready()


def test_a_side_is_not_waited_for_past_the_deadline(tmp_path):
    os.mkfifo(tmp_path / "set.npz")  # nobody writes into it: the side waits for its batches forever
    never = {"few": tmp_path / "set.npz"}
    with side(OURS, never, tmp_path / "a", time.monotonic() + 0.05) as process, pytest.raises(OutOfTime):
        process.ready()


def test_a_peer_that_is_not_installed_is_said(sets, tmp_path, monkeypatch):
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "transformers.py").write_text("raise ModuleNotFoundError('no', name='transformers')\n")
    paths = [str(tmp_path / "hide"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with side(StepSide(TRANSFORMERS, OURS.model), sets, tmp_path / "a") as peer:
        with pytest.raises(SideFailed, match="transformers is not installed"):
            peer.ready()
        with pytest.raises(SideFailed, match="transformers is not installed"):
            peer.ready()


def test_measuring_needs_nothing_that_preparing_text_needs():
    """A machine with a card may have torch and little else."""
    hidden = ["tyro", "sentencex", "mwparserfromhell", "tokenizers", "nanotoken", "yaml", "transformers"]
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({hidden!r}))\n"
        "import bertsmith.bench.step.bench, bertsmith.bench.step.worker"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
