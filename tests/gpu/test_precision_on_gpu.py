"""Precision on a card: tf32 where it exists, fp16 updates and late readings that wait for nothing."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training.records.late_reading import LateReading


def error_of_a_product(device: torch.device) -> float:
    a, b = (torch.randn(1024, 1024, device=device) for _ in range(2))
    exact = a.double() @ b.double()
    return float(((a @ b).double() - exact).norm() / exact.norm())


def test_tf32_is_on_for_tf32_alone(cuda):
    if torch.cuda.get_device_capability() < (8, 0):
        with pytest.raises(BertsmithError, match="tf32 needs"):
            choose_device("cuda", "tf32")
        return
    choose_device("cuda", "tf32")
    assert 1e-5 < error_of_a_product(cuda) < 2e-3
    choose_device("cuda", "fp32")
    assert error_of_a_product(cuda) < 2e-6


def test_a_late_reading_waits_for_nothing_queued_behind_it(cuda):
    values = torch.tensor([1.0, 0.0], device=cuda)
    late = LateReading(values)
    values.fill_(5)
    torch.cuda._sleep(2_000_000_000)
    end = torch.cuda.Event()
    end.record()
    assert late.read() == [1.0, 0.0]
    assert not end.query(), "the long kernel behind it is still at work"
    torch.cuda.synchronize()


def test_an_update_in_fp16_reads_nothing_on_the_host(cuda):
    parameter = torch.nn.Parameter(torch.randn(64, 64, device=cuda))
    optimizer = Lamb([{"params": [parameter], "weight_decay": 0.01}], loss_scale=LossScale(cuda, initial=2.0**120))
    optimizer.set_learning_rate(1e-2)
    before = parameter.detach().clone()
    readings = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for size in (2.0**20, 1.0):
            optimizer.zero_grad()
            optimizer.scaled((parameter * size).sum()).backward()
            optimizer.step()
            readings.append(LateReading(torch.stack([optimizer.finite.float(), optimizer.sound.float()])))
            optimizer.loss_scale.scale.clamp_(max=2.0**16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [each.read() for each in readings] == [[0.0, 1.0], [1.0, 1.0]]
    assert int(optimizer.loss_scale.skipped_updates) == 1
    assert not torch.equal(parameter, before)
