"""How fast a pre-training step is: `python benchmarks/pretrain_step.py [--device cuda] [--json FILE]`.

A step is what training does: forward and backward of MLM and NSP in train mode, and one LAMB update, over a micro-batch
that is there already. The share of the peak is against the best matrix product measured in the same run. What counts as
work is in `flop_of_step`: six operations for every weight that a token passes (two forward, four backward), attention
by each sequence's own length, and the word head on masked tokens alone; nothing that is padded or computed twice.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from made_up import lengths_of, pretrain_batch

from bertsmith.base.device import Device, choose_device
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.step import train_step

SHAPES = {
    "mini": BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024),
    "base": BertConfig(),
    "large": BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
}


@dataclass(frozen=True)
class Case:
    """A micro-batch of `sequences` pairs of up to `longest` tokens; `lengths` are those of `lengths_of`."""

    model: str
    longest: int
    lengths: str
    sequences: int
    attention_dropout: float = 0.1

    @property
    def name(self) -> str:
        return f"{self.model} {self.longest} {self.lengths}, attention dropout {self.attention_dropout:g}"


@dataclass(frozen=True)
class Row:
    """A result. peak_share: of the matrix rate measured in the same run. memory_gb: the most held, on a GPU."""

    case: str
    tokens_per_second: float
    sequences_per_second: float
    teraflops: float
    peak_share: float
    memory_gb: float


CPU_CASES = [
    Case("mini", 128, "ragged", 64),
    Case("mini", 512, "ragged", 16),
    Case("base", 128, "ragged", 16),
    Case("base", 128, "ragged", 16, attention_dropout=0.0),
]
GPU_CASES = [
    Case(model, longest, lengths, 131_072 // longest // (2 if model == "large" else 1), dropout)
    for model in ("base", "large")
    for longest in (128, 512)
    for lengths, dropout in (("full", 0.0), ("ragged", 0.0), ("ragged", 0.1))
]


def flop_of_step(config: BertConfig, batch: PretrainBatch) -> float:
    """Floating-point operations that a step over this batch needs, forward and backward."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    lengths = batch.layout.lengths.astype(np.float64)
    attention = 12 * hidden * layers * float((lengths**2).sum())
    masked = 6 * len(batch.masked_positions) * (hidden**2 + hidden * config.vocab_size)
    pooled = 6 * batch.layout.sequences * (hidden**2 + 2 * hidden)
    return 6 * weights * batch.layout.tokens + attention + masked + pooled


def wait(device: torch.device) -> None:
    """Lets the device finish what was queued, so that the clock tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: Device) -> float:
    """The best FLOP/s of a square matrix product in the compute dtype, on random data."""
    side = 2048 if device.is_cpu else 8192
    a, b = (torch.randn(side, side).to(device.torch_device, device.compute) for _ in range(2))
    best = float("inf")
    for _ in range(8):
        wait(device.torch_device)
        start = time.perf_counter()
        torch.mm(a, b)
        wait(device.torch_device)
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best


def measure(case: Case, device: Device, peak: float, seconds: float) -> Row:
    """Steps for `seconds` after a warm-up; the median step counts."""
    config = BertConfig(**{**asdict(SHAPES[case.model]), "attention_probs_dropout_prob": case.attention_dropout})
    model = PretrainingModel(config, None if device.compute == torch.float32 else device.compute)
    initialise(model, config.initializer_range, seed=0)
    model.to(device.torch_device).train()
    optimizer = Lamb(parameter_groups(model, 0.01))
    optimizer.set_learning_rate(1e-4)
    batch = pretrain_batch(lengths_of(case.lengths, case.sequences, case.longest), config.vocab_size)
    counts = (len(batch.masked_positions), batch.layout.sequences)
    if not device.is_cpu:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        wait(device.torch_device)
        start = time.perf_counter()
        train_step(model, optimizer, [batch], counts, device.torch_device)
        wait(device.torch_device)
        times.append(time.perf_counter() - start)
    step = float(np.median(times[2:]))
    memory = 0.0 if device.is_cpu else torch.cuda.max_memory_allocated(device.torch_device) / 1e9
    rate = flop_of_step(config, batch) / step
    tokens, sequences = batch.layout.tokens / step, batch.layout.sequences / step
    return Row(case.name, tokens, sequences, rate / 1e12, rate / peak, memory)


def table(rows: list[Row]) -> str:
    """The rows for a person."""
    width = max(len(row.case) for row in rows)
    head = f"{'case':<{width}}  {'tokens/s':>10}  {'seq/s':>8}  {'TFLOP/s':>8}  {'of peak':>7}  {'GB':>5}"
    lines = [
        f"{row.case:<{width}}  {row.tokens_per_second:>10,.0f}  {row.sequences_per_second:>8,.1f}"
        f"  {row.teraflops:>8.2f}  {row.peak_share:>7.1%}  {row.memory_gb:>5.1f}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    """Measures the cases of the device and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each case, warm-up included")
    parser.add_argument("--budget-seconds", type=float, default=480.0, help="no case is begun after this")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    asked = parser.parse_args()
    device = choose_device(asked.device, asked.precision)
    peak = matrix_rate(device)
    name = f"{torch.get_num_threads()} threads" if device.is_cpu else torch.cuda.get_device_name(device.torch_device)
    print(
        f"torch {torch.__version__}, {device.torch_device} ({name}), {device.compute}, peak {peak / 1e12:.2f} TFLOP/s"
    )
    begun, rows = time.monotonic(), []
    cases = [case for case in (CPU_CASES if device.is_cpu else GPU_CASES) if case.name.startswith(asked.only)]
    for case in cases:
        if time.monotonic() - begun > asked.budget_seconds:
            print(f"left out for time: {case.name}")
            continue
        rows.append(measure(case, device, peak, asked.seconds))
        print(json.dumps(asdict(rows[-1])), flush=True)
    print(table(rows) if rows else "no case was measured")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
