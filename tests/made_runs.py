"""A small real corpus, small real recipes and small groups of ranks for the tests that train."""

from __future__ import annotations

import atexit
import json
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.forkserver
import os
import pydoc_data.topics
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bertsmith.base import ranks as of_ranks
from bertsmith.base.ranks.shared_stop import SharedStop
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.batches.epochs import DrawnShard, Epochs
from bertsmith.bench.batches.cases import sequence_hashes
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import as_yaml, load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.loop import Stage, Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import Run, pretrain

# Seconds that a test waits: minutes, as a machine that does other things too must not fail it.
PATIENCE = 240
# What a record says about the machine and the clock, which no two runs share.
OF_THE_CLOCK = {
    "tokens_per_second",
    "seconds_per_step",
    "flop_per_second",
    "peak_share",
    "data_wait_share",
    "memory_bytes",
    "seconds_left_in_phase",
    "seconds_left_in_seed",
}
_SMALL = (
    *("--model.layers=1", "--model.hidden=32", "--model.heads=2", "--model.intermediate=48"),
    *("--phase1.sequence_length=64", "--phase1.steps=4", "--phase1.global_batch=8", "--phase1.warmup=0.3"),
    *("--phase2.sequence_length=96", "--phase2.steps=3", "--phase2.global_batch=4", "--phase2.warmup=0.3"),
    *("--precision=fp32", "--device=cpu", "--log_every=1", "--evaluate_every=1000", "--evaluate_instances=8"),
    *("--save_every=1000", "--micro_batch_tokens=256"),
)


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Writes the whole recipe as YAML, as a run folder has it."""
    path.write_text(as_yaml(asdict(recipe)))


@cache
def small_corpus(shard_tokens: int = 8000) -> Path:
    """A corpus of Python's own documentation, some documents held out; made once a process, and only read. What is left
    to train on depends on Python's version: of 8,000 tokens a shard or two, of 4,000 several."""
    # Here, so that tests on a GPU, which read a stored corpus, need no library that splits sentences.
    from bertsmith.corpus.options import PrepareOptions
    from bertsmith.corpus.prepare import prepare

    folder = Path(mkdtemp(prefix="bertsmith-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    texts = sorted(pydoc_data.topics.topics.values(), key=len)[-12:]
    (folder / "topics.txt").write_text("\n".join(" ".join(text.split())[:6000] for text in texts), encoding="utf-8")
    options = PrepareOptions(documents="line", held_out=0.3, vocabulary_size=512, workers=1, shard_tokens=shard_tokens)
    return prepare(folder / "topics.txt", folder / "corpus", options=options).folder


def corpus() -> Corpus:
    """The small corpus, opened."""
    return Corpus.open(small_corpus())


@cache
def small_recipe(**fields: Any) -> Recipe:
    """One layer of 32, two phases of a few steps, a line of metrics a step. fields: `phase1__steps=3` and so on."""
    overrides = [f"--{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return load_recipe("bert-tiny", [*_SMALL, *overrides])


# Each step is of several micro-batches.
LENGTH = {"phase1__steps": 9, "phase1__global_batch": 12, "phase2__steps": 4, "log_every": 2, "evaluate_every": 5}
SAVING = small_recipe(**LENGTH, save_every=3, keep=3)
"""A run of these steps that saves as often."""


def signalled_after(steps: int, patch: pytest.MonkeyPatch, number: int = signal.SIGTERM) -> None:
    """Has this process send itself a signal after so many steps of a run, 0 before the first."""
    taken, enter, advance = 0, Trainer.enter, Trainer._advance

    def entered(trainer: Trainer, stage: Stage) -> None:
        enter(trainer, stage)
        if steps == 0:
            signal.raise_signal(number)

    def advanced(trainer: Trainer, step: Step) -> None:
        nonlocal taken
        advance(trainer, step)
        taken += 1
        if taken == steps:
            signal.raise_signal(number)

    patch.setattr(Trainer, "enter", entered)
    patch.setattr(Trainer, "_advance", advanced)


def blocks_drawing(epoch: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Has this process send itself SIGTERM when it draws a shard of an epoch while the run waits for its index, which
    then comes no further until nobody waits for it. Gives a list that grows with each wait."""
    waits: list[int] = []
    wait, draw = SharedStop.wait, Epochs.draw

    def until(condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, what
            time.sleep(0.01)

    def waited(stop: SharedStop, ready: Callable[[float], bool]) -> bool:
        waits.append(1)
        return wait(stop, ready)

    def drawn(epochs: Epochs, number: int, shard: int) -> DrawnShard:
        if epochs.split == "train" and number == epoch:
            until(lambda: len(waits) > epoch, "the run does not wait for the index")
            os.kill(os.getpid(), signal.SIGTERM)
            until(epochs.closing.is_set, "the signal does not end the wait")
        return draw(epochs, number, shard)

    patch.setattr(SharedStop, "wait", waited)
    patch.setattr(Epochs, "draw", drawn)
    return waits


def stopped_after(steps: int, patch: pytest.MonkeyPatch, recipe: Recipe, folder: Path, **more: Any) -> None:
    """Trains until a signal that comes after this many steps. more: of `pretrain`."""
    with patch.context() as inner:
        signalled_after(steps, inner)
        with pytest.raises(StoppedAfterSaving):
            pretrain(recipe, corpus(), folder, **more)
    assert step_folders(folder)[-1].name == f"step-{steps:08d}"


def figures(run: Run) -> list[dict[str, Any]]:
    """The records of a run without what the clock says."""
    return [{name: value for name, value in record.items() if name not in OF_THE_CLOCK} for record in run.metrics()]


def weights(run: Run) -> bytes:
    """The finished model's weights, to the bit."""
    return (run.model / "model.safetensors").read_bytes()


def note_instances(folder: Path) -> None:
    """Has this process, a rank, add to a file of its own the sequences, masks included, of each step that it takes."""
    folder.mkdir(exist_ok=True)
    advance = Trainer._advance

    def advanced(trainer: Trainer, step: Step) -> None:
        sequences = [sequence_hashes(batch) for batch in step.micro_batches]  # type: ignore[attr-defined]
        line = json.dumps([trainer.position.step + 1, of_ranks.world_size(), of_ranks.rank(), sequences])
        with open(folder / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        advance(trainer, step)

    Trainer._advance = advanced  # type: ignore[method-assign]


def noted_instances(folder: Path) -> dict[tuple[int, int, int], list[list[str]]]:
    """By step, world size and rank: the sequences of each micro-batch, in order. A step that was taken again, because
    a kill has lost it, must have had the same ones each time."""
    noted: dict[tuple[int, int, int], list[list[str]]] = {}
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                step, world_size, rank, sequences = json.loads(line)
                known = noted.setdefault((step, world_size, rank), sequences)
                assert sequences == known, f"rank {rank} of {world_size} took other instances in step {step} at first"
    return noted


def ran_by_ranks(work: Callable[[int, Path, Path], None], ranks: int, folder: Path, made: Path | None = None) -> Path:
    """The folder, when `work` (rank, folder, where the corpus lies) is done by so many ranks, as by `ran`. made: the
    small corpus where it is None."""
    ran(_numbered, ranks, work, folder, made or small_corpus())
    return folder


def _numbered(work: Callable[[int, Path, Path], None], folder: Path, made: Path) -> None:
    work(of_ranks.rank(), folder, made)


def ran(work: Callable[..., None], ranks: int, *args: object, kill: Callable[[], None] | None = None) -> None:
    """Calls `work` with `args` on so many ranks, joined where they are several, each in a process of its own.

    kill: has a rank that calls it kill itself later; the first one to die takes the others with it. Without it all must
    succeed.
    """
    context = fork_server()
    with TemporaryDirectory(prefix="bertsmith-ranks-") as meeting:
        processes = [
            context.Process(target=_rank, args=(rank, ranks, meeting, kill, work, args)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            for process in _ended(processes):
                if kill is not None:
                    break
                assert process.exitcode == 0, f"rank {processes.index(process)} ended with {process.exitcode}"
        finally:
            for process in processes:
                process.kill()
                process.join()
    if kill is not None:
        assert -signal.SIGKILL in {process.exitcode for process in processes}


def _ended(processes: list[multiprocessing.process.BaseProcess]) -> Iterator[multiprocessing.process.BaseProcess]:
    """The processes as they end."""
    running = {process.sentinel: process for process in processes}
    while running:
        ended = multiprocessing.connection.wait(list(running), timeout=PATIENCE)
        assert ended, f"{len(running)} of {len(processes)} ranks did not end in {PATIENCE} s"
        for sentinel in ended:
            process = running.pop(sentinel)
            process.join()
            yield process


def _rank(
    rank: int,
    ranks: int,
    meeting: str,
    kill: Callable[[], None] | None,
    work: Callable[..., None],
    args: tuple[object, ...],
) -> None:
    pytest.MonkeyPatch().setitem(sys.modules, "matplotlib.backends.backend_agg", None)  # as `no_figures`
    if kill is not None:
        kill()
    if ranks > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.uname().sysname == "Linux" else "lo0")
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}/all", rank=rank, world_size=ranks)
    work(*args)
    if kill is not None:
        os.kill(os.getpid(), signal.SIGKILL)  # the run was over before the moment came
    if ranks > 1:
        dist.destroy_process_group()
        # A rank aborted once in a thread of the libraries, as they can at the interpreter's own end: it is left out.
        os._exit(0)


def fork_server() -> multiprocessing.context.ForkServerContext:
    """Starts processes from one that has imported what they need: each would take seconds for that. They see the
    environment as it was when the first of them was started."""
    context = multiprocessing.get_context("forkserver")
    ours = ("bertsmith.training.pretrain", "bertsmith.tasks.finetune", "bertsmith.cli.serve", "made_commands")
    ours += ("bertsmith.inference.server.serve", "bertsmith.inference.predict_file", "bertsmith.inference.embed_file")
    # FSDP2 imports the compiler when it shards something.
    theirs = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", "torch.utils.tensorboard")
    context.set_forkserver_preload(["pytest", *ours, *theirs])
    with pytest.MonkeyPatch.context() as patch:
        # Up to Python 3.12 it does not get our path, and what it cannot find it leaves out.
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        )
        multiprocessing.forkserver.ensure_running()
    return context
