"""The costly faults are the silent ones: each of these fails by name when it is planted anywhere on a run's way.

What is looked at is what a run really reads, built from a recipe and a corpus on disk, and what its first step does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from bertsmith.batches.packing import PretrainBatch
from bertsmith.corpus.shards import Shard
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.inputs import to_inputs
from bertsmith.training.pretraining.phases import HeldOut, phase_stage
from bertsmith.training.work import config_for as _config
from bertsmith.weights.huggingface import load_pretraining_model
from made_runs import corpus, small_recipe

# Long sequences with short targets: most pairs are whole sentences, uncut.
RECIPE = small_recipe(
    phase1__steps=12, phase1__sequence_length=512, pairs__short_sequences=1.0, micro_batch_tokens=2048
)
LIMIT = RECIPE.phase1.sequence_length
Ints = NDArray[np.int64]


@cache
def shards() -> list[Shard]:
    """The shards of the train split, read here from their arrays."""
    opened = []
    for info in corpus().shards("train"):
        stem = corpus().folder / "train" / info.name
        tokens, sentences, documents = (
            np.load(f"{stem}.{name}.npy").astype(np.int64) for name in ("tokens", "sentences", "documents")
        )
        opened.append(Shard(tokens, np.append(0, sentences.cumsum()), np.append(0, documents.cumsum())))
    return opened


@cache
def batches() -> list[PretrainBatch]:
    """The micro-batches of the first phase of a run."""
    loader = phase_stage(RECIPE, 1, corpus(), HeldOut(RECIPE, corpus())).loader(0)
    with loader:
        return [batch for step in loader for batch in step.micro_batches]


@dataclass(frozen=True)
class Pair:
    """A sequence with its masks put back: the pieces of its segments, and its label."""

    first: Ints
    second: Ints
    label: int

    @property
    def whole(self) -> bool:
        """Shorter than the limit, so nothing of it was cut off."""
        return len(self.first) + len(self.second) + 3 < LIMIT


def pairs() -> Iterator[Pair]:
    special = corpus().special
    for batch in batches():
        ids = batch.input_ids.copy()
        ids[batch.masked_positions] = batch.masked_labels
        for begin, end, label in zip(
            batch.layout.offsets[:-1], batch.layout.offsets[1:], batch.next_sentence_labels, strict=True
        ):
            row, types = ids[begin:end], batch.token_type_ids[begin:end]
            middle = int(np.flatnonzero(types)[0]) - 1
            assert [row[0], row[middle], row[-1]] == [special.cls, special.sep, special.sep]
            assert types[middle + 1 :].all()
            assert np.array_equal(batch.position_ids[begin:end], np.arange(end - begin))
            yield Pair(row[1:middle], row[middle + 1 : -1], int(label))


def places(segment: Ints) -> Iterator[tuple[int, int]]:
    """Every (shard, token) at which these pieces stand in the corpus, one after the other."""
    for number, shard in enumerate(shards()):
        tokens = shard.tokens
        starts = np.flatnonzero(tokens[: len(tokens) - len(segment) + 1] == segment[0])
        for start in starts.tolist():
            if np.array_equal(tokens[start : start + len(segment)], segment):
                yield number, start


def sentences_of(shard: Shard, start: int, length: int) -> bool:
    """Whether these tokens are whole sentences of one document."""
    edges = shard.sentence_offsets
    document_edges = edges[shard.document_offsets]
    inside = np.searchsorted(document_edges, start, side="right") == np.searchsorted(
        document_edges, start + length - 1, side="right"
    )
    return bool(inside and start in edges and start + length in edges)


def test_fault_masking_switched_off() -> None:
    mask = corpus().special.mask
    shown = np.concatenate([batch.input_ids[batch.masked_positions] for batch in batches()])
    labels = np.concatenate([batch.masked_labels for batch in batches()])
    assert len(shown) == pytest.approx(0.15 * sum(batch.layout.tokens for batch in batches()), rel=0.05)
    assert (shown == mask).mean() == pytest.approx(0.8, abs=0.04)
    assert (shown == labels).mean() == pytest.approx(0.1, abs=0.03)
    held_out = phase_stage(RECIPE, 1, corpus(), HeldOut(RECIPE, corpus())).held_out
    assert np.mean([(batch.input_ids == mask).mean() for batch in held_out]) == pytest.approx(0.12, abs=0.03)


def test_fault_offsets_shifted_by_one_in_the_data() -> None:
    """Every segment is text of the corpus, and one that was not cut is whole sentences of one document."""
    whole = 0
    for pair in pairs():
        whole += pair.whole
        for segment in (pair.first, pair.second):
            found = list(places(segment))
            assert found
            if pair.whole:
                assert any(sentences_of(shards()[number], start, len(segment)) for number, start in found)
    assert whole > 20


def test_fault_offsets_shifted_by_one_in_the_model() -> None:
    """Each [CLS] is what is pooled, each label stands where its word was, no sequence reads another's slot."""
    model = PretrainingModel(_config(RECIPE, corpus())).eval()
    initialise(model, 0.3, seed=1)
    batch = max(batches(), key=lambda each: each.layout.sequences)
    assert batch.layout.sequences > 2
    inputs = to_inputs(batch, torch.device("cpu"))
    with torch.no_grad():
        hidden = model.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        pooled = model.encoder.pool(hidden, inputs.packed)
        logits = model.masked_logits(hidden, inputs.masked_positions)
        for row in range(batch.layout.sequences):
            part = slice(*batch.layout.offsets[row : row + 2].tolist())
            ids, types = (torch.from_numpy(each[part])[None] for each in (batch.input_ids, batch.token_type_ids))
            alone = model.encoder.encode_padded(ids, token_type_ids=types)[0]
            torch.testing.assert_close(hidden[part], alone, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(pooled[row], torch.tanh(model.encoder.pooler(alone[0])), atol=1e-5, rtol=1e-5)
            mine = (batch.masked_positions >= part.start) & (batch.masked_positions < part.stop)
            words = model.masked_logits(alone, torch.from_numpy(batch.masked_positions[mine] - part.start))
            torch.testing.assert_close(logits[: len(mine)][torch.from_numpy(mine)], words, atol=1e-4, rtol=1e-4)


def test_fault_labels_of_nsp_swapped() -> None:
    """0 where the second segment stands right behind the first in the corpus, 1 where it is of another document."""
    counts = {0: 0, 1: 0}
    for pair in pairs():
        if pair.whole:
            follows = any(True for _ in places(np.concatenate((pair.first, pair.second))))
            assert follows == (pair.label == 0)
            counts[pair.label] += 1
    assert min(counts.values()) > 5


@pytest.mark.parametrize("trust_ratio", ["decayed", "all", "none"])
def test_fault_trust_ratio_removed(trust_ratio: str, tmp_path: Path) -> None:
    """The recipe's trust ratio reaches the update: a tensor moves by the learning rate times its own norm.

    Without it LAMB's first update is Adam's: every value that has a gradient moves by the learning rate.
    """
    recipe = small_recipe(
        phase1__steps=1, phase2__steps=0, optimizer__epsilon=1e-12, optimizer__trust_ratio=trust_ratio
    )
    before = PretrainingModel(_config(recipe, corpus()))
    initialise(before, before.config.initializer_range, recipe.seed)
    run = pretrain(recipe, corpus(), tmp_path / "run")
    rate = run.metrics("train")[0]["learning_rate"]
    after = dict(load_pretraining_model(run.model).named_parameters())
    for name, old in before.named_parameters():
        moved, size = float((after[name] - old).detach().norm()), float(old.detach().norm())
        scaled = trust_ratio == "all" or (trust_ratio == "decayed" and old.ndim > 1)
        if size > 0 and scaled:
            assert moved == pytest.approx(rate * size, rel=1e-3), name
        elif "embeddings" not in name and not name.endswith("key.bias"):
            values = (after[name] - old).detach().abs()
            assert float(values.median()) == pytest.approx(rate, rel=0.05), name
