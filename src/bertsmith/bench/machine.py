"""The machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

import bertsmith
from bertsmith.base.processes import default_workers
from bertsmith.base.versions import core_flags, processor_name, read_cpuinfo, version_of

if TYPE_CHECKING:
    import torch

LOWERING = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables by which PyTorch, oneDNN and MKL use fewer instruction sets than the processor has."""
_VECTORS = re.compile(r"avx|amx|fma|f16c|asimd|neon|sve|sme|bf16|fp16|i8mm")
_PACKAGES = (
    "numpy",
    "tokenizers",
    "sentencex",
    "nanotoken",
    "transformers",
    "accelerate",
    "datasets",
    "torch",
    "onnxruntime",
    "openvino",
    "nncf",
    "fastapi",
    "uvicorn",
    "triton",
)


def machine() -> dict[str, str]:
    """Processor, cores, memory, system, versions and load, for the lines above a table."""
    versions = [f"bertsmith {bertsmith.__version__}", f"Python {platform.python_version()}"]
    versions += [f"{name} {found}" for name in _PACKAGES if (found := version_of(name))]
    return {
        "processor": processor_name(),
        "cores": str(default_workers()),
        "memory": _memory(),
        "load": f"{os.getloadavg()[0]:.1f} processes running before, a minute's average"
        if hasattr(os, "getloadavg")
        else "unknown",
        "system": platform.platform(terse=True),
        "versions": ", ".join(versions),
    }


def instruction_sets() -> str:
    """The instruction sets for vectors and matrices that the processor has, what PyTorch's own kernels use of them,
    and the settings of this process that lower what libraries use. Imports torch."""
    import torch

    known = (
        torch.cpu.get_capabilities()
        if hasattr(torch.cpu, "get_capabilities")
        else dict.fromkeys(core_flags(read_cpuinfo()), True)
    )
    names = sorted(name for name, there in known.items() if there is True and _VECTORS.match(name))
    settings = [f"{name}={value}" for name in LOWERING if (value := os.environ.get(name))]
    used = f"PyTorch's own kernels use {torch.backends.cpu.get_cpu_capability()}"
    return "; ".join([", ".join(names) or "unknown", used, *settings])


def running_on(device: torch.device) -> dict[str, str]:
    """What a process computes on."""
    import torch

    if device.type == "cpu":
        return {"device": f"cpu, threads of torch: {torch.get_num_threads()}", "instruction sets": instruction_sets()}
    return {"device": f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"}


def _memory() -> str:
    if not hasattr(os, "sysconf"):
        return "unknown"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
