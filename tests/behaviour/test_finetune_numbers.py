"""Promises of `regress`: the unit of the labels changes nothing but the unit of the answers."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.predictor import Predictor
from bertsmith.training.loop import Trainer
from made_rows import QUICK, WORDS

LAYERS = 1

SETTINGS = replace(QUICK, epochs=6)
UNITS = {"years": (1990.0, 6.0), "prices": (1e5, 2e4), "small": (-1e-3, 1e-6), "huge": (0.0, 1e30)}


def numbers(count: int, seed: int, centre: float = 0.0, unit: float = 1.0) -> list[dict[str, Any]]:
    """Filler with "lovely" among it, and how often it is there, in a unit of its own."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        times = draw.randrange(6)
        words = [*draw.choices(WORDS[4:], k=4), *["lovely"] * times]
        draw.shuffle(words)
        made.append({"text": " ".join(words), "label": centre + unit * times})
    return made


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("numbers") / "run"
    bertsmith.finetune("regress", model, numbers(160, 1), numbers(40, 2), out, settings=SETTINGS)
    return out


def answers(run: Path) -> np.ndarray:
    return np.array([each["number"] for each in Predictor(run, "cpu", precision="fp32")(numbers(40, 2))])


@pytest.mark.parametrize("name", UNITS)
def test_labels_in_any_unit_are_learned_alike(name: str, plain: Path, model: Path, tmp_path: Path) -> None:
    centre, unit = UNITS[name]
    train, dev = (numbers(count, seed, centre, unit) for count, seed in ((160, 1), (40, 2)))
    result = bertsmith.finetune("regress", model, train, dev, tmp_path / "run", settings=SETTINGS)
    assert (result.metric, result.baseline) == ("pearson", 0.0)
    assert result.best.score > 0.9
    assert (answers(tmp_path / "run") - centre) / unit == pytest.approx(answers(plain), abs=0.05)
    # As the folder's readers have it, to the bit.
    assert evaluate(tmp_path / "run", dev, device="cpu", precision="fp32").figures == result.tuned["dev"]


def test_the_loss_is_in_deviations_and_the_figures_in_the_unit_of_the_labels(
    model: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    train = numbers(160, 1, *UNITS["prices"])
    settings = replace(SETTINGS, max_steps=1, log_every=1, learning_rate=1e-9)
    result = bertsmith.finetune("regress", model, train, train, tmp_path / "run", settings=settings)
    labels = np.array([row["label"] for row in train])
    assert f"the loss counts their standard deviation, {labels.std():.4g}, as 1, rmse and mae do not" in said.text
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 0.3 < next(each for each in lines if each["kind"] == "train")["loss"] < 3  # 1 is that of the mean
    assert result.tuned["dev"]["rmse"] == pytest.approx(labels.std(), rel=0.1)


def test_a_stopped_run_of_years_continues_to_the_bit(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, dev = (numbers(count, seed, *UNITS["years"]) for count, seed in ((160, 1), (40, 2)))
    settings = replace(SETTINGS, epochs=2, keep_seed="last", seeds=2)

    def run(out: Path, resume: bool = False) -> None:
        bertsmith.finetune("regress", model, train, dev, out, settings=settings, resume=resume)

    run(tmp_path / "unbroken")
    advance, steps = Trainer._advance, iter(range(35))

    def stopping(self: Trainer, *given: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return advance(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_advance", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped")
    assert list((tmp_path / "stopped").glob("step-*"))
    run(tmp_path / "stopped", resume=True)
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("unbroken", "stopped")]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_numbers_that_fp32_cannot_hold_or_tell_apart_are_named(
    model: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    wrong = [*numbers(40, 1), {"text": "word1", "label": 1e39}]
    with pytest.raises(BertsmithError, match=r"the label '1e\+?39' is beyond 3.4e\+38, the largest number"):
        bertsmith.finetune("regress", model, wrong, numbers(40, 2), tmp_path / "run", settings=SETTINGS)
    times = numbers(40, 1, 1.7e9, 60.0)
    settings = replace(SETTINGS, max_steps=1)
    bertsmith.finetune("regress", model, times, times, tmp_path / "run", settings=settings)
    assert "a model tells such numbers in steps of 128 (fp32): subtract the same number from all labels" in said.text


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (["high"], "'high' is not a number such as"),
        (["1_000"], "'1_000' is not a number such as"),
        (["1e999"], "not a finite"),
        ([math.inf], "not a finite"),
        ([2, 2, 2], "nothing to learn"),
    ],
)
def test_what_are_no_numbers_to_learn_is_named(labels: list[Any], what: str, model: Path) -> None:
    train = [{"text": "word1", "label": label} for label in labels]
    with pytest.raises(BertsmithError, match=what):
        bertsmith.finetune("regress", model, train, numbers(40, 2), None, settings=SETTINGS)


def test_a_run_of_a_version_that_did_not_scale_is_not_continued(model: Path, tmp_path: Path) -> None:
    rows, settings = numbers(40, 1), replace(SETTINGS, max_steps=1)
    bertsmith.finetune("regress", model, rows, rows, tmp_path / "run", settings=settings)
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({key: each for key, each in json.loads(path.read_text()).items() if key != "labels"}))
    with pytest.raises(BertsmithError, match="labels was not given, is 'centred and scaled'"):
        bertsmith.finetune("regress", model, rows, rows, tmp_path / "run", settings=settings, resume=True)
