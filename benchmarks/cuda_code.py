"""What PyTorch's Inductor would launch on an H100, counted on a machine without a GPU.

A graph is traced on the CPU; then its inputs, its recorded tensors and its device arguments are moved to a fake
`cuda:0`, and Inductor lowers it as it would on the GPU whose properties are in `H100`. It stops after generating code:
no kernel is compiled or run. What depends on timing on the GPU itself (padding of products, tuning of blocks) is not in
these counts. This uses inner functions of PyTorch, which may change with any version; this was written for 2.13.

Legend: m, n, k of a product [m, k] times [k, n].
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
import torch._functorch.config as functorch_config
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
import torch._inductor.scheduler as scheduler
from torch._dynamo.device_interface import CudaInterface
from torch._dynamo.utils import detect_fake_mode
from torch._inductor import ir
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.utils._pytree import tree_map

from bertsmith.training.pretraining.compiled import BY_RULE

Backend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]
Product = tuple[int, int, int, str, int]
"""m, n, k, the dtype of what is multiplied, and the bytes read and written."""

CUDA = torch.device("cuda", 0)
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    gcnArchName="",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    total_memory=80 << 30,
    L2_cache_size=50 << 20,
    regs_per_multiprocessor=65_536,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
)
_LAUNCH = re.compile(r"^\s+triton_([a-z]+)_fused\w*\.run\(", re.MULTILINE)
_OPERATOR = re.compile(r"^\s+(?:\w+ = )?((?:torch\.ops|aten)\.[\w.]+)\(", re.MULTILINE)
# A kernel that reduces along both axes leaves partial sums, which PyTorch's own `sum` adds up, and no other kernel.
_PARTIAL_SUM = re.compile(r"(\w+) = workspace_\d+\[.*\]\.view\((\d+), (\d+)\)\.sum\(dim=0\)")
_LISTS = "lists of tensors"


@dataclass
class CudaGraph:
    """A graph as Inductor would run it.

    kernels: [launches, bytes read and written] of generated kernels by what is fused in them. products: how many of
    each. operators: [calls, bytes by Inductor's count] of those that are left to PyTorch or to us. kept: bytes that a
    forward pass keeps for its backward pass; the weights do not count, copies of them do. code: Python and Triton.
    """

    backward: bool
    code: str
    kernels: dict[str, list[int]] = field(default_factory=dict)
    products: Counter[Product] = field(default_factory=Counter)
    operators: dict[str, list[int]] = field(default_factory=dict)
    kept: int = 0


def cuda_graphs(run: Callable[[Backend], Any]) -> list[CudaGraph]:
    """The graphs that `run` would have on an H100, as they are made: forward and, where there are gradients, backward.

    run: compiles something with the given back-end, and calls it. Graphs give tensors of their shapes with any values.
    """
    made: list[CudaGraph] = []
    weights: set[str] = set()

    def inner(graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        is_backward = bool(options.get("is_backward"))
        taken, given = graph.graph.find_nodes(op="placeholder"), graph.graph.output_node().args[0]
        if is_backward:
            made[-1].kept = sum(map(_saved, (each for each in taken if each.name not in weights)))
        else:
            weights.clear()
            weights.update(taken[place].name for place in options.get("static_input_idxs", ()))
        assert isinstance(given, list | tuple)
        values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in given]
        made.append(_lowered(graph, inputs, is_backward, bool(options.get("is_inference"))))
        return lambda *_: [_any_values(each) for each in values]

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        settings = {"inner_compile": inner, "config_patches": BY_RULE}
        compiled: Callable[..., Any] = compile_fx.compile_fx(graph, inputs, **settings)
        return compiled

    # Otherwise the backward pass is lowered at its first run, which does not come.
    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        run(backend)
    return made


def _saved(node: torch.fx.Node) -> int:
    """Bytes of what a backward graph is given, but for gradients."""
    value = node.meta["val"]
    is_gradient = node.name.startswith("tangents")
    return 0 if is_gradient or not isinstance(value, torch.Tensor) else value.numel() * value.element_size()


def _any_values(like: Any) -> Any:
    """A tensor of the same shape, if this is one."""
    if not isinstance(like, torch.Tensor):
        return like
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)


@contextmanager
def _an_h100() -> Iterator[None]:
    """Has PyTorch's compiler find an H100 as GPU 0."""

    def given(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    capability = (H100.major, H100.minor)
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "get_device_properties", given(H100)),
        (torch.cuda, "get_device_capability", given(capability)),
        (torch.cuda, "current_device", given(0)),
        (CudaInterface, "get_device_properties", staticmethod(given(H100))),
        (CudaInterface, "get_compute_capability", staticmethod(given(10 * H100.major + H100.minor))),
        (CudaInterface, "is_available", staticmethod(given(True))),
        (CudaInterface.Worker, "get_device_properties", staticmethod(given(H100))),
        (CudaInterface.Worker, "current_device", staticmethod(given(0))),
        (scheduler, "has_triton", given(True)),
        (torch.utils._triton, "triton_hash_with_backend", given("none")),
    ]
    forget = cast(Any, DeviceProperties.create).cache_clear
    with ExitStack() as stack:
        stack.callback(forget)
        for owner, name, answer in answers:
            stack.enter_context(mock.patch.object(owner, name, answer))
        forget()
        yield


