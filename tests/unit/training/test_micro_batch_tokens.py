"""How many tokens go through the model at once: what a GPU takes would keep a CPU busy for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.device import Device, choose_device
from bertsmith.base.processor import Processor
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import step_flop
from bertsmith.training import run
from bertsmith.training.pretrain import pretrain
from bertsmith.training.run import micro_batch_tokens
from made_runs import corpus, ran_by_ranks, small_recipe, stopped_after

BASE = BertConfig(vocab_size=30522)
TINY = BertConfig(vocab_size=512, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
CPU = choose_device("cpu", "fp32")


@pytest.fixture(autouse=True)
def avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AVX-512."""
    monkeypatch.setattr(run, "this_processor", lambda: Processor("Linux", features=frozenset({"avx512"})))


def test_without_avx512_a_thread_takes_half_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "this_processor", lambda: Processor("Linux"))
    assert [micro_batch_tokens(32768, BASE, 128, CPU, threads) for threads in (1, 2, 8)] == [512, 1024, 4096]


def test_of_bert_base_a_thread_takes_1024_and_a_gpu_what_was_asked_for(said: pytest.LogCaptureFixture) -> None:
    assert micro_batch_tokens(32768, BASE, 512, CPU, threads=1) == 1024
    assert "1,024 tokens, not 32,768 (on 1 thread of a CPU larger ones" in said.text
    assert [micro_batch_tokens(32768, BASE, 512, CPU, threads) for threads in (2, 4, 8)] == [2048, 4096, 8192]
    gpu = Device(torch.device("cuda"), torch.bfloat16)
    said.clear()
    assert micro_batch_tokens(32768, BASE, 512, gpu) == 32768
    assert micro_batch_tokens(32768, TINY, 512, CPU) == 32768
    assert micro_batch_tokens(1024, BASE, 512, CPU) == 1024
    assert "micro-batches:" not in said.text, "what stays as asked for is not said"


@given(st.integers(512, 10**6), st.integers(1, 200), st.integers(4, 512), st.integers(1, 64))
def test_a_sequence_always_fits_and_nothing_is_larger_than_asked_for(
    asked: int, layers: int, longest: int, threads: int
) -> None:
    config = BertConfig(vocab_size=30522, num_hidden_layers=layers)
    most = micro_batch_tokens(asked, config, longest, CPU, threads)
    assert longest <= most <= asked
    assert most == longest or step_flop(config, most, most * longest) <= threads * run._FLOP_OF_A_THREAD


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    del made
    torch.set_num_threads(3 - rank)
    run.this_processor = lambda: Processor("Linux", features=frozenset({"avx512"} if rank else ()))
    (folder / f"found-{rank}").write_text(str(micro_batch_tokens(32768, BASE, 512, CPU)), encoding="utf-8")


def test_all_ranks_have_that_of_the_slowest(tmp_path: Path) -> None:
    ran_by_ranks(work_of_a_rank, 2, tmp_path)
    assert [(tmp_path / f"found-{rank}").read_text(encoding="utf-8") for rank in (0, 1)] == ["1536", "1536"]


def test_a_run_takes_its_steps_in_as_many_micro_batches_and_notes_it(tmp_path, monkeypatch) -> None:
    recipe = small_recipe(micro_batch_tokens=4096, phase2__steps=0)
    whole = pretrain(recipe, corpus(), tmp_path / "whole")
    monkeypatch.setattr(run, "_FLOP_OF_A_THREAD", 1e6)
    cut = pretrain(recipe, corpus(), tmp_path / "cut")
    noted = [(each.folder / "run.json").read_text(encoding="utf-8") for each in (whole, cut)]
    assert '"micro_batch_tokens": "4096"' in noted[0]
    assert '"micro_batch_tokens": "64"' in noted[1]
    losses = [[record["loss"] for record in each.metrics("train")] for each in (whole, cut)]
    assert losses[0] != losses[1], "dropout is drawn anew for each micro-batch"
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert "micro_batch_tokens: 4096" in (cut.folder / "recipe.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("asked", [512, "auto"])
def test_a_run_that_was_cut_into_larger_ones_is_resumed_in_smaller_ones_and_told_so(
    asked: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """As by an earlier version, or on more threads; a signal would wait for the larger ones too."""
    recipe = small_recipe(micro_batch_tokens=asked, phase2__steps=0)
    stopped_after(2, monkeypatch, recipe, tmp_path / "run")
    monkeypatch.setattr(run, "_FLOP_OF_A_THREAD", 1e6)
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert "resumed with its steps cut up otherwise (micro_batch_tokens was 512 and is 64)" in said.text
    assert '"micro_batch_tokens": "512, 64"' in (resumed.folder / "run.json").read_text(encoding="utf-8")
    sequences = [each["sequences"] / each["steps"] for each in resumed.metrics("train")]
    assert sequences == [recipe.phase1.global_batch] * len(sequences), "the batch is kept, however it is cut"
