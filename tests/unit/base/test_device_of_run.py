"""The device and precision of a run that goes on: what was chosen when it was begun, or said aloud."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base import device as device_module
from bertsmith.base import fp32_products, log
from bertsmith.base.device import device_of_run
from bertsmith.base.errors import BertsmithError


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setattr(log.logger, "propagate", True)
    caplog.set_level("INFO", logger="bertsmith")
    return caplog


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_auto_keeps_what_the_run_was_begun_on(tmp_path, monkeypatch, said, precision, ratio) -> None:
    monkeypatch.setattr(device_module, "bf16_speed_ratio", lambda: ratio)
    chosen = device_of_run("auto", "auto", {"device": "cpu", "precision": precision}, tmp_path)
    assert (chosen.torch_device.type, chosen.precision) == ("cpu", precision)
    assert f"precision: {precision} (this run was begun with it)" in said.text
    assert "device: cpu (this run was begun on it)" in said.text


@pytest.mark.parametrize(("ratio", "precision"), [(0.5, "fp32"), (3.0, "bf16")])
def test_a_new_run_is_measured_for(tmp_path, monkeypatch, ratio, precision) -> None:
    monkeypatch.setattr(device_module, "bf16_speed_ratio", lambda: ratio)
    assert device_of_run("cpu", "auto", {}, tmp_path).precision == precision


def test_a_run_of_a_card_does_not_go_on_without_one_unasked(tmp_path, monkeypatch, said) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    begun_on = {"device": "cuda", "precision": "bf16"}
    with pytest.raises(BertsmithError, match="begun on a CUDA device") as caught:
        device_of_run("auto", "auto", begun_on, tmp_path)
    assert "--device cpu" in caught.value.fix
    chosen = device_of_run("cpu", "auto", begun_on, tmp_path)
    assert (chosen.torch_device.type, chosen.precision) == ("cpu", "bf16")
    assert "warning: this run was begun on cuda and goes on on cpu, in bf16 still" in said.text


def test_fp32_products_are_kept_as_they_were_at_the_beginning(tmp_path, monkeypatch) -> None:
    """A run begun before they were recorded had PyTorch's default."""
    monkeypatch.setattr(fp32_products, "fastest", lambda: ("default", "by measurement"))
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: 0.2)
    begun_on = {"device": "cpu", "precision": "fp32", "fp32_products": "onednn"}
    with fp32_products.using("default"):
        assert device_of_run("cpu", "fp32", begun_on, tmp_path).facts() == begun_on
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    monkeypatch.setattr(fp32_products, "fastest", lambda: ("onednn", "by measurement"))
    with fp32_products.using("default"):
        assert device_of_run("cpu", "fp32", {}, tmp_path).fp32_products == "onednn"
        old = {"device": "cpu", "precision": "fp32"}
        assert device_of_run("cpu", "fp32", old, tmp_path).fp32_products == "default"
