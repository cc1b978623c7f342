"""Where the time of a step goes: the self time of every operator, in groups named after the parts of BERT.

An operator belongs to the first group of `GROUPS` whose pattern is found in its own name and those that it was called
from, innermost first: "aten::bmm < _BlockAttention". In a compiled step, which has no such callers, a GPU's kernel
belongs to the first group of `KERNELS` whose pattern is found in its name; the compiler names its own after what it
fused.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bertsmith.base.device import Device
from bertsmith.bench.child import CannotHere
from bertsmith.bench.step.matrix_rate import wait
from bertsmith.model.cpu.allocator import touch_memory

PRODUCT = (
    r"^(aten::copy_ < )?(aten::(mm|addmm|bmm|baddbmm|_addmm_activation|mkldnn_linear|_mkldnn_linear\w*)"
    r"|mkldnn::\w+)\b"
)
_ATTENTION = r"[Aa]ttention|varlen|softmax|Softmax"
CASTS = "casts of weights, sums of gradients"
HEAD, PYTHON, REST = "head and loss", "Python, between operators", "rest"
GROUPS: tuple[tuple[str, str], ...] = (
    ("optimizer", r"Optimizer\."),
    ("embeddings", r"[Ee]mbedding|one_hot"),
    (CASTS, r"_Compute|AccumulateGrad|(^|< )aten::(to|cat)$|^aten::copy_$"),
    (HEAD, r"CrossEntropy|NllLoss|LogSoftmax|nll_loss|log_softmax|\[vocabulary\]"),
    ("dropout with sum and LayerNorm", r"AddNormalised"),
    ("dropout", r"[dD]ropout|Dropped|bernoulli|MulBackward0"),
    ("attention: products", rf"{PRODUCT}.*({_ATTENTION})|flash|scaled_dot_product"),
    ("attention: softmax, gathering", _ATTENTION),
    ("matrix products", PRODUCT),
    (CASTS, r"_HalfProduct"),
    (
        "LayerNorm, GELU, sums",
        r"layer_norm|LayerNorm|gelu|Gelu|tanh|Tanh|_ActivatedProduct|aten::(add|add_|sum|mul)\b|triton_",
    ),
)

IDLE = "the GPU idle"
_LONGEST = 40
_ROUNDING = 1e-3
"""Microseconds that sums of the same times may differ by."""
KERNELS: tuple[tuple[str, str], ...] = (
    ("optimizer", r"^(squares|totals|moments|scaled)$"),
    ("attention", r"flash|fmha|^(forward|backward_of_keys|backward_of_queries)$"),
    ("matrix products", r"nvjet|gemm|cutlass|cublas|splitK"),
    (HEAD, r"^triton_.*(log_softmax|nll_loss|argmax)"),
    ("embeddings", r"^triton_.*(embedding|look_up)|embedding|[sS]ort|[sS]can|unique|thrust"),
    ("dropout with sum and LayerNorm", r"^triton_.*(layer_norm|var_mean)|kept_bits|add_normalised"),
    ("GELU", r"^triton_.*(gelu|tanh|sigmoid|erf)|^gelu_backward$"),
    (CASTS, r"^triton_.*(_to_copy|cat|stack|sum)|^Memcpy|^Memset"),
)


def group_of(names: Sequence[str], has_vocabulary: bool) -> str:
    """The group of an operator. names: its own and its callers', innermost first. has_vocabulary: whether it, or one of
    them, was given a tensor with a side as long as the vocabulary."""
    chain = " < ".join(name.removeprefix("autograd::engine::evaluate_function: ") for name in names)
    chain += " [vocabulary]" * has_vocabulary
    return next((group for group, pattern in GROUPS if re.search(pattern, chain)), REST)


def kernel_group_of(name: str) -> str:
    """The group of a GPU's kernel."""
    return next((group for group, pattern in KERNELS if re.search(pattern, name)), REST)


def profile_kernels(run: Callable[[], None], device: Device) -> dict[str, Any]:
    """The same as `profile_steps` gives, by what runs on a GPU between its first kernel and its last one:
    {"seconds": between them, "outside": seconds of wall time before and after, "groups": {group: seconds}, "longest":
    the kernels that take most, each with its launches and their seconds}. What passes before the first kernel is the
    profiler's own start, too.

    Raises CannotHere where the profiler saw no kernel.
    """
    events, wall = _profiled(run, device, activities=[ProfilerActivity.CUDA])
    kernels = [(each.time_range, each.name) for each in events if each.device_type == DeviceType.CUDA]
    if not kernels:
        raise CannotHere("PyTorch's profiler saw no kernel on the GPU")
    groups: defaultdict[str, float] = defaultdict(float)
    launches: Counter[str] = Counter()
    spent: defaultdict[str, float] = defaultdict(float)
    for span, name in kernels:
        groups[kernel_group_of(name)] += span.elapsed_us() / 1e6
        launches[name] += 1
        spent[name] += span.elapsed_us() / 1e6
    seconds = (max(span.end for span, _ in kernels) - min(span.start for span, _ in kernels)) / 1e6
    groups[IDLE] = max(0.0, seconds - sum(groups.values()))
    longest = [[name, launches[name], spent[name]] for name in nlargest(_LONGEST, spent, spent.__getitem__)]
    return {"seconds": seconds, "outside": max(0.0, wall - seconds), "groups": groups, "longest": longest}


def profile_steps(run: Callable[[], None], vocabulary: int, device: Device) -> dict[str, Any]:
    """Runs `run` once to warm up and once under PyTorch's profiler.

    Returns {"seconds": wall time, "groups": {group: seconds}}. On a GPU the seconds of groups are those of its
    kernels; on a CPU the self time of operators, and the rest of the wall time is Python's.
    """
    activities = [ProfilerActivity.CPU, *([] if device.is_cpu else [ProfilerActivity.CUDA])]
    events, seconds = _profiled(run, device, activities=activities, record_shapes=True)
    groups: defaultdict[str, float] = defaultdict(float)
    # A kernel is an event of the GPU, and stands in that of the operator that launched it, if one did.
    alone: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.device_type != DeviceType.CPU:
            alone[event.name] += 0 if event.is_user_annotation else event.time_range.elapsed_us()
            continue
        for kernel in event.kernels:
            alone[kernel.name] -= kernel.duration
        spent = event.self_cpu_time_total if device.is_cpu else event.self_device_time_total
        if spent > 0:
            groups[group_of(*_callers(event, vocabulary))] += spent / 1e6
    for name, spent in alone.items():
        if spent > _ROUNDING:
            groups[kernel_group_of(name)] += spent / 1e6
    if device.is_cpu:
        groups[PYTHON] = max(0.0, seconds - sum(groups.values()))
    return {"seconds": seconds, "groups": groups}


def _profiled(run: Callable[[], None], device: Device, **how: Any) -> tuple[Sequence[Any], float]:
    """The events of the second of two runs, and its seconds of wall time. how: of PyTorch's profiler."""
    run()
    if device.is_cpu:
        touch_memory()
    wait(device.torch_device)
    with profile(**how) as found:
        start = time.perf_counter()
        run()
        wait(device.torch_device)
        seconds = time.perf_counter() - start
    return found.events() or (), seconds


def _callers(event: Any, vocabulary: int) -> tuple[list[str], bool]:
    names, has_vocabulary = [], False
    while event is not None:
        names.append(event.name)
        has_vocabulary |= any(isinstance(shape, list) and vocabulary in shape for shape in event.input_shapes or ())
        event = event.cpu_parent
    return names, has_vocabulary
