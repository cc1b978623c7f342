"""LAMB against a float64 oracle written from the formulas, and what surrounds the update."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.optim.adamw import AdamW
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.norms import tensor_norms

BETAS, EPSILON, DECAY = (0.8, 0.99), 1e-5, 0.01
SHAPES = {"decayed": [(7, 5), (3, 4), (2, 2)], "plain": [(5,), (4,), (2,)]}


def oracle(weights, gradients_of_steps, rates, *, limit, trust_ratio, decays, corrected=True):
    """The update of PARITY's code section in float64 numpy, tensor by tensor."""
    w = [each.astype(np.float64) for each in weights]
    m, v = [np.zeros_like(each) for each in w], [np.zeros_like(each) for each in w]
    for t, (gradients, rate) in enumerate(zip(gradients_of_steps, rates, strict=True), start=1):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
        divisor = norm / limit if limit and norm > limit else 1.0
        for i, gradient in enumerate(gradients):
            g = gradient.astype(np.float64) / divisor
            m[i] = BETAS[0] * m[i] + (1 - BETAS[0]) * g
            v[i] = BETAS[1] * v[i] + (1 - BETAS[1]) * g**2
            correction = [1 - beta**t if corrected else 1.0 for beta in BETAS]
            u = (m[i] / correction[0]) / (np.sqrt(v[i] / correction[1]) + EPSILON) + decays[i] * w[i]
            size_w, size_u = np.sqrt((w[i] ** 2).sum()), np.sqrt((u**2).sum())
            applies = trust_ratio == "all" or (trust_ratio == "decayed" and decays[i] != 0)
            ratio = size_w / size_u if applies and size_w > 0 and size_u > 0 else 1.0
            w[i] = w[i] - rate * ratio * u
    return w


def random_tensors(generator, zero=(2, -1)):
    """The tensors of both groups; one weight and one vector are zero, as a fresh bias is."""
    shapes = SHAPES["decayed"] + SHAPES["plain"]
    tensors = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    for number in zero:
        tensors[number][:] = 0
    return tensors


def parameters_of(weights):
    parameters = [torch.nn.Parameter(torch.from_numpy(each.copy())) for each in weights]
    count = len(SHAPES["decayed"])
    groups = [
        {"params": parameters[:count], "weight_decay": DECAY},
        {"params": parameters[count:], "weight_decay": 0.0},
    ]
    return parameters, groups


def run(optimizer, parameters, gradients_of_steps, rates):
    for gradients, rate in zip(gradients_of_steps, rates, strict=True):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.set_learning_rate(rate)
        optimizer.step()


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-4, 1.0, 1e3]),
    limit=st.sampled_from([0.0, 0.5, 1.0, 1e6]),
    trust_ratio=st.sampled_from(["decayed", "all", "none"]),
    corrected=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_follows_the_oracle(seed, scale, limit, trust_ratio, corrected):
    generator = np.random.default_rng(seed)
    weights = random_tensors(generator)
    # Of tensors that are not zero themselves, so that each norm of a ratio is zero alone.
    gradients = [[scale * each for each in random_tensors(generator, zero=(1, -2))] for _ in range(4)]
    rates = [1e-3, 6e-3, 4e-3, 1e-2]
    parameters, groups = parameters_of(weights)
    options = {"betas": BETAS, "epsilon": EPSILON, "max_gradient_norm": limit, "bias_correction": corrected}
    optimizer = Lamb(groups, trust_ratio=trust_ratio, **options)
    run(optimizer, parameters, gradients, rates)
    decays = [DECAY] * 3 + [0.0] * 3
    expected = oracle(
        weights, gradients, rates, limit=limit, trust_ratio=trust_ratio, decays=decays, corrected=corrected
    )
    for ours, theirs in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=2e-5, atol=2e-6)


def test_trust_ratio_matters():
    generator = np.random.default_rng(0)
    weights, gradients = random_tensors(generator), [random_tensors(generator)]
    results = {}
    for trust_ratio in ("decayed", "all", "none"):
        parameters, groups = parameters_of(weights)
        run(Lamb(groups, trust_ratio=trust_ratio), parameters, gradients, [1e-2])
        results[trust_ratio] = [each.detach().numpy() for each in parameters]
    assert not np.allclose(results["decayed"][0], results["none"][0])  # a weight, scaled
    assert np.array_equal(results["decayed"][3], results["none"][3])  # a bias, not scaled
    assert not np.allclose(results["all"][3], results["none"][3])


