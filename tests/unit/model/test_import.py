"""Importing the model changes nothing for the rest of the process: each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bertsmith

SET_BY_COMMANDS = ("MKL_CBWR", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def run(code: str, **variables: str) -> list[str]:
    """What `code` prints, line by line."""
    known = {name: value for name, value in os.environ.items() if name not in SET_BY_COMMANDS}
    paths = os.pathsep.join([str(Path(bertsmith.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=known | {"PYTHONPATH": paths} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


IMPORTED_AND_USED = """
import importlib, os, pkgutil
import bertsmith.model
before = dict(os.environ)
for each in pkgutil.walk_packages(bertsmith.model.__path__, "bertsmith.model."):
    if each.name != "bertsmith.model.triton.kernels":  # needs Triton
        importlib.import_module(each.name)
import torch
from torch.optim import optimizer as of_torch
from bertsmith.model.linear import Linear
hooks = lambda: len(of_torch._global_optimizer_post_hooks)
print(os.environ.get("MKL_CBWR"), os.environ == before, hooks())

linear = Linear(4, 4)
theirs = torch.optim.SGD(linear.parameters(), lr=0.5, fused=True)
x = torch.ones(3, 4)
linear(x).sum().backward()
found = [hooks()]
x = x.bfloat16()
before = linear(x)
before.sum().backward()
found.append(hooks())
theirs.step()
after = linear(x)
torch.testing.assert_close(after, torch.nn.functional.linear(x, linear.weight.bfloat16(), linear.bias.bfloat16()))
print(*found, hooks(), torch.equal(before, after))
"""


def test_no_variable_is_set_and_the_first_copy_in_half_precision_hooks_optimizers_those_made_before_it_too() -> None:
    assert run(IMPORTED_AND_USED) == ["None True 0", "0 1 1 False"]


COMMAND = """
import os, sys
before = dict(os.environ)
from bertsmith.cli import entry
assert "torch" not in sys.modules and os.environ == before
status = entry.main(["--version"])
print(status, os.environ["MKL_CBWR"], os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("variables", "values"),
    [
        ({}, "AUTO,STRICT 10000"),
        ({"MKL_CBWR": "COMPATIBLE", "GOMP_SPINCOUNT": "7"}, "COMPATIBLE 7"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "AUTO,STRICT None"),
    ],
)
def test_the_command_line_sets_variables_before_torch_is_imported_unless_the_user_has(
    variables: dict[str, str], values: str
) -> None:
    assert run(COMMAND, **variables)[-1] == f"0 {values} False"
