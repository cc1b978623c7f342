"""Fine-tuning over ranks is fine-tuning in one process: the same scores and weights, however steps are cut up."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertsmith
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.tasks.reading.records import Columns
from bertsmith.training.run_folder import Run
from made_entities import tagged_rows
from made_kills import Moment, drawing
from made_questions import questions
from made_rows import CONFIG, QUICK, made_model, rows
from made_runs import OF_THE_CLOCK, figures, ran, weights

# 49 rows in steps of 16: the last step of an epoch has one, fewer than there are ranks. Micro-batches are small, so
# every rank has several of them in most steps; and the test rows make fewer batches than there are ranks.
TRAIN, DEV, TEST = rows(49, 1), rows(24, 2), rows(2, 3)
SETTINGS = replace(
    QUICK, epochs=2, seeds=2, log_every=2, save_every=2, keep=2, dropout=0.0, attention_dropout=0.0,
    micro_batch_tokens=40,
)  # fmt: skip
DROPPING = replace(SETTINGS, dropout=0.2, attention_dropout=0.1, patience=1)
STEPS_OF_A_SEED = 2 * 4
CLOSE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that has seen such rows before, so that its scores soon tell one row from another."""
    folder = tmp_path_factory.mktemp("encoder")
    seen = replace(QUICK, epochs=10, learning_rate=6e-3, dropout=0.0, attention_dropout=0.0)
    made = bertsmith.finetune(
        "classify",
        made_model(folder, replace(CONFIG, num_hidden_layers=1)),
        rows(97, 1),
        DEV,
        folder / "seen",
        settings=seen,
    ).model
    assert made is not None
    return made


def tune(model: Path, run: Path, settings: Any, results: Path | None = None) -> None:
    """What every rank does. results: where each rank writes what it was given."""
    result = bertsmith.finetune("classify", model, TRAIN, DEV, run, test=TEST, settings=settings, resume=True)
    if results is not None:
        from bertsmith.base import ranks

        given = {**result.to_dict(), "folder": str(result.folder)}
        (results / f"{ranks.rank()}-of-{ranks.world_size()}.json").write_text(json.dumps(given), encoding="utf-8")


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = tmp_path_factory.mktemp("alone") / "run"
    tune(model, run, SETTINGS)
    assert min(each["accuracy"] for each in Run(run).metrics("evaluation")) > 0.9, "it tells rows from one another"
    return Run(run)


