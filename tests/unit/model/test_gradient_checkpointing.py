"""Blocks computed again in the backward pass: the same gradients to the bit, dropout on, and less kept meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from made_kernels import kernels_unused
from made_models import drawn_inputs, drawn_model, small_config

LENGTHS = [17, 9, 24, 3, 21, 22]
DTYPES = [None, torch.bfloat16, torch.float16]


def model_of(compute: torch.dtype | None, again: bool, layers: int = 4) -> tuple[PretrainingModel, PretrainInputs]:
    config = small_config(num_hidden_layers=layers, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
    model = drawn_model(config, dtype=torch.float32, compute=compute).train()
    model.encoder.gradient_checkpointing = again
    return model, drawn_inputs(config, LENGTHS)


def gradients(model: PretrainingModel, batch: PretrainInputs) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Of two micro-batches; and what the generator gives afterwards."""
    torch.manual_seed(7)
    for _ in range(2):
        masked, pairs = model.losses(batch)
        (masked.loss + pairs.loss).backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}, torch.rand(4)


@pytest.mark.parametrize("compute", DTYPES, ids=str)
def test_gradients_are_equal_to_the_bit_with_dropout(compute: torch.dtype | None) -> None:
    kept, after_kept = gradients(*model_of(compute, again=False))
    again, after_again = gradients(*model_of(compute, again=True))
    assert kept.keys() == again.keys()
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert torch.equal(after_kept, after_again), "the next micro-batch drops the same units"
    without, _ = gradients(
        *(each.eval() if isinstance(each, PretrainingModel) else each for each in model_of(compute, False))
    )
    assert not torch.equal(without["encoder.embeddings.word.weight"], kept["encoder.embeddings.word.weight"])


@pytest.mark.parametrize("compute", [None, torch.bfloat16], ids=str)
def test_kernels_drop_the_same_when_a_block_is_computed_again(kernels: None, compute: torch.dtype | None) -> None:
    kept, after_kept = gradients(*model_of(compute, again=False))
    again, after_again = gradients(*model_of(compute, again=True))
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert torch.equal(after_kept, after_again)
    with kernels_unused():
        others, _ = gradients(*model_of(compute, again=False))
    assert not torch.equal(others["encoder.embeddings.word.weight"], kept["encoder.embeddings.word.weight"])


def saved_bytes(model: PretrainingModel, batch: PretrainInputs) -> int:
    """Bytes of tensors that the encoder's forward pass keeps for its backward pass, each storage once.

    Parameters and their copies in half precision are there anyway, and are left out.
    """
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    assert hidden.requires_grad
    return sum(kept.values())


def test_what_is_kept_falls_to_one_tensor_a_block() -> None:
    """A block more keeps its input, tokens x width in fp32; without checkpointing it keeps many times that."""
    grown = {}
    for again in (False, True):
        few, many = (saved_bytes(*model_of(None, again, layers)) for layers in (2, 10))
        grown[again] = (many - few) / 8
    block_input = sum(LENGTHS) * small_config().hidden_size * 4
    assert grown[True] == block_input
    assert grown[False] > 8 * block_input


def test_nothing_is_computed_again_where_no_gradient_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(None, again=True)
    monkeypatch.setattr("bertsmith.model.encoder.checkpoint", None)
    with torch.no_grad():
        model.losses(batch)
    with pytest.raises(TypeError):
        model.losses(batch)
