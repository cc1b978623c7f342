"""The cases of `bench batches`: the epoch index, an epoch of batches, a start in the middle, and whether they agree."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.bench.measure import CaseSpec, Work, serve_cases

if TYPE_CHECKING:
    from bertsmith.batches.order import Order

GLOBAL_BATCH, MICRO_BATCH_TOKENS = 256, 16_384
_SEED, _PHASE = 0, 1
STARTS = 5
_STEPS_COMPARED = 8
LARGE_BATCH, LARGE_RANKS, LARGE_BUDGET = 65_536, 8, 65_536
LARGE_STEPS = 5


def _orders(spec: CaseSpec) -> Callable[[Path], Order]:
    """Opens the corpus in its order, given the folder of the index. Imports happen now, unmeasured."""
    from bertsmith.batches.epochs import Epochs
    from bertsmith.batches.order import Order
    from bertsmith.corpus.shards import Corpus

    def order(index_folder: Path) -> Order:
        length = spec.options["length"]
        corpus = Corpus.open(spec.source)
        return Order(Epochs(corpus, seed=_SEED, phase=_PHASE, sequence_length=length, cache_folder=index_folder))

    return order


def _index(spec: CaseSpec) -> Work:
    """Builds and keeps the index of an epoch."""
    order = _orders(spec)

    def work() -> dict[str, Any]:
        index = order(spec.out).epoch(0)
        return {"instances": index.size, "tokens": int(index.lengths.astype(int).sum())}

    return work


def _loaders(spec: CaseSpec) -> Callable[..., Any]:
    """Loads an epoch whose index is there, given the most steps, workers, and which rank; imports as `_orders` does."""
    from bertsmith.batches.loader import Loader
    from bertsmith.batches.masking import MaskingSettings
    from bertsmith.batches.steps import StepBuilder

    open_order = _orders(spec)

    def loader(most_steps: int | None = None, workers: int = 0, rank: int = 0, ranks: int = 1) -> Any:
        order = open_order(Path(spec.options["index"]))
        steps = max(1, order.epoch(0).size // GLOBAL_BATCH)
        builder = StepBuilder(order, GLOBAL_BATCH, MaskingSettings(), MICRO_BATCH_TOKENS, rank, ranks)
        return Loader(builder, start_step=0, stop_step=min(steps, most_steps or steps), workers=workers)

    return loader


def _epoch(spec: CaseSpec) -> Work:
    """Every batch of an epoch, as a run would have them: pairs, masks and packing drawn now."""
    open_loader = _loaders(spec)

    def work() -> dict[str, Any]:
        tokens = masked = steps = 0
        with open_loader() as loader:
            for step in loader:
                tokens += step.totals.tokens
                masked += step.totals.masked
                steps += 1
        return {"tokens": tokens, "masked": masked, "steps": steps}

    return work


def _start(spec: CaseSpec) -> Work:
    """From nothing in memory to the first batch, at random steps of an epoch whose index is there."""
    from bertsmith.batches.masking import MaskingSettings
    from bertsmith.batches.steps import StepBuilder

    open_order, index_folder = _orders(spec), Path(spec.options["index"])

    def work() -> dict[str, Any]:
        steps = max(1, open_order(index_folder).epoch(0).size // GLOBAL_BATCH)
        draw, seconds, cpu = random.Random(_SEED), [], []
        for _ in range(STARTS):
            number = draw.randrange(steps)
            began, began_cpu = time.perf_counter(), time.process_time()
            StepBuilder(open_order(index_folder), GLOBAL_BATCH, MaskingSettings(), MICRO_BATCH_TOKENS).build(number)
            seconds.append(time.perf_counter() - began)
            cpu.append(time.process_time() - began_cpu)
        return {"start_seconds": seconds, "start_cpu_seconds": cpu, "tokens": 0}

    return work


def _large(spec: CaseSpec) -> Work:
    """Where the first rank's time goes in large steps: seconds of each part of each step, of CPU time and by the clock.

    Shards are drawn once as in training, where their instances are then read from disk, and once more from the text.
    """
    from bertsmith.base.layout import deal_within
    from bertsmith.batches.masking import MaskingSettings
    from bertsmith.batches.shapes import FixedShapes, deal_fixed
    from bertsmith.batches.shares import Share
    from bertsmith.batches.steps import StepBuilder

    open_order, masking = _orders(spec), MaskingSettings()

    def work() -> dict[str, Any]:
        ours, plain = open_order(spec.out), open_order(Path(spec.options["index"]))
        ours.build_ahead(Share(spec.out), end=0)
        next(epoch for epoch in count() if ours.epoch_start(epoch) >= LARGE_STEPS * LARGE_BATCH)
        shapes = FixedShapes.for_steps(
            ours.epoch(0).lengths,
            masking,
            global_batch=LARGE_BATCH,
            ranks=LARGE_RANKS,
            budget_tokens=LARGE_BUDGET,
            longest=spec.options["length"],
        )
        builder = StepBuilder(open_order(spec.out), LARGE_BATCH, masking, LARGE_BUDGET, 0, LARGE_RANKS, shapes)
        builder.order.reach(0, LARGE_STEPS * LARGE_BATCH)
        found: dict[str, list[float]] = {}
        wall: dict[str, list[float]] = {}

        def timed(name: str, part: Callable[[], Any]) -> Any:
            start, start_wall = time.process_time(), time.perf_counter()
            result = part()
            found.setdefault(name, []).append(time.process_time() - start)
            wall.setdefault(name, []).append(time.perf_counter() - start_wall)
            return result

        def drawn(order: Order, shards: list[tuple[int, int]]) -> None:
            for shard in shards:
                order.epochs.drawn(*shard)

        for number in range(LARGE_STEPS):
            chosen = timed("references", partial(builder.order.instances, number * LARGE_BATCH, LARGE_BATCH))
            predictions = masking.predictions(chosen.lengths)
            timed("dealing as it comes", partial(deal_within, chosen.lengths, LARGE_RANKS, LARGE_BUDGET))
            timed("dealing", partial(deal_fixed, chosen.lengths, predictions, LARGE_RANKS, shapes))
            shards = sorted(set(zip(chosen.epochs.tolist(), chosen.shards.tolist(), strict=True)))
            timed("shards cut", partial(drawn, plain, shards))
            timed("shards", partial(drawn, builder.order, shards))
            step = timed("all but shards", partial(builder.build, number))
            assert step.totals.sequences == LARGE_BATCH
        return {"seconds": found, "wall_seconds": wall, "tokens": 0}

    return work


def _agree(spec: CaseSpec) -> Work:
    """Whether two processes that build, and two ranks, give what one thread and one rank give."""
    open_loader = _loaders(spec)

    def sequences(**options: Any) -> list[list[str]]:
        """Of each step the hashes of its sequences, sorted."""
        with open_loader(_STEPS_COMPARED, **options) as loader:
            return [
                sorted(digest for batch in step.micro_batches for digest in sequence_hashes(batch)) for step in loader
            ]

    def work() -> dict[str, Any]:
        one = sequences()
        ranks = [sequences(rank=rank, ranks=2) for rank in range(2)]
        together = [sorted(first + second) for first, second in zip(*ranks, strict=True)]
        return {"workers_agree": sequences(workers=2) == one, "ranks_agree": together == one, "tokens": 0}

    return work


def sequence_hashes(batch: Any) -> list[str]:
    """A hash of each sequence of a batch: its inputs and its labels."""
    hashes = []
    offsets = batch.layout.offsets
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        inside = (batch.masked_positions >= begin) & (batch.masked_positions < end)
        parts = [batch.input_ids[begin:end], batch.token_type_ids[begin:end], batch.position_ids[begin:end]]
        parts += [batch.masked_positions[inside] - begin, batch.masked_labels[inside]]
        parts.append(batch.next_sentence_labels[number : number + 1])
        hashes.append(hashlib.blake2b(b"|".join(part.tobytes() for part in parts), digest_size=16).hexdigest())
    return hashes


def _collator(spec: CaseSpec) -> Work:
    """The peer: transformers' collator masks rows of one length, joined over documents; no pairs, no packing."""
    import numpy as np
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    from bertsmith.corpus.shards import SPLITS, Corpus

    length = spec.options["length"]
    corpus = Corpus.open(spec.source)
    tokens = np.concatenate([corpus.open_shard(SPLITS[0], number).tokens for number in range(spec.options["shards"])])
    rows = tokens[: len(tokens) // length * length].reshape(-1, length).astype(np.int64)
    dataset = Dataset.from_dict({"input_ids": rows}).with_format("torch")
    collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(str(spec.tokenizer)))
    torch.manual_seed(_SEED)
    torch.set_num_threads(1)

    def work() -> dict[str, Any]:
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=MICRO_BATCH_TOKENS // length, shuffle=True, collate_fn=collator
        )
        return {"tokens": sum(batch["input_ids"].numel() for batch in loader)}

    return work


SIDES: dict[str, Callable[[CaseSpec], Work]] = {
    "index": _index,
    "epoch": _epoch,
    "start": _start,
    "large": _large,
    "agree": _agree,
    "collator": _collator,
}


if __name__ == "__main__":
    serve_cases(SIDES)
