"""How many tokens go through the model at once: what a GPU takes would keep a CPU busy for minutes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.device import Device, choose_device
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import step_flop
from bertsmith.training import run
from bertsmith.training.pretrain import pretrain
from bertsmith.training.run import micro_batch_tokens
from made_runs import corpus, small_recipe

BASE = BertConfig(vocab_size=30522)
TINY = BertConfig(vocab_size=512, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
CPU = choose_device("cpu", "fp32")


def test_of_bert_base_a_cpu_takes_4096_and_a_gpu_what_was_asked_for(said: pytest.LogCaptureFixture) -> None:
    assert micro_batch_tokens(32768, BASE, 512, CPU) == 4096
    assert "4,096 tokens, not 32,768" in said.text
    gpu = Device(torch.device("cuda"), torch.bfloat16)
    assert micro_batch_tokens(32768, BASE, 512, gpu) == 32768
    assert micro_batch_tokens(32768, TINY, 512, CPU) == 32768
    assert micro_batch_tokens(1024, BASE, 512, CPU) == 1024
    assert said.text.count("micro-batches:") == 1, "what stays as asked for is not said"


@given(st.integers(512, 10**6), st.integers(1, 200), st.integers(4, 512))
def test_a_sequence_always_fits_and_nothing_is_larger_than_asked_for(asked: int, layers: int, longest: int) -> None:
    config = BertConfig(vocab_size=30522, num_hidden_layers=layers)
    most = micro_batch_tokens(asked, config, longest, CPU)
    assert longest <= most <= asked
    assert most == longest or step_flop(config, most, most * longest) <= run._CPU_MICRO_BATCH_FLOP


def test_a_run_takes_its_steps_in_as_many_micro_batches_and_notes_it(tmp_path, monkeypatch) -> None:
    recipe = small_recipe(micro_batch_tokens=4096, phase2__steps=0)
    whole = pretrain(recipe, corpus(), tmp_path / "whole")
    monkeypatch.setattr(run, "_CPU_MICRO_BATCH_FLOP", 1e6)
    cut = pretrain(recipe, corpus(), tmp_path / "cut")
    noted = [(each.folder / "run.json").read_text(encoding="utf-8") for each in (whole, cut)]
    assert '"micro_batch_tokens": "4096"' in noted[0]
    assert '"micro_batch_tokens": "64"' in noted[1]
    losses = [[record["loss"] for record in each.metrics("train")] for each in (whole, cut)]
    assert losses[0] != losses[1], "dropout is drawn anew for each micro-batch"
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert "micro_batch_tokens: 4096" in (cut.folder / "recipe.yaml").read_text(encoding="utf-8")
