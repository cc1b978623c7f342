"""What is timed for a plan on a CPU: little enough of a wide model to take seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.base.device import choose_device
from bertsmith.batches.masking import MaskingSettings
from bertsmith.bench.step.plan import shape
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.planning import on_cpu
from bertsmith.training.planning.work import Lengths


@pytest.mark.parametrize(
    ("model", "passes"),
    [
        ("tiny", {(2, 4096), (1, 4096)}),
        ("base", {(2, 384), (2, 1024), (1, 384)}),
        ("large", {(2, 256), (2, 1024), (1, 256)}),
    ],
)
def test_wide_models_are_tried_with_few_tokens_and_layers(
    model: str, passes: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()

    def counted(model: PretrainingModel, inputs: PretrainInputs, _: Any) -> None:
        found.add((len(model.encoder.layers), inputs.packed.tokens))
        for each in model.parameters():
            each.grad = torch.zeros_like(each)

    monkeypatch.setattr(on_cpu, "_pass", counted)
    config = BertConfig(**shape(model, 1024))
    lengths = {f"at {length}": Lengths(np.full(8, length), length) for length in (128, 512)}
    made = on_cpu.Measuring(
        config,
        choose_device("cpu", "fp32"),
        lengths,
        MaskingSettings(),
        "lamb",
        lambda each: Lamb(parameter_groups(each, 0.01)),
    )
    on_cpu.measure(made, 1, 0.0)
    assert found == passes
