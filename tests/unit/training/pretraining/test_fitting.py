"""How many tokens of a micro-batch are found to fit, and that a run keeps them."""

from __future__ import annotations

import json
import resource
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.recipes.loader import load_recipe
from bertsmith.training import work
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining import fitting
from bertsmith.training.pretraining.fitting import fitting_tokens, largest
from bertsmith.training.pretraining.objective import Pretraining
from made_commands import Command
from made_runs import corpus, figures, small_recipe, stopped_after


def fit(memory: int | None) -> None:
    """Prints what fits a process, with so many bytes above what it holds already, or all."""
    torch.set_num_threads(1)  # others may not get the memory for their stacks
    config = BertConfig(
        vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256
    )
    objective = Pretraining(PretrainingModel(config).train(), torch.device("cpu"))
    assert fitting_tokens(objective, 128, 0.15, 128) == 128, "and what a step loads is there"
    if memory is not None:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory, resource.RLIM_INFINITY))
    print(fitting_tokens(objective, 128, 0.15, 8192))


@given(st.integers(1, 40), st.integers(0, 4000), st.integers(0, 5000))
def test_what_is_found_fits_and_not_much_more_would(least: int, more: int, edge: int) -> None:
    least, most, edge = 128 * least, 128 * (least + more), 128 * edge
    tried: list[int] = []

    def fits(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= edge

    if edge < least:
        with pytest.raises(BertsmithError, match="not even one sequence"):
            largest(fits, least, most)
        return
    found = largest(fits, least, most)
    assert least <= found <= min(most, edge)
    assert found % 128 == 0
    assert found == most or min(most, edge) - found <= max(128, found // 8)
    assert len(tried) <= 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc here")
def test_where_memory_is_short_fewer_tokens_fit() -> None:
    fits = []
    for memory in (None, 50_000_000):
        with Command(does=partial(fit, memory)) as process:
            out, err = process.communicate()
        assert process.poll() == 0, err
        fits.append(int(out))
    most, found = fits
    assert most == 8192
    assert 128 <= found < most


def test_what_is_tried_leaves_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    shape = BertConfig(vocab_size=64, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16)
    with torch.random.fork_rng([]):
        objective = Pretraining(PretrainingModel(shape), torch.device("cpu"))
    assert fitting_tokens(objective, 128, 0.15, 128) == 128
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_that_is_not_of_memory_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("another fault")

    monkeypatch.setattr(fitting, "mean_loss", broken)
    with pytest.raises(RuntimeError, match="another fault"):
        pretrain(small_recipe(micro_batch_tokens="auto"), corpus(), tmp_path / "run")


@pytest.mark.parametrize(
    "said", ["could not create a primitive", "CUDA out of memory. Tried to allocate 2.00 GiB\nmore"]
)
def test_where_nothing_fits_the_reason_is_said(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def short_of_memory(*_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(fitting, "mean_loss", short_of_memory)
    with caplog.at_level("INFO"), pytest.raises(BertsmithError, match="not even one sequence of 128 tokens fits"):
        pretrain(small_recipe(micro_batch_tokens="auto"), corpus(), tmp_path / "run")
    assert f"128 tokens do not fit: {said.splitlines()[0]}" in caplog.messages[-1]


def test_a_run_notes_what_it_found_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe(micro_batch_tokens="auto", phase2__steps=0)
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    stopped_after(2, monkeypatch, recipe, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "anew", ignore=shutil.ignore_patterns("step-*"))

    def noted(folder: Path) -> str:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))["begun_on"]["micro_batch_tokens"]

    assert noted(tmp_path / "run") == "512", "8 sequences of 64 tokens are a whole step"
    assert load_recipe(tmp_path / "run" / "recipe.yaml").micro_batch_tokens == "auto"
    monkeypatch.setattr(fitting, "largest", lambda *_: pytest.fail("it is looked for once a run"))
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    monkeypatch.setattr(fitting, "largest", lambda *_: 128)
    pretrain(recipe, corpus(), tmp_path / "anew", resume=True)
    assert noted(tmp_path / "anew") == "128", "of a run without a checkpoint, which may be on another device"


def test_of_several_that_a_run_has_had_the_last_is_kept() -> None:
    recipe, device = small_recipe(micro_batch_tokens="auto"), choose_device("cpu", "fp32")
    model = work.model_of(work.work_of(recipe, corpus(), None), device)
    assert work.tokens_of_run(recipe, {"micro_batch_tokens": "256, 384"}, model, None, device) == 384


def test_several_ranks_with_shards_of_the_weights_do_not_look_for_it(tmp_path: Path, monkeypatch: Any) -> None:
    recipe = small_recipe(micro_batch_tokens="auto", parallel="shard")
    with monkeypatch.context() as patch:
        patch.setattr(work.ranks, "world_size", lambda: 2)
        device = choose_device("cpu", "fp32")
        model = work.model_of(work.work_of(recipe, corpus(), None), device)
        with pytest.raises(BertsmithError, match="before weights are shared out"):
            work.tokens_of_run(recipe, {}, model, None, device)
    assert pretrain(recipe, corpus(), tmp_path / "run").is_finished(), "one rank has all of them"


def test_it_is_looked_for_by_the_step_that_hides_the_most_and_up_to_a_ranks_share_of_one(monkeypatch: Any) -> None:
    tried: list[tuple[float, int]] = []
    monkeypatch.setattr(work, "fitting_tokens", lambda _, longest, share, most: tried.append((share, most)) or most)
    device = choose_device("cpu", "fp32")
    for ranks, final in ((1, 0.0), (2, 0.4)):
        monkeypatch.setattr(work, "ranks", SimpleNamespace(world_size=lambda ranks=ranks: ranks))
        recipe = small_recipe(micro_batch_tokens="auto", masking__final_rate=final)
        work.tokens_of_run(recipe, {}, work.model_of(work.work_of(recipe, corpus(), None), device), None, device)
    assert tried == [(0.15, 8 * 64), (0.4, 4 * 64)]


def test_it_is_a_whole_number_or_auto() -> None:
    with pytest.raises(BertsmithError, match="use a whole number, or auto"):
        load_recipe("bert-tiny", ["--micro_batch_tokens=many"])
    assert load_recipe("bert-tiny", ["--micro_batch_tokens=4096"]).micro_batch_tokens == 4096
