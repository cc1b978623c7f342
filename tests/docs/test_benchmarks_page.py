"""The commands of docs/benchmarks.md, run as they stand on made files of two tasks of GLUE."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from made_benchmarks import made_mnli, made_mrpc
from made_pages import ROOT, blocks, page, ran, typed
from made_rows import made_model

PAGE = page("benchmarks.md")
pytestmark = pytest.mark.slow


def test_benchmarks_are_run_evaluated_and_submitted(tmp_path: Path) -> None:
    made_model(tmp_path / "runs" / "mini")
    made_mrpc(tmp_path / "glue")
    made_mnli(tmp_path / "glue")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    first, submit, peers = blocks(PAGE)
    assert "hyper-parameters" in typed(tmp_path, first).stdout
    (mnli,) = re.findall(r"`(bertsmith finetune mnli [^`]+)`", PAGE)
    typed(tmp_path, mnli.replace("--model M", "--model runs/mini"))
    assert "matthews" in typed(tmp_path, submit).stdout
    (script,) = blocks(PAGE, "python")
    every = '("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")'
    assert every in script
    mean, *missing = ran(tmp_path, "python", "-c", script.replace(every, '("mrpc", "mnli")')).stdout.split()
    assert 0 <= float(mean) <= 1
    assert missing == ["cola", "sst2", "stsb", "qqp", "qnli", "rte", "wnli"]
    with zipfile.ZipFile(tmp_path / "submission.zip") as submission:
        assert {"MRPC.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"} <= set(submission.namelist())
    run, table = peers.splitlines()
    typed(tmp_path, table.replace("scores.json", "benchmarks/results/finetune-peer.json"))
    # It takes hours; `tests/behaviour/test_finetune_peer.py` runs its program on a few rows.
    helped = ran(tmp_path, "python", *run.split()[1:3], "--help").stdout
    assert all(flag in helped for flag in re.findall(r"--\w+", run))
