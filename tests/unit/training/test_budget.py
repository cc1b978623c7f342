"""What the preset `budget` chooses by hours and device."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base import device
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.processor import Processor
from bertsmith.cli import main
from bertsmith.training import budget
from bertsmith.training.budget import SIZES, TOKENS_PER_WEIGHT, budget_recipe, device_flops, fitted, planned_recipe
from bertsmith.training.planning.where import Where
from bertsmith.training.pretrain import pretrain
from made_runs import small_corpus

CPU = torch.device("cpu")


@given(st.floats(10, 24), st.floats(1, 100))
def test_more_compute_is_never_a_smaller_model_or_batch(exponent: float, factor: float) -> None:
    less, more = (fitted(flop, 128, 30_522, 0.3) for flop in (10**exponent, factor * 10**exponent))
    assert more.size.weights >= less.size.weights
    assert more.size == SIZES[0] or more.tokens >= TOKENS_PER_WEIGHT * more.size.weights
    if more.size == less.size:
        assert more.batch >= less.batch
    assert 32 <= less.batch <= 4096
    assert less.batch & (less.batch - 1) == 0
    assert 0 < less.learning_rate <= 0.006


def test_a_day_of_an_a100_is_a_bert_base_at_half_the_known_rate_or_more() -> None:
    found = fitted(0.4 * 312e12 * 24 * 3600, 128, 30_522, 0.3)
    assert (found.size.layers, found.size.hidden) == (12, 768)
    assert found.learning_rate == pytest.approx(1e-3 * math.sqrt(found.batch / 4096))


def test_devices_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = Device(CPU, torch.float32), Device(CPU, torch.bfloat16)
    amx = Processor("Linux", "x86_64", "Intel", frozenset({"avx512", "avx512_bf16", "amx_bf16"}))
    zen4 = Processor("Linux", "x86_64", "AMD", frozenset({"avx512", "avx512_bf16"}))
    assert device_flops(narrow, amx, 2) > device_flops(narrow, zen4, 2) > device_flops(wide, zen4, 2)
    assert device_flops(wide, zen4, 4) == 2 * device_flops(wide, zen4, 2)
    assert device_flops(wide, Processor("Darwin"), 1) > 0
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100-SXM4-80GB")
    gpu = Device(torch.device("cuda"), torch.bfloat16)
    assert device_flops(gpu, zen4, 2) == pytest.approx(0.4 * 312e12), "a share of its peak, whatever the CPU has"


@pytest.mark.parametrize(("set_by_user", "threads"), [(False, 4), (True, 3)])
def test_a_plan_counts_on_the_threads_that_ranks_will_have(
    monkeypatch: pytest.MonkeyPatch, set_by_user: bool, threads: int
) -> None:
    """OMP_NUM_THREADS is what PyTorch takes when it starts."""
    monkeypatch.setattr(device, "default_workers", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
    looked_up = Mock(return_value=1e12)
    monkeypatch.setattr(budget, "device_flops", looked_up)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        planned_recipe(small_corpus(), Where("cpu", 2), ["--hours=1"])
    finally:
        torch.set_num_threads(before)
    assert looked_up.call_args.args[2] == threads


def test_the_compute_is_that_of_all_devices_in_all_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    fit = budget.fitted
    monkeypatch.setattr(budget, "fitted", lambda flop, *rest: spent.append(flop) or fit(flop, *rest))
    monkeypatch.setattr(budget, "device_flops", lambda *_: 1e12)
    monkeypatch.setattr("bertsmith.base.ranks.gathered", lambda own: [own, 4e12])
    planned_recipe(small_corpus(), Where("a100", 2), ["--hours=8"])
    planned_recipe(small_corpus(), Where("cpu", 3), ["--hours=8"])
    budget_recipe(small_corpus(), tmp_path, ["--hours=8", "--device=cpu"])
    assert [each / 8 / 3600 for each in spent] == pytest.approx([2 * 0.4 * 312e12, 3e12, 5e12])


def test_what_the_user_sets_goes_over_it_and_a_resumed_run_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--hours=0.0003", "--device=cpu", "--model.layers=1", "--evaluate_instances=16", "--precision=fp32"]
    recipe = budget_recipe(small_corpus(), tmp_path / "run", few)
    assert recipe.model.layers == 1
    assert recipe.model.hidden == 128
    run = pretrain(recipe, small_corpus(), tmp_path / "run")
    assert run.is_finished()
    monkeypatch.setattr(budget, "SIZES", SIZES[3:])
    assert budget_recipe(small_corpus(), tmp_path / "run", few, resume=True) == recipe
    assert budget_recipe(small_corpus(), tmp_path / "other", few).model.hidden == 512


def test_of_its_own_steps_it_is_not_said_that_hours_end_the_run(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    for asked, times in (([], 0), (["--phase1.steps=9"], 1)):
        budget_recipe(small_corpus(), tmp_path, ["--hours=8", "--device=cpu", *asked])
        assert said.text.count("--phase1.steps: no effect") == times


def test_the_rest_follows_what_the_user_gives(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    usual, narrow, many = (
        budget_recipe(small_corpus(), tmp_path, ["--hours=8", "--device=cpu", "--precision=fp32", *more])
        for more in ([], ["--model.hidden=192", "--model.layers=3"], ["--phase1.global-batch=512"])
    )
    shape = narrow.model
    assert (shape.layers, shape.hidden, shape.heads, shape.intermediate) == (3, 192, 3, 768)
    rate = 1e-3 * 768 / 192 * math.sqrt(narrow.phase1.global_batch / 4096)
    assert narrow.phase1.learning_rate == pytest.approx(rate)
    assert "model: 3 layers of 192" in said.text
    odd = budget_recipe(small_corpus(), tmp_path, ["--hours=8", "--model.hidden=200", "--model.intermediate=400"])
    assert (odd.model.heads, odd.model.intermediate) == (2, 400), "of 200 // 64 = 3 and fewer heads, 2 divide it"
    assert (many.model, many.phase1.global_batch) == (usual.model, 512)
    assert usual.phase1.global_batch != 512
    assert many.phase1.learning_rate == pytest.approx(1e-3 * 768 / usual.model.hidden * math.sqrt(512 / 4096))
    slots = [each.phase1.steps * each.phase1.global_batch for each in (usual, many)]
    assert slots[0] == pytest.approx(slots[1], rel=0.01)


@pytest.mark.parametrize(
    ("asked", "completed"),
    [
        (["--phase2.steps=10"], ["--phase2.global-batch=64", "--phase2.learning-rate=0.001"]),
        (["--optimizer.name=lamb"], ["--phase1.learning-rate=0.004"]),
    ],
)
def test_what_its_rules_are_not_for_is_asked_for(tmp_path: Path, asked: list[str], completed: list[str]) -> None:
    with pytest.raises(BertsmithError) as caught:
        budget_recipe(small_corpus(), tmp_path, ["--hours=8", *asked])
    assert all(each.split("=")[0] in caught.value.fix for each in completed), caught.value.fix
    assert budget_recipe(small_corpus(), tmp_path, ["--hours=8", *asked, *completed]).hours == 8


def test_ranks_on_a_cpu_have_what_is_chosen_for_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for the GPU that such a machine may have as well, which --ranks does not use."""
    chosen = Mock(side_effect=BertsmithError("this is far enough", "here", ""))
    monkeypatch.setattr(budget, "budget_recipe", chosen)
    call = ["pretrain", "budget", "--hours=8", "--corpus", str(small_corpus()), "--out", str(tmp_path), "--ranks=1"]
    assert main(call) == 2
    ((_, _, overrides, _),) = (each.args for each in chosen.call_args_list)
    assert "--device=cpu" in overrides


def test_it_needs_hours(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="needs the hours"):
        budget_recipe(small_corpus(), tmp_path, [])
    with pytest.raises(BertsmithError, match="budget_recipe"):
        pretrain("budget", small_corpus(), tmp_path / "run")
