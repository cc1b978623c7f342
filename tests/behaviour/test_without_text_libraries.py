"""Promise: a GPU is tested and measured where the libraries that prepare text and read flags are not installed.

So it is in the images of many clusters. Here these libraries are hidden from every process that a test starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# pytest's plugins, too: an image with pytest alone will do.
HIDDEN = ("tyro", "sentencex", "mwparserfromhell", "nanotoken", "hypothesis", "pytest_timeout", "xdist", "datasets")
# Python imports a module of this name at its start. To the importing side a hidden package is one that is not there.
HIDING = f"""
import sys

class Without:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN!r}:
            return None
        return next(filter(None, (finder.find_spec(name, path, target) for finder in self.finders)), None)

    def invalidate_caches(self):
        pass

sys.meta_path[:] = [Without(list(sys.meta_path))]
"""
WHOLE_RUN = """
from pathlib import Path
import shutil, sys
import test_compiled_on_gpu as on_gpu
from dataclasses import replace
from bertsmith.training.pretrain import pretrain

folder = Path(sys.argv[1])
shutil.copytree(on_gpu.CORPUS, folder / "corpus")
run = pretrain(replace(on_gpu.RECIPE, device="cpu", precision="fp32"), folder / "corpus", folder / "run")
losses = [record["masked_loss"] for record in run.metrics("train")]
assert losses[29] < losses[0], losses
"""
MEASURED = """
from pathlib import Path
import sys
from bertsmith.bench.step.bench import report
from bertsmith.bench.step.plan import GpuSizes, gpu_plan
from bertsmith.bench.step.run import StepRun

sizes = GpuSizes("cpu", models=("tiny",), lengths=(128,), tokens=1024, passes=1, seconds=0.1, compiled=False)
run = StepRun(gpu_plan(sizes, {}).alone(), Path(sys.argv[1]), deadline=float("inf"), only="tiny, 8 full")
run.all()
print(report(run, "make gpu-check", {}, "made up").as_text())
"""


@pytest.fixture
def without(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the libraries from the processes that a test starts."""
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDING)
    paths = [tmp_path / "hiding", repository / "src", repository / "tests", repository / "tests" / "gpu"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def output_of(repository: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=repository, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_cannot_be_imported(name: str, repository: Path) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    output_of(repository, "-c", code)
    with pytest.raises(AssertionError, match=f"No module named '{name}'"):
        output_of(repository, "-c", f"import {name}")


@pytest.mark.usefixtures("without")
def test_the_tests_that_need_a_gpu_are_collected(repository: Path) -> None:
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests/gpu")
    said = output_of(repository, *options)
    for path in sorted((repository / "tests" / "gpu").glob("test_*.py")):
        assert f"tests/gpu/{path.name}::" in said
    assert "error" not in said.lower()


@pytest.mark.usefixtures("without")
def test_the_check_of_a_gpu_starts(repository: Path) -> None:
    said = output_of(repository, "benchmarks/gpu_check.py")
    assert "gpu-check: no CUDA device was found" in said or "gpu-check: tests passed" in said


@pytest.mark.usefixtures("without")
def test_a_whole_run_needs_none_of_them(repository: Path, tmp_path: Path) -> None:
    """The run of tests/gpu, on a CPU."""
    output_of(repository, "-c", WHOLE_RUN, str(tmp_path))


@pytest.mark.usefixtures("without")
def test_measuring_needs_none_of_them(repository: Path, tmp_path: Path) -> None:
    """The plan of a GPU, on a CPU and tiny: a process for each side, and the table."""
    assert "full at 128" in output_of(repository, "-c", MEASURED, str(tmp_path))