def check_same(found: Run, alone: Run, shares: bool = True, free: tuple[str, ...] = ()) -> None:
    """The records and the weights, up to the rounding of fp32. shares: whether scores are shares of rows. free: biases
    that add the same to all scores of a softmax: they change no loss, and AdamW moves them by rounding alone."""
    assert [each["kind"] for each in found.metrics()] == [each["kind"] for each in alone.metrics()]
    for ours, theirs in zip(found.metrics(), alone.metrics(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs.keys() - OF_THE_CLOCK - {"kind", "fill", "padding_share"}:
            # A correlation of 12 rows near 0 is the small difference of numbers near 1.
            near = pytest.approx(theirs[name], rel=CLOSE, abs=CLOSE if name == "pearson" else None)
            assert ours[name] == near, (theirs["kind"], theirs["step"], name)
    for ours, theirs in zip(found.metrics("evaluation"), alone.metrics("evaluation"), strict=True) if shares else ():
        assert ours == theirs, "scores are shares of rows, which rounding does not move"
    ours, theirs = (load_file(run.model / "model.safetensors") for run in (found, alone))
    assert ours.keys() == theirs.keys()
    for name, each in theirs.items():
        if name in free:
            continue
        # A key's bias has no gradient in exact arithmetic: it is rounding alone, held to the matrix that it belongs to.
        of = name.replace("key.bias", "key.weight")
        assert float((ours[name] - each).norm()) < CLOSE * float(theirs[of].norm()), name


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_give_the_scores_and_weights_of_one(alone: Run, model: Path, tmp_path: Path, ranks: int) -> None:
    ran(tune, ranks, model, tmp_path / "run", SETTINGS, tmp_path)
    check_same(Run(tmp_path / "run"), alone)
    known = [json.loads((each / "run.json").read_text(encoding="utf-8")) for each in (tmp_path / "run", alone.folder)]
    assert [each.pop("begun_on")["ranks"] for each in known] == [str(ranks), "1"]
    assert known[0] == known[1], "the identity of a run is that of one process"
    given = [json.loads((tmp_path / f"{rank}-of-{ranks}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    assert all(each == given[0] for each in given), "every rank is given the result"
    written = json.loads((tmp_path / "run" / "finetune.json").read_text(encoding="utf-8"))
    assert given[0] == {**written, "folder": str(tmp_path / "run")}
    expected = json.loads((alone.folder / "finetune.json").read_text(encoding="utf-8"))
    assert [each["score"] for each in written["seeds"]] == [each["score"] for each in expected["seeds"]]
    if ranks == 2:
        ran(tune, ranks, model, tmp_path / "run", SETTINGS, tmp_path)
        again = json.loads((tmp_path / f"{ranks - 1}-of-{ranks}.json").read_text(encoding="utf-8"))
        assert again == given[0], "a finished run is not trained again, and all ranks are given its result"


def chosen(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of multiple choice, of which the one with a word of praise is right."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        right, several = draw.randrange(2), draw.randrange(2, 4)
        endings = [f"{'lovely' if place == right else 'awful'} word{draw.randrange(9)}" for place in range(several)]
        made.append({"text": "word1 word2", "choices": endings, "label": right})
    return made


def other_rows(kind: str, count: int, seed: int) -> list[dict[str, Any]]:
    if kind == "several labels":
        return [{**row, "label": [row["label"]] if len(row["text"]) % 3 else []} for row in rows(count, seed)]
    if kind == "regress":
        return [{**row, "label": len(row["text"]) / 40 + (row["label"] == "praise")} for row in rows(count, seed)]
    return {"tag": tagged_rows, "qa": questions, "choice": chosen}[kind](count, seed)


# A question's scores are those of its tokens, and this adds the same to each of them.
LAST_BIAS = "bert.encoder.layer.0.output.LayerNorm.bias"
OTHER_KINDS = ("several labels", "regress", "tag", "qa", "choice")


def tune_others(model: Path, folder: Path) -> None:
    """What every rank does: a run of each kind of task."""
    for kind in OTHER_KINDS:
        train, dev = other_rows(kind, 41, 1), other_rows(kind, 12, 2)
        name = "classify" if kind == "several labels" else kind
        own = {"qa": {"doc_stride": 8}, "classify": {"thresholds": "half"}}
        settings = replace(SETTINGS, seeds=1, epochs=1, micro_batch_tokens=60, **own.get(name, {}))
        bertsmith.finetune(name, model, train, dev, folder / kind, settings=settings)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_give_the_losses_and_weights_of_one_for_every_kind_of_task(
    model: Path, tmp_path: Path, ranks: int
) -> None:
    tune_others(model, tmp_path / "alone")
    ran(tune_others, ranks, model, tmp_path / "several")
    for kind in OTHER_KINDS:
        free = {"qa": ("qa_outputs.bias", LAST_BIAS), "choice": ("classifier.bias",)}.get(kind, ())
        check_same(*(Run(tmp_path / side / kind) for side in ("several", "alone")), kind not in ("regress", "qa"), free)


@pytest.fixture(scope="module")
def dropping(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An unbroken run of two ranks with dropout."""
    run = tmp_path_factory.mktemp("dropping") / "run"
    ran(tune, 2, model, run, DROPPING)
    return Run(run)


def check_killed_and_resumed(unbroken: Run, model: Path, folder: Path, kills: int) -> None:
    draw = drawing()
    for seed in range(2):
        first = seed * STEPS_OF_A_SEED
        for step in sorted(draw.randint(first + 1, first + STEPS_OF_A_SEED - 2) for _ in range(kills)):
            ran(tune, 2, model, folder / "run", DROPPING, kill=Moment(step, draw.random() * 0.05))
            assert seed or not Run(folder / "run").is_finished()
    ran(tune, 2, model, folder / "run", DROPPING)
    resumed = Run(folder / "run")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert not list(resumed.folder.glob(".*.part"))


def test_two_ranks_killed_in_both_seeds_and_resumed_are_unbroken(dropping: Run, model: Path, tmp_path: Path) -> None:
    check_killed_and_resumed(dropping, model, tmp_path, kills=1)


@pytest.mark.slow
def test_two_ranks_killed_again_and_again_and_resumed_are_unbroken(dropping: Run, model: Path, tmp_path: Path) -> None:
    check_killed_and_resumed(dropping, model, tmp_path, kills=4)


def stopped_in_evaluation(model: Path, run: Path, settings: Any) -> None:
    """What every rank does: rank 1 alone is sent a signal in the first batch of the second evaluation."""
    from bertsmith.base import ranks
    from bertsmith.tasks.objective import TaskObjective

    evaluate, calls = TaskObjective.evaluate, [0]

    def signalled(self: TaskObjective, held_out: Any, between: Any) -> Any:
        calls[0] += 1
        if ranks.rank() == 1 and calls[0] == 2:
            signal.raise_signal(signal.SIGTERM)
        return evaluate(self, held_out, between)

    TaskObjective.evaluate = signalled  # type: ignore[method-assign]
    with pytest.raises(StoppedAfterSaving, match=f"stopped at step {STEPS_OF_A_SEED};"):
        tune(model, run, settings)


def test_a_signal_to_one_rank_in_an_evaluation_ends_it_and_it_is_done_again(
    dropping: Run, model: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    ran(stopped_in_evaluation, 2, model, run.folder, DROPPING)
    assert len(run.metrics("evaluation")) == 1
    ran(tune, 2, model, run.folder, DROPPING)
    assert figures(run) == figures(dropping)
    assert weights(run) == weights(dropping)


def test_a_run_moves_from_three_ranks_to_two_to_one(alone: Run, model: Path, tmp_path: Path) -> None:
    ran(tune, 3, model, tmp_path / "run", SETTINGS, kill=Moment(5, 0.0, saved=True))
    ran(tune, 2, model, tmp_path / "run", SETTINGS, kill=Moment(STEPS_OF_A_SEED + 3, 0.0, saved=True))
    assert not Run(tmp_path / "run").is_finished()
    tune(model, tmp_path / "run", replace(SETTINGS, micro_batch_tokens=200))
    check_same(Run(tmp_path / "run"), alone)
    known = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["begun_on"]
    assert (known["ranks"], known["micro_batch_tokens"]) == ("3, 2, 1", "40, 200")


def fall(model: Path, out: Path) -> None:
    """Fine-tuning whose gradients are not finite on one rank."""
    from bertsmith.base import ranks
    from bertsmith.base.errors import BertsmithError
    from bertsmith.tasks.kinds.classify import Classify

    loss, calls = Classify.loss, [0]

    def broken(self: Classify, *rest: Any) -> Any:
        found = loss(self, *rest)
        calls[0] += 1
        return replace(found, loss=found.loss * float("nan")) if ranks.rank() == 1 and calls[0] == 4 else found

    Classify.loss = broken  # type: ignore[method-assign]
    with pytest.raises(BertsmithError, match="not finite") as caught:
        bertsmith.finetune("classify", model, TRAIN, DEV, out / "run", settings=SETTINGS)
    (out / f"where-{ranks.rank()}.txt").write_text(caught.value.where, encoding="utf-8")


def test_a_gradient_that_is_not_finite_on_one_rank_stops_all_and_names_it(model: Path, tmp_path: Path) -> None:
    ran(fall, 2, model, tmp_path)
    told = {(tmp_path / f"where-{rank}.txt").read_text(encoding="utf-8") for rank in range(2)}
    (where,) = told
    assert "rank 1, rows row " in where
    assert not (tmp_path / "run" / "model").exists()


def score(model: Path, results: Path) -> None:
    """Scores of 1 to 20 rows, by all ranks together and by each alone."""
    from bertsmith.tasks.kinds.classify import Classify
    from bertsmith.tasks.reading.records import read_records
    from bertsmith.tasks.sequences import load_tokenizer
    from bertsmith.tasks.task import Runner
    from bertsmith.weights.huggingface import read_config

    config = read_config(model)
    task, tokenizer = Classify(("blame", "praise"), False), load_tokenizer(model, config)
    torch.manual_seed(0)
    classifier = task.build(config, None).eval()
    for count in range(1, 21):
        sequences = task.encode(read_records(rows(20, 5)[:count], Columns()), tokenizer, 32)
        alone, together = (
            Runner(torch.device("cpu"), 30, each).scores(classifier, sequences) for each in (False, True)
        )
        assert np.array_equal(alone, together)
        assert len(np.unique(alone[:, 0])) == count, "no two rows have the same scores"


def test_scores_of_all_ranks_are_those_of_one_in_the_same_order(model: Path, tmp_path: Path) -> None:
    ran(score, 3, model, tmp_path)


def no_folder(model: Path, results: Path) -> None:
    from bertsmith.base import ranks

    result = bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=replace(SETTINGS, seeds=1, epochs=1))
    assert result.folder is None
    torch.save(torch.tensor(result.scores), results / f"{ranks.rank()}.pt")


def test_ranks_need_no_folder(model: Path, tmp_path: Path) -> None:
    ran(no_folder, 2, model, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(first, second)
