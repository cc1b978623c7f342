"""A signal that reaches several ranks, or one of them, in the middle of a long step, of a measurement or of a wait for
the data: all leave together, within what a scheduler waits, and the resumed run is unbroken."""

from __future__ import annotations

import os
import pydoc_data.topics
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base import ranks
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining import objective
from bertsmith.training.run_folder import Run
from made_ranks import BERTSMITH, arguments, ended, processes, srun, started, wait_for_step
from made_runs import (
    PATIENCE,
    blocks_drawing,
    figures,
    ran_by_ranks,
    small_corpus,
    small_recipe,
    weights,
)

# Many micro-batches a step, so that a signal falls between two of them.
LONG = small_recipe(phase1__steps=1, phase1__global_batch=1500, phase2__steps=0)


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Its log is `log`."""
    call = arguments(LONG, folder, "--ranks", "2", *more)
    return started([*BERTSMITH, *call], folder / "log", MARK=str(folder))


def finished(process: subprocess.Popen[bytes], folder: Path, status: int = 0) -> str:
    """What it said, once it has ended with this status."""
    found, said = ended(process), (folder / "log").read_text()
    assert found == status, said
    return said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("unbroken")
    finished(start(folder), folder)
    return Run(folder / "run")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="process numbers are looked up in /proc")
@pytest.mark.parametrize("whom", ["the launcher", "the second rank"])
def test_all_ranks_drop_the_unfinished_step_and_the_resumed_run_is_unbroken(
    whom: str, unbroken: Run, tmp_path: Path
) -> None:
    process = start(tmp_path)
    wait_for_step(tmp_path / "run", 0, process)
    time.sleep(0.2)
    second = processes(MARK=str(tmp_path), RANK="1")[0]
    os.kill(process.pid if whom == "the launcher" else second, signal.SIGTERM)
    assert "stopped at step" in finished(process, tmp_path, 143)
    assert (tmp_path / "run" / "stopped").exists()
    assert [each.name for each in step_folders(tmp_path / "run")] == ["step-00000000"]
    finished(start(tmp_path, "--resume"), tmp_path)
    resumed = Run(tmp_path / "run")
    assert not (tmp_path / "run" / "stopped").exists()
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


SHORT = small_recipe(phase1__steps=2, phase2__steps=0, evaluate_instances=64)


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    """An unbroken run, and those that a signal to the second rank stops where no step is under way."""
    if rank == 0:
        shutil.copytree(made, folder / "corpus", ignore=shutil.ignore_patterns("order"))
    ranks.gathered("the corpus is there")
    source, told = Corpus.open(folder / "corpus"), []
    for name in ("index", "before", "final"):
        with pytest.MonkeyPatch.context() as patch:
            if rank and name == "index":  # the first run, which has none yet
                blocks_drawing(0, patch)
            elif rank:
                signalled_in_measurement({"before": 1, "final": 3}[name], patch)
            try:
                pretrain(SHORT, source, folder / name)
            except StoppedAfterSaving as stopped:
                told.append(f"{name}: {stopped}")
        ranks.by_first(lambda name=name: (folder / name / "stopped").rename(folder / f"{name}-mark"))
        pretrain(SHORT, source, folder / name, resume=True)
    pretrain(SHORT, source, folder / "unbroken")
    (folder / f"told-{rank}.txt").write_text("\n".join(told), encoding="utf-8")


def signalled_in_measurement(number: int, patch: pytest.MonkeyPatch) -> None:
    """Has this process send itself SIGTERM in the first batch of its measurement of this number, from 1."""
    measure, batch, begun = objective.Pretraining.measure, objective.held_out_figures, []

    def measuring(*given: Any, **named: Any) -> Any:
        begun.append(1)
        return measure(*given, **named)

    def figures_of_batch(*given: Any) -> Any:
        if len(begun) == number:
            begun.append(1)
            signal.raise_signal(signal.SIGTERM)
        return batch(*given)

    patch.setattr(objective.Pretraining, "measure", measuring)
    patch.setattr(objective, "held_out_figures", figures_of_batch)


def test_a_signal_to_one_rank_ends_measurements_and_the_wait_for_an_index_on_all(tmp_path: Path) -> None:
    ran_by_ranks(work_of_a_rank, 2, tmp_path, small_corpus(4000))  # of which the second rank draws a shard too
    told = [(tmp_path / f"told-{rank}.txt").read_text(encoding="utf-8").splitlines() for rank in (0, 1)]
    assert told[0] == told[1]
    steps = {"index": 0, "before": 0, "final": 2}
    assert [each.partition(";")[0] for each in told[0]] == [f"{name}: stopped at step {n}" for name, n in steps.items()]
    unbroken = Run(tmp_path / "unbroken")
    for name in steps:
        assert f"{name}: {(tmp_path / f'{name}-mark').read_text().strip()}" in told[0]
        assert figures(Run(tmp_path / name)) == figures(unbroken)
        assert weights(Run(tmp_path / name)) == weights(unbroken)


IN_THE_STEP = "epoch 0 (phase 1): "


@pytest.fixture(scope="module")
def larger_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of which 65,536 sequences are a few epochs."""
    folder = tmp_path_factory.mktemp("larger")
    sentences = sorted({each for text in pydoc_data.topics.topics.values() for each in text.split(". ")})
    draw = random.Random(0)
    documents = [" ".join(". ".join(draw.choices(sentences, k=20)).split()) for _ in range(4000)]
    (folder / "texts.txt").write_text("\n".join(documents), encoding="utf-8")
    options = PrepareOptions(documents="line", held_out=0.01, vocabulary_size=8000, workers=1)
    return prepare(folder / "texts.txt", folder / "corpus", options=options).folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("preset", "how"),
    [("bert-tiny", "alone"), ("bert-tiny", "--ranks"), ("bert-tiny", "srun"), ("bert-base-nvlamb", "srun")],
)
def test_a_step_of_65536_sequences_is_dropped_and_the_run_saved(
    preset: str, how: str, larger_corpus: Path, tmp_path: Path
) -> None:
    """Long before the step would have ended; how long it takes is printed, for docs/resuming.md."""
    call = ["pretrain", preset, "--corpus", str(larger_corpus), "--out", str(tmp_path / "run"), "--device", "cpu"]
    call += ["--phase1.global-batch", "65536", "--evaluate-instances", "4"]
    for more, words in (([], "stopped at step 0"), (["--resume"], "resuming after step 0")):
        if how == "srun":
            processes = srun([*call, *more], tmp_path, OMP_NUM_THREADS="1")
            log = tmp_path / "task-0.log"
        else:
            log, flags = tmp_path / "log", ["--ranks", "2"] if how == "--ranks" else []
            processes = [started([*BERTSMITH, *call, *more, *flags], log, OMP_NUM_THREADS="1")]
        end = time.monotonic() + PATIENCE
        while IN_THE_STEP not in log.read_text(errors="replace"):
            assert time.monotonic() < end, log.read_text(errors="replace")
            assert all(each.poll() is None for each in processes), log.read_text(errors="replace")
            time.sleep(0.05)
        time.sleep(5)
        sent, sent_at = time.monotonic(), time.time()
        for each in processes:
            each.send_signal(signal.SIGTERM)
        statuses = [ended(each, "SIGTERM") for each in processes]
        seconds, said = time.monotonic() - sent, log.read_text(errors="replace")
        saved = (tmp_path / "run" / "stopped").stat().st_mtime - sent_at
        print(f"\n{preset}, {how}: saved {saved:.1f} s after SIGTERM, left {seconds:.1f} s after it")
        assert statuses == ([0, 0] if how == "srun" else [143]), said
        assert words in said
        assert (tmp_path / "run" / "stopped").read_text().startswith("stopped at step 0; ")
        assert [each.name for each in step_folders(tmp_path / "run")] == ["step-00000000"], said
