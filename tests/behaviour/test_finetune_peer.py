"""The comparison with a plain transformers loop: what it runs, what it does not run again, and its table."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest


@pytest.fixture
def peer(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import finetune_peer

    yield finetune_peer
    for name in ("finetune_peer", "peer_tasks", "peer_loop", "peer_questions", "runs_file"):
        sys.modules.pop(name, None)


def rows_of(task, ours, theirs):
    return [
        {"task": task, "side": side, "seed": seed, "score": score}
        for side, scores in (("ours", ours), ("transformers", theirs))
        for seed, score in enumerate(scores, start=1)
    ]


def test_the_table_has_differences_with_their_standard_errors(peer):
    ours, theirs = [0.81, 0.83, 0.82], [0.80, 0.80, 0.83]
    text = "\n".join(peer.table_of([*rows_of("mrpc", ours, theirs), *rows_of("cola", [0.5, 0.5], [0.4, 0.5])]))
    difference = 100 * (np.mean(ours) - np.mean(theirs))
    error = 100 * np.sqrt(np.var(ours, ddof=1) / 3 + np.var(theirs, ddof=1) / 3)
    assert f"{difference:+.2f}" in text
    assert f"{error:.2f}" in text
    other = 100 * np.sqrt(np.var([0.4, 0.5], ddof=1) / 2)
    mean, spread = (difference + 5) / 2, np.sqrt(error**2 + other**2) / 2
    assert f"mean over 2 tasks: {mean:+.2f} points, standard error {spread:.2f}: above" in text


def test_a_task_that_is_worse_by_three_errors_is_named(peer):
    text = "\n".join(peer.table_of(rows_of("stsb", [0.80, 0.801], [0.86, 0.861])))
    assert "worse: five new seeds on both sides" in text
    assert "worse than the other side" in text
    assert peer.table_of(rows_of("stsb", [0.8], [])) == ["no task has both sides"]


def test_runs_go_into_one_file_and_are_not_run_again(peer, tmp_path, monkeypatch):
    ran = []

    def run(task, train, dev, seed, model, precision):
        ran.append((task.kind, len(train), len(dev), seed))
        return {task.metric: 0.5}

    monkeypatch.setattr(peer, "_RUNS", {"ours": run, "transformers": run})
    rows = ([{"text": "a", "label": "0"}] * 4, [{"text": "b", "label": "1"}] * 2)
    monkeypatch.setattr(peer, "rows_of", lambda name, data, most: rows)
    out = tmp_path / "scores.json"

    def call(*extra):
        arguments = ["finetune_peer.py", "run", "--data", str(tmp_path), "--out", str(out), "--tasks", "mrpc"]
        monkeypatch.setattr(sys, "argv", [*arguments, *extra])
        peer.main()

    call("--seeds", "1")
    assert ran == [("classify", 4, 2, 1)] * 2
    call("--seeds", "1", "2")
    assert [seed for *_, seed in ran] == [1, 1, 2, 2]
    written = json.loads(out.read_text())
    assert [(row["side"], row["seed"]) for row in written] == [
        ("ours", 1),
        ("transformers", 1),
        ("ours", 2),
        ("transformers", 2),
    ]
    assert all({"score", "seconds", "versions", "cpu", "settings", "precision"} <= row.keys() for row in written)
    with pytest.raises(SystemExit, match="was run with other settings or rows"):
        call("--seeds", "1", "--slice", "2")


def test_the_other_sides_entities_are_those_of_conlleval(peer):
    import peer_loop

    tags = ["B-a", "I-a", "I-b", "O", "I-a", "B-a"]
    assert peer_loop.entities(tags) == {(0, 2, "a"), (2, 3, "b"), (4, 5, "a"), (5, 6, "a")}
    assert peer_loop.entity_f1([tags], [tags]) == 1
    assert peer_loop.entity_f1([["B-a", "I-a", "O"]], [["B-a", "O", "B-a"]]) == 0
    assert peer_loop.entity_f1([["B-a", "O", "B-b"]], [["B-a", "O", "B-a"]]) == 0.5


def test_the_other_sides_answers_are_scored_as_squads(peer):
    import peer_questions

    assert peer_questions.normalised("The Cat, an animal!") == "cat animal"
    assert peer_questions.token_f1("the black cat", "a cat") == pytest.approx(2 / 3)
    assert peer_questions.token_f1("", "") == 1
    assert peer_questions.token_f1("", "cat") == 0
