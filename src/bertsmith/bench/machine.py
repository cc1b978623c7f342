"""What a figure was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import bertsmith
from bertsmith.corpus.engines.local import default_workers

_PACKAGES = ("numpy", "tokenizers", "sentencex", "nanotoken", "transformers", "datasets", "torch", "triton")


def machine() -> dict[str, str]:
    """Processor, cores, memory, system, versions and what else runs now, as they are said above a table."""
    versions = [f"bertsmith {bertsmith.__version__}", f"Python {platform.python_version()}"]
    versions += [f"{name} {found}" for name in _PACKAGES if (found := _version(name))]
    return {
        "processor": _processor(),
        "cores": str(default_workers()),
        "memory": _memory(),
        "load": f"{os.getloadavg()[0]:.1f} processes running before, a minute's average"
        if hasattr(os, "getloadavg")
        else "unknown",
        "system": platform.platform(terse=True),
        "versions": ", ".join(versions),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    if not hasattr(os, "sysconf"):
        return "unknown"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"
