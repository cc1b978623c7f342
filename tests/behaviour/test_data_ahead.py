"""Promise: nothing waits for data. While an epoch is trained on, all ranks together build the next one's index."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base import ranks
from bertsmith.batches.epoch_files import EpochFiles
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.order import Order
from bertsmith.corpus.shards import Corpus
from bertsmith.training.loop import Trainer
from bertsmith.training.pretrain import Run, pretrain
from made_ranks import is_alive
from made_runs import corpus, figures, ran_by_ranks, small_recipe, weights

EPOCHS = 3
RECIPE = small_recipe(
    phase1__sequence_length=64,
    phase1__global_batch=32,
    phase2__steps=0,
    micro_batch_tokens=1024,
    log_every=1,
)


def watch(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What this process does for its epochs: which it builds itself, in part or all, and which it reads from a file."""
    seen: dict[str, Any] = {"orders": [], "read": []}
    build_ahead, read_index = Order.build_ahead, EpochFiles.read_index

    def noted_build_ahead(self: Order, *given: Any, **named: Any) -> None:
        build_ahead(self, *given, **named)
        seen["orders"].append(self)

    def noted_read_index(self: EpochFiles, stream: Any) -> Any:
        found = read_index(self, stream)
        if found is not None:
            seen["read"].append(stream.epoch)
        return found

    patch.setattr(Order, "build_ahead", noted_build_ahead)
    patch.setattr(EpochFiles, "read_index", noted_read_index)
    return seen


def wait_for_the_next_index(patch: pytest.MonkeyPatch, order_of: Callable[[], Order]) -> list[int]:
    """Has this rank, once it has begun an epoch that another one follows, take no step until the index of that one is
    there, which nobody asks for yet. Gives a list of those that came."""
    came: list[int] = []
    advance = Trainer._advance

    def advanced(trainer: Trainer, step: Any) -> None:
        advance(trainer, step)
        for epoch, _ in step.started_epochs:
            if epoch + 1 < EPOCHS:
                files, end = order_of().epochs.files, time.monotonic() + 120
                assert files is not None
                assert not step.ends_epoch
                while not files.index_path(epoch + 1).exists():
                    assert time.monotonic() < end, f"nobody builds the index of epoch {epoch + 1} in epoch {epoch}"
                    time.sleep(0.01)
                came.append(epoch + 1)

    patch.setattr(Trainer, "_advance", advanced)
    return came


def steps_of_epochs(source: Corpus) -> int:
    order = Order(Epochs(source, seed=RECIPE.seed, phase=1, sequence_length=64))
    return order.epoch_start(EPOCHS) // RECIPE.phase1.global_batch


