"""Scores of no piece, which make the word head's products as wide as a GPU wants them, change nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bertsmith.model import pretraining
from bertsmith.model.attention.packed import Offsets
from bertsmith.model.losses import LossSum
from made_models import drawn_inputs, drawn_model, small_config

CONFIG = small_config(vocab_size=67, num_hidden_layers=1)


def made(filled: bool, way: str, dtypes: tuple[torch.dtype, torch.dtype | None], patch: pytest.MonkeyPatch):
    """Losses, how many words were right, and gradients."""
    patch.setattr(pretraining, "_fills", lambda device: filled)
    model = drawn_model(CONFIG, dtype=dtypes[0], compute=dtypes[1])
    inputs = drawn_inputs(CONFIG, [9, 3, 14])
    widths, summed = set[int](), pretraining.cross_entropy_sum

    def noting(logits: torch.Tensor, labels: torch.Tensor) -> LossSum:
        widths.add(logits.shape[1])
        return summed(logits, labels)

    patch.setattr(pretraining, "cross_entropy_sum", noting)
    inputs = replace(inputs, packed=Offsets(inputs.packed.offsets, 26, 14))  # as a compiled step has it

    def work():
        losses = model.losses(inputs)
        return losses.masked.loss + losses.next_sentence.loss, losses.masked.right

    loss, right = torch.compile(work, backend=way, fullgraph=True)() if way else work()
    loss.backward()
    patch.setattr(pretraining, "cross_entropy_sum", summed)
    assert widths == {2, 128 if filled else 67}, "of pairs, and of words"
    return [loss.detach(), right, *(each.grad for each in model.parameters())]


@pytest.mark.parametrize(
    ("dtype", "compute", "close", "way"),
    [
        pytest.param(torch.float64, None, 1e-12, "", id="float64"),
        pytest.param(torch.float32, torch.bfloat16, 1e-2, "aot_eager", id="bf16, compiled"),
        pytest.param(torch.float64, None, 1e-12, "aot_eager", id="float64, compiled", marks=pytest.mark.slow),
        pytest.param(torch.float32, torch.bfloat16, 1e-2, "", id="bf16", marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_stay(dtype, compute, close, way, monkeypatch):
    usual = made(False, way, (dtype, compute), monkeypatch)
    torch._dynamo.reset()
    found = made(True, way, (dtype, compute), monkeypatch)
    torch.testing.assert_close(found, usual, rtol=close, atol=close)
    assert all(each.isfinite().all() for each in found)


def test_the_scores_that_are_given_out_are_those_of_pieces(monkeypatch):
    monkeypatch.setattr(pretraining, "_fills", lambda device: True)
    model, inputs = drawn_model(CONFIG), drawn_inputs(CONFIG, [9, 3, 14])
    assert model.scores(inputs)[0].shape[1] == 67
    hidden = torch.zeros(4, 16, dtype=torch.float64)
    logits = model.masked_logits(hidden, torch.arange(3), filled=True)
    assert logits.shape[1] == 128
    assert bool((logits[:, 67:] == -torch.inf).all())


@pytest.mark.parametrize("compiling", [False, True])
def test_only_a_gpu_is_given_them_in_compiled_steps(compiling, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    assert pretraining._fills(torch.device("cuda")) is compiling
    assert not pretraining._fills(torch.device("cpu"))
