"""The update in Triton kernels: by Triton's interpreter on a CPU, and compiled for GPUs that are not here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertsmith.optim import fused

HERE = Path(__file__).parent
TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (it has wheels for Linux alone)"
)


def check(*arguments: str, **environment: str) -> None:
    """In a process of its own: Triton reads its switches when it is imported."""
    done = subprocess.run(
        [sys.executable, str(HERE / "fused_checks.py"), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@TRITON
def test_by_the_interpreter() -> None:
    check(TRITON_INTERPRET="1")


@TRITON
def test_the_kernels_compile_for_cards(tmp_path: Path) -> None:
    """To machine code of Ampere, Hopper and Blackwell, without a card, and without spilled registers."""
    check(str(tmp_path), TRITON_CACHE_DIR=str(tmp_path))


def test_where_a_first_launch_fails_pytorch_does_it_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(why: Exception) -> None:
        def broken(tensors: object) -> None:
            raise why

        fused._runs.cache_clear()
        monkeypatch.setattr(fused, "squares", broken)

    try:
        raising(RuntimeError("Failed to find C compiler.\nMore of it"))
        assert not fused._runs(torch.device("cpu"))
        assert not fused._runs(torch.device("cpu"))
        told = "updates are made by PyTorch's operators, Triton's kernels do not run: RuntimeError: Failed to find C"
        assert caplog.text.count(told) == 1
        raising(torch.OutOfMemoryError("out of memory"))
        with pytest.raises(torch.OutOfMemoryError):
            fused._runs(torch.device("cpu"))
    finally:
        fused._runs.cache_clear()


def test_tensors_on_a_cpu_are_left_to_pytorch() -> None:
    assert not fused.can_take([torch.ones(3)])
    assert not fused.can_take([])


@pytest.mark.parametrize(
    "other",
    [torch.ones(3, dtype=torch.float64), torch.ones(2, 3).T, torch.ones(3, device="meta")],
    ids=["another dtype", "transposed", "on another device"],
)
def test_tensors_that_a_kernel_would_misread_are_left_to_pytorch(other: torch.Tensor) -> None:
    assert fused._are_plain([torch.ones(3), torch.ones(2, 3)])
    assert not fused._are_plain([torch.ones(3), other])
