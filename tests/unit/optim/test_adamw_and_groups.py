"""AdamW against PyTorch's own, and the two parameter groups of a BERT."""

import numpy as np
import pytest
import torch

from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups

TINY = BertConfig(
    vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip


@pytest.mark.parametrize("limit", [0.0, 0.5, 100.0])
def test_equals_torch_adamw_with_clipping(limit):
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(6, 4, generator=generator), torch.randn(4, generator=generator)]
    sides = []
    for _ in range(2):
        parameters = [torch.nn.Parameter(each.clone()) for each in start]
        sides.append(
            (parameters, [{"params": [p], "weight_decay": d} for p, d in zip(parameters, (0.1, 0.0), strict=True)])
        )
    ours = AdamW(sides[0][1], epsilon=1e-8, max_gradient_norm=limit)
    theirs = torch.optim.AdamW(sides[1][1], eps=1e-8)
    for step in range(5):
        gradients = [torch.randn(each.shape, generator=generator) for each in start]
        rate = 1e-2 / (step + 1)
        for parameters, _ in sides:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
        ours.set_learning_rate(rate)
        ours.step()
        if limit:
            torch.nn.utils.clip_grad_norm_(sides[1][0], limit)
        for group in theirs.param_groups:
            group["lr"] = rate
        theirs.step()
    for a, b in zip(sides[0][0], sides[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_without_bias_correction_is_googles_adam():
    w, g = np.array([[1.0, -2.0]]), np.array([[0.3, -0.1]])
    parameter = torch.nn.Parameter(torch.tensor(w, dtype=torch.float32))
    optimizer = AdamW([{"params": [parameter], "weight_decay": 0.01}], max_gradient_norm=0, bias_correction=False)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for _ in range(3):
        parameter.grad = torch.tensor(g, dtype=torch.float32)
        optimizer.set_learning_rate(1e-2)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 1e-2 * (m / (np.sqrt(v) + 1e-6) + 0.01 * w)
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-5)


def test_weights_and_embeddings_decay_biases_and_norms_do_not():
    model = PretrainingModel(TINY)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, plain = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    for parameter in plain["params"]:
        assert names[id(parameter)].endswith("bias") or "norm." in names[id(parameter)]
    for parameter in decayed["params"]:
        assert not names[id(parameter)].endswith("bias")
        assert "norm." not in names[id(parameter)]
    both = [id(parameter) for parameter in decayed["params"] + plain["params"]]
    assert sorted(both) == sorted(names)
    assert len(set(both)) == len(both)


def test_a_shared_tensor_counts_once_and_a_frozen_one_not_at_all():
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    decayed, plain = parameter_groups(torch.nn.Sequential(first, second), 0.1)
    assert [id(each) for each in decayed["params"]] == [id(first.weight)]
    assert [id(each) for each in plain["params"]] == [id(first.bias)]


def test_parameters_of_a_share_have_that_part_of_the_rate_and_decay_as_all_others():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    groups = parameter_groups(module, 0.1, lambda name: 0.25 if name.startswith("0.") else 1.0)
    optimizer = AdamW(groups)
    optimizer.set_learning_rate(0.5)
    found = {
        id(each): (float(group["lr"]), group["weight_decay"])
        for group in optimizer.param_groups
        for each in group["params"]
    }
    expected = {"0.weight": (0.125, 0.1), "0.bias": (0.125, 0.0), "1.weight": (0.5, 0.1), "1.bias": (0.5, 0.0)}
    assert {name: found.pop(id(each)) for name, each in module.named_parameters()} == expected
    assert not found
