"""A run inside of a program that uses PyTorch too: one at a time, whatever the program has set, and all is put back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bertsmith
from bertsmith.base import fp32_products
from bertsmith.base.errors import BertsmithError
from bertsmith.model.cpu import library
from bertsmith.tasks import finetune as finetune_module
from bertsmith.tasks.results import FinetuneResult
from bertsmith.training import pretrain as pretrain_module
from bertsmith.training.check import check_pretraining
from bertsmith.training.plan import plan_pretraining
from bertsmith.training.planning.where import Where
from bertsmith.training.run import only_training
from made_rows import QUICK, rows
from made_runs import corpus, small_recipe, weights

RECIPE = small_recipe(phase1__steps=2, phase2__steps=0)


def tuned(model: Path) -> FinetuneResult:
    settings = replace(QUICK, epochs=1)
    return bertsmith.finetune("classify", model, rows(32, 1), rows(16, 2), settings=settings)


def trained(out: Path) -> object:
    return weights(bertsmith.pretrain(RECIPE, corpus(), out))


def test_one_run_at_a_time_trains_in_a_process(model: Path, tmp_path: Path) -> None:
    """A second one, whose dropout would be drawn from the same generator, is refused before it has written anything."""
    out = tmp_path / "out"
    runs: list[Callable[[], object]] = [
        lambda: bertsmith.pretrain(RECIPE, corpus(), out),
        lambda: bertsmith.finetune("classify", model, rows(32, 1), rows(16, 2), out, settings=QUICK),
        lambda: bertsmith.distill(model, RECIPE, out, corpus=corpus()),
        lambda: check_pretraining(RECIPE, corpus(), out),
        lambda: plan_pretraining(RECIPE, corpus(), Where("cpu")),
    ]
    with only_training(), ThreadPoolExecutor(1) as other:
        for run in runs:
            with pytest.raises(BertsmithError, match="another run trains in this process") as caught:
                other.submit(run).result()
            assert "another process" in caught.value.fix
    assert not out.exists()


@pytest.mark.parametrize("error", [BertsmithError("such as a full disk"), KeyboardInterrupt()], ids=repr)
def test_whatever_ends_a_run_lets_the_next_one_train(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()

    def fails(*_: object, **__: object) -> None:
        torch.rand(3)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(pretrain_module, "run_phases", fails)
        patch.setattr(finetune_module, "run_stages", fails)
        for run in (lambda: trained(tmp_path / "run"), lambda: tuned(model)):
            with pytest.raises(type(error)):
                run()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == dtype
    with only_training():
        pass


def test_what_fails_before_it_trains_leaves_no_kernels_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BertsmithError("such as a damaged checkpoint")

    monkeypatch.setattr(pretrain_module, "newest_checkpoint", fails)
    with pytest.raises(BertsmithError, match="damaged"):
        trained(tmp_path / "run")
    assert not library.is_loaded()


@pytest.mark.parametrize(("products", "tf32"), [("none", True), ("bf16", False)])
def test_what_belongs_to_the_program_is_put_back(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, products: str, tf32: bool
) -> None:
    """Random states, and how fp32 products are made, on a CPU and as on a GPU."""
    cpu, gpu = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul

    def choose(of_run: str) -> str:
        del of_run
        cpu.fp32_precision, gpu.allow_tf32 = "none" if products == "bf16" else "bf16", not tf32
        return "default"

    monkeypatch.setattr(fp32_products, "choose_fp32_products", choose)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with fp32_products.kept():
        cpu.fp32_precision, gpu.allow_tf32 = products, tf32
        for run in (lambda: trained(tmp_path / "run"), lambda: tuned(model)):
            run()
            assert torch.equal(torch.get_rng_state(), state)
            assert (cpu.fp32_precision, gpu.allow_tf32) == (products, tf32)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_program_without_gradients_can_train(
    model: Path, tmp_path: Path, without: Callable[[], AbstractContextManager[None]]
) -> None:
    usual = tuned(model).seeds, trained(tmp_path / "usual")
    with without():
        found = tuned(model).seeds, trained(tmp_path / "without")
        assert not torch.is_grad_enabled()
    assert found == usual


def test_models_are_fp32_in_a_program_whose_numbers_are_not(model: Path, tmp_path: Path) -> None:
    usual = tuned(model).seeds, trained(tmp_path / "usual")
    answers = bertsmith.Embedder(model, precision="fp32")("lovely word1")
    torch.set_default_dtype(torch.float64)
    try:
        assert {each.dtype for each in bertsmith.load_encoder(model).parameters()} == {torch.float32}
        assert (bertsmith.Embedder(model, precision="fp32")("lovely word1") == answers).all()
        found = tuned(model).seeds, trained(tmp_path / "float64")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == usual


def test_runs_are_where_they_would_be_in_a_program_that_names_another_device(model: Path, tmp_path: Path) -> None:
    """On "meta", which every machine has, as on a GPU that a program makes its tensors on."""
    usual = tuned(model).seeds, trained(tmp_path / "usual")
    torch.set_default_device("meta")
    try:
        found = tuned(model).seeds, trained(tmp_path / "meta")
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)
    assert found == usual
