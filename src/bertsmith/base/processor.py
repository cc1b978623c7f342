"""What the processor of this machine is: read, never measured, so that a busy machine gives the same answer."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bertsmith.base.versions import core_flags, first_core, read_cpuinfo

UNKNOWN = "unknown"
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
# Our names: (those of `torch.cpu.get_capabilities`, those of Linux). All of a group must be there.
_FEATURES = {
    "avx512": (("avx512_f", "avx512_bw", "avx512_vl", "avx512_dq"), ("avx512f", "avx512bw", "avx512vl", "avx512dq")),
    "avx512_bf16": (("avx512_bf16",), ("avx512_bf16",)),
    "amx_bf16": (("amx_bf16", "amx_tile"), ("amx_bf16", "amx_tile")),
    "bf16": (("bf16",), ("bf16",)),
}
_VNNI = frozenset({"avx512_vnni", "avx_vnni"})
_OF_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_OF_AVX512 = frozenset({"avx512", "avx512_bf16", "amx_bf16"})


@dataclass(frozen=True)
class Processor:
    """A processor, and what the libraries that make matrix products may use of it.

    system: as `platform.system` names it. architecture: "x86_64", "arm64" or "unknown". vendor: "Intel", "AMD" or
    "unknown". features: any of avx512 (with BW, VL and DQ), avx512_bf16, amx_bf16, and bf16 on arm64. limits: the
    environment variables, with their values, that took features away. vnni: whether it has instructions of its own for
    products of 8-bit numbers, whatever the environment says.
    """

    system: str
    architecture: str = UNKNOWN
    vendor: str = UNKNOWN
    features: frozenset[str] = frozenset()
    limits: tuple[str, ...] = ()
    vnni: bool = False

    def has(self, feature: str) -> bool:
        return feature in self.features


def this_processor() -> Processor:
    """The processor that this process runs on; on other systems than Linux it is unknown."""
    # Not every PyTorch that is supported has it.
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)
    return recognise(platform.system(), platform.machine(), read_cpuinfo(), capabilities(), os.environ)


def recognise(
    system: str, machine: str, cpuinfo: str, capabilities: Mapping[str, Any], environment: Mapping[str, str]
) -> Processor:
    """A processor by what the system and PyTorch say of it.

    system, machine: from the `platform` module. cpuinfo: the text of /proc/cpuinfo, or "". capabilities: from
    `torch.cpu.get_capabilities`; where it is empty, the flags in `cpuinfo` count. environment: ONEDNN_MAX_CPU_ISA and
    ATEN_CPU_CAPABILITY in it lower what is assumed.
    """
    if system != "Linux":
        return Processor(system)
    flags = frozenset(core_flags(cpuinfo))
    known = frozenset(name for name, value in capabilities.items() if value is True)
    features = {
        name
        for name, (of_torch, of_linux) in _FEATURES.items()
        if (known.issuperset(of_torch) if known else flags.issuperset(of_linux))
    }
    # AMX registers need the kernel's support, which the processor does not report: a kernel with it lists the flag.
    if flags and "amx_tile" not in flags:
        features.discard("amx_bf16")
    architecture = _ARCHITECTURES.get(machine.lower(), UNKNOWN)
    lowered = {f"{name}={environment[name]}": taken for name, taken in _taken(architecture, environment).items()}
    return Processor(
        system,
        architecture,
        _VENDORS.get(first_core(cpuinfo, "vendor_id"), UNKNOWN),
        frozenset(features.difference(*lowered.values())),
        tuple(limit for limit, taken in lowered.items() if features & taken),
        vnni=not _VNNI.isdisjoint(known | flags),
    )


def _taken(architecture: str, environment: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The features that each variable takes away. An unknown value takes away all that the variable can."""
    taken = {}
    onednn = environment.get("ONEDNN_MAX_CPU_ISA", "").upper()  # oneDNN ignores case
    if onednn not in ("", "ALL", "DEFAULT") and "AMX" not in onednn:
        if architecture == "x86_64" and (onednn.startswith("AVX10") or onednn.endswith(("_BF16", "_FP16"))):
            taken["ONEDNN_MAX_CPU_ISA"] = frozenset({"amx_bf16"})
        elif architecture == "x86_64" and onednn.startswith("AVX512"):
            taken["ONEDNN_MAX_CPU_ISA"] = _OF_BF16
        else:
            taken["ONEDNN_MAX_CPU_ISA"] = _OF_AVX512 | _OF_BF16
    aten = environment.get("ATEN_CPU_CAPABILITY", "").lower()
    if aten not in ("", "avx512") and not aten.startswith("sve"):
        taken["ATEN_CPU_CAPABILITY"] = _OF_AVX512 | _OF_BF16
    return taken
