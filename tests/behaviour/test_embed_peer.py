"""The comparison with sentence-transformers' trainer: its rows, what it does not run again, and its table."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from made_commands import called


@pytest.fixture
def peer(script):
    return script("embed_peer")


def rows_of(start, side, scores, rates):
    return [
        {"start": start, "side": side, "seed": seed, "score": score, "examples_per_second": rate}
        for seed, (score, rate) in enumerate(zip(scores, rates, strict=True), start=1)
    ]


def test_the_table_has_differences_with_their_standard_errors(peer):
    ours, theirs = [0.86, 0.87, 0.88], [0.85, 0.87, 0.87]
    rows = [*rows_of("minilm", peer.OURS, ours, [5, 7, 30]), *rows_of("minilm", peer.THEIRS, theirs, [4, 5, 6])]
    head, line, *rest = peer.table_of(rows)
    error = 100 * np.sqrt(np.var(ours, ddof=1) / 3 + np.var(theirs, ddof=1) / 3)
    expected = ["minilm", "3/3", "87.00 +- 1.00", "86.33 +- 1.15", "+0.67", f"{error:.2f}", "7.0", "5.0"]
    assert line.split() == " ".join(expected).split()
    assert "difference" in head
    assert not rest
    assert peer.table_of(rows[:3]) == ["no start has both sides"]


def test_training_pairs_are_those_that_are_alike_and_dev_rows_keep_their_scores(peer, data_folder, real_data):
    real_data("glue/STS-B")
    train, dev = peer.pairs(data_folder, None)
    assert all(row.keys() == {"text", "text_b"} for row in train)
    assert (len(train), len(dev)) == (1406, 1500)
    assert {row["label"] for row in dev} >= {0.0, 5.0}


def test_runs_go_into_one_file_and_are_not_run_again(peer, tmp_path, monkeypatch):
    ran = []

    def run(start, train, dev, seed, model):
        ran.append((start.fresh_layers, len(train), len(dev), seed))
        return 0.5, 2.0

    monkeypatch.setattr(peer, "_RUNS", {peer.OURS: run, peer.THEIRS: run})
    monkeypatch.setattr(peer, "start_folder", lambda start, model, folder: folder)
    monkeypatch.setattr(peer, "pairs", lambda data, most: ([{}] * 4, [{}] * (2 if most is None else most)))
    out = tmp_path / "scores.json"

    call = partial(called, peer, monkeypatch, "run", "--data", tmp_path, "--out", out, "--starts", "minilm")

    call("--seeds", "1")
    call("--seeds", "1", "2")
    assert ran == [(0, 4, 2, 1)] * 2 + [(0, 4, 2, 2)] * 2
    written = json.loads(out.read_text())
    assert [(row["side"], row["seed"], row["examples_per_second"]) for row in written] == [
        (side, seed, 2.0) for seed in (1, 2) for side in (peer.OURS, peer.THEIRS)
    ]
    with pytest.raises(SystemExit, match="was run with other settings or rows"):
        call("--seeds", "1", "--slice", "1")
