"""Device and precision: chosen by what the machine has, never by measuring speed, and logged with the reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from bertsmith.base import fp32_products, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, log_choice, warn
from bertsmith.base.processes import default_workers
from bertsmith.base.processor import Processor, this_processor
from bertsmith.base.ranks.together import together

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
_COMPUTE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TENSOR_CORES, _AMPERE = (7, 0), (8, 0)


@dataclass(frozen=True)
class Device:
    """A device and the dtype of activations and matrix products on it; parameters stay fp32 masters.

    tf32: whether fp32 products are made from numbers cut to 10 bits of mantissa. fp32_products: the library that makes
    them on a CPU, from `choose_fp32_products`; "" where none was chosen.
    """

    torch_device: torch.device
    compute: torch.dtype
    tf32: bool = False
    fp32_products: str = ""

    @property
    def is_cpu(self) -> bool:
        return self.torch_device.type == "cpu"

    @property
    def precision(self) -> str:
        """The name that `choose_device` takes: "fp32", "tf32", "bf16" or "fp16"."""
        return next(name for name, dtype in _COMPUTE.items() if dtype == self.compute and self.tf32 == (name == "tf32"))

    @property
    def scales_losses(self) -> bool:
        """Whether gradients need a loss scale: fp16 cannot represent values below 6e-8."""
        return self.compute == torch.float16

    def facts(self) -> dict[str, str]:
        """What a run must keep when it is resumed, for `device_of_run`."""
        known = {"device": self.torch_device.type, "precision": self.precision}
        return known | ({"fp32_products": self.fp32_products} if self.fp32_products else {})


def made_current(device: torch.device) -> AbstractContextManager[Any]:
    """A block in which a GPU is the current one: Triton starts kernels there, wherever their tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def cpu_by_default() -> AbstractContextManager[Any]:
    """A block in which tensors are on the CPU where no device is named, whatever `torch.set_default_device` says."""
    # Only where it says something: within the block each call of PyTorch takes longer.
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def seed_generators(device: torch.device, seed: int) -> None:
    """Seeds what PyTorch draws from on the CPU and on this device.

    As `torch.manual_seed`, which keeps two tracebacks of every call until a GPU is used: 0.3 ms of every step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with made_current(device):
            torch.cuda.manual_seed(seed)


def is_on_gpu(x: torch.Tensor) -> bool:
    """Whether a tensor is on a GPU. Asked by name of this module where a compiled step takes kernels of ours, so that
    graphs for a GPU can be made, and looked at, without one."""
    return x.device.type == "cuda"


def choose_device(device: str = "auto", precision: str = "auto", fp32_products_of_run: str = "") -> Device:
    """Chooses the device ("auto", "cpu", "cuda", "cuda:1") and the precision (one of `PRECISIONS`), and logs why.

    Sets what applies to the whole process: tf32 on or off on a GPU; on a CPU in fp32 the library of its products,
    fp32_products_of_run where it is given and works here.
    Raises BertsmithError for an unknown device or precision, for one that this machine does not have, and as
    `check_process` does.
    """
    check_process()
    if precision not in PRECISIONS:
        fix = f"use one of: {', '.join(PRECISIONS)}"
        raise BertsmithError(f"precision '{precision}' is not known", "precision", fix)
    chosen = _device(device)
    if precision == "auto":
        precision, reason = cpu_precision(this_processor()) if chosen.type == "cpu" else _gpu_precision(chosen)
        log_choice("precision", precision, reason)
    elif chosen.type == "cpu" and precision in ("bf16", "fp16"):
        best, reason = cpu_precision(this_processor())
        if precision != best:
            warn(f"{precision} may be slow on this CPU, where {best} is the default ({reason})", of_all_ranks=True)
    if torch.is_autocast_enabled(chosen.type):
        dtype = str(torch.get_autocast_dtype(chosen.type)).removeprefix("torch.")
        what = f"torch.autocast is on, so PyTorch makes products in {dtype}, those in fp32 too"
        warn(f"{what}; leave it, and name the precision instead", of_all_ranks=True)
    tf32 = precision == "tf32"
    if tf32:
        _check_tf32(chosen)
    products = ""
    if chosen.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = tf32
    elif precision == "fp32":
        products = fp32_products.choose_fp32_products(fp32_products_of_run)
    else:
        fp32_products.use(fp32_products.DEFAULT)
    return Device(chosen, _COMPUTE[precision], tf32, products)


def check_process() -> None:
    """Raises BertsmithError in a process that was forked from one in which this was called: threads of PyTorch's do not
    survive a fork, and the new process would wait for them forever."""
    if _first_process() != os.getpid() and torch.get_num_threads() > 1:
        what = "this process was forked from one that had used a model, and PyTorch's threads stayed behind"
        fix = "start processes by spawn, or call torch.set_num_threads(1) in this one first"
        raise BertsmithError(what, f"process {os.getpid()}", fix)


@cache
def _first_process() -> int:
    return os.getpid()


def rank_threads(ranks: int) -> int:
    """Of each of so many ranks that this machine's CPU runs: they share its cores, where the user has not set
    OMP_NUM_THREADS."""
    if ranks == 1 or "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return max(1, default_workers() // ranks)


def is_cpu(device: str = "auto") -> bool:
    """Whether `choose_device` takes the CPU for this. Sets nothing. Raises as it does for an unknown device."""
    return _device(device).type == "cpu"


def device_of_run(device: str, precision: str, started_on: Mapping[str, str], folder: Path) -> Device:
    """`choose_device` for the run in a folder, the same on all ranks. Where the user says "auto", a resumed run keeps
    what was chosen when it was started: a change of precision or device in the middle changes the result.

    started_on: the `facts` of its device; empty for a new run. Raises BertsmithError as `choose_device` does, and where
    a run of a CUDA device is resumed without one.
    """
    known = started_on.get("device")
    if known and device == "auto":
        together(lambda: _check_cuda_still_here(known, folder))
        log_choice("device", known, "this run was started on it")
        device = known
    if started_on and precision == "auto":
        precision = started_on["precision"]
        log_choice("precision", precision, "this run was started with it")
    products = started_on.get("fp32_products", fp32_products.DEFAULT) if started_on else ""
    # The first rank chooses for all: nodes of a cluster may have different processors.
    first = ranks.by_first(lambda: choose_device(device, precision, products))
    chosen = together(
        lambda: first if ranks.is_first() else choose_device(device, first.precision, first.fp32_products)
    )
    if known and known != chosen.torch_device.type:
        warn(
            f"this run was started on {known} and is resumed on {chosen.torch_device.type}, still in "
            f"{chosen.precision}; its figures will be close to those of an uninterrupted run, but not equal",
            of_all_ranks=True,
        )
    return chosen


def _check_cuda_still_here(known: str, folder: Path) -> None:
    if known == "cuda" and not torch.cuda.is_available():
        fix = "resume it where there is one; or pass --device cpu, for figures that are close but not equal"
        raise BertsmithError("this run was started on a CUDA device, and there is none here", folder, fix)


def cpu_precision(processor: Processor) -> tuple[str, str]:
    """(precision, reason): bf16 where products in it are known to be faster than in fp32, and fp32 elsewhere.

    That is on Linux with oneDNN: with AMX, on AMD processors with AVX-512 bf16, and on arm64 with bf16. On an Intel
    processor with AVX-512 bf16 alone, bf16 products ran at 0.21 TFLOP/s and fp32 ones at 0.34.
    """
    if processor.system != "Linux":
        return "fp32", "bf16 is chosen on Linux only"
    if not fp32_products.has_onednn():
        return "fp32", "this PyTorch has no oneDNN for fast bf16 products"
    if processor.has("amx_bf16"):
        return "bf16", "the processor has matrix units for it, amx_bf16"
    if processor.vendor == "AMD" and processor.has("avx512_bf16"):
        return "bf16", "an AMD processor with avx512_bf16"
    if processor.architecture == "arm64" and processor.has("bf16"):
        return "bf16", "an arm64 processor with bf16"
    if processor.limits:
        return "fp32", f"{' and '.join(processor.limits)} rules out what would make bf16 faster"
    if processor.has("avx512_bf16"):
        return "fp32", f"bf16 products are slower with avx512_bf16 alone (vendor: {processor.vendor})"
    return "fp32", "this processor is not known to have bf16 instructions"


def _device(named: str) -> torch.device:
    name = str(named)  # of Python, it may be a torch.device
    if name == "auto":
        found = torch.cuda.is_available()
        chosen = torch.device("cuda" if found else "cpu")
        log_choice("device", chosen.type, f"{'a' if found else 'no'} CUDA device was found")
        return _of_this_rank(chosen)
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise BertsmithError(f"device '{name}' is not known", "device", "use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda") or name.startswith("cpu:"):
        raise BertsmithError(f"device '{name}' is not supported", "device", "use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        fix = f"{counted(torch.cuda.device_count(), 'CUDA device')} found"
        raise BertsmithError(f"device '{name}' does not exist", "device", fix)
    return _of_this_rank(device)


def _of_this_rank(device: torch.device) -> torch.device:
    """The GPU that this rank got when the ranks joined; the device itself where there is one rank."""
    if device.type != "cuda" or ranks.processes() == 1:
        return device
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        what = f"device '{device}' is one GPU, and there are several ranks on this host"
        raise BertsmithError(what, "device", "use --device cuda: each rank then takes its own")
    return device


def _gpu_precision(device: torch.device) -> tuple[str, str]:
    """As of `cpu_precision`."""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16", "the GPU has bf16"
    if torch.cuda.get_device_capability(device) >= _TENSOR_CORES:
        return "fp16", "the GPU has tensor cores for it, and no bf16"
    return "fp32", "the GPU has no bf16 and no tensor cores"


def _check_tf32(device: torch.device) -> None:
    """tf32 came with Ampere; elsewhere PyTorch would silently compute in fp32."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE:
        return
    found = "a CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    what = f"tf32 needs an NVIDIA GPU of the Ampere generation or newer, and this is {found}"
    raise BertsmithError(what, "precision", "use --precision fp32, or bf16 or fp16 for speed")
