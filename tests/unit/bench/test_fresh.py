"""Models of benches: made where they run, with the same weights each time."""

from __future__ import annotations

import pytest
import torch

from bertsmith.bench.fresh import fresh
from bertsmith.bench.step.plan import shape
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel

CONFIG = BertConfig(**shape("tiny", 500))


def made(device: str) -> dict[str, torch.Tensor]:
    return dict(fresh(lambda: PretrainingModel(CONFIG), torch.device(device)).named_parameters())


def test_nothing_is_drawn_elsewhere() -> None:
    assert all(each.is_meta for each in made("meta").values())


def test_matrices_are_small_and_biases_zero_each_time_alike() -> None:
    found, again = made("cpu"), made("cpu")
    for name, each in found.items():
        assert torch.equal(each, again[name])
        if each.ndim > 1:
            assert float(each.detach().std()) == pytest.approx(0.02, rel=0.15), name
        else:
            assert (each == (1 if "norm.weight" in name else 0)).all(), name
