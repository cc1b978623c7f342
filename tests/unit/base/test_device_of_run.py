"""The device and precision of a resumed run: what was chosen when it was started, or a warning."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base import device as device_module
from bertsmith.base import fp32_products
from bertsmith.base.device import device_of_run
from bertsmith.base.errors import BertsmithError
from made_processors import WITH_AMX, WITH_BF16_OF_AMD, WITHOUT_BF16


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("processor", [WITHOUT_BF16, WITH_AMX])
def test_auto_keeps_what_the_run_was_started_on(tmp_path, monkeypatch, said, precision, processor) -> None:
    monkeypatch.setattr(device_module, "this_processor", lambda: processor)
    chosen = device_of_run("auto", "auto", {"device": "cpu", "precision": precision}, tmp_path)
    assert (chosen.torch_device.type, chosen.precision) == ("cpu", precision)
    assert f"precision: {precision} (this run was started with it)" in said.text
    assert "device: cpu (this run was started on it)" in said.text


@pytest.mark.parametrize(("processor", "precision"), [(WITHOUT_BF16, "fp32"), (WITH_AMX, "bf16")])
def test_a_new_run_follows_the_processor(tmp_path, monkeypatch, processor, precision) -> None:
    monkeypatch.setattr(device_module, "this_processor", lambda: processor)
    assert device_of_run("cpu", "auto", {}, tmp_path).precision == precision


def test_a_run_of_a_gpu_is_not_resumed_without_one_unless_told_to(tmp_path, monkeypatch, said) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    started_on = {"device": "cuda", "precision": "bf16"}
    with pytest.raises(BertsmithError, match="started on a CUDA device") as caught:
        device_of_run("auto", "auto", started_on, tmp_path)
    assert "--device cpu" in caught.value.fix
    chosen = device_of_run("cpu", "auto", started_on, tmp_path)
    assert (chosen.torch_device.type, chosen.precision) == ("cpu", "bf16")
    assert "warning: this run was started on cuda and is resumed on cpu, still in bf16" in said.text


def test_fp32_products_are_kept_as_they_were_at_the_start(tmp_path, monkeypatch) -> None:
    """A run of a version that did not record them had PyTorch's default."""
    monkeypatch.setattr(fp32_products, "this_processor", lambda: WITHOUT_BF16)
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: 0.2)
    started_on = {"device": "cpu", "precision": "fp32", "fp32_products": "onednn"}
    with fp32_products.using("default"):
        assert device_of_run("cpu", "fp32", started_on, tmp_path).facts() == started_on
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    monkeypatch.setattr(fp32_products, "this_processor", lambda: WITH_BF16_OF_AMD)
    with fp32_products.using("default"):
        assert device_of_run("cpu", "fp32", {}, tmp_path).fp32_products == "onednn"
        old = {"device": "cpu", "precision": "fp32"}
        assert device_of_run("cpu", "fp32", old, tmp_path).fp32_products == "default"
