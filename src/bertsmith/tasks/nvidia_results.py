"""A run's results under the names that NVIDIA's run_glue.py and run_squad.py give them, for scripts that read those."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from bertsmith.tasks.results import FinetuneResult
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.task import Examples, Runner

NVIDIA_FILE = "nvidia-results.json"
# As in the reference's scripts.
_BATCH = 8
_PERCENTILES = (50, 90, 95, 99, 100)
# Ours, and what the reference calls them. Its scores are percentages in SQuAD, shares elsewhere, as ours are.
_SCORES = {
    "exact_match": "exact_match",
    "accuracy": "exact_match",
    "f1": "F1",
    "binary_f1": "F1",
    "entity_f1": "F1",
    "matthews": "mcc",
    "pearson": "pearson",
    "spearman": "spearmanr",
}


def nvidia_results(
    result: FinetuneResult,
    dev: Examples,
    model: nn.Module,
    runner: Runner,
    steps: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """exact_match (the accuracy of a classifier), F1 and the like of the kept weights on dev; e2e_train_time in
    seconds, of the call that ended the run; training_sequences_per_second of the steps of all seeds, in whichever call
    they were taken, without measurements and saves; infer:latency(ms):50% and so on of dev in batches of 8 as they
    stand in the file. steps: the run's records of training.

    The model must be in evaluation mode. Latencies are measured anew.
    """
    of_seeds = [each for each in steps if "seed" in each]
    seconds = sum(each["steps"] * each["seconds_per_step"] for each in of_seeds)
    latencies = _latencies(dev, model, runner)
    return {
        **nvidia_scores(result.tuned["dev"]),
        "e2e_train_time": result.seconds,
        "training_sequences_per_second": sum(each["sequences"] for each in of_seeds) / seconds,
        **{f"infer:latency(ms):{name}": value for name, value in summary(latencies).items()},
        "infer:throughput(samples/s):avg": 1000 * len(dev.sequences.ids) / float(np.sum(latencies)),
    }


def summary(latencies: Sequence[float]) -> dict[str, float]:
    """The percentiles 50% to 100% as run_glue.py has them, each a latency that was measured, and avg, std and sum."""
    rising = sorted(latencies)
    percentiles = {f"{each}%": rising[max(len(rising) * each // 100 - 1, 0)] for each in _PERCENTILES}
    return percentiles | {"avg": float(np.mean(rising)), "std": float(np.std(rising)), "sum": float(np.sum(rising))}


def nvidia_scores(figures: Mapping[str, float]) -> dict[str, float]:
    """Figures of an evaluation under the reference's names, those that it has."""
    return {name: figures[ours] for ours, name in reversed(_SCORES.items()) if ours in figures}


@torch.no_grad()
def _latencies(examples: Examples, model: nn.Module, runner: Runner) -> list[float]:
    """Milliseconds of each batch, the copy of its scores to the host included. The first is run once beforehand."""
    count = len(examples.sequences.ids)
    batches = [np.arange(first, min(first + _BATCH, count)) for first in range(0, count, _BATCH)]
    found = []
    for members in (batches[0], *batches):
        start = time.perf_counter()
        model(pack(examples.sequences, members, runner.device)).float().cpu()
        found.append(1000 * (time.perf_counter() - start))
    return found[1:]
