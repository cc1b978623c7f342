"""What docs/parity.md says of MKL: with the variable that the command line sets, it sums alike whatever the batch is,
and neighbours change no bit in fp32."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CPU_INFO = Path("/proc/cpuinfo")
# MKL reads the variable when it makes its first product, so each case is a process of its own.
CODE = """
import torch
from bertsmith.cli import entry
from made_models import drawn_inputs, small_config
from bertsmith.base.layout import Layout
from bertsmith.model.initial import initialise
from bertsmith.model.attention.packed import Packed
from bertsmith.model.pretraining import PretrainingModel

entry.main(["--version"])
torch.set_num_threads(2)
config = small_config(
    hidden_size=384, num_attention_heads=6, intermediate_size=1536, max_position_embeddings=128, num_hidden_layers=1
)
encoder = PretrainingModel(config).encoder.eval()
initialise(encoder, 0.05, seed=1)
batch = drawn_inputs(config, [128] * 8)
different = []
with torch.no_grad():
    for length in (1, 2, 15, 33, 100, 128):
        found = []
        for others in ([], [3], [length + 4 if length < 124 else 7], [128, 3, 90], [1] * 30):
            layout = Layout.from_lengths([length, *others])
            some, positions = slice(0, layout.tokens), torch.from_numpy(layout.positions)
            hidden = encoder(batch.input_ids[some], batch.token_type_ids[some], positions, Packed(layout))
            found.append(hidden[:length])
        different += [length for each in found[1:] if not torch.equal(each, found[0])]
print(different)
"""


def is_intel() -> bool:
    return CPU_INFO.is_file() and "GenuineIntel" in CPU_INFO.read_text(encoding="utf-8", errors="replace")


@pytest.mark.skipif(not (torch.backends.mkl.is_available() and is_intel()), reason="MKL promises this on Intel alone")
def test_no_neighbour_changes_a_bit_where_mkl_is_asked_for_it() -> None:
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        env={name: value for name, value in os.environ.items() if name != "MKL_CBWR"} | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "[]"