def _lowered(graph: torch.fx.GraphModule, inputs: list[Any], backward: bool, inference: bool) -> CudaGraph:
    """What `compile_fx_inner` does up to its generated code, for a GPU."""
    graph = copy.deepcopy(graph)
    mode = detect_fake_mode(inputs)
    with _an_h100(), V.set_fake_mode(mode):
        with mode:
            inputs = _moved(graph, inputs)
        compile_fx._recursive_post_grad_passes(graph, is_inference=inference)
        compile_fx.record_original_output_strides(graph)
        lowering = GraphLowering(graph, example_inputs=inputs, is_inference=inference, is_backward=backward)
        handlers = V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()), V.set_extern_kernel_nodes([])
        with handlers[0], handlers[1], handlers[2]:
            lowering.run(*inputs)
            code = lowering.codegen()[0].value
            return _counted(lowering, CudaGraph(backward, code))


def _moved(graph: torch.fx.GraphModule, inputs: list[Any]) -> list[Any]:
    """Moves what a graph says of devices, in place; returns the inputs as tensors of the fake GPU."""

    def there(x: Any) -> Any:
        if isinstance(x, torch.device):
            return CUDA
        if isinstance(x, torch.Tensor) and x.device.type == "cpu":
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA)
        return x

    for node in graph.graph.nodes:
        node.args, node.kwargs = tree_map(there, node.args), tree_map(there, node.kwargs)
        if "val" in node.meta:
            node.meta["val"] = tree_map(there, node.meta["val"])
    graph.recompile()
    return [there(each) for each in inputs]


def _counted(lowering: GraphLowering, made: CudaGraph) -> CudaGraph:
    """A kernel is launched for each node of Inductor's schedule, and one or more for a list of tensors."""
    body = made.code[made.code.index("def call(") :]
    partial = _PARTIAL_SUM.findall(body)
    for _, rows, columns in partial:
        add_to(made.kernels, "partial sums", 1, 2 * 4 * int(rows) * int(columns))
    summed = {buffer for buffer, _, _ in partial}
    for name in _OPERATOR.findall(body):
        add_to(made.operators, _short(name), 1, 0)
    single = 0
    for node in lowering.scheduler.nodes:
        size = node.get_read_write_buffers_sizes()
        if isinstance(node, scheduler.ExternKernelSchedulerNode):
            name = getattr(node.node, "python_kernel_name", None) or ""
            if name.startswith("extern_kernels."):
                made.products[_product(node.node)] += 1
            elif _short(name) in made.operators:
                add_to(made.operators, _short(name), 0, size)
        elif isinstance(node, scheduler.ForeachKernelSchedulerNode):
            add_to(made.kernels, _LISTS, 0, size)
        elif not isinstance(node, scheduler.NopKernelSchedulerNode) and not summed & set(node.get_buffer_names()):
            # Not the name in the code: kernels of equal code have the name of the first.
            named = get_fused_kernel_name(node.get_nodes(), inductor_config.triton.descriptive_names)
            add_to(made.kernels, named.removeprefix("fused").removeprefix("_"), 1, size)
            single += 1
    categories = Counter(_LAUNCH.findall(body))
    if lists := categories.pop("for", 0):
        add_to(made.kernels, _LISTS, lists, 0)
    assert categories.total() == single, "the code has other launches than the schedule"
    return made


def add_to(counts: dict[str, list[int]], name: str, calls: int, size: int) -> None:
    """Adds so many calls and bytes to those of a name."""
    calls_before, size_before = counts.get(name, [0, 0])
    counts[name] = [calls_before + calls, size_before + size]


def _short(name: str) -> str:
    """ "aten.randint.low_out" of "torch.ops.aten.randint.low_out"."""
    return name.removeprefix("torch.ops.").removesuffix(".default")


def _product(node: ir.ExternKernelOut) -> Product:
    """Of `mm` and `addmm`."""
    (m, k), (_, n) = ([int(side) for side in each.get_size()] for each in node.inputs[-2:])
    tensors = cast(list[Any], [*node.inputs, node])
    size = sum(prod(map(int, each.get_size())) * each.get_dtype().itemsize for each in tensors)
    return m, n, k, str(tensors[-2].get_dtype()).removeprefix("torch."), size
