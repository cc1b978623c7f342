"""Operators fall into the group that a reader would put them in, and hardly any into none."""

from __future__ import annotations

import pytest

from bertsmith.base.device import choose_device
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.ours import OurSteps
from bertsmith.bench.step.plan import shape
from bertsmith.bench.step.profile import HEAD, PYTHON, REST, group_of, profile_steps
from bertsmith.bench.step.side import StepSide


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["aten::addmm", "aten::linear"], "matrix products"),
        (["aten::mm", "AddmmBackward0", "autograd::engine::evaluate_function: AddmmBackward0"], "matrix products"),
        (["aten::bmm", "_BlockAttention"], "attention: products"),
        (["aten::_softmax", "aten::softmax", "_BlockAttention"], "attention: softmax, gathering"),
        (["aten::bernoulli_", "aten::dropout", "_BlockAttention"], "dropout"),
        (["aten::mul", "MulBackward0"], "dropout"),
        (["aten::_fused_adamw_", "Optimizer.step#AdamW.step"], "optimizer"),
        (["aten::native_layer_norm", "aten::layer_norm"], "LayerNorm, GELU, sums"),
        (["aten::gelu_backward", "GeluBackward0"], "LayerNorm, GELU, sums"),
        (["aten::embedding_dense_backward", "EmbeddingBackward0"], "embeddings"),
        (["aten::copy_", "aten::_to_copy", "aten::to"], "casts of weights, sums of gradients"),
        (["aten::exp_", "_CrossEntropySum"], HEAD),
        (["mkldnn::_linear_pointwise", "_HalfProduct"], "matrix products"),
        (["_ActivatedProductBackward"], "LayerNorm, GELU, sums"),
        (["aten::copy_"], "casts of weights, sums of gradients"),
        (["aten::copy_", "aten::addmm", "_HalfProduct"], "matrix products"),
        (["aten::unheard_of"], REST),
    ],
)
def test_an_operator_has_its_group(names, group):
    assert group_of(names, has_vocabulary=False) == group


def test_a_product_with_the_vocabulary_is_the_heads():
    assert group_of(["aten::mm", "AddmmBackward0"], has_vocabulary=True) == HEAD
    assert group_of(["aten::index_select", "aten::embedding"], has_vocabulary=True) == "embeddings"


def test_a_real_step_is_taken_apart():
    side = StepSide(model=shape("tiny", 1100))
    step = OurSteps(side, [pretrain_batch(lengths_of("ragged", 8, 128), 1100)])
    found = profile_steps(lambda: step(0), 1100, choose_device("cpu", "bf16"))
    groups = found["groups"]
    wanted = {"matrix products", "attention: products", "dropout", "optimizer", "embeddings", HEAD, PYTHON}
    assert wanted <= set(groups)
    assert all(seconds >= 0 for seconds in groups.values())
    assert sum(groups.values()) == pytest.approx(found["seconds"], rel=0.01)
    assert groups[REST] < 0.2 * found["seconds"]
