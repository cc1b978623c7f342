"""Which device and precision are chosen, and what is said about it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from bertsmith.base import device as device_module
from bertsmith.base import ranks
from bertsmith.base.device import choose_device, cpu_precision, seed_generators
from bertsmith.base.errors import BertsmithError
from made_processors import WITH_AMX, WITH_BF16_OF_AMD, WITHOUT_BF16


@pytest.mark.parametrize(
    ("precision", "dtype", "scales"),
    [("fp32", torch.float32, False), ("bf16", torch.bfloat16, False), ("fp16", torch.float16, True)],
)
def test_what_is_asked_for_is_taken(precision, dtype, scales):
    device = choose_device("cpu", precision)
    assert (device.torch_device, device.compute, device.is_cpu) == (torch.device("cpu"), dtype, True)
    assert (device.precision, device.scales_losses, device.tf32) == (precision, scales, False)


def test_a_device_of_torch_is_read_as_its_name():
    assert choose_device(torch.device("cpu"), "fp32").is_cpu
    with pytest.raises(BertsmithError, match="'cpu:7' is not supported"):
        choose_device(torch.device("cpu", 7), "fp32")


def test_autocast_around_a_model_is_warned_of(said):
    """It makes products in its own dtype, whatever precision was named."""
    with torch.autocast("cpu", torch.bfloat16):
        choose_device("cpu", "fp32")
    assert "torch.autocast is on, so PyTorch makes products in bfloat16, those in fp32 too" in said.text
    said.clear()
    choose_device("cpu", "fp32")
    assert not said.messages


def test_tf32_is_refused_where_it_is_not():
    with pytest.raises(
        BertsmithError, match="tf32 needs an NVIDIA GPU of the Ampere generation or newer, and this is a CPU"
    ) as caught:
        choose_device("cpu", "tf32")
    assert "--precision fp32" in caught.value.fix


@pytest.mark.parametrize(
    ("capability", "native", "precision"),
    [((9, 0), True, "bf16"), ((7, 0), False, "fp16"), ((7, 5), False, "fp16"), ((6, 0), False, "fp32")],
)
def test_a_gpu_gets_the_best_precision_that_it_has(monkeypatch, capability, native, precision):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert choose_device("cuda", "auto").precision == precision


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_tf32_is_switched_on_for_it_alone(monkeypatch, capability):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
    if capability < (8, 0):
        with pytest.raises(BertsmithError, match="this is an old GPU"):
            choose_device("cuda", "tf32")
        return
    device = choose_device("cuda", "tf32")
    assert (device.precision, device.compute, device.facts()["precision"]) == ("tf32", torch.float32, "tf32")
    assert torch.backends.cuda.matmul.allow_tf32
    assert choose_device("cuda", "fp32").precision == "fp32"
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("processor", [WITH_AMX, WITH_BF16_OF_AMD, WITHOUT_BF16])
def test_auto_follows_the_processor_and_says_so(monkeypatch, said, processor):
    monkeypatch.setattr(device_module, "this_processor", lambda: processor)
    precision, reason = cpu_precision(processor)
    assert choose_device("cpu", "auto").precision == precision
    assert f"precision: {precision} ({reason})" in said.messages


@pytest.mark.parametrize("processor", [WITH_AMX, WITH_BF16_OF_AMD, WITHOUT_BF16])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_is_asked_for_and_slow_on_this_processor_is_warned_of(monkeypatch, said, processor, precision):
    monkeypatch.setattr(device_module, "this_processor", lambda: processor)
    best, reason = cpu_precision(processor)
    choose_device("cpu", precision)
    slow = f"warning: {precision} may be slow on this CPU, where {best} is the default ({reason})"
    assert said.messages.count(slow) == (precision not in ("fp32", best))


@pytest.mark.parametrize(
    ("device", "precision", "what"),
    [
        ("cpu", "fp8", "precision 'fp8' is not known"),
        ("gpu0", "fp32", "device 'gpu0' is not known"),
        (None, "fp32", "device 'None' is not known"),
        ("meta", "fp32", "device 'meta' is not supported"),
        ("cpu:7", "fp32", "device 'cpu:7' is not supported"),
        ("cuda:99", "fp32", "device 'cuda:99' does not exist"),
    ],
)
def test_what_is_not_there_is_said(device, precision, what):
    with pytest.raises(BertsmithError, match=what):
        choose_device(device, precision)


@pytest.mark.parametrize(
    ("count", "found"), [(0, "0 CUDA devices found"), (1, "1 CUDA device found"), (2, "2 CUDA devices found")]
)
def test_a_gpu_too_many_is_told_how_many_there_are(count, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(BertsmithError) as raised:
        choose_device("cuda:9", "fp32")
    assert raised.value.fix == found


def test_a_cpu_is_seeded_as_torch_seeds_it_and_no_gpu_is_asked(monkeypatch):
    torch.manual_seed(5)
    expected = torch.rand(3)
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    seed_generators(torch.device("cpu"), 5)
    assert torch.equal(torch.rand(3), expected)
    assert seeded == []
    monkeypatch.setattr("bertsmith.base.device.made_current", lambda device: nullcontext(seeded.append(device.index)))
    seed_generators(torch.device("cuda", 2), 5)
    assert torch.equal(torch.rand(3), expected)
    assert seeded == [2, 5]


def test_one_process_is_the_first_of_one():
    assert (ranks.world_size(), ranks.rank(), ranks.is_first()) == (1, 0, True)
    assert torch.equal(ranks.sum_over_ranks(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0]))
