"""Updates in Triton kernels on a card: those of a CPU, which wait for nothing, and the same bits twice."""

from __future__ import annotations

import pytest
import torch

from bertsmith.optim import fused
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.lamb import Lamb

SHAPES = [(1000, 1024), (fused.CHUNK,), (fused.CHUNK + 1,), (0, 4), (1,), (7, 5), (1024, 4096), (30522,)]


def updated(kind, device, steps=4):
    """Weights after some updates, the third of them skipped for a gradient that is no number."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(each, generator=generator).to(device)) for each in SHAPES]
    optimizer = kind([{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1::2]}])
    assert fused.can_take(parameters) is (torch.device(device).type == "cuda")
    gradients = [[torch.randn(each, generator=generator).to(device) for each in SHAPES] for _ in range(steps)]
    gradients[2][0][-1, -1] = float("nan")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for those in gradients:
            for parameter, gradient in zip(parameters, those, strict=True):
                parameter.grad = gradient
            optimizer.set_learning_rate(0.01)
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [each.detach().cpu() for each in parameters]


@pytest.mark.parametrize("kind", [Lamb, AdamW])
def test_updates_are_those_of_a_cpu(cuda, kind):
    found, again, expected = updated(kind, cuda), updated(kind, cuda), updated(kind, "cpu")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, found, again))
