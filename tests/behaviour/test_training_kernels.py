"""Training on a CPU with the C++ kernels and without: as near to fp32, resumed to the bit, and said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith.model.cpu.library import is_loaded
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_kernels import kernels_unused
from made_pretraining import batch_of, fresh_model
from made_runs import corpus, figures, small_recipe, stopped_after, weights

OPTIONS = {"phase1__steps": 4, "phase2__steps": 2, "model__layers": 2}
both_precisions = pytest.mark.parametrize("precision", ["fp32", "bf16"])


def trained(folder: Path, patch: pytest.MonkeyPatch, in_two_parts: bool, **options: object) -> Run:
    recipe = small_recipe(**OPTIONS, **options)
    assert recipe.model.hidden_dropout == recipe.model.attention_dropout == 0.1
    if in_two_parts:
        stopped_after(2, patch, recipe, folder)
        with kernels_unused():  # as in a new process
            return pretrain(recipe, corpus(), folder, resume=True)
    return pretrain(recipe, corpus(), folder)


@both_precisions
@pytest.mark.parametrize("compile_", ["auto", "false"])
def test_a_resumed_run_is_the_unbroken_one_and_says_what_it_uses(
    kernels: None,
    said: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compile_: str,
    precision: str,
) -> None:
    options = {"compile": compile_, "precision": precision}
    with kernels_unused():
        unbroken = trained(tmp_path / "unbroken", monkeypatch, in_two_parts=False, **options)
        assert not is_loaded(), "what is computed after a run does not depend on it"
    lines = [line for line in said.messages if line.startswith("between matrix products")]
    assert len(lines) == 1
    assert ("C++ kernels" in lines[0], "PyTorch's operators" in lines[0]) == (compile_ == "auto", compile_ == "false")
    with kernels_unused():
        resumed = trained(tmp_path / "resumed", monkeypatch, in_two_parts=True, **options)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


@both_precisions
def test_a_run_without_a_compiler_is_one_without_kernels(
    kernels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    with kernels_unused():
        with_kernels = trained(tmp_path / "kernels", monkeypatch, in_two_parts=False, precision=precision)
    with kernels_unused():
        told = trained(tmp_path / "told", monkeypatch, in_two_parts=False, compile="false", precision=precision)
        monkeypatch.setenv("CXX", "no-such-compiler")
        unable = trained(tmp_path / "unable", monkeypatch, in_two_parts=False, precision=precision)
    assert weights(unable) == weights(told)
    assert weights(unable) != weights(with_kernels)
    losses = [[record["loss"] for record in run.metrics("train")] for run in (unable, with_kernels)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02), "the same training but for what is dropped"


def test_in_fp32_without_dropout_a_run_is_the_same_with_kernels_within_rounding(
    kernels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"precision": "fp32", "model__hidden_dropout": 0, "model__attention_dropout": 0}
    runs = []
    for compile_ in ("auto", "false"):
        with kernels_unused():
            runs.append(pretrain(small_recipe(**OPTIONS, **options, compile=compile_), corpus(), tmp_path / compile_))
    losses = [[record["loss"] for record in run.metrics("train")] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert weights(runs[0]) != weights(runs[1])


@both_precisions
def test_a_run_that_goes_on_without_its_kernels_is_warned_about(
    kernels: None,
    said: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    recipe = small_recipe(**OPTIONS, precision=precision)
    stopped_after(2, monkeypatch, recipe, tmp_path / "run")
    assert not any("was started with" in line for line in said.messages)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with kernels_unused():  # as in a new process
        pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    (warning,) = [line for line in said.messages if "this run was started with C++" in line]
    assert "started with C++ kernels between matrix products" in warning
    assert "resumed with PyTorch's operators" in warning


def test_a_run_of_a_version_without_kernels_in_fp32_goes_on_with_operators_to_the_bit(
    kernels: None, said: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a run has no record of them in `run.json`."""
    recipe = small_recipe(**OPTIONS, precision="fp32")
    with kernels_unused():
        unbroken = pretrain(small_recipe(**OPTIONS, precision="fp32", compile="false"), corpus(), tmp_path / "unbroken")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with kernels_unused():
        stopped_after(2, monkeypatch, recipe, tmp_path / "run")
    monkeypatch.delenv("CXX")
    known = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert known["begun_on"].pop("between_products") == "PyTorch's operators"
    (tmp_path / "run" / "run.json").write_text(json.dumps(known), encoding="utf-8")
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert not is_loaded()
    assert not [record for record in said.records if record.levelname == "WARNING" and "started" in record.message]
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


SHAPE = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 128}


def gradients_of_a_step(compute: torch.dtype | None) -> dict[str, Tensor]:
    """Of three micro-batches, left in the parameters by `train_step`."""
    model = fresh_model(compute, deviation=0.05, seed=3, **SHAPE, max_position_embeddings=64)
    batches = [batch_of(np.random.default_rng(seed).integers(1, 64, 9).tolist(), seed) for seed in range(3)]
    counts = {"masked": sum(len(each.masked_positions) for each in batches), "next_sentence": 27}
    optimizer = Lamb(parameter_groups(model, 0.01), max_gradient_norm=1e9)
    cpu = torch.device("cpu")
    train_step(Pretraining(model, cpu), optimizer, batches, counts, cpu)
    return {name: each.grad.double().clone() for name, each in model.named_parameters() if each.grad is not None}


def test_gradients_of_a_step_are_as_near_to_fp32_with_kernels(kernels: None) -> None:
    with_them = gradients_of_a_step(torch.bfloat16)
    with kernels_unused():
        exact, without = gradients_of_a_step(None), gradients_of_a_step(torch.bfloat16)
    assert exact.keys() == with_them.keys() == without.keys()

    def distance(found: dict[str, Tensor], names: list[str]) -> float:
        wanted = torch.cat([exact[name].flatten() for name in names])
        return float((torch.cat([found[name].flatten() for name in names]) - wanted).norm() / wanted.norm())

    everything = list(exact)
    assert 1e-4 < distance(with_them, everything) <= 1.1 * distance(without, everything) < 0.05
    for kind in ("attention_norm.weight", "feed_forward_norm.bias", "query.weight", "value.weight", "inner.weight"):
        names = [name for name in exact if name.endswith(kind)]
        assert len(names) == SHAPE["num_hidden_layers"]
        assert distance(with_them, names) <= 1.3 * distance(without, names), kind
