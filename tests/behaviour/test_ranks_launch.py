"""One command, any number of ranks: started by us, by torchrun or by srun, they give the same run, and one of them
speaks; signals reach all, and a stopped run says so in its folder."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from made_commands import Command, bertsmith
from made_ranks import (
    BERTSMITH,
    TORCHRUN,
    arguments,
    ended,
    environment,
    in_sessions,
    launching,
    ranks_of,
    slurm,
    srun,
    started,
    tasks,
    wait_for_step,
)
from made_rows import made_model, rows
from made_runs import PATIENCE, figures, small_corpus, small_recipe, weights

RECIPE = small_recipe(phase1__steps=3, phase2__steps=2)
LONG = small_recipe(phase1__steps=4000, phase2__steps=2, save_every=100_000)
# Steps long enough that a signal comes before the last one, on a busy machine too.
STOPPED = small_recipe(phase1__steps=60, phase1__global_batch=16, phase2__steps=2, save_every=100_000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes where Linux lists them")


@pytest.fixture(scope="module")
def three_ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of two ranks, started in each way, beside what was printed."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("ranks", "torchrun", "srun")}
    calls = {name: arguments(RECIPE, folder) for name, folder in folders.items()}
    with_launcher = started([*BERTSMITH, *calls["ranks"], "--ranks", "2"], folders["ranks"] / "log")
    assert ended(with_launcher) == 0, (folders["ranks"] / "log").read_text()
    with_torchrun = started([*TORCHRUN, "-m", "bertsmith", *calls["torchrun"]], folders["torchrun"] / "log")
    assert ended(with_torchrun) == 0, (folders["torchrun"] / "log").read_text()
    by_srun = tasks(calls["srun"], folders["srun"], by="srun")
    assert [ended(each) for each in by_srun] == [0, 0], (folders["srun"] / "log-0").read_text()
    return folders


def test_all_ways_of_starting_give_the_same_run(three_ways: dict[str, Path]) -> None:
    runs = [Run(folder / "run") for folder in three_ways.values()]
    assert len(figures(runs[0])) > 5
    assert figures(runs[0]) == figures(runs[1]) == figures(runs[2])
    assert weights(runs[0]) == weights(runs[1]) == weights(runs[2])


def test_only_the_first_rank_speaks(three_ways: dict[str, Path]) -> None:
    for name, file in (("ranks", "log"), ("srun", "log-0")):
        log = (three_ways[name] / file).read_text()
        said = [line for line in log.splitlines() if line.strip()]
        assert len([line for line in said if line.startswith("finished model:")]) == 1
        assert said.count(str(three_ways[name] / "run" / "model")) == 1, "what is printed for scripts, once"
        assert "rank 1" not in log
        assert len(said) == len(set(said))
    assert not (three_ways["srun"] / "log-1").read_text().strip()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gpus", "all"], "no GPU was found"),
        (["--gpus", "2"], "no GPU was found"),
        (["--gpus", "2", "--ranks", "2"], "--gpus and --ranks are given together"),
        (["--gpus", "none"], "--gpus is 'none'"),
        (["--gpus", "0"], "--gpus is '0'"),
        (["--gpus", "9" * 5000], "--gpus is '999"),
        (["--gpus", "²"], "--gpus is '²'"),
        (["--ranks", "0"], "--ranks is 0"),
        (["--ranks", "2", "--device", "cuda"], "--ranks trains on cpu, and the device is set to cuda"),
        (["--gpus", "2", "--device", "cpu"], "--gpus trains on cuda, and the device is set to cpu"),
        (["--ranks", "2", "--rank-timeout", "1"], "--rank-timeout is 1"),
        (["--ranks", "2", "--rank-timeout", "1e10"], "--rank-timeout is 1e+10"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_flags_that_cannot_be_met_are_one_message(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run")]
    rows = ["--train", "t.csv", "--dev", "d.csv"]
    for call in (
        ["pretrain", "bert-tiny", "--corpus", str(small_corpus()), *out],
        ["finetune", "classify", "--model", "m", *rows, *out],
    ):
        assert main([*call, *flags]) == 2
        said = capsys.readouterr().err
        assert said.count(words) == 1
        assert "fix:" in said
        assert not (tmp_path / "run").exists()


def test_more_gpus_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    call = ["pretrain", "bert-tiny", "--corpus", str(small_corpus()), "--out", str(tmp_path / "run"), "--gpus", "8"]
    assert main(call) == 2
    assert "8 GPUs are asked for, and this machine has 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "8"}, "it lacks RANK, MASTER_ADDR, MASTER_PORT"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}, "Slurm does not say on which hosts"),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "3"}, "mpirun started 8 processes"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "torchrun has started 2 processes already, and --ranks would start more",
        ),
    ],
)
def test_who_cannot_join_is_refused(
    variables: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    flags = ["--ranks", "2"] if "--ranks" in words else []
    call = ["pretrain", "bert-tiny", "--corpus", str(small_corpus()), "--out", str(tmp_path / "run"), *flags]
    assert main(call) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_error_of_all_ranks_is_printed_once(tmp_path: Path) -> None:
    call = arguments(RECIPE, tmp_path)
    call[call.index("--corpus") + 1] = str(tmp_path / "nowhere")
    assert [ended(each) for each in tasks(call, tmp_path)] == [2, 2]
    said = (tmp_path / "log").read_text()
    assert said.count("nowhere") == 1, said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_more_ranks_than_a_step_has_sequences_leave_no_run_folder(tmp_path: Path) -> None:
    """Of the second phase too, which would else be found out when the first one ends."""
    call = arguments(small_recipe(phase2__global_batch=2), tmp_path)
    assert [ended(each) for each in tasks(call, tmp_path, ranks=3)] == [2, 2, 2]
    said = (tmp_path / "log").read_text()
    assert said.count("a global batch of 2 sequences leaves some of 3 ranks without work") == 1, said
    assert "where: phase2.global_batch" in said
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("unbroken")
    assert ended(started([*BERTSMITH, *arguments(STOPPED, folder, "--ranks", "2")], folder / "log")) == 0
    return Run(folder / "run")


def stopped_and_resumed(command: Callable[..., list[str]], status: int, folder: Path) -> Run:
    """A run that SIGTERM stops in the middle, and what it comes to. command: with these more flags. status: that of
    what started the ranks, after the signal."""
    run, said = folder / "run", folder / "log"
    process = started(command(), said)
    wait_for_step(run, 3, process)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == status, said.read_text()
    assert said.read_text().count("SIGTERM received") == 1
    (saved,) = step_folders(run)
    assert 3 <= int(saved.name[5:]) < 60
    assert f"stopped at step {int(saved.name[5:])}; " in (run / "stopped").read_text()
    assert ended(started(command("--resume"), said)) == 0, said.read_text()
    assert not (run / "stopped").exists()
    return Run(run)


@pytest.mark.slow
def test_a_stop_reaches_all_ranks_and_the_run_goes_on(unbroken: Run, tmp_path: Path) -> None:
    resumed = stopped_and_resumed(
        lambda *more: [*BERTSMITH, *arguments(STOPPED, tmp_path, "--ranks", "2", *more)], 143, tmp_path
    )
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


@pytest.mark.slow
def test_a_signal_to_torchrun_stops_its_ranks_with_0_and_the_run_goes_on(unbroken: Run, tmp_path: Path) -> None:
    # Each rank below a shell that notes its exit status: torchrun, which ends with 1 after a signal, does not say it.
    noting = ["--no-python", "bash", "-c", f'trap : TERM; "$@"; echo $? >> {tmp_path}/status-$RANK', "rank"]
    resumed = stopped_and_resumed(
        lambda *more: [*TORCHRUN, "--nnodes", "1", *noting, *BERTSMITH, *arguments(STOPPED, tmp_path, *more)],
        1,
        tmp_path,
    )
    assert [(tmp_path / f"status-{rank}").read_text() for rank in (0, 1)] == ["0\n0\n"] * 2, (
        "after the signal, and at the end"
    )
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def launched(folder: Path) -> Command:
    """Two ranks of a long run under way."""
    call = arguments(LONG, folder, "--ranks", "2")
    process = Command(*call, does=launching, log=folder / "log", environment=environment())
    wait_for_step(folder / "run", 3, process)
    return process


@linux
@pytest.mark.parametrize(
    ("to", "number", "status"),
    [
        ("all", "SIGINT", 130),
        ("rank", "SIGUSR1", 143),
        pytest.param("launcher", "SIGINT", 130, marks=pytest.mark.slow),
    ],
)
def test_how_a_stop_ends(to: str, number: str, status: int, tmp_path: Path) -> None:
    process = launched(tmp_path)
    first, second = ranks_of(process)
    for each in {"launcher": [process.pid], "rank": [second], "all": [process.pid, first, second]}[to]:
        os.kill(each, getattr(signal, number))
    assert ended(process) == status, (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().count(f"{number} received") <= 1
    assert (tmp_path / "run" / "stopped").exists()
    assert step_folders(tmp_path / "run")


@pytest.mark.parametrize(("does", "flags"), [(bertsmith, []), (launching, ["--ranks", "2"])], ids=["one", "two"])
def test_ctrl_c_saves_though_nobody_reads_any_more_what_is_said(
    does: Callable[..., int], flags: list[str], tmp_path: Path
) -> None:
    """As of `2>&1 | tee log`, where the same Ctrl-C ends `tee`."""
    process = Command(*arguments(LONG, tmp_path, *flags), does=does, environment=environment())
    wait_for_step(tmp_path / "run", 3, process)
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert ended(process) == 130
    assert (tmp_path / "run" / "stopped").exists()
    assert step_folders(tmp_path / "run")


def test_tasks_of_srun_leave_with_0_and_a_mark(tmp_path: Path) -> None:
    both = tasks(arguments(LONG, tmp_path), tmp_path, by="srun")
    wait_for_step(tmp_path / "run", 3, both[0])
    for each in both:
        each.send_signal(signal.SIGUSR1)
    assert [ended(each) for each in both] == [0, 0], (tmp_path / "log-0").read_text()
    assert (tmp_path / "run" / "stopped").exists()


@linux
def test_no_rank_outlives_a_launcher_that_was_killed(tmp_path: Path) -> None:
    process = launched(tmp_path)
    ranks = ranks_of(process)
    assert len(in_sessions(ranks)) >= 2
    process.kill()
    process.wait()
    end = time.monotonic() + PATIENCE
    while in_sessions(ranks) and time.monotonic() < end:
        time.sleep(0.2)
    assert not in_sessions(ranks)


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2", "RANK": "0"}, slurm(0, 2, 1), slurm(1, 2, 1)])
def test_from_python_one_of_several_that_has_not_joined_is_refused(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BertsmithError, match="one of 2 processes not joined"):
        pretrain(RECIPE, small_corpus(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_finetune_takes_the_same_flags(tmp_path: Path) -> None:
    model = made_model(tmp_path / "encoder")
    call = ["finetune", "classify", "--model", str(model)]
    for name, count in (("train", 97), ("dev", 40)):
        lines = [json.dumps(row) + "\n" for row in rows(count, seed=count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        call += [f"--{name}", str(tmp_path / f"{name}.jsonl")]
    call += ["--epochs", "2", "--batch", "16", "--max-length", "32", "--precision", "fp32", "--log-every", "1"]
    flags = ["--out", str(tmp_path / "run"), "--ranks", "2"]
    process = Command(*call, *flags, does=launching, log=tmp_path / "log", environment=environment())
    assert ended(process) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().splitlines().count(str(tmp_path / "run" / "model")) == 1
    by_srun = srun([*call, "--device", "cpu", "--out", str(tmp_path / "b")], tmp_path)
    assert [ended(each) for each in by_srun] == [0, 0]
    assert figures(Run(tmp_path / "run")) == figures(Run(tmp_path / "b"))
    assert weights(Run(tmp_path / "run")) == weights(Run(tmp_path / "b"))
