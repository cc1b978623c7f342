"""Which device and precision are chosen, and what is said about it."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base import log, ranks
from bertsmith.base.device import bf16_speed_ratio, choose_device
from bertsmith.base.errors import BertsmithError


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_what_is_asked_for_is_taken(precision, dtype):
    device = choose_device("cpu", precision)
    assert (device.torch_device, device.compute, device.is_cpu) == (torch.device("cpu"), dtype, True)


def test_auto_follows_the_measured_speed_and_says_so(capsys):
    log.configure()
    log._said.clear()
    device = choose_device("cpu", "auto")
    log.configure(quiet=True)
    assert device.compute == (torch.bfloat16 if bf16_speed_ratio() > 1.3 else torch.float32)
    assert f"{bf16_speed_ratio():.1f}x the speed of fp32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "precision", "what"),
    [
        ("cpu", "fp8", "precision 'fp8' is not known"),
        ("gpu0", "fp32", "device 'gpu0' is not known"),
        ("meta", "fp32", "device 'meta' is not supported"),
        ("cuda:99", "fp32", "device 'cuda:99' is not there"),
    ],
)
def test_what_is_not_there_is_said(device, precision, what):
    with pytest.raises(BertsmithError, match=what):
        choose_device(device, precision)


def test_one_process_is_the_first_of_one():
    assert (ranks.world_size(), ranks.rank(), ranks.is_first()) == (1, 0, True)
    assert torch.equal(ranks.sum_over_ranks(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0]))
