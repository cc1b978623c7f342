"""The comparison with a plain transformers loop: what it runs, what it does not run again, and its table."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from made_commands import called


@pytest.fixture
def peer(script):
    return script("finetune_peer")


def rows_of(task, ours, theirs, precision="fp32"):
    return [
        {"task": task, "side": side, "seed": seed, "score": score, "precision": precision if side == "ours" else "fp32"}
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


def test_a_task_whose_runs_are_all_alike_is_also_left_out_of_the_mean(peer):
    rows = [*rows_of("mrpc", [0.81, 0.83], [0.80, 0.80]), *rows_of("squad2", [0.461, 0.461], [0.461, 0.461])]
    *_, mean, without = peer.table_of(rows)
    assert mean.startswith("mean over 2 tasks: +1.00 points")
    assert "alike, mean over 1 tasks: +2.00 points, standard error 1.00" in without


def test_one_seed_of_a_side_is_no_verdict(peer):
    text = "\n".join(peer.table_of(rows_of("mrpc", [0.7], [0.8, 0.82])))
    assert "so this says nothing yet" in text
    assert "worse" not in text


def test_each_precision_of_ours_has_a_table(peer):
    theirs = rows_of("mrpc", [], [0.80, 0.82])
    rows = [*rows_of("mrpc", [0.81, 0.83], []), *rows_of("mrpc", [0.71, 0.73], [], "bf16"), *theirs]
    text = "\n".join(peer.table_of(rows))
    assert text.index("ours in fp32") < text.index("mean over 1 tasks: +1.00 points") < text.index("ours in bf16")
    assert "mean over 1 tasks: -9.00 points" in text


def test_seeds_beyond_those_fixed_beforehand_have_a_table_of_their_own(peer):
    rows = rows_of("squad1", [0.1, 0.1, 0.1, 0.32, 0.30], [0.3, 0.3, 0.3, 0.22, 0.24])
    *_, last = peer.table_of(rows)
    assert " ".join(last.split()) == "squad1 f1 2/2 31.00 +- 1.41 23.00 +- 1.41 +8.00 1.41 +5.7"
    assert "further seeds" not in "\n".join(peer.table_of(rows_of("squad1", [0.1] * 3, [0.2] * 3)))


def test_seeds_with_the_same_draws_are_compared_one_by_one(peer):
    rows = rows_of("squad1", [0.10, 0.12], [0.30, 0.20])
    rows += [{**row, "side": "same-draws"} for row in rows_of("squad1", [0.29, 0.22, 0.9], [])]
    last = peer.table_of(rows)[-1].split()
    assert last == ["squad1", "f1", "2", "25.50", "25.00", "0.50", "1.50", "11.00"]


def test_ours_takes_the_order_and_the_head_that_the_other_side_draws(peer, tmp_path, monkeypatch):
    import peer_loop
    from peer_tasks import TASKS

    from bertsmith.tasks.objective import Order
    from bertsmith.weights import huggingface
    from made_rows import made_model, rows

    folder, seen = made_model(tmp_path / "model"), {}
    task = replace(TASKS["mrpc"], epochs=2, batch=8, max_length=32)
    whole = huggingface.load_model

    def loaded(*arguments, **options):
        seen["model"] = whole(*arguments, **options)
        seen["head"] = [each.detach().clone() for each in seen["model"].classifier.parameters()]
        return seen["model"]

    def step(order, number, units, taken=Order.step):
        seen.setdefault("orders", {})[number // order.epoch_steps] = units.tolist()
        return taken(order, number, units)

    monkeypatch.setattr("bertsmith.tasks.finetuning.model.load_model", loaded)
    monkeypatch.setattr(Order, "step", step)
    train = rows(20, 1)
    peer._RUNS[peer.SAME](task, train, rows(12, 2), 3, folder, "fp32")
    _, other = peer_loop.started(task, train, rows(12, 2), 3, folder)
    for ours, theirs in zip(seen["head"], other.classifier.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=0)
    assert list(seen["orders"].values()) == list(peer_loop.orders(20, 2, 3))


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

    call = partial(called, peer, monkeypatch, "run", "--data", tmp_path, "--out", out, "--tasks", "mrpc")

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
    call("--seeds", "1", "--precision", "bf16")
    (_, *_, last) = json.loads(out.read_text())
    assert len(ran) == 5
    assert (last["side"], last["precision"]) == ("ours", "bf16")


@pytest.mark.parametrize("kind", ["classify", "tag", "questions", "choice"])
def test_the_other_sides_parts_of_a_batch_have_its_gradient(peer, kind):
    import peer_loop
    import transformers

    torch.manual_seed(3)
    small = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    names = {"classify": "SequenceClassification", "tag": "TokenClassification", "questions": "QuestionAnswering"}
    model = getattr(transformers, f"BertFor{names.get(kind, 'MultipleChoice')}")(small).double().eval()
    draw = np.random.default_rng(4)

    def row(length):
        ids = draw.integers(1, 50, length).tolist()
        if kind == "choice":
            short = ids[: length // 2]
            rows = {"input_ids": [ids, short], "attention_mask": [[1] * len(ids), [1] * len(short)]}
            return rows | {"labels": int(draw.integers(2))}
        labels = {
            "classify": lambda: {"labels": int(draw.integers(2))},
            "tag": lambda: {"labels": draw.choice([-100, 0, 1], length).tolist()},
            "questions": lambda: {"start_positions": int(draw.integers(length)), "end_positions": length - 1},
        }
        return {"input_ids": ids, "attention_mask": [1] * length} | labels[kind]()

    batch = [row(length) for length in draw.integers(3, 30, 21)]
    peer_loop._backward(model, batch)
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(**peer_loop._collate(batch)).loss.backward()
    for part, whole in zip(found, (parameter.grad for parameter in model.parameters()), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


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
