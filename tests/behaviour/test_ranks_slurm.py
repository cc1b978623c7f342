"""The sbatch file of pre-training under faked variables of Slurm: it queues its job again when that helps, and a
stopped run then comes to the end of the unbroken one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.training.run_folder import Run
from made_ranks import BERTSMITH, arguments, ended, environment, started
from made_runs import PATIENCE, figures, save_recipe, small_corpus, small_recipe, weights

RECIPE = small_recipe(phase1__steps=30, phase2__steps=2, save_every=100_000)
# Starts two tasks, as srun does for a step of two, and ends with the highest of their statuses. Slurm's signal comes
# once the run has taken some steps, on the first start alone.
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
pids=()
for rank in 0 1; do
    SLURM_STEP_ID=$SLURM_RESTART_COUNT SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=localhost SLURM_PROCID=$rank \\
        SLURM_LOCALID=$rank "$@" & pids+=($!)
done
if [ "$SLURM_RESTART_COUNT" = 0 ] && [ -z "$NO_SIGNAL" ]; then
    until grep -q '"step": 3' "$METRICS" 2>/dev/null || ! kill -0 ${pids[0]}; do sleep 0.05; done
    kill -USR1 "${pids[@]}"
fi
most=0
for pid in "${pids[@]}"; do wait $pid; status=$?; [ $status -gt $most ] && most=$status; done
exit $most
"""
# A first start takes some more steps than those, and then none before the signal is there.
HOLDS = """
import os, sys, time
if os.environ.get("SLURM_RESTART_COUNT") == "0" and "pretrain" in sys.orig_argv:
    from bertsmith.base.stopping import stop_requested
    from bertsmith.training.loop import Trainer
    advance = Trainer._advance
    def held(trainer, step):
        advance(trainer, step)
        while trainer.position.step >= 6 and not stop_requested():
            time.sleep(0.01)
    Trainer._advance = held
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$REQUEUED"\n'


@pytest.fixture
def slurm(tmp_path: Path, repository: Path) -> list[str]:
    """The job's call, up to its arguments; srun, scontrol and bertsmith are on the path of `run_job`."""
    programs = {"srun": SRUN, "scontrol": SCONTROL, "bertsmith": f'#!/bin/bash\nexec {" ".join(BERTSMITH)} "$@"\n'}
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return ["bash", str(repository / "docs" / "slurm" / "pretrain.sbatch")]


def run_job(call: list[str], tmp_path: Path, restarts: int, **more: str) -> subprocess.CompletedProcess[str]:
    """One start of the job, with what a job of two tasks finds in its environment."""
    variables = environment(
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        SLURM_JOB_ID=str(os.getpid()),
        SLURM_NTASKS="2",
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
        SLURM_NODELIST="localhost",
        ENVIRONMENT="BATCH",
        SLURM_RESTART_COUNT=str(restarts),
        METRICS=str(tmp_path / "run" / "metrics.jsonl"),
        REQUEUED=str(tmp_path / "requeued"),
        **more,
    )
    return subprocess.run(call, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)


def requeued(tmp_path: Path) -> list[str]:
    """What scontrol was asked for."""
    path = tmp_path / "requeued"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Slurm has no Windows")
def test_a_job_whose_time_is_over_is_queued_again_and_finishes(tmp_path: Path, slurm: list[str]) -> None:
    save_recipe(RECIPE, tmp_path / "recipe.yaml")
    call = [*slurm, str(tmp_path / "run"), str(tmp_path / "recipe.yaml"), "--corpus", str(small_corpus())]
    (tmp_path / "sitecustomize.py").write_text(HOLDS)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    first = run_job(call, tmp_path, restarts=0, PYTHONPATH=path)
    assert requeued(tmp_path) == [f"requeue {os.getpid()}"], first.stderr
    assert first.stderr.count("SIGUSR1 received") == 1
    assert (tmp_path / "run" / "stopped").exists()
    second = run_job(call, tmp_path, restarts=1)
    assert second.returncode == 0, second.stderr
    assert len(requeued(tmp_path)) == 1
    unbroken = started([*BERTSMITH, *arguments(RECIPE, tmp_path / "b", "--ranks", "2")], tmp_path / "log")
    assert ended(unbroken) == 0
    assert figures(Run(tmp_path / "run")) == figures(Run(tmp_path / "b" / "run"))
    assert weights(Run(tmp_path / "run")) == weights(Run(tmp_path / "b" / "run"))


@pytest.mark.parametrize(
    ("status", "mark", "restarts", "again"),
    [
        (0, False, 0, False),
        (0, True, 25, True),
        (143, True, 0, True),
        (1, False, 0, False),
        (2, True, 0, False),
        (75, False, 19, True),
        (137, False, 0, True),
        (75, False, 20, False),
        (75, True, 19, True),
        (75, True, 20, False),
        (137, True, 20, False),
    ],
)
def test_what_is_queued_again(
    status: int, mark: bool, restarts: int, again: bool, tmp_path: Path, slurm: list[str]
) -> None:
    (tmp_path / "bin" / "bertsmith").write_text(f"#!/bin/bash\nexit {status}\n")
    if mark:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "stopped").touch()
    done = run_job([*slurm, str(tmp_path / "run"), "bert-mini"], tmp_path, restarts, NO_SIGNAL="1")
    assert bool(requeued(tmp_path)) == again
    assert done.returncode == (0 if again else status)
