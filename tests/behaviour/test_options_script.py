"""The measurement of options one by one: every one alone, never twice, and differences with their standard errors."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from bertsmith.tasks.settings import FinetuneSettings
from made_commands import called


@pytest.fixture
def script(script):
    return script("finetune_options")


def test_every_option_is_a_setting_and_differs_from_the_default(script):
    plain = FinetuneSettings()
    for name, changes in script.OPTIONS.items():
        assert (FinetuneSettings(**changes) == plain) == (name == script.DEFAULT)


def test_runs_go_into_one_file_and_are_not_run_again(script, tmp_path, monkeypatch, capsys):
    ran = []

    def run(task, train, dev, seed, model, precision, **changes):
        ran.append((seed, changes))
        return {task.metric: 0.5 + 0.01 * seed * len(changes)}

    monkeypatch.setattr(script, "ours", run)
    rows = ([{"text": "a", "label": "0"}] * 4, [{"text": "b", "label": "1"}] * 2)
    monkeypatch.setattr(script, "rows_of", lambda name, data, most: rows)
    out = tmp_path / "options.json"

    call = partial(called, script, monkeypatch, "run", "--data", tmp_path, "--out", out, "--tasks", "mrpc")

    call("--options", "default", "frozen-layers-2")
    assert ran == [(seed, changes) for seed in range(1, 6) for changes in ({}, {"frozen_layers": 2})]
    call("--options", "default", "frozen-layers-2")
    assert len(ran) == 10
    with pytest.raises(SystemExit, match="other settings"):
        call("--precision", "bf16")
    capsys.readouterr()
    called(script, monkeypatch, "table", out)
    *_, line = capsys.readouterr().out.splitlines()
    differences = np.arange(1, 6.0)
    assert line.split()[-3:] == ["+3.00", f"{differences.std(ddof=1) / 5**0.5:.2f}", "+4.2"]
    assert len(json.loads(out.read_text())) == 10
