"""The script that compares the logits of every head by every engine with transformers' own, on a small encoder."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from made_heads import made_head
from made_pages import ROOT

SCRIPT = ROOT / "benchmarks" / "export_parity.py"


@pytest.mark.slow
def test_every_head_gives_transformers_numbers_by_every_engine(tmp_path: Path) -> None:
    for name in ("transformers", "onnx", "onnxruntime", "openvino"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    made_head("encoder", tmp_path / "weights" / "all-MiniLM-L6-v2")
    out = tmp_path / "parity.json"
    command = [sys.executable, SCRIPT, "run", "--data", tmp_path, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    assert len(rows) == 7
    for row in rows:
        found = row["differences"]
        assert len(found) == 6
        assert all(found[f"{engine} fp32"] < 1e-4 * max(1, row["largest"]) for engine in ("torch", "onnx", "openvino"))
        assert all(1e-4 < found[f"{engine} int8"] < 0.2 * row["largest"] for engine in ("onnx", "openvino"))
    table = subprocess.run([sys.executable, SCRIPT, "table", out], capture_output=True, text=True, check=True).stdout
    assert len(table.splitlines()) == 8