def work_of_a_rank(rank: int, folder: Path, made: Path, waits: bool = False) -> None:
    """Three epochs, with what the rank did for them. waits: as of `wait_for_the_next_index`."""
    if rank == 0:
        shutil.copytree(made, folder / "corpus", ignore=shutil.ignore_patterns("order"))
    ranks.gathered("the corpus is there")
    source = Corpus.open(folder / "corpus")
    with pytest.MonkeyPatch.context() as patch:
        seen = watch(patch)
        came = wait_for_the_next_index(patch, lambda: seen["orders"][0]) if waits else []
        phase = replace(RECIPE.phase1, steps=steps_of_epochs(source))
        pretrain(replace(RECIPE, phase1=phase), source, folder / "run")
    (order,) = seen["orders"]
    told = {"foreground": order.ahead.in_foreground, "read": seen["read"], "came": came}
    (folder / f"told-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran_by_ranks(work_of_a_rank, 2, tmp_path_factory.mktemp("ahead"))


def test_after_the_first_epoch_no_rank_builds_an_index_and_all_read_it_from_one_file(finished: Path) -> None:
    told = [json.loads((finished / f"told-{rank}.json").read_text()) for rank in (0, 1)]
    assert told[0]["foreground"] == [0]
    assert told[1]["foreground"] in ([0], []), "none either, where the first rank had the file before it was asked for"
    assert {*range(1, EPOCHS)} <= {*told[0]["read"]}
    assert {*range(EPOCHS)} <= {*told[1]["read"]}, (
        "the second rank reads even the first index, which the first one wrote"
    )
    kept = sorted((finished / "corpus" / "order").glob("[!.]*"))
    assert [path.name.split("-")[1] for path in kept] == [str(epoch) for epoch in range(EPOCHS)]
    plain = Order(
        Epochs(
            Corpus.open(finished / "corpus"),
            seed=RECIPE.seed,
            phase=1,
            sequence_length=64,
            cache_folder=finished / "plain",
        )
    )
    for epoch in range(EPOCHS):
        plain.epoch(epoch)
    assert [path.read_bytes() for path in kept] == [
        path.read_bytes() for path in sorted((finished / "plain").iterdir())
    ]


def test_the_next_index_is_there_before_an_epoch_ends_while_no_rank_takes_a_step(tmp_path: Path) -> None:
    ran_by_ranks(partial(work_of_a_rank, waits=True), 2, tmp_path)
    for rank in (0, 1):
        told = json.loads((tmp_path / f"told-{rank}.json").read_text())
        assert told["came"] == [*range(1, EPOCHS)]
        assert {*told["foreground"]} <= {0}, "of later epochs no rank draws an instance itself"


def test_the_share_of_time_that_ranks_waited_for_data_is_in_the_metrics(finished: Path) -> None:
    """Printed; how large it is, is not asserted: what a busy machine waits for is its own affair."""
    records = Run(finished / "run").metrics("train")
    seconds = [record["seconds_per_step"] * record["steps"] for record in records]
    waited = [record["data_wait_share"] * each for record, each in zip(records, seconds, strict=True)]
    assert len(records) == steps_of_epochs(Corpus.open(finished / "corpus"))
    for record in records:
        assert 0 <= record["data_wait_share"] <= 1
        print(f"step {record['step']}: {record['data_wait_share']:.2%} of {record['seconds_per_step']:.3f} s")
    after = len(records) // EPOCHS
    print(
        f"\ntwo gloo ranks, {EPOCHS} epochs, {len(records)} steps: {sum(waited) / sum(seconds):.2%} of the time waited "
        f"for data; {sum(waited[1:]) / sum(seconds[1:]):.2%} after the first step, "
        f"{sum(waited[after:]) / sum(seconds[after:]):.2%} after the first epoch"
    )


# Longer than an epoch.
OVER_AN_EPOCH = {"phase1__steps": 10, "phase1__global_batch": 24}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(small_recipe(**OVER_AN_EPOCH), corpus(), tmp_path_factory.mktemp("expected") / "run")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_in_a_corpus_that_cannot_be_written_to_gives_the_same(
    tmp_path: Path, workers: int, expected: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    recipe = small_recipe(**OVER_AN_EPOCH, loader_workers=workers)
    shutil.copytree(corpus().folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("order"))
    (tmp_path / "corpus" / "order").write_text("a file is in the way of the folder")
    found = pretrain(recipe, Corpus.open(tmp_path / "corpus"), tmp_path / "run")
    assert figures(found) == figures(expected)
    assert weights(found) == weights(expected)
    assert caplog.text.count("cannot be written to, so the order of instances is kept in") == 1
    assert not list(tmp_path.glob("bertsmith-order-*")), "the temporary folder is gone"


LEFT_BEHIND = """
import multiprocessing, os, sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from made_shards import make_source
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.order import Order
from bertsmith.batches.shares import Share

if __name__ == "__main__":
    folder = Path({folder!r})
    order = Order(Epochs(make_source(), seed=1, phase=1, sequence_length=64, cache_folder=folder))
    order.build_ahead(Share(folder, 0, places=2 if {waits} else 1), end=10**9)
    order.epochs.build(0)
    order.reach(0, 1)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("waits", [False, True], ids=["idle", "waiting for another rank"])
def test_the_process_that_builds_ahead_leaves_when_the_run_is_killed(tmp_path: Path, waits: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEFT_BEHIND.format(path=sys.path, folder=str(tmp_path / "order"), waits=waits))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    (pid,) = map(int, done.stdout.split())
    end = time.monotonic() + 120
    while is_alive(pid):
        assert time.monotonic() < end, "it outlived the run"
        time.sleep(0.05)
