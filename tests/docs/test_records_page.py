"""The commands of docs/records.md, run as they stand but for a small recipe, and the figures of the page."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from bertsmith.training.pretrain import Run
from bertsmith.training.pretraining import health
from made_pages import blocks, page, typed, typed_here
from made_runs import save_recipe, small_corpus, small_recipe

PAGE = page("records.md")
# In place of the package, which is not installed, and needs a network.
WANDB = """
class Run:
    url = None
    def define_metric(self, name, step_metric): pass
    def log(self, values): print("logged", *values)
    def finish(self, exit_code): print("finished", exit_code)

def init(**given): return Run()
"""


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(small_corpus(), tmp_path / "corpus")
    save_recipe(small_recipe(phase1__steps=7), tmp_path / "tiny.yaml")
    profiled, watched = (block.replace("pretrain bert-tiny", "pretrain tiny.yaml") for block in blocks(PAGE))
    said = typed(tmp_path, profiled).stderr
    assert "profile of steps 4 to 6: runs/tiny/profile/trace.json.gz" in said
    # In a process of its own: the library asks once whether it may write, and another test may have been first.
    assert "profiler_start" not in said, "which the profiler's own library would write"
    monkeypatch.chdir(tmp_path)
    package = ModuleType("wandb")
    package.__spec__ = ModuleSpec("wandb", None)
    exec(WANDB, vars(package))
    monkeypatch.setitem(sys.modules, "wandb", package)
    done = typed_here(watched)
    assert "Weights & Biases: project forge, run watched (offline)" in done.stderr
    assert "train/loss" in done.stdout
    assert "finished 0" in done.stdout
    kinds = {each["kind"] for each in Run(tmp_path / "runs" / "tiny").metrics()}
    assert kinds <= set(re.findall(r"`(\w+)`", PAGE))
    keys = set(re.findall(r'"(\w+)": ', (tmp_path / "runs" / "tiny.json").read_text(encoding="utf-8")))
    assert {"average_loss", "step_loss", "final_loss", "raw_train_time", "e2e_train_time"} <= keys
    assert {"average_loss", "step_loss", "final_loss", "raw_train_time", "e2e_train_time"} <= set(
        re.findall(r"`(\w+)`", PAGE)
    )


def test_the_thresholds_of_the_page_are_those_of_the_code() -> None:
    table = PAGE[PAGE.index("| name | when") :]
    names = re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE)
    assert names == [
        *(health.SPIKE, health.DIVERGING, health.PLATEAU),
        *(health.VISIBLE, health.MEMORISED, health.REPEATED),
    ]
    for text in (
        f"median of the last {health.RECENT_LINES} by {health.SPIKE_DEVIATIONS:g} standard deviations",
        f"at least {health.SPIKE_NATS}; or {health.HIGH_NATS} above the lowest",
        f"at least {health.PLATEAU_LINES} lines of the phase",
        f"or of {health.FEWER_LINES} after {health.PLATEAU_STEPS} steps",
        f"not {health.PLATEAU_NATS} below theirs, and an accuracy not {health.PLATEAU_TIMES} times",
        f"{health.VISIBLE_ACCURACY:.0%} of them are predicted right",
        f"over the last {health.MEMORISED_LINES} lines, is {health.MEMORISED_NATS} below",
        f"more than {health.REPEATED_SHARE:.0%} of the tokens",
        f"of the last {health.HISTORY} lines without a spike",
        f"needs {health.LEAST_HISTORY} lines first",
    ):
        assert text in " ".join(PAGE.split()), text
    assert (health.DIVERGING_LINES, health.VISIBLE_SHARE) == (3, 0.5)
