"""Promise: `--profile STEPS` writes a trace of that many steps, and changes nothing else of a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.training.pretrain import pretrain
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.records.trace import SHOWN, WARM_UP
from made_runs import corpus, figures, small_recipe, stopped_after, weights

# Its second phase begins before the steps that are profiled.
RECIPE = small_recipe(phase1__steps=2, phase2__steps=WARM_UP + 1)


def steps_in(run: Path) -> int:
    """How many steps the trace shows, by the optimizer's own marks."""
    with gzip.open(run / "profile" / "trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    return sum(each.get("name", "").startswith("Optimizer.step#") for each in events)


def test_a_trace_has_the_steps_asked_for_and_a_table(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    plain = pretrain(RECIPE, corpus(), tmp_path / "plain")
    assert not (plain.folder / "profile").exists()
    said.clear()
    run = pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(profile=2))
    assert (figures(run), weights(run)) == (figures(plain), weights(plain))
    assert steps_in(run.folder) == 2
    (line,) = [each for each in said.messages if each.startswith("profile of")]
    assert line.startswith(f"profile of steps {WARM_UP + 1} to {WARM_UP + 2}: {run.folder / 'profile'}")
    table = (run.folder / "profile" / "operations.txt").read_text(encoding="utf-8").splitlines()
    assert len(table) == 1 + SHOWN
    shown = [each.strip() for each in said.messages]
    assert all(each.strip() in shown for each in table)
    shares = [float(each.split()[-1].rstrip("%")) for each in table[1:]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5


def test_what_a_short_run_has_is_profiled(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    run = pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(profile=100))
    assert steps_in(run.folder) == 3
    shorter = small_recipe(phase1__steps=WARM_UP, phase2__steps=0)
    run = pretrain(shorter, corpus(), tmp_path / "shorter", outputs=Outputs(profile=1))
    assert not (run.folder / "profile").exists()
    assert f"nothing was profiled: the run took {WARM_UP} steps" in said.text


def test_a_resumed_run_profiles_again_only_where_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    stopped_after(1, monkeypatch, RECIPE, out, outputs=Outputs(profile=1))
    assert not (out / "profile").exists()
    pretrain(RECIPE, corpus(), out, resume=True)
    assert not (out / "profile").exists()


def test_a_number_below_nought_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="--profile is -1"):
        pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(profile=-1))
    assert not (tmp_path / "run").exists()
