"""What a save costs a run: blocks of steps that begin with one and blocks that do not, in turns, in one process.

    python benchmarks/saves.py bert-tiny --corpus corpus --turns 40 --json benchmarks/results/saves-tiny.json

Several ranks with `torchrun --nproc-per-node 2 benchmarks/saves.py ...`. Further flags are fields of the recipe, as is
`--parallel shard`. The cost is the mean difference between a block with a save and its neighbour without, so it holds
the copy and all that the writing thread takes from training; a block that ends before its save waits for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from bertsmith.base import files
from bertsmith.base.log import configure
from bertsmith.base.ranks import by_first, is_first, world_size
from bertsmith.bench.machine import machine
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.pretrain import pretrain

WARM_UP = 2


class Turns:
    """Stands in for `Saver.save` and `Saver._write`: every second save is left out, and all are timed."""

    def __init__(self) -> None:
        self.save, self.write = Saver.save, Saver._write
        self.blocks: list[float] = []
        self.blocked: list[float] = []
        self.writing: list[float] = []
        self.processor: list[float] = []
        self.late = 0
        self.last: float | None = None

    def __call__(self, saver: Saver, *arguments: Any) -> None:
        if saver._thread is not None:
            self.late += saver._thread.is_alive()
            saver._thread.join()
        now = time.perf_counter()
        if self.last is not None:
            self.blocks.append(now - self.last)
        self.last = now
        if len(self.blocks) % 2:
            return
        self.save(saver, *arguments)
        self.blocked.append(time.perf_counter() - now)

    def timed(self, saver: Saver) -> None:
        start, processor = time.perf_counter(), time.thread_time()
        self.write(saver)
        self.writing.append(time.perf_counter() - start)
        self.processor.append(time.thread_time() - processor)


def measured(recipe: Recipe, corpus: Path, turns: int) -> dict[str, Any] | None:
    """A run that saves at the end of every second block of `save_every` steps; None on all ranks but the first."""
    timed, steps = Turns(), recipe.save_every
    Saver.save = lambda *arguments: timed(*arguments)  # type: ignore[method-assign]
    Saver._write = lambda saver: timed.timed(saver)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as own:
        folder = by_first(lambda: own)
        pretrain(recipe, corpus, Path(folder) / "run")
        if not is_first():
            return None
        size = sum(path.stat().st_size for path in next((Path(folder) / "run").glob("step-*")).iterdir())
    blocks = np.array(timed.blocks[2 * WARM_UP : 2 * (turns + WARM_UP)]).reshape(-1, 2)
    cost = blocks[:, 0] - blocks[:, 1]
    return {
        "checkpoint_bytes": size,
        "step_seconds": blocks[:, 1].mean() / steps,
        "waits_seconds": float(np.mean(timed.blocked[WARM_UP:])),
        "thread_seconds": float(np.mean(timed.writing[WARM_UP:])),
        "thread_cpu_seconds": float(np.mean(timed.processor[WARM_UP:])),
        "save_seconds": cost.mean(),
        "save_seconds_error": cost.std(ddof=1) / len(cost) ** 0.5,
        "blocks_that_waited": timed.late,
        "blocks_seconds": blocks.tolist(),
    }


def table(found: dict[str, Any]) -> str:
    """For a terminal."""
    error, late = found["save_seconds_error"], found["blocks_that_waited"]
    return "\n".join(
        [
            f"{found['recipe']}, {found['parallel']}, ranks: {found['ranks']}; a checkpoint of "
            f"{found['checkpoint_bytes'] / 1e6:.0f} MB; {found['step_seconds'] * 1e3:.0f} ms a step; training waits "
            f"{found['waits_seconds'] * 1e3:.0f} ms for a save; its thread takes {found['thread_seconds']:.2f} s, "
            f"{found['thread_cpu_seconds']:.2f} s of them of a processor",
            f"in {len(found['blocks_seconds'])} turns a save costs {found['save_seconds']:.3f} s +- {error:.3f}; one "
            f"every {found['save_every']} steps: {found['share']:.2%} +- {found['share_error']:.2%} of the time",
            *([f"{late} blocks ended before their save: take more --steps"] if late else []),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", type=Path, help="the file for what was measured")
    given, more = parser.parse_known_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    configure(quiet=True)
    steps, before = given.steps * (2 * (given.turns + WARM_UP) + 1), machine()
    fields = {"phase1.steps": steps, "phase2.steps": 0, "save_every": given.steps, "evaluate_every": 10 * steps}
    recipe = load_recipe(given.recipe, [f"--{name}={value}" for name, value in fields.items()] + more)
    found = measured(recipe, given.corpus, given.turns)
    if found is None:
        return
    every = load_recipe(given.recipe).save_every
    interval = every * found["step_seconds"]
    kind = {"recipe": given.recipe, "parallel": recipe.parallel, "ranks": world_size(), "save_every": every}
    shares = {"share": found["save_seconds"] / interval, "share_error": found["save_seconds_error"] / interval}
    found = {**kind, **found, **shares}
    if given.json is not None:
        files.write_json(given.json, {"arguments": sys.argv[1:], "machine": before, **found})
    print(table(found))


if __name__ == "__main__":
    main()
