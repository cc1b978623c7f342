"""Promise: a GPU is tested and measured where the libraries that prepare text and read flags are not installed.

So it is in the images of many clusters. Here these libraries are hidden from every process that a test starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bertsmith.bench.finetune.bench import MODEL
from made_pages import ROOT
from made_questions import questions, squad
from made_rows import made_model, rows

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

    def find_distributions(self, context):
        for finder in self.finders:
            if hasattr(finder, "find_distributions"):
                yield from finder.find_distributions(context)

    def invalidate_caches(self):
        pass

sys.meta_path[:] = [Without(list(sys.meta_path))]
"""
# As where Bertsmith is not installed: the sources are found only where PYTHONPATH names them. Where it is installed
# beside other packages, it alone is hidden.
NOT_INSTALLED = """
import os

given = os.environ["PYTHONPATH"].split(os.pathsep)
installed = [each for each in sys.path if each not in given and os.path.isfile(each + "/bertsmith/__init__.py")]
packages = tuple(each + os.sep for each in installed if os.path.basename(each) == "site-packages")
sys.path[:] = [each for each in sys.path if each not in installed or each + os.sep in packages]

class NotInstalled(Without):
    def find_spec(self, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        is_hidden = found is not None and name == "bertsmith" and str(found.origin).startswith(packages)
        return None if is_hidden else found

sys.meta_path[:] = [NotInstalled(list(sys.meta_path))]
"""
# In one process, as torch takes seconds to import: the check, whose processes are copies of it, and then the run of
# tests/gpu, on a CPU.
CHECK_AND_RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from made_children import forks_from_here
forks_from_here()
sys.path.insert(0, "benchmarks")
import gpu_check
assert gpu_check.main() == 0
from bertsmith.training.pretrain import pretrain
from made_gpu_runs import RECIPE, stored_corpus

folder = Path(sys.argv[sys.argv.index("--json") + 1]).parent
run = pretrain(replace(RECIPE, device="cpu", precision="fp32"), stored_corpus(folder), folder / "run")
losses = [record["masked_loss"] for record in run.metrics("train")]
assert losses[29] < losses[0], losses
"""


def hidden(folder: Path, more: str = "") -> dict[str, str]:
    """The environment of processes from which the libraries are hidden, by what is written into the folder."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDING + more)
    paths = [folder, ROOT / "src", ROOT / "tests", ROOT / "tests" / "gpu"]
    named = {"PYTHONPATH": str(folder) if more else os.pathsep.join(map(str, paths))}
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return kept | named | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return hidden(tmp_path_factory.mktemp("without") / "hiding")


@pytest.fixture(scope="module")
def not_installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Without Bertsmith as well."""
    return hidden(tmp_path_factory.mktemp("not-installed") / "hiding", NOT_INSTALLED)


def output_of(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_cannot_be_imported(name: str, without: dict[str, str]) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    output_of(without, "-c", code)
    with pytest.raises(AssertionError, match=f"No module named '{name}'"):
        output_of(without, "-c", f"import {name}")


def test_the_tests_that_need_a_gpu_are_collected(not_installed: dict[str, str]) -> None:
    said = output_of(not_installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests/gpu")
    for path in sorted((ROOT / "tests" / "gpu").glob("test_*.py")):
        assert f"tests/gpu/{path.name}::" in said
    assert "error" not in said.lower()


def test_the_check_of_a_gpu_starts(without: dict[str, str]) -> None:
    said = output_of(without, "benchmarks/gpu_check.py")
    assert "gpu-check: no CUDA device was found" in said or "gpu-check: tests passed" in said


def test_nor_need_it_be_installed(not_installed: dict[str, str], tmp_path: Path) -> None:
    """Neither for the tests above nor for the check and the processes that it starts."""
    with pytest.raises(AssertionError, match="No module named 'bertsmith'"):
        output_of(not_installed, "-c", "import bertsmith")
    found = checked(not_installed, tmp_path / "rows.json", "rows of a table")
    assert found["rows"]
    assert not [line for line in found["about"] if line.endswith(": ")], "a name without what it names"


@pytest.fixture(scope="module")
def with_data(without: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment with a data folder that has a tiny model and a few rows of both benchmarks."""
    data = tmp_path_factory.mktemp("data")
    made_model(data)
    (data / "weights").mkdir()
    (data / "model").rename(data / MODEL)
    for folder in ("glue/SST-2", "squad/v1.1"):
        (data / folder).mkdir(parents=True)
    for part, count in (("train", 40), ("dev", 12)):
        lines = ["sentence\tlabel", *(f"{row['text']}\t{number % 2}" for number, row in enumerate(rows(count, 5)))]
        (data / "glue" / "SST-2" / f"{part}.tsv").write_text("\n".join(lines) + "\n")
        text = json.dumps(squad(questions(count, 5)))
        (data / "squad" / "v1.1" / f"{part}-v1.1.json").write_text(text)
    return without | {"BERTSMITH_DATA": str(data)}


