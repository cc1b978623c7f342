"""A sequence's result does not depend on its neighbours: to the bit where shapes stay, else to rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from made_models import distance, drawn_inputs, drawn_model, small_config

# In bf16 alone the kernels have a part.
pytestmark = pytest.mark.usefixtures("both_ways")

CONFIG = small_config(hidden_size=32, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
DTYPES = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2e-2}


def model_in(dtype: torch.dtype) -> PretrainingModel:
    compute = dtype if dtype == torch.bfloat16 else None
    return drawn_model(CONFIG, dtype=torch.float64 if dtype == torch.float64 else torch.float32, compute=compute).eval()


def run(model: PretrainingModel, batch: PretrainInputs, part: slice, packed: Offsets) -> tuple[Tensor, Tensor]:
    """Hidden states of a part of a batch, and the gradient of the sum of their cubes for its embeddings' sum."""
    seen: list[Tensor] = []
    handle = model.encoder.embeddings.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    positions = batch.position_ids[part]
    if isinstance(packed, Packed):
        positions = torch.from_numpy(packed.layout.positions)
    hidden = model.encoder(batch.input_ids[part], batch.token_type_ids[part], positions, packed)
    handle.remove()
    return hidden.detach(), torch.autograd.grad(hidden.pow(3).sum(), seen[0])[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_words_in_the_neighbours_change_no_bit(dtype: torch.dtype) -> None:
    model, lengths = model_in(dtype), [7, 64, 33, 1, 0, 20]
    packed = Packed(Layout.from_lengths(lengths))
    batch, other = drawn_inputs(CONFIG, lengths, seed=1), drawn_inputs(CONFIG, lengths, seed=2)
    for start, end in zip(packed.layout.offsets[:-1], packed.layout.offsets[1:], strict=True):
        own = slice(start, end)
        mixed = drawn_inputs(CONFIG, lengths, seed=2)
        mixed.input_ids[own], mixed.token_type_ids[own] = batch.input_ids[own], batch.token_type_ids[own]
        everything = slice(0, packed.layout.tokens)
        for ours, theirs in zip(
            run(model, batch, everything, packed), run(model, mixed, everything, packed), strict=True
        ):
            assert torch.equal(ours[own], theirs[own])
    assert not torch.equal(batch.input_ids, other.input_ids)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_longer_or_no_neighbours_change_rounding_at_most(dtype: torch.dtype) -> None:
    """The shapes of products and of attention's blocks change with the neighbours, and with them the order of sums."""
    model, own = model_in(dtype), slice(0, 15)
    batch = drawn_inputs(CONFIG, [15, 64, 64, 64])
    alone = run(model, batch, own, Packed(Layout.from_lengths([15])))
    for others in ([1], [3, 3, 3], [15], [18], [64], [64, 64, 64], [1] * 100):
        packed = Packed(Layout.from_lengths([15, *others]))
        found = run(model, batch, slice(0, packed.layout.tokens), packed)
        assert distance(found[0][own], alone[0]) < DTYPES[dtype], others
        assert distance(found[1][own], alone[1]) < 10 * DTYPES[dtype], others


@pytest.mark.parametrize("on_host", [True, False], ids=["blocks", "rows"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("compute", [None, torch.bfloat16, torch.float16], ids=str)
def test_a_neighbour_that_is_not_a_number_stays_where_it_is(
    compute: torch.dtype | None, value: float, on_host: bool
) -> None:
    """Whether the host knows the layout, as in eager steps, or the device alone, as in compiled ones."""
    model = drawn_model(CONFIG, dtype=torch.float32, compute=compute).eval()
    batch = drawn_inputs(CONFIG, [17, 0, 5, 40])
    batch.input_ids[17:22], batch.input_ids[:17], batch.input_ids[22:] = 1, 2, 3
    layout = batch.packed.layout
    packed = batch.packed if on_host else Offsets(torch.from_numpy(layout.offsets), layout.tokens, layout.longest)
    with torch.no_grad():
        model.encoder.embeddings.word.weight[1] = value
    hidden, gradient = run(model, batch, slice(0, layout.tokens), packed)
    for each in (hidden, gradient):
        finite = torch.isfinite(each).all(1)
        assert bool(finite[:17].all())
        assert bool(finite[22:].all())
        assert not bool(finite[17:22].any())


@pytest.mark.parametrize("lengths", [[0], [0, 0, 0], [0, 9, 0], [1], [1, 0, 1], [64, *[1] * 30], [0, 64, 64, 0]])
@pytest.mark.parametrize("compute", [None, torch.bfloat16, torch.float16], ids=str)
def test_empty_single_and_uneven_sequences_are_never_nan(lengths: list[int], compute: torch.dtype | None) -> None:
    model = drawn_model(CONFIG, dtype=torch.float32, compute=compute)
    batch = drawn_inputs(CONFIG, lengths, masked_share=0.5)
    masked, next_sentence = model.losses(batch)
    (masked.loss + next_sentence.loss).backward()
    assert int(next_sentence.count) == sum(length > 0 for length in lengths)
    assert bool(torch.isfinite(masked.loss + next_sentence.loss))
    assert all(bool(torch.isfinite(each.grad).all()) for each in model.parameters())
