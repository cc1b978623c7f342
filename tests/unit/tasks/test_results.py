"""What a run came to, in words."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import write_json
from bertsmith.report.page import page
from bertsmith.report.parts import Limits
from bertsmith.report.reading import read_runs
from bertsmith.tasks.reading.records import Truncated
from bertsmith.tasks.results import FinetuneResult, SeedResult, last_figures, results_of
from bertsmith.weights.huggingface import FINETUNE_FILE
from made_reports import Parsed, write_run

PATIENCE = 1


def seeds_of(*scores: list[float]) -> list[SeedResult]:
    """Seeds that were measured after each of at most 3 epochs of one step, from their records."""
    records: list[dict[str, Any]] = []
    for seed, of_seed in enumerate(scores):
        for step, score in enumerate(of_seed, start=1):
            records.append({"kind": "train", "seed": seed, "seed_step": step, "steps": 1, "loss": 1.0})
            records.append({"kind": "evaluation", "seed": seed, "seed_step": step, "accuracy": score})
    return results_of(Path("metrics.jsonl"), records, range(len(scores)), "accuracy", 1, [1, 2, 3], PATIENCE)


def result(*scores: list[float], keep_seed: str = "best") -> FinetuneResult:
    trials = {"1": {"accuracy": 0.6}, "2": {"accuracy": 0.8}}
    return FinetuneResult(
        folder=None, task="classify", metric="accuracy", keep_seed=keep_seed, seeds=seeds_of(*scores), folds=trials,
        shares={"10": {"accuracy": 0.3}}, tuned={"dev": {}}, baseline=0.1, baseline_name="most frequent label",
        class_counts={}, rows={}, truncated={"train": Truncated(0, 0)}, seconds=1.0,
    )  # fmt: skip


def test_a_seed_without_records_is_not_left_out() -> None:
    with pytest.raises(BertsmithError, match="records of seed 1 are missing"):
        seeds_of([0.4, 0.5, 0.6], [], [0.4, 0.5, 0.6])
    record = {"kind": "evaluation", "fold": 1, "accuracy": 0.5}
    assert last_figures(Path("metrics.jsonl"), [record], "fold", [1], "accuracy") == {"1": {"accuracy": 0.5}}
    with pytest.raises(BertsmithError, match="records of fold 2 are missing"):
        last_figures(Path("metrics.jsonl"), [record], "fold", [1, 2], "accuracy")
    with pytest.raises(BertsmithError, match="records of fold 1 are missing"):
        last_figures(Path("metrics.jsonl"), [record], "fold", [1], "f1")


def test_a_record_that_was_changed_by_hand_is_named_or_read_as_it_was() -> None:
    train = {"kind": "train", "seed": 0, "seed_step": 1, "steps": 1, "loss": 1.0}
    measured = {"kind": "evaluation", "seed": 0, "seed_step": 1, "accuracy": 1, "test_accuracy": 0}
    (seed,) = results_of(Path("metrics.jsonl"), [train, measured], [0], "accuracy", 1, [1], 0)
    assert (seed.epochs[0].dev, seed.epochs[0].test) == ({"accuracy": 1.0}, {"accuracy": 0.0})
    for name in ("steps", "accuracy"):
        changed = [{key: value for key, value in each.items() if key != name} for each in (train, measured)]
        with pytest.raises(BertsmithError, match="records of seed 0 are missing"):
            results_of(Path("metrics.jsonl"), changed, [0], "accuracy", 1, [1], 0)
    train["count"] = train.pop("steps")
    (seed,) = results_of(Path("metrics.jsonl"), [train, measured], [0], "accuracy", 1, [1], 0)
    assert seed.epochs[0].train_loss == 1.0


def test_records_of_steps_that_all_overflowed_fp16_are_not_missing() -> None:
    """Their line is there, and nothing counts in it: no loss is known, which is not one of 0."""
    records = [
        {"kind": "train", "seed": 0, "seed_step": 1, "steps": 1, "loss": 0.0, "count": 0.0},
        {"kind": "evaluation", "seed": 0, "seed_step": 1, "accuracy": 0.5},
    ]
    (seed,) = results_of(Path("metrics.jsonl"), records, [0], "accuracy", 1, [1], 0)
    assert math.isnan(seed.epochs[0].train_loss)
    del records[0]["loss"]  # as it is since there is none where nothing counted
    (again,) = results_of(Path("metrics.jsonl"), records, [0], "accuracy", 1, [1], 0)
    assert repr(again.epochs) == repr(seed.epochs)  # NaN is not equal to itself
    more = [*records, {"kind": "train", "seed": 0, "seed_step": 1, "steps": 5, "loss": 3.0}]
    assert results_of(Path("metrics.jsonl"), more[::-1], [0], "accuracy", 1, [1], 0)[0].epochs[0].train_loss == 3.0
    with pytest.raises(BertsmithError, match="records of seed 0 are missing"):
        results_of(Path("metrics.jsonl"), records[1:], [0], "accuracy", 1, [1], 0)
    del records[1]["seed_step"]  # by hand
    with pytest.raises(BertsmithError, match="records of seed 0 are missing"):
        results_of(Path("metrics.jsonl"), records, [0], "accuracy", 1, [1], 0)


def test_a_loss_of_nothing_is_null_in_json_and_comes_back(tmp_path: Path) -> None:
    made = result([0.7, 0.5])
    epochs = [replace(each, train_loss=math.nan) for each in made.seeds[0].epochs]
    write_json(tmp_path / FINETUNE_FILE, replace(made, seeds=[replace(made.seeds[0], epochs=epochs)]).to_dict())
    found = json.loads((tmp_path / FINETUNE_FILE).read_text(), parse_constant=pytest.fail)
    assert all(math.isnan(each.train_loss) for each in FinetuneResult.from_dict(found, tmp_path).seeds[0].epochs)


def test_what_patience_ended_is_told_beside_what_it_did_not_end() -> None:
    early = result([0.7, 0.5])
    assert "0.7000 +- 0.1414 (--patience ended the seed after epoch 2, and none of the folds)" in early.line()
    assert "10% 0.3000, 100% 0.5000 (--patience ended the seed after epoch 2, and none of the shares)" in early.line()
    several = result([0.7, 0.5], [0.4, 0.5, 0.6], [0.5, 0.6, 0.5])
    assert "100% 0.5333 (--patience ended 1 of 3 seeds after epoch 2, and none of the shares)" in several.line()
    assert "patience" not in result([0.4, 0.5, 0.6]).line()


def test_the_page_says_so_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task="classify")
    for scores, said in (([0.7, 0.5], True), ([0.4, 0.5, 0.6], False)):
        write_json(run / FINETUNE_FILE, result(scores).to_dict())
        text = Parsed(page(read_runs([run]), Limits())).text
        for others in ("folds", "shares"):
            assert (f"--patience ended the seed after epoch 2, and none of the {others}: do not" in text) == said


@pytest.mark.parametrize(
    ("count", "kept"),
    [(2, "seed 0, the lower of the two in the middle"), (3, "seed 1, the one in the middle"), (1, "seed 0, epoch")],
)
def test_the_seed_in_the_middle_is_called_what_it_is(count: int, kept: str) -> None:
    assert f"kept {kept}" in result(*([0.5, 0.6, 0.7 + seed / 10] for seed in range(count)), keep_seed="median").line()


def test_results_of_earlier_versions_do_not_say_whether_patience_ended_a_seed() -> None:
    of_now = result([0.7, 0.5])
    stored = asdict(of_now)
    assert stored["seeds"][0].pop("ended_early")
    assert FinetuneResult.from_dict(stored, Path("run")).seeds == [replace(of_now.seeds[0], ended_early=False)]
