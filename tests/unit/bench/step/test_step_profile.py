"""Operators fall into the group that a reader would put them in, and hardly any into none."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent, Interval

from bertsmith.base.device import Device, choose_device
from bertsmith.bench.child import CannotHere
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.ours import OurSteps
from bertsmith.bench.step.plan import shape
from bertsmith.bench.step.profile import (
    HEAD,
    IDLE,
    PYTHON,
    REST,
    group_of,
    kernel_group_of,
    profile_kernels,
    profile_steps,
)
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


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopB_NNT", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", "matrix products"),
        ("backward_of_keys", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits>", "attention"),
        ("triton_per_fused__to_copy_add_native_dropout_native_layer_norm_2", "dropout with sum and LayerNorm"),
        ("triton_per_fused__to_copy_add_mul_rsqrt_sub_var_mean_where_6", "dropout with sum and LayerNorm"),
        ("add_normalised_backward", "dropout with sum and LayerNorm"),
        ("kept_bits", "dropout with sum and LayerNorm"),
        ("triton_poi_fused_gelu_gelu_backward_5", "GELU"),
        ("triton_poi_fused__to_copy_add_mul_sigmoid_9", "GELU"),
        ("gelu_backward", "GELU"),
        ("triton_red_fused_sum_4", "casts of weights, sums of gradients"),
        ("triton_red_fused__log_softmax_nll_loss_forward_1", HEAD),
        ("moments", "optimizer"),
        ("Memcpy HtoD (Pinned -> Device)", "casts of weights, sums of gradients"),
        ("void at::native::embedding_backward_kernel", "embeddings"),
        ("unheard_of", REST),
    ],
)
def test_a_kernel_has_its_group(name, group):
    assert kernel_group_of(name) == group


@pytest.fixture
def finding(monkeypatch):
    """Has the profiler find these events in 100 microseconds of wall time."""

    def finding(*events):
        profiler = SimpleNamespace(events=lambda: events)
        monkeypatch.setattr("bertsmith.bench.step.profile.profile", lambda **_: nullcontext(profiler))
        clock = SimpleNamespace(perf_counter=iter([7.0, 7.0001]).__next__)
        monkeypatch.setattr("bertsmith.bench.step.profile.time", clock)
        monkeypatch.setattr("bertsmith.bench.step.profile.wait", lambda device: None)

    return finding


@pytest.fixture
def profiled(finding):
    """`profile_kernels` of events, each (name, device, its first and last microsecond)."""

    def profiled(*events):
        finding(
            *(
                SimpleNamespace(name=name, device_type=kind, time_range=Interval(start, end))
                for name, kind, start, end in events
            )
        )
        return profile_kernels(lambda: None, choose_device("cpu", "fp32"))

    return profiled


def test_kernels_are_counted_and_the_gpu_is_idle_between_them(profiled):
    cpu, gpu = DeviceType.CPU, DeviceType.CUDA
    found = profiled(
        ("aten::mm", cpu, 0, 99), ("moments", gpu, 85, 90), ("forward", gpu, 30, 60), ("forward", gpu, 70, 80)
    )
    assert found["seconds"] == pytest.approx(6e-5)
    assert found["outside"] == pytest.approx(4e-5)  # before the first kernel, which is no waiting of a step
    assert found["groups"] == pytest.approx({"attention": 4e-5, "optimizer": 5e-6, IDLE: 1.5e-5})
    names, launches, seconds = zip(*found["longest"], strict=True)
    assert (names, launches, seconds) == (("forward", "moments"), (2, 1), pytest.approx((4e-5, 5e-6)))


def event(name, start, end, on=DeviceType.CPU, **more):
    known = {"id": 0, "thread": 0, "use_device": "cuda", "input_shapes": [], "device_type": on}
    return FunctionEvent(name=name, start_us=start, end_us=end, **known, **more)


def test_each_kernel_of_an_uncompiled_step_is_counted_once_for_what_launched_it(finding):
    """PyTorch tells of a kernel twice, where an operator launched it, and of what a user has named on the GPU too."""
    outer, operator, gpu = event("aten::linear", 0, 9), event("aten::addmm", 1, 8), DeviceType.CUDA
    operator.append_kernel("nvjet", 0, 40)
    operator.append_kernel("split", 0, 5)
    outer.append_cpu_child(operator)
    operator.set_cpu_parent(outer)
    kernels = event("nvjet", 20, 60, gpu), event("split", 60, 65, gpu), event("moments", 70, 90, gpu)
    finding(outer, operator, *kernels, event("Optimizer.step#Lamb.step", 70, 90, gpu, is_user_annotation=True))
    found = profile_steps(lambda: None, 1100, Device(torch.device("cuda"), torch.bfloat16))
    assert found["groups"] == pytest.approx({"matrix products": 45e-6, "optimizer": 20e-6})


def test_a_profile_without_kernels_is_none(profiled):
    with pytest.raises(CannotHere, match="saw no kernel"):
        profiled(("aten::mm", DeviceType.CPU, 0, 99))


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
