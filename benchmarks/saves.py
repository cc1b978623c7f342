"""What a save costs a run: blocks of steps that begin with one and blocks that do not, in turns, in one process.

`python benchmarks/saves.py bert-tiny --corpus CORPUS --steps 10 --turns 12`; several ranks with `torchrun
--nproc-per-node 2 benchmarks/saves.py ...`. Further flags are fields of the recipe, such as `--parallel shard`. The
cost is the mean difference between a block with a save and its neighbour without, so it holds the copy and all that the
writing thread takes from training.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from bertsmith.base.log import configure
from bertsmith.base.ranks import by_first, is_first, world_size
from bertsmith.recipes.loader import load_recipe
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
        self.last: float | None = None

    def __call__(self, saver: Saver, *arguments: Any) -> None:
        now = time.perf_counter()
        if self.last is not None:
            self.blocks.append(now - self.last)
        self.last = now
        if len(self.blocks) % 2:
            assert saver._thread is None or not saver._thread.is_alive(), "a block ends before its save: more --steps"
            return
        self.save(saver, *arguments)
        self.blocked.append(time.perf_counter() - now)

    def timed(self, saver: Saver) -> None:
        start, processor = time.perf_counter(), time.thread_time()
        self.write(saver)
        self.writing.append(time.perf_counter() - start)
        self.processor.append(time.thread_time() - processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=12)
    given, more = parser.parse_known_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    configure(quiet=True)
    preset, turns = load_recipe(given.recipe), Turns()
    steps = given.steps * (2 * (given.turns + WARM_UP) + 1)
    fields = {"phase1.steps": steps, "phase2.steps": 0, "save_every": given.steps, "evaluate_every": 10 * steps}
    recipe = load_recipe(given.recipe, [f"--{name}={value}" for name, value in fields.items()] + more)
    Saver.save = lambda *arguments: turns(*arguments)  # type: ignore[method-assign]
    Saver._write = lambda saver: turns.timed(saver)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as own:
        folder = by_first(lambda: own)
        pretrain(recipe, given.corpus, Path(folder) / "run")
        if not is_first():
            return
        size = sum(path.stat().st_size for path in next((Path(folder) / "run").glob("step-*")).iterdir())
    blocks = np.array(turns.blocks[2 * WARM_UP : 2 * (given.turns + WARM_UP)]).reshape(-1, 2)
    cost, step = blocks[:, 0] - blocks[:, 1], blocks[:, 1].mean() / given.steps
    error = cost.std(ddof=1) / len(cost) ** 0.5
    interval = preset.save_every * step
    print(
        f"{given.recipe}, {recipe.parallel}, ranks: {world_size()}; a checkpoint of {size / 1e6:.0f} MB; "
        f"{step * 1e3:.0f} ms a step; training waits "
        f"{np.mean(turns.blocked[WARM_UP:]) * 1e3:.0f} ms for a save; its thread takes "
        f"{np.mean(turns.writing[WARM_UP:]):.2f} s, {np.mean(turns.processor[WARM_UP:]):.2f} s of them of a processor"
    )
    print(
        f"in {len(cost)} turns a save costs {cost.mean():.3f} s +- {error:.3f}; one every {preset.save_every} steps "
        f"({interval:.0f} s): {cost.mean() / interval:.2%} +- {error / interval:.2%} of the time"
    )


if __name__ == "__main__":
    main()