def checked(
    environment: dict[str, str], to: Path, *only: str, start: Sequence[str] = ("benchmarks/gpu_check.py",)
) -> dict[str, Any]:
    """What `make gpu-check` keeps of such rows at a tiny size, after a CPU measured them. Without FlashAttention's
    package a peer that needs it is the only one that fails. start: of the check, from Python's command line."""
    said = output_of(environment, *start, "--tiny", "--seconds", "3600", "--json", str(to), "--only", *only)
    found: dict[str, Any] = json.loads(to.read_text())
    assert {each["why"] for each in found["failed"]} <= {"the package flash_attn is not installed"}, said
    assert "Expected and measured" not in said, "what is expected is of whole sizes"
    return found


MEASURED = {
    "4 full at 128: bf16": ("ours", "peak_share", "sequences_per_second", "ours_memory_bytes"),
    "4 full at 128: transformers": ("peer", "peak_share", "sequences_per_second", "peer_memory_bytes"),
    "ladder: bf16": ("ours", "sequences_per_second"),
    "correctness: padded rows": ("forward_error", "backward_error", "limit"),
    "update alone": ("milliseconds", "parameters", "bytes_per_second"),
    "products of a layer": ("teraflops",),
    "inference: tiny, 1 x 128": ("sequences_per_second", "p50_ms", "p90_ms", "p95_ms", "p99_ms"),
    "fine-tuning: squad1": ("seconds", "rows_per_second"),
}
"""The figures above 0 of rows of every kind, by what their names have in them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what `measured` makes."""
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def measured(with_data: dict[str, str], folder: Path) -> list[dict[str, Any]]:
    """The rows of all kinds, by one call."""
    made: list[dict[str, Any]] = checked(with_data, folder / "rows.json", *MEASURED, start=("-c", CHECK_AND_RUN))[
        "rows"
    ]
    assert all(any(only in row["case"] for only in MEASURED) for row in made)
    return made


@pytest.mark.parametrize("only", MEASURED)
def test_measuring_needs_none_of_them(only: str, measured: list[dict[str, Any]]) -> None:
    found = [row for row in measured if only in row["case"]]
    assert found
    assert all(row[name] > 0 for row in found for name in MEASURED[only])
    if only == "4 full at 128: bf16":
        assert all(0 <= row["data_wait_share"] <= 1 for row in found)
    if only.startswith("correctness"):
        assert all(row["within"] for row in found)
        assert len(found) == 4, "fp32 and fp16, without dropout and with it"
    if only.startswith("update"):
        lamb, adamw = found
        assert (lamb["bytes"], adamw["bytes"]) == (44 * lamb["parameters"], 32 * lamb["parameters"])
    if only.startswith("fine-tuning"):
        assert found[0]["figures"].keys() >= {"f1", "exact_match"}
        assert found[0]["precision"] in ("fp32", "bf16"), "the one that was chosen"


def test_a_whole_run_needs_none_of_them(measured: list[dict[str, Any]], folder: Path) -> None:
    assert (folder / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # where other programs run, on a processor without bf16 instructions
@pytest.mark.parametrize(
    ("only", "count"),
    [("with Wikipedia", 6), ("ladder", 6), ("inference", 6), ("fine-tuning", 2), ("transformers", 3)],
)
def test_every_row_is_measured_without_them(with_data: dict[str, str], tmp_path: Path, only: str, count: int) -> None:
    cases = [row["case"] for row in checked(with_data, tmp_path / "rows.json", only)["rows"]]
    assert len(set(cases)) == len(cases) == count
