"""bf16: how far we are from fp32 transformers, and how far transformers in bf16 is, in the better of its two ways."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch

from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import load
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.weights.huggingface import load_pretraining_model
from made_kernels import kernels_unused
from made_models import drawn_inputs, small_config, twin
from made_parity import WITHOUT_GRADIENT, Results, drawn_like_bert, ours_on, theirs_on

pytest.importorskip("transformers")

MOST = 1.5
# The loss of a batch is one number, which may be right by chance: its parts stand for it, a pair's with its logits.
MEASURED = ("hidden", "pooled", "masked", "pairs", "word_losses")


def kind_of(name: str) -> str:
    """The parameter without the number of its layer. The two numbers of a pair's bias alone are left to chance, so they
    go with its weight."""
    return re.sub(r"\d+", "*", name).replace("seq_relationship.bias", "seq_relationship.weight")


def errors(found: Results, exact: Results) -> dict[str, float]:
    """Norms of the differences: of each output, and of the gradients of each kind of parameter, over all layers."""
    squares: dict[str, float] = defaultdict(float)
    for name in MEASURED:
        squares[name] = float((getattr(found, name).detach().float() - getattr(exact, name).detach()).square().sum())
    for name, wanted in exact.gradients.items():
        if not name.endswith(WITHOUT_GRADIENT):
            square = float((found.gradients[name].float() - wanted).square().sum())
            squares["gradient of " + kind_of(name)] += square
            squares["gradient"] += square
    return {name: square**0.5 for name, square in squares.items()}


# Theirs are padded, and their products take minutes without bf16 instructions: the short stand by themselves.
REAL = [[17, 48, 1, 33], [6] * 20, [40, 30, 20, 10, 128], [64] * 4, [5] * 40]


def check_against_transformers(model: PretrainingModel, batches: list[list[int]]) -> None:
    """Errors are added up over batches: the gradient of a LayerNorm has few numbers, whose errors in one are chance.

    Ours are those of PyTorch's operators, and of the C++ kernels where they can be compiled.
    """
    theirs = twin(model, attention="sdpa").eval()
    rounded = copy.deepcopy(theirs).bfloat16()
    narrow = copy.deepcopy(model).eval()
    narrow.encoder.compute = torch.bfloat16
    ways = ["operators", "kernels"] if load() else ["operators"]
    ours: dict[str, dict[str, float]] = {way: defaultdict(float) for way in ways}
    of_theirs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for seed, lengths in enumerate(batches):
        batch = drawn_inputs(model.config, lengths, seed)
        exact = theirs_on(theirs, batch)
        for side, results in enumerate((theirs_on(theirs, batch, autocast=True), theirs_on(rounded, batch))):
            for name, error in errors(results, exact).items():
                of_theirs[name][side] += error**2
        gradient = torch.stack([each.norm() for each in exact.gradients.values()]).norm()
        for way in ways:
            with kernels_unused() if way == "operators" else nullcontext():
                found = errors(ours_on(narrow, batch), exact)
            assert found["gradient"] > 0.001 * gradient
            for name, error in found.items():
                ours[way][name] += error**2
    assert len({squares["hidden"] for squares in ours.values()}) == len(ways), "they round differently"
    for way in ways:
        ratios = {name: (square / min(of_theirs[name])) ** 0.5 for name, square in ours[way].items()}
        too_far = {name: ratio for name, ratio in ratios.items() if ratio > MOST}
        assert not too_far, (way, too_far)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a processor without bf16 instructions
def test_a_real_encoder(real_data) -> None:
    check_against_transformers(load_pretraining_model(real_data("weights/all-MiniLM-L6-v2")), REAL)


def test_the_shape_of_bert_base() -> None:
    model = drawn_like_bert(BertConfig(num_hidden_layers=2, vocab_size=5000))
    check_against_transformers(model, [[17, 33, 1], [6] * 20, [9, 30]])


def test_many_layers() -> None:
    config = small_config(
        hidden_size=128, num_attention_heads=2, intermediate_size=512, num_hidden_layers=12, vocab_size=1000,
        max_position_embeddings=128, initializer_range=0.05,
    )  # fmt: skip
    check_against_transformers(drawn_like_bert(config), [[128, 100, 90, 64, 64], [33, 17, 1], [6] * 20, [64, 50, 80]])
