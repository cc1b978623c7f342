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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

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


def resume(sources: Path, name: str, folder: Path, **variables: str) -> Resumed:
    """Resumes a copy of a stored run in a process of the version in `sources`."""
    shutil.copytree(RUNS / name, folder / "run")
    shutil.copytree(RUNS / "corpus", folder / "corpus")
    arguments = ["pretrain", folder / "run" / "recipe.yaml", "--corpus", folder / "corpus", "--out", folder / "run"]
    environment = os.environ | {"PYTHONPATH": str(sources)} | variables
    where = [sys.executable, "-c", "import bertsmith; print(bertsmith.__file__)"]
    imported = subprocess.run(where, env=environment, cwd=folder, capture_output=True, text=True, check=True).stdout
    assert Path(imported.strip()).is_relative_to(sources)
    command = [sys.executable, "-m", "bertsmith", *map(str, arguments), "--resume"]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"resuming after step {STEPS_OF_STOP}" in done.stderr
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Resumed(
        records=[json.loads(line) for line in lines],
        weights=load_file(folder / "run" / "model" / "model.safetensors"),
        begun_on=json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))["begun_on"],
        warnings=[line for line in done.stderr.splitlines() if line.startswith("warning: this run")],
    )


def known_figures(record: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """What a record says of the run, by the names that the earlier version's has; a later one may say more."""
    return {name: record.get(name) for name in like if name not in OF_THE_CLOCK}


@pytest.fixture(scope="module")
def expected(earlier: Path, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    found = resume(earlier, "fp32", tmp_path_factory.mktemp("expected"))
    assert found.records[-1]["step"] == LAST_STEP
    return found


@pytest.mark.parametrize("compiler", ["found", "missing"])
def test_a_stored_run_in_fp32_ends_as_the_earlier_version_ends_it(
    compiler: str, expected: Resumed, repository: Path, tmp_path: Path
) -> None:
    """With the operators that it began with, though there is a compiler for kernels."""
    variables = {"CXX": "no-such-compiler"} if compiler == "missing" else {}
    found = resume(repository / "src", "fp32", tmp_path, **variables)
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


def test_a_stored_run_in_bf16_goes_on_near_to_it(earlier: Path, repository: Path, tmp_path: Path) -> None:
    before = resume(earlier, "bf16", tmp_path / "earlier")
    now = resume(repository / "src", "bf16", tmp_path / "now")
    assert [known_figures(*pair) for pair in zip(plan_of(now), plan_of(before), strict=True)] == plan_of(before)
    assert losses(now).keys() >= losses(before).keys()
    assert {name: losses(now)[name] for name in losses(before)} == pytest.approx(losses(before), rel=0.01)
    stored = json.loads((RUNS / "bf16" / "run.json").read_text(encoding="utf-8"))["begun_on"]
    assert now.begun_on["precision"] == stored["precision"] == "bf16"
    assert bool(now.warnings) == (now.begun_on["between_products"] != stored["between_products"]), now.warnings
