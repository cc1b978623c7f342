"""What the data of a run promises: the same steps by any workers, resumed anywhere; and faults that are noticed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertsmith.batches.epochs import Epochs
from bertsmith.batches.loader import Loader
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.steps import Step, StepBuilder
from made_shards import FIRST_WORD, SPECIAL, MemorySource, make_shard, make_source

BATCH, STEPS = 48, 22


def run(
    source: MemorySource,
    *,
    start: int = 0,
    stop: int = STEPS,
    budget: int = 700,
    workers: int = 0,
) -> list[Step]:
    order = Order(Epochs(source, seed=9, phase=1, sequence_length=64))
    builder = StepBuilder(order, BATCH, MaskingSettings(), budget)
    with Loader(builder, start_step=start, stop_step=stop, workers=workers) as loader:
        return list(loader)


def sequences(batch: PretrainBatch) -> Iterator[tuple[object, ...]]:
    """Every sequence of a batch with its masks and labels, as a value."""
    for row in range(batch.layout.sequences):
        begin, end = batch.layout.offsets[row : row + 2].tolist()
        inside = (batch.masked_positions >= begin) & (batch.masked_positions < end)
        yield (
            tuple(batch.input_ids[begin:end].tolist()),
            tuple(batch.token_type_ids[begin:end].tolist()),
            tuple((batch.masked_positions[inside] - begin).tolist()),
            tuple(batch.masked_labels[inside].tolist()),
            int(batch.next_sentence_labels[row]),
        )


@pytest.fixture(scope="module")
def source() -> MemorySource:
    return make_source(shards=4, documents=25)


def test_steps_do_not_depend_on_workers(source: MemorySource) -> None:
    alone, two = run(source), run(source, workers=2)
    for one, other in zip(alone, two, strict=True):
        assert (one.number, one.totals, one.started_epochs) == (other.number, other.totals, other.started_epochs)
        for a, b in zip(one.micro_batches, other.micro_batches, strict=True):
            assert list(sequences(a)) == list(sequences(b))


@pytest.mark.parametrize("start", [1, 7, 13, STEPS - 1])
def test_a_run_resumed_at_any_step_gives_the_same_steps(source: MemorySource, start: int) -> None:
    order = Order(Epochs(source, seed=9, phase=1, sequence_length=64))
    assert order.epoch_start(1) % BATCH, "a step straddles two epochs"
    assert order.epoch_start(2) < STEPS * BATCH, "the run has more than two epochs"
    whole, resumed = run(source), run(source, start=start)
    assert [step.number for step in resumed] == list(range(start, STEPS))
    for one, other in zip(whole[start:], resumed, strict=True):
        assert [list(sequences(batch)) for batch in one.micro_batches] == [
            list(sequences(batch)) for batch in other.micro_batches
        ]


def one_batch(source: MemorySource) -> tuple[PretrainBatch, np.ndarray]:
    """A whole step as one batch, and its ids with the masked ones put back."""
    (step,) = run(source, stop=1, budget=100_000)
    (batch,) = step.micro_batches
    ids = batch.input_ids.copy()
    ids[batch.masked_positions] = batch.masked_labels
    return batch, ids


def chained_source() -> MemorySource:
    """One-token sentences whose ids count up through a document, with a gap between documents."""
    shard = make_shard([[1] * 90 for _ in range(40)])
    document = np.arange(len(shard.tokens)) // 90
    tokens = (FIRST_WORD + np.arange(len(shard.tokens)) + 1000 * document).astype(np.uint16)
    return MemorySource({"train": [type(shard)(tokens, shard.sentence_offsets, shard.document_offsets)]})


def test_fault_masking_switched_off(source: MemorySource) -> None:
    batch, _ = one_batch(source)
    shown = batch.input_ids[batch.masked_positions]
    assert 0.7 < (shown == SPECIAL.mask).mean() < 0.9
    assert (batch.input_ids == SPECIAL.mask).sum() == (shown == SPECIAL.mask).sum()


def test_fault_offsets_shifted_by_one(source: MemorySource) -> None:
    batch, ids = one_batch(chained_source())
    firsts, lasts = batch.layout.offsets[:-1], batch.layout.offsets[1:] - 1
    assert (ids[firsts] == SPECIAL.cls).all()
    assert (ids[lasts] == SPECIAL.sep).all()
    assert (batch.position_ids[firsts] == 0).all()
    assert np.array_equal(batch.position_ids[lasts] + 1, batch.layout.lengths)
    assert not np.isin(batch.masked_labels, [SPECIAL.cls, SPECIAL.sep, SPECIAL.mask]).any()
    for row in range(batch.layout.sequences):
        begin, end = batch.layout.offsets[row : row + 2].tolist()
        types = batch.token_type_ids[begin:end]
        middle = int(np.flatnonzero(types)[0]) - 1
        assert ids[begin + middle] == SPECIAL.sep
        for segment in (ids[begin + 1 : begin + middle], ids[begin + middle + 1 : end - 1]):
            assert (np.diff(segment) == 1).all(), "a segment is the text of one document, in its order"


def test_fault_labels_of_nsp_swapped() -> None:
    batch, ids = one_batch(chained_source())
    for row in range(batch.layout.sequences):
        begin, end = batch.layout.offsets[row : row + 2].tolist()
        second = begin + int(np.flatnonzero(batch.token_type_ids[begin:end])[0])
        follows = ids[second] == ids[second - 2] + 1
        assert batch.next_sentence_labels[row] == (0 if follows else 1)
    assert 0.3 < batch.next_sentence_labels.mean() < 0.8


def test_fault_labels_are_not_the_pieces_that_stood_there(source: MemorySource) -> None:
    # Over an epoch without masks put back, kept pieces (10%) equal their labels and no [MASK] is ever a label.
    batch, _ = one_batch(source)
    kept = (batch.input_ids[batch.masked_positions] == batch.masked_labels).mean()
    assert 0.04 < kept < 0.18
    assert (batch.masked_labels >= FIRST_WORD).all()


ORPHANS = """
import os, sys
sys.path[:0] = {path!r}
from pathlib import Path
from made_shards import make_source
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.loader import Loader
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.shares import Share
from bertsmith.batches.steps import StepBuilder
import multiprocessing

folder = {folder!r}
order = Order(Epochs(make_source(), seed=1, phase=1, sequence_length=64, cache_folder=Path(folder) if folder else None))
order.build_ahead(Share(Path(folder)), end=10**9)
loader = Loader(StepBuilder(order, 8, MaskingSettings(), 400), start_step=0, stop_step=10_000, workers=2)
next(iter(loader))
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
if {killed}:
    os.kill(os.getpid(), 9)
"""


def test_workers_of_a_script_without_a_guard_leave_when_the_run_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS.format(path=sys.path, folder="", killed=True))
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False).stdout
    workers = [int(pid) for pid in out.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def test_a_script_that_closes_nothing_ends_with_all_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "open.py"
    script.write_text(ORPHANS.format(path=sys.path, folder=str(tmp_path / "order"), killed=False))
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True).stdout
    processes = [int(pid) for pid in out.split()]
    assert len(processes) == 3
    assert not any(alive(pid) for pid in processes)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
