"""The memory of a rank: what autograd really keeps, and how the parts answer to settings."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.base.layout import Ints
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.plan import VOCABULARY, gpu_shape
from bertsmith.model.config import BertConfig
from bertsmith.model.dropout import MANY
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.planning.memory import (
    HALF,
    IN_BITS,
    WHOLE,
    Held,
    kept_bytes,
    kept_on_cpu,
    largest,
    mask_bytes,
    memory,
)
from bertsmith.training.planning.model_size import parameters
from bertsmith.training.planning.work import Batch, Cut
from bertsmith.training.pretraining.inputs import to_inputs

CONFIG = BertConfig(vocab_size=99, hidden_size=128, num_hidden_layers=4, num_attention_heads=2, intermediate_size=512)
HELD = Held(CONFIG, parameters(CONFIG), half=True, on_cpu=True, base=1e8)
CUT = Cut(4, Batch(4096, 4096 * 100.0, 600, 41))


def cut_of(tokens: int) -> Cut:
    """Of sequences of 100 tokens."""
    return Cut(4, Batch(tokens, tokens * 100.0, tokens * 0.15, tokens / 100))


def kept_by_autograd(model: PretrainingModel, inputs) -> float:
    """Bytes that a forward pass keeps, without parameters and copies of them."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape[0] not in (CONFIG.vocab_size, *(each.shape[0] for each in model.parameters())):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        held = model.losses(inputs)
    assert held
    return float(sum(storages.values()))


def kept_and_counted(config: BertConfig, compute: torch.dtype | None, lengths: Ints) -> tuple[float, float]:
    """Bytes of a layer, as autograd keeps them and as they are counted."""
    inputs = to_inputs(pretrain_batch(lengths, config.vocab_size), torch.device("cpu"))
    one, four = (
        kept_by_autograd(PretrainingModel(replace(config, num_hidden_layers=layers), compute), inputs)
        for layers in (1, 4)
    )
    filled = inputs.packed.layout.lengths.astype(float)
    batch = Batch(filled.sum(), (filled**2).sum(), 0, len(filled))
    held = replace(HELD, config=config, half=compute is not None)
    return (four - one) / 3, kept_on_cpu(held, batch)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("compute", [torch.bfloat16, None])
