"""Processors for tests: what /proc/cpuinfo and PyTorch say of real ones, and facts that lead to either precision."""

from __future__ import annotations

from typing import Any

from bertsmith.base.processor import Processor

WITH_AMX = Processor("Linux", "x86_64", "Intel", frozenset({"avx512", "avx512_bf16", "amx_bf16"}))
WITH_BF16_OF_AMD = Processor("Linux", "x86_64", "AMD", frozenset({"avx512", "avx512_bf16"}))
WITHOUT_BF16 = Processor("Linux", "x86_64", "Intel", frozenset({"avx512"}))

_X86 = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx"
_AVX2 = "pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand bmi1 avx2 smep bmi2 erms"
_AVX512 = "avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw avx512vl"
_ARM = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"


def _entry(vendor: str, model: str, *flags: str) -> str:
    """The first core's entry as Linux on x86 writes it, its flags cut to those of vectors and matrices."""
    lines = ["processor\t: 0", f"vendor_id\t: {vendor}", "cpu family\t: 6", f"model name\t: {model}", "fpu\t\t: yes"]
    return "\n".join([*lines, f"flags\t\t: {' '.join(flags)}", "bugs\t\t: spectre_v1 spectre_v2", "", "processor\t: 1"])


def _arm_entry(part: str, features: str) -> str:
    lines = ["processor\t: 0", "BogoMIPS\t: 2100.00", f"Features\t: {features}", "CPU implementer\t: 0x41"]
    return "\n".join(
        [*lines, "CPU architecture: 8", "CPU variant\t: 0x1", f"CPU part\t: {part}", "CPU revision\t: 1", ""]
    )


CPUINFO = {
    "Intel Sapphire Rapids": _entry(
        *("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+", _X86, _AVX2, _AVX512),
        "avx_vnni avx512_bf16 wbnoinvd avx512vbmi umip pku ospke waitpkg avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni",
        "avx512_bitalg tme avx512_vpopcntdq la57 rdpid cldemote movdiri movdir64b enqcmd fsrm md_clear serialize",
        "tsxldtrk pconfig arch_lbr amx_bf16 avx512_fp16 amx_tile amx_int8 flush_l1d arch_capabilities",
    ),
    "Intel Sapphire Rapids, kernel without AMX": _entry(
        *("GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+", _X86, _AVX2, _AVX512),
        "avx_vnni avx512_bf16 avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq avx512_fp16",
    ),
    "Intel Cooper Lake": _entry(
        *("GenuineIntel", "Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", _X86, _AVX2, _AVX512),
        "cqm_mbm_local avx512_bf16 dtherm ida arat pln pts hwp hwp_act_window hwp_epp hwp_pkg_req pku ospke",
        "avx512_vnni md_clear flush_l1d arch_capabilities",
    ),
    "Intel Ice Lake": _entry(
        *("GenuineIntel", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", _X86, _AVX2, _AVX512),
        "avx512vbmi umip pku ospke avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq",
    ),
    "AMD Zen 3": _entry(
        *("AuthenticAMD", "AMD EPYC 7763 64-Core Processor", _X86, _AVX2),
        "invpcid rdseed adx smap clflushopt clwb sha_ni umip pku ospke vaes vpclmulqdq rdpid fsrm",
    ),
    "AMD Zen 4": _entry(
        *("AuthenticAMD", "AMD EPYC 9R14", _X86, _AVX2, _AVX512),
        "avx512_bf16 clzero xsaveerptr rdpru wbnoinvd arat avx512vbmi pku ospke avx512_vbmi2 gfni vaes vpclmulqdq",
        "avx512_vnni avx512_bitalg avx512_vpopcntdq rdpid",
    ),
    "AMD Zen 5": _entry(
        *("AuthenticAMD", "AMD Ryzen 9 9950X 16-Core Processor", _X86, _AVX2, _AVX512),
        "user_shstk avx_vnni avx512_bf16 clzero irperf avx512vbmi umip pku ospke avx512_vbmi2 gfni vaes vpclmulqdq",
        "avx512_vnni avx512_bitalg avx512_vpopcntdq rdpid bus_lock_detect movdiri movdir64b avx512_vp2intersect",
    ),
    "Graviton 2": _arm_entry("0xd0c", _ARM),
    "Graviton 3": _arm_entry(
        "0xd40",
        f"{_ARM} sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng",
    ),
    "Hygon": _entry("HygonGenuine", "Hygon C86 7285 32-core Processor", _X86, _AVX2),
    "none": "",
}

# What `torch.cpu.get_capabilities` gives on such processors, cut to what is read.
_ZEN_4 = dict.fromkeys(("avx2", "avx512_f", "avx512_bw", "avx512_vl", "avx512_dq", "avx512_bf16"), True)
CAPABILITIES: dict[str, dict[str, Any]] = {
    "AMD Zen 4": {**_ZEN_4, "amx_bf16": False, "amx_tile": False, "architecture": "x86_64", "num_sockets": 1},
    "Intel Sapphire Rapids": {**_ZEN_4, "amx_bf16": True, "amx_tile": True, "architecture": "x86_64"},
    "Graviton 3": {"neon": True, "bf16": True, "sve": True, "sve_max_length": 32, "architecture": "aarch64"},
}