def test_zero_gradients_decay_only_what_decays():
    weights = random_tensors(np.random.default_rng(1))
    parameters, groups = parameters_of(weights)
    run(Lamb(groups), parameters, [[np.zeros_like(each) for each in weights]], [1e-2])
    # The update is decay * w alone, which the trust ratio scales to the size of w: w shrinks by the rate.
    np.testing.assert_allclose(parameters[0].detach().numpy(), weights[0] * (1 - 1e-2), rtol=1e-5)
    assert np.array_equal(parameters[3].detach().numpy(), weights[3])


@pytest.mark.parametrize("kind", [Lamb, AdamW])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_non_finite_gradient_changes_nothing(kind, bad):
    generator = np.random.default_rng(2)
    weights = random_tensors(generator)
    clean = [random_tensors(generator) for _ in range(3)]
    poisoned = [each.copy() for each in clean[1]]
    poisoned[3][0] = bad
    parameters, groups = parameters_of(weights)
    optimizer = kind(groups)
    run(optimizer, parameters, [clean[0]], [1e-2])
    assert bool(optimizer.finite)
    before = [each.detach().clone() for each in parameters]
    run(optimizer, parameters, [poisoned], [1e-2])
    assert not bool(optimizer.finite)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    run(optimizer, parameters, [clean[2]], [1e-2])

    untouched, groups = parameters_of(weights)
    run(kind(groups), untouched, [clean[0], clean[2]], [1e-2, 1e-2])
    assert all(torch.equal(a, b) for a, b in zip(untouched, parameters, strict=True))


@pytest.mark.parametrize("kind", [Lamb, AdamW])
def test_a_group_without_gradients_stays_as_it_is(kind):
    weights = random_tensors(np.random.default_rng(3))
    parameters, groups = parameters_of(weights)
    optimizer = kind(groups)
    run(optimizer, parameters[:3], [weights[:3]], [1e-2])
    assert [float(group["step"]) for group in optimizer.param_groups] == [1.0, 0.0]
    assert all(np.array_equal(a.detach().numpy(), b) for a, b in zip(parameters[3:], weights[3:], strict=True))


def test_reset_step_count_keeps_the_moments():
    generator = np.random.default_rng(4)
    weights, gradients = random_tensors(generator), [random_tensors(generator) for _ in range(2)]
    parameters, groups = parameters_of(weights)
    optimizer = Lamb(groups)
    run(optimizer, parameters, gradients, [1e-2, 1e-2])
    moments = [optimizer.state[each]["mean"].clone() for each in parameters]
    optimizer.reset_step_count()
    assert [float(group["step"]) for group in optimizer.param_groups] == [0.0, 0.0]
    assert all(torch.equal(a, optimizer.state[p]["mean"]) for a, p in zip(moments, parameters, strict=True))
    assert all(bool(each.any()) for each in moments[:2])


@pytest.mark.parametrize("kind", [Lamb, AdamW])
def test_every_update_is_counted_as_a_write(kind):
    """The model keeps half-precision copies for as long as a parameter's version stays the same."""
    weights = random_tensors(np.random.default_rng(5))
    parameters, groups = parameters_of(weights)
    versions = [each._version for each in parameters]
    run(kind(groups), parameters, [weights], [1e-2])
    assert all(each._version > before for each, before in zip(parameters, versions, strict=True))


def test_gradient_norm_is_the_norm_before_clipping():
    weights = random_tensors(np.random.default_rng(6))
    parameters, groups = parameters_of(weights)
    optimizer = Lamb(groups, max_gradient_norm=0.1)
    run(optimizer, parameters, [weights], [1e-2])
    expected = np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in weights))
    assert float(optimizer.gradient_norm) == pytest.approx(expected, rel=1e-6)


def test_norms_of_large_tensors_are_right():
    tensor = torch.randn(4000, 768, generator=torch.Generator().manual_seed(0))
    assert float(tensor_norms([tensor])[0]) == pytest.approx(float(tensor.double().norm()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_masters_are_refused(dtype):
    with pytest.raises(ValueError, match="fp32 masters"):
        Lamb([{"params": [torch.nn.Parameter(torch.zeros(2, dtype=dtype))]}])
