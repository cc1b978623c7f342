"""Promise: a run that an earlier version began is resumed by this one, and comes to what that version would have made.

The runs in tests/fixtures were stopped half-way by SIGTERM in commit 779adbb. Both versions resume copies of them here,
on one machine: a run in fp32 ends equal to the bit, until a version changes the order of sums on purpose and says so;
one in bf16 within 1%, with a warning if its kernels are not what they were.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from bertsmith.base import log
from bertsmith.cli import main
from made_kernels import kernels_unused
from made_runs import OF_THE_CLOCK
from stored_corpora import FIXTURES

COMMIT = "779adbb00ff2386938c657691a0d588f20928b2e"
RUNS = FIXTURES / "runs"
STEPS_OF_STOP, LAST_STEP = 5, 12


@dataclass(frozen=True)
class Resumed:
    """A stored run after it was resumed to its end."""

    records: list[dict[str, Any]]
    weights: dict[str, Any]
    begun_on: dict[str, str]
    warnings: list[str]


@pytest.fixture(scope="module")
def earlier(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version that wrote the runs, from the repository's history."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed, and the earlier version is in the repository's history")
    found = subprocess.run([git, "archive", COMMIT, "src"], cwd=repository, capture_output=True, check=False)
    if found.returncode:
        said = found.stderr.decode(errors="replace").strip()
        pytest.skip(f"commit {COMMIT[:7]} is not in this repository's history, as in a shallow clone ({said})")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        # Debian 12 has Python 3.11.2, whose `extractall` takes no filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / "src"


# In a process of the earlier version, whose modules have the names of ours.
RESUMES = """
import sys
from pathlib import Path
import bertsmith
from bertsmith.cli import main
assert Path(bertsmith.__file__).is_relative_to(sys.argv[1]), bertsmith.__file__
for run in sys.argv[2:]:
    if status := main(["pretrain", f"{run}/recipe.yaml", "--corpus", f"{run}-corpus", "--out", run, "--resume"]):
        sys.exit(status)
    print(f"end of {run}", file=sys.stderr, flush=True)
"""


def copied(name: str, folder: Path) -> Path:
    """A copy of a stored run, with one of the corpus beside it."""
    shutil.copytree(RUNS / name, folder / name)
    shutil.copytree(RUNS / "corpus", folder / f"{name}-corpus")
    return folder / name


def resumed(run: Path, said: str) -> Resumed:
    """What a run has come to. said: what it said on the way."""
    assert f"resuming after step {STEPS_OF_STOP}" in said
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Resumed(
        records=[json.loads(line) for line in lines],
        weights=load_file(run / "model" / "model.safetensors"),
        begun_on=json.loads((run / "run.json").read_text(encoding="utf-8"))["begun_on"],
        warnings=[line for line in said.splitlines() if line.startswith("warning: this run")],
    )


@pytest.fixture(scope="module")
def before(earlier: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Resumed]:
    """Both runs, resumed by the earlier version."""
    folder = tmp_path_factory.mktemp("before")
    runs = [copied(name, folder) for name in ("fp32", "bf16")]
    environment = os.environ | {"PYTHONPATH": str(earlier)}
    command = [sys.executable, "-c", RESUMES, str(earlier), *map(str, runs)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    of_fp32, of_bf16 = done.stderr.split(f"end of {runs[0]}\n")
    found = {"fp32": resumed(runs[0], of_fp32), "bf16": resumed(runs[1], of_bf16)}
    assert found["fp32"].records[-1]["step"] == LAST_STEP
    return found


@pytest.fixture
def resume(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Resumed]:
    """Resumes a copy of a stored run by this version, as in a new process."""
    monkeypatch.setattr(log, "_said", set())

    def resume(name: str) -> Resumed:
        run = copied(name, tmp_path)
        call = ["pretrain", str(run / "recipe.yaml"), "--corpus", f"{run}-corpus", "--out", str(run), "--resume"]
        with kernels_unused():
            status = main(call)
        said = capfd.readouterr().err
        assert status == 0, said
        return resumed(run, said)

    return resume


def known_figures(record: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """What a record says of the run, by the names that the earlier version's has; a later one may say more. `fill` was
    always 1 on a CPU in that version (see test_step.py)."""
    return {name: record.get(name) for name in like if name not in OF_THE_CLOCK | {"fill"}}


@pytest.mark.parametrize("compiler", ["found", "missing"])
def test_a_stored_run_in_fp32_ends_as_the_earlier_version_ends_it(
    compiler: str,
    before: dict[str, Resumed],
    resume: Callable[[str], Resumed],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the operators that it began with, though there is a compiler for kernels."""
    if compiler == "missing":
        monkeypatch.setenv("CXX", "no-such-compiler")
    expected, found = before["fp32"], resume("fp32")
    assert found.warnings == expected.warnings
    assert [known_figures(*pair) for pair in zip(found.records, expected.records, strict=True)] == [
        known_figures(record, record) for record in expected.records
    ]
    assert found.weights.keys() == expected.weights.keys()
    differing = [name for name in found.weights if found.weights[name].tobytes() != expected.weights[name].tobytes()]
    assert not differing


def plan_of(run: Resumed) -> list[dict[str, Any]]:
    """What of the records no rounding changes: which steps there were, over what, at which learning rate."""
    names = ("kind", "step", "phase", "learning_rate", "steps", "tokens", "masked_words", "sequences")
    return [{name: record[name] for name in names if name in record} for record in run.records]


def losses(run: Resumed) -> dict[str, float]:
    return {
        f"{record['kind']} {record['step']} {name}": value
        for record in run.records
        for name, value in record.items()
        if name.endswith("loss")
    }


def test_a_stored_run_in_bf16_goes_on_near_to_it(before: dict[str, Resumed], resume: Callable[[str], Resumed]) -> None:
    then, now = before["bf16"], resume("bf16")
    assert [known_figures(*pair) for pair in zip(plan_of(now), plan_of(then), strict=True)] == plan_of(then)
    assert losses(now).keys() >= losses(then).keys()
    assert {name: losses(now)[name] for name in losses(then)} == pytest.approx(losses(then), rel=0.01)
    stored = json.loads((RUNS / "bf16" / "run.json").read_text(encoding="utf-8"))["begun_on"]
    assert now.begun_on["precision"] == stored["precision"] == "bf16"
    assert bool(now.warnings) == (now.begun_on["between_products"] != stored["between_products"]), now.warnings
