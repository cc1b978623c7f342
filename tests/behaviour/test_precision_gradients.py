"""Gradients in half precision: 128 micro-batches add up as well as one batch, and empty rows poison nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.pretraining.inputs import to_inputs
from made_pretraining import batch_of, fresh_model

# In bf16 alone the kernels have a part.
pytestmark = pytest.mark.usefixtures("both_ways")

CPU = torch.device("cpu")
HALVES = [torch.bfloat16, torch.float16]
SHAPE = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 128}


def model_in(compute: torch.dtype | None) -> PretrainingModel:
    return fresh_model(compute, deviation=0.05, seed=3, **SHAPE, max_position_embeddings=64)


def joined(batches: list[PretrainBatch]) -> PretrainBatch:
    """All sequences as one batch."""
    starts = np.cumsum([0, *(batch.layout.tokens for batch in batches)])
    positions = [batch.masked_positions + start for batch, start in zip(batches, starts, strict=False)]

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([getattr(batch, name) for batch in batches])

    return PretrainBatch(
        input_ids=all_of("input_ids"),
        token_type_ids=all_of("token_type_ids"),
        position_ids=all_of("position_ids"),
        layout=Layout.from_lengths(np.concatenate([batch.layout.lengths for batch in batches])),
        masked_positions=np.concatenate(positions),
        masked_labels=all_of("masked_labels"),
        next_sentence_labels=all_of("next_sentence_labels"),
    )


def added_up_in_bf16(model: PretrainingModel) -> dict[str, Tensor]:
    """What a model whose gradients are bf16 would hold, filled by its backward passes: each sum rounded to bf16."""
    sums = {name: torch.zeros_like(each) for name, each in model.named_parameters()}

    def add(name: str, gradient: Tensor) -> None:
        sums[name] = (sums[name] + gradient).bfloat16().float()

    for name, each in model.named_parameters():
        each.register_hook(partial(add, name))
    return sums


def flat(gradients: Iterable[Tensor | None]) -> Tensor:
    """One after the other, float64[P]."""
    return torch.cat([each.double().reshape(-1) for each in gradients if each is not None])


def gradient(model: PretrainingModel, batches: list[PretrainBatch]) -> Tensor:
    """Of the whole, every parameter's laid one after the other, float64[P]."""
    words = sum(len(batch.masked_positions) for batch in batches)
    sequences = sum(batch.layout.sequences for batch in batches)
    for batch in batches:
        masked, pairs = model.losses(to_inputs(batch, CPU))
        (masked.loss / words + pairs.loss / sequences).backward()
    return flat(each.grad for each in model.parameters())


def test_128_bf16_micro_batches_add_up_as_well_as_one_batch() -> None:
    draw = np.random.default_rng(0)
    batches = [batch_of(draw.integers(8, 40, 2).tolist(), seed) for seed in range(128)]
    exact = gradient(model_in(None), batches)

    def distance(found: Tensor) -> float:
        return float((found - exact).norm() / exact.norm())

    one_batch = distance(gradient(model_in(torch.bfloat16), [joined(batches)]))
    model = model_in(torch.bfloat16)
    rounded = added_up_in_bf16(model)
    accumulated = distance(gradient(model, batches))
    in_bf16 = distance(flat(rounded.values()))
    assert distance(gradient(model_in(None), [joined(batches)])) < 1e-5, "both ways are the same gradient"
    assert 1e-4 < one_batch < 0.05
    assert accumulated <= 1.1 * one_batch
    assert in_bf16 > 1.5 * accumulated


@pytest.mark.parametrize("compute", [None, *HALVES], ids=str)
@pytest.mark.parametrize("lengths", [[0, 7, 0, 12], [9, 0], [0], [1, 1, 30]], ids=str)
def test_an_empty_row_poisons_nothing(compute: torch.dtype | None, lengths: list[int]) -> None:
    """Forward and backward of a packed batch with sequences of no token, or of nothing but such sequences."""
    model = model_in(compute)
    batch = batch_of(lengths, seed=1)
    batch.next_sentence_labels[np.array(lengths) == 0] = -100
    masked, pairs = model.losses(to_inputs(batch, CPU))
    (masked.loss + pairs.loss).backward()
    assert torch.isfinite(masked.loss)
    assert torch.isfinite(pairs.loss)
    assert int(pairs.count) == sum(length > 0 for length in lengths)
    found = [each.grad for each in model.parameters() if each.grad is not None]
    assert found
    assert all(torch.isfinite(each).all() for each in found)
    assert sum(lengths) == 0 or any(each.any() for each in found)


@pytest.mark.parametrize("compute", [None, *HALVES], ids=str)
def test_a_fully_masked_row_poisons_nothing(compute: torch.dtype | None) -> None:
    """The padded face: a row whose mask is 0 everywhere is zeros, and its neighbours are as without it."""
    model = model_in(compute)
    ids = torch.randint(5, 300, (3, 10), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1], mask[2, 6:] = 0, 0
    hidden = model.encoder.encode_padded(ids, mask)
    hidden.float().square().sum().backward()
    found = [each.grad for each in model.encoder.parameters() if each.grad is not None]
    assert torch.isfinite(hidden).all()
    assert not hidden[1].any()
    assert all(torch.isfinite(each).all() for each in found)
    alone = model.encoder.encode_padded(ids[[0, 2]], mask[[0, 2]])
    torch.testing.assert_close(hidden[[0, 2]], alone)
    nothing = model.encoder.encode_padded(ids[1:2], mask[1:2])
    assert not nothing.any()
