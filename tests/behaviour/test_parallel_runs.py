"""Pre-training with sharded weights, and with sums in bf16: the run of replicated weights, and of one process."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import load_recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.run_folder import check_same_run
from made_runs import OF_THE_CLOCK, corpus, figures, ran_by_ranks, signalled_after, small_recipe, weights

PLAIN = small_recipe(model__hidden_dropout=0, model__attention_dropout=0, evaluate_every=2, log_every=2)
RUNS = {
    "replicate": PLAIN,
    "shard": dataclasses.replace(PLAIN, parallel="shard"),
    "bf16 sums": dataclasses.replace(PLAIN, gradient_sums="bf16"),
    "shard, checkpointing": dataclasses.replace(PLAIN, parallel="shard", gradient_checkpointing=True),
}

# Runs with sharded weights that a signal to one rank stops in the middle: in which mode they are resumed by two ranks.
STOPPED = {"resumed": "shard", "changed": "replicate", "fewer ranks": ""}


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    source = Corpus.open(made)
    for name, recipe in RUNS.items():
        pretrain(recipe, source, folder / name)
    for name, later in STOPPED.items():
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                signalled_after(2, patch)
            with pytest.raises(StoppedAfterSaving):
                pretrain(RUNS["shard"], source, folder / name)
        if later:
            pretrain(RUNS[later], source, folder / name, resume=True)
    try:
        pretrain(dataclasses.replace(RUNS["shard"], compile="true"), source, folder / "compiled")
    except BertsmithError as error:
        (folder / f"refused-{rank}.txt").write_text(error.what, encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process that was told to shard: it has nothing to share."""
    return pretrain(RUNS["shard"], corpus(), tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize(
    ("name", "close"), [("replicate", 1e-4), ("shard", 1e-4), ("changed", 1e-4), ("bf16 sums", 2e-2)]
)
def test_a_run_of_two_ranks_is_that_of_one(finished: Path, alone: Run, name: str, close: float) -> None:
    check_near(Run(finished / name), alone, close)


def test_one_rank_resumes_a_run_that_two_ranks_held_in_shards(finished: Path, alone: Run) -> None:
    folder = finished / "fewer ranks"
    assert 2 <= int(step_folders(folder)[-1].name[-8:]) < 7
    check_near(pretrain(PLAIN, corpus(), folder, resume=True), alone, 1e-4)


def test_a_run_resumed_in_shards_is_the_unbroken_one_to_the_bit(finished: Path) -> None:
    resumed, unbroken = (Run(finished / name) for name in ("resumed", "shard"))
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def check_near(run: Run, other: Run, close: float) -> None:
    """That two runs write the same figures and weights, up to rounding."""
    ours, theirs = run.metrics(), other.metrics()
    assert [each["kind"] for each in ours] == [each["kind"] for each in theirs]
    for found, expected in zip(ours, theirs, strict=True):
        for figure in expected.keys() - OF_THE_CLOCK - {"kind", "padding_share"}:
            assert found[figure] == pytest.approx(expected[figure], rel=2 * close), figure
    found, expected = (load_file(each.model / "model.safetensors") for each in (run, other))
    assert found.keys() == expected.keys()
    for tensor, each in expected.items():
        assert float((found[tensor] - each).norm()) <= close * max(float(each.norm()), 1.0), tensor


def test_gradient_checkpointing_of_sharded_weights_changes_no_bit(finished: Path) -> None:
    plain, again = (load_file(Run(finished / name).model / "model.safetensors") for name in list(RUNS)[1::2])
    assert all(bool((each == again[name]).all()) for name, each in plain.items())


def test_bf16_sums_are_rounded(finished: Path) -> None:
    exact, rounded = (
        load_file(Run(finished / name).model / "model.safetensors") for name in ("replicate", "bf16 sums")
    )
    assert any(bool((each != rounded[name]).any()) for name, each in exact.items())


def test_compiled_steps_of_sharded_weights_are_refused_on_all_ranks(finished: Path) -> None:
    told = [(finished / f"refused-{rank}.txt").read_text(encoding="utf-8") for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0].startswith("steps cannot be compiled")
    assert not (finished / "compiled" / "metrics.jsonl").exists()


def test_a_run_may_change_its_mode_but_not_the_dtype_of_its_sums(alone: Run) -> None:
    """Runs of versions without these fields are resumed too: a run with sums in fp32 does not name them."""
    known = json.loads((alone.folder / "run.json").read_text(encoding="utf-8"))
    assert not {"recipe.parallel", "recipe.gradient_sums"} & known.keys()
    pretrain(RUNS["replicate"], corpus(), alone.folder, resume=True)
    with pytest.raises(BertsmithError, match=r"recipe\.gradient_sums"):
        pretrain(RUNS["bf16 sums"], corpus(), alone.folder, resume=True)
    assert check_same_run(alone.folder, {name: value for name, value in known.items() if name != "begun_on"})


def test_an_unknown_mode_is_refused() -> None:
    for flag in ("--parallel=both", "--gradient-sums=fp16"):
        with pytest.raises(BertsmithError, match="is '"):
            load_recipe("bert-tiny", [flag])