@pytest.mark.parametrize("longest", [128, 512])
def test_a_layer_keeps_what_is_counted(compute: torch.dtype | None, longest: int) -> None:
    kept, expected = kept_and_counted(CONFIG, compute, lengths_of("wikipedia", 8 * 512 // longest, longest))
    assert kept == pytest.approx(expected, rel=0.06)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("short", [1, 3])
def test_probabilities_are_kept_where_sequences_are_short_in_the_mean(short: int) -> None:
    """By the lengths' own mean, whatever that of tokens: most of these are in long sequences."""
    config = replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    kept, expected = kept_and_counted(config, None, np.array([480, 480, *[64] * short]))
    assert kept == pytest.approx(expected, rel=0.06)


def test_memory_of_a_gpu_is_that_of_our_runs_on_one(repository: Path) -> None:
    """As PyTorch counts it, which is without CUDA's context and libraries."""
    stored = json.loads((repository / "benchmarks" / "results" / "nvidia-h200.json").read_text(encoding="utf-8"))
    found = {row["case"]: row.get("ours_memory_bytes") for row in stored["rows"]}
    config = BertConfig(**gpu_shape("large", -(-VOCABULARY // 64) * 64))
    held = Held(config, parameters(config), half=True, on_cpu=False, lamb=False, compiled=True)
    lines = []
    kinds = (("full", "full"), ("wikipedia", "with Wikipedia's lengths"))
    for (count, length), (kind, label) in itertools.product(((256, 128), (64, 512)), kinds):
        lengths = lengths_of(kind, count, length).astype(float)
        batch = Batch(lengths.sum(), (lengths**2).sum(), 0.15 * lengths.sum(), count)
        planned = sum(memory(held, Cut(1, batch)).values())
        taken = found[f"large, {count} {label} at {length}: bf16, AdamW, compiled, dropout 0.1, of attention 0"]
        assert planned == pytest.approx(taken, rel=0.05)
        error = f"{planned / taken - 1:+.1%}"
        lines.append(f"| {count} {label} at {length} | {planned / 1e9:.1f} GB | {taken / 1e9:.1f} GB | {error} |")
    assert "\n".join(lines) in (repository / "docs" / "plan.md").read_text(encoding="utf-8")


def test_a_compiled_step_keeps_what_its_graphs_do(repository: Path) -> None:
    """Their forward passes, which keep scores of masked words and copies for products beside what layers keep."""
    assert IN_BITS == MANY
    stored = json.loads((repository / "benchmarks" / "results" / "gpu-expected.json").read_text(encoding="utf-8"))
    rows = [row for row in stored["rows"] if row["graph"] == "losses forward" and row["model"] in ("base", "large")]
    for row in rows:
        config, tokens = BertConfig(**gpu_shape(row["model"], -(-VOCABULARY // 64) * 64)), row["tokens"]
        size = parameters(config)
        held = Held(config, size, half=True, on_cpu=False, compiled=True)
        layers = config.num_hidden_layers * kept_bytes(config, tokens, True, mask_bytes(held, tokens))
        embeddings = 2 * WHOLE * tokens * config.hidden_size
        copies = HALF * (size.layers + size.heads + size.words)
        scores = HALF * row["masked"] * config.vocab_size
        assert layers + embeddings + copies + scores == pytest.approx(row["kept"], rel=0.005), row["case"]
    small = [row for row in rows if row["tokens"] * row["hidden"] < IN_BITS]
    assert 0 < len(small) < len(rows), "those with few places keep bytes"


@pytest.mark.parametrize(("compiled", "dropout", "found"), [(True, 0.1, 1 / 8), (False, 0.1, 1), (True, 0.0, 0)])
def test_a_mask_of_dropout_takes_bits_in_compiled_steps_alone(compiled: bool, dropout: float, found: float) -> None:
    held = replace(HELD, config=replace(CONFIG, hidden_dropout_prob=dropout), on_cpu=False, compiled=compiled)
    many = IN_BITS // CONFIG.hidden_size
    assert mask_bytes(held, many) == found
    assert mask_bytes(held, many - 1) == (1 if dropout else 0)


@given(st.integers(128, 65_536), st.integers(1, 64))
def test_more_tokens_need_more(tokens: int, more: int) -> None:
    def needed(count: int) -> float:
        return sum(memory(HELD, cut_of(count)).values())

    assert needed(tokens + more) > needed(tokens)


def test_the_largest_micro_batch_fits_and_the_next_does_not() -> None:
    room = 1e9
    found = largest(HELD, cut_of, room, 1 << 20)
    assert found % 128 == 0
    assert sum(memory(HELD, cut_of(found)).values()) <= room < sum(memory(HELD, cut_of(found + 128)).values())
    assert largest(HELD, cut_of, 1e6, 1 << 20) == 0
    assert largest(HELD, cut_of, 1e15, 1024) == 1024


def test_a_micro_batch_that_fits_since_it_keeps_masks_in_bits_is_found() -> None:
    """The one before it needs more."""
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    held = Held(config, parameters(config), half=True, on_cpu=False, compiled=True)

    first = IN_BITS // config.hidden_size
    room, before = (sum(memory(held, cut_of(tokens)).values()) for tokens in (first, first - 128))
    assert room < before
    assert {largest(held, cut_of, each, most) for each in (room, before) for most in range(first, 1 << 14, 128)} == {
        first
    }
    assert largest(held, cut_of, room - 1, 1 << 16) == first - 256
    assert largest(held, cut_of, room, first - 1) == first - 256


def test_shards_save_memory_and_on_a_cpu_so_does_an_update_without_directions() -> None:
    def needed(on_cpu: bool, **changes: bool | int) -> float:
        return sum(memory(replace(HELD, half=False, on_cpu=on_cpu, **changes), CUT).values())

    assert needed(False, sharded=True, ranks=4) < needed(False)
    assert needed(True, lamb=False) < needed(True, lamb=True)
    assert needed(False, lamb=False) == needed(False, lamb=True), "its kernels make the direction again"


@pytest.mark.parametrize("saving", [{"checkpointing": True}, {"half": True}])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_settings_that_save_activations(saving: dict[str, bool], on_cpu: bool) -> None:
    wide = replace(HELD, half=False, on_cpu=on_cpu)
    assert memory(replace(wide, **saving), CUT)["activations"] < 0.7 * memory(wide, CUT)["activations"]


def test_gradients_of_the_only_micro_batch_take_the_place_of_what_it_kept() -> None:
    """But on a CPU, whose freed memory is in pieces of other sizes."""
    for on_cpu in (False, True):
        held = replace(HELD, on_cpu=on_cpu)
        many, one = memory(held, CUT), memory(held, replace(CUT, micro_batches=1))
        less = 0.0 if on_cpu else many["gradients, fp32"]
        assert sum(many.values()) - sum(one.values()) == pytest.approx(less)


def test_the_first_rank_of_a_cpu_holds_a_whole_copy_for_saves() -> None:
    """Of what a save writes: weights and both moments, in fp32."""
    for sharded in (False, True):
        held = replace(HELD, ranks=2, sharded=sharded)
        assert memory(held, CUT)["copy for saves, first rank"] == 3 * 4 * HELD.size.total
    assert memory(replace(HELD, on_cpu=False), CUT)["copy for saves, first rank"] == 0
