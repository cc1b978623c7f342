"""A run whose precision was chosen for it resumes in that precision, however fast the machine seems to be by then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.base import device
from bertsmith.training.pretrain import pretrain
from bertsmith.training.stopping import StoppedAfterSaving, StopSignal
from made_runs import corpus, figures, small_recipe, weights

RECIPE = small_recipe(precision="auto", device="auto", phase1__steps=3, phase2__steps=1)


class Asked(StopSignal):
    """A stop that was asked for before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = True


@pytest.mark.parametrize(("at_first", "later", "precision"), [(0.5, 3.0, "fp32"), (3.0, 0.5, "bf16")])
def test_a_resumed_run_keeps_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_first: float, later: float, precision: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(device, "bf16_speed_ratio", lambda: at_first)
    unbroken = pretrain(RECIPE, corpus(), tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.training.stopping.StopSignal", Asked)
        with pytest.raises(StoppedAfterSaving):
            pretrain(RECIPE, corpus(), tmp_path / "run")
    known = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert known["begun_on"] == {"device": "cpu", "precision": precision}
    monkeypatch.setattr(device, "bf16_speed_ratio", lambda: later)
    resumed = pretrain(RECIPE, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
