"""What is read about a processor from /proc/cpuinfo and PyTorch, and the precision and products that follow from it."""

from __future__ import annotations

import platform

import pytest
import torch

from bertsmith.base import fp32_products
from bertsmith.base.device import cpu_precision
from bertsmith.base.fp32_products import DEFAULT, ONEDNN, suited_to
from bertsmith.base.processor import UNKNOWN, Processor, recognise, this_processor
from made_processors import CAPABILITIES, CPUINFO

X86 = {"avx512", "avx512_bf16", "amx_bf16"}
# cpuinfo, machine: features, precision, library of fp32 products.
EXPECTED = [
    ("Intel Sapphire Rapids", "x86_64", X86, "bf16", DEFAULT),
    ("Intel Sapphire Rapids, kernel without AMX", "x86_64", {"avx512", "avx512_bf16"}, "fp32", DEFAULT),
    ("Intel Cooper Lake", "x86_64", {"avx512", "avx512_bf16"}, "fp32", DEFAULT),
    ("Intel Ice Lake", "x86_64", {"avx512"}, "fp32", DEFAULT),
    ("AMD Zen 3", "x86_64", set(), "fp32", DEFAULT),
    ("AMD Zen 4", "x86_64", {"avx512", "avx512_bf16"}, "bf16", ONEDNN),
    ("AMD Zen 5", "x86_64", {"avx512", "avx512_bf16"}, "bf16", ONEDNN),
    ("Graviton 2", "aarch64", set(), "fp32", DEFAULT),
    ("Graviton 3", "aarch64", {"bf16"}, "bf16", DEFAULT),
    ("Hygon", "x86_64", set(), "fp32", DEFAULT),
    ("none", "riscv64", set(), "fp32", DEFAULT),
]


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN is there and computes in fp32, whatever the machine of the test is."""
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: 0.2)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)


@pytest.mark.parametrize(("name", "machine", "features", "precision", "products"), EXPECTED)
def test_a_processor_is_read_from_its_cpuinfo(
    name: str, machine: str, features: set[str], precision: str, products: str
) -> None:
    found = recognise("Linux", machine, CPUINFO[name], {}, {})
    vendor = name.split()[0] if name.startswith(("Intel", "AMD")) else UNKNOWN
    assert (found.vendor, found.features, found.limits) == (vendor, features, ())
    assert cpu_precision(found)[0] == precision
    assert suited_to(found)[0] == products


@pytest.mark.parametrize("name", CAPABILITIES)
def test_what_pytorch_says_is_what_the_flags_say(name: str) -> None:
    machine = "aarch64" if name.startswith("Graviton") else "x86_64"
    assert recognise("Linux", machine, CPUINFO[name], CAPABILITIES[name], {}) == recognise(
        "Linux", machine, CPUINFO[name], {}, {}
    )


def test_pytorch_is_believed_over_the_flags_but_not_about_a_kernel_without_amx() -> None:
    """An old kernel has no name for a flag that the processor has; AMX needs the kernel."""
    capabilities = CAPABILITIES["Intel Sapphire Rapids"]
    found = recognise("Linux", "x86_64", CPUINFO["Intel Ice Lake"], capabilities, {})
    assert found.features == {"avx512", "avx512_bf16"}
    assert recognise("Linux", "x86_64", "", capabilities, {}).features == X86, "no /proc to contradict it"


def test_instructions_for_8_bits_are_found_by_either_name_and_no_variable_takes_them_away() -> None:
    for flags, has in (("avx2 avx512_vnni", True), ("avx2 avx_vnni", True), ("avx2 avx512f", False)):
        found = recognise("Linux", "x86_64", f"flags : {flags}", {}, {"ATEN_CPU_CAPABILITY": "avx2"})
        assert found.vnni == has
    assert recognise("Linux", "x86_64", "", {"avx512_vnni": True}, {}).vnni
    assert not recognise("Windows", "AMD64", "", {"avx512_vnni": True}, {}).vnni, "nothing is assumed there"


@pytest.mark.parametrize("system", ["Darwin", "Windows", "FreeBSD"])
def test_other_systems_are_unknown_and_compute_in_fp32(system: str) -> None:
    capabilities = {"neon": True, "bf16": True, "avx512_bf16": True, "amx_bf16": True, "amx_tile": True}
    found = recognise(system, "arm64", "", capabilities, {})
    assert found == Processor(system)
    assert cpu_precision(found) == ("fp32", "bf16 is chosen on Linux only")
    assert suited_to(found)[0] == DEFAULT


# (variable, value): features that are left of an AMX processor, and its precision; then an AMD one's.
LIMITS = [
    ("ONEDNN_MAX_CPU_ISA", "ALL", X86, "bf16", "bf16", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "DEFAULT", X86, "bf16", "bf16", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", X86, "bf16", "bf16", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "AVX10_1_512_AMX_FP16", X86, "bf16", "bf16", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", {"avx512", "avx512_bf16"}, "fp32", "bf16", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16", {"avx512", "avx512_bf16"}, "fp32", "bf16", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI", {"avx512"}, "fp32", "fp32", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE", {"avx512"}, "fp32", "fp32", ONEDNN),
    ("ONEDNN_MAX_CPU_ISA", "AVX2_VNNI_2", set(), "fp32", "fp32", DEFAULT),
    ("ONEDNN_MAX_CPU_ISA", "AVX2", set(), "fp32", "fp32", DEFAULT),
    ("ONEDNN_MAX_CPU_ISA", "SSE41", set(), "fp32", "fp32", DEFAULT),
    ("ONEDNN_MAX_CPU_ISA", "of next year", set(), "fp32", "fp32", DEFAULT),
    ("ATEN_CPU_CAPABILITY", "avx512", X86, "bf16", "bf16", ONEDNN),
    ("ATEN_CPU_CAPABILITY", "avx2", set(), "fp32", "fp32", DEFAULT),
    ("ATEN_CPU_CAPABILITY", "default", set(), "fp32", "fp32", DEFAULT),
]


@pytest.mark.parametrize(("variable", "value", "features", "precision", "of_amd", "products"), LIMITS)
def test_variables_lower_what_is_assumed(
    variable: str, value: str, features: set[str], precision: str, of_amd: str, products: str
) -> None:
    found = recognise("Linux", "x86_64", CPUINFO["Intel Sapphire Rapids"], {}, {variable: value})
    assert found.features == features
    assert found.limits == ((f"{variable}={value}",) if features != X86 else ())
    chosen, reason = cpu_precision(found)
    assert chosen == precision
    assert (f"{variable}={value}" in reason) == (features != X86)
    amd = recognise("Linux", "x86_64", CPUINFO["AMD Zen 4"], {}, {variable: value})
    assert (cpu_precision(amd)[0], suited_to(amd)[0]) == (of_amd, products)


@pytest.mark.parametrize(
    ("variables", "precision"),
    [
        ({"ATEN_CPU_CAPABILITY": "sve256"}, "bf16"),
        ({"ATEN_CPU_CAPABILITY": "default"}, "fp32"),
        ({"ONEDNN_MAX_CPU_ISA": "ALL"}, "bf16"),
        ({"ONEDNN_MAX_CPU_ISA": "ADVANCED_SIMD"}, "fp32"),
    ],
)
def test_variables_lower_what_is_assumed_on_arm64(variables: dict[str, str], precision: str) -> None:
    found = recognise("Linux", "aarch64", CPUINFO["Graviton 3"], {}, variables)
    assert cpu_precision(found)[0] == precision


def test_a_limit_that_takes_nothing_is_not_named() -> None:
    found = recognise("Linux", "x86_64", CPUINFO["AMD Zen 3"], {}, {"ATEN_CPU_CAPABILITY": "avx2"})
    assert found.limits == ()
    assert cpu_precision(found) == ("fp32", "this processor is not known to have bf16 instructions")


def test_without_onednn_all_is_fp32_by_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    amd = recognise("Linux", "x86_64", CPUINFO["AMD Zen 4"], {}, {})
    assert cpu_precision(amd) == ("fp32", "this PyTorch has no oneDNN for fast bf16 products")
    assert suited_to(amd) == (DEFAULT, "this PyTorch has no oneDNN")


def test_this_machine_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's own words and without them, and with a variable set in this process's environment."""
    for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
        monkeypatch.delenv(name, raising=False)
    found = this_processor()
    assert found.system == platform.system()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert not this_processor().features
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert this_processor() == found
