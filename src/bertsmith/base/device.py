"""Which device and which precision, chosen by what is there and said with the reason."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import choose, warn

PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Device:
    """A device and the dtype that activations and matrix products have on it; parameters stay fp32 masters."""

    torch_device: torch.device
    compute: torch.dtype

    @property
    def is_cpu(self) -> bool:
        return self.torch_device.type == "cpu"

    @property
    def precision(self) -> str:
        """The compute dtype by the name that `choose_device` takes: "fp32" or "bf16"."""
        return "bf16" if self.compute == torch.bfloat16 else "fp32"


def choose_device(device: str = "auto", precision: str = "auto") -> Device:
    """Picks the device ("auto", "cpu", "cuda", "cuda:1") and the compute dtype ("auto", "fp32", "bf16"), and says why.

    Raises BertsmithError for a device that is not there or a precision that is not known.
    """
    if precision not in PRECISIONS:
        fix = f"use one of: {', '.join(PRECISIONS)}"
        raise BertsmithError(f"precision '{precision}' is not known", "precision", fix)
    chosen = _device(device)
    compute = _compute_dtype(chosen, precision)
    return Device(chosen, compute)


def device_of_run(device: str, precision: str, begun_on: Mapping[str, str], folder: Path) -> Device:
    """`choose_device` for a run in a folder, alike on all ranks. Where the user says "auto", a run that goes on keeps
    what was chosen when it was begun: in the middle of a run another precision or device is another result.

    begun_on: its "device" ("cpu", "cuda") and "precision"; empty for a new run. Raises BertsmithError as
    `choose_device` does, and where a run of a CUDA device goes on without one.
    """
    known = begun_on.get("device")
    if known and device == "auto":
        if known == "cuda" and not torch.cuda.is_available():
            fix = "go on where there is one; or name --device cpu, for figures that are close and not equal"
            raise BertsmithError("this run was begun on a CUDA device, and none is here", folder, fix)
        choose("device", known, "this run was begun on it")
        device = known
    if begun_on and precision == "auto":
        precision = begun_on["precision"]
        choose("precision", precision, "this run was begun with it")
    # The first rank measures for all.
    chosen = choose_device(device, ranks.by_first(lambda: choose_device(device, precision).precision))
    if known and known != chosen.torch_device.type:
        warn(
            f"this run was begun on {known} and goes on on {chosen.torch_device.type}, in {chosen.precision} still; "
            "its figures will be close to those of an unbroken run, and not equal"
        )
    return chosen


def _device(name: str) -> torch.device:
    if name == "auto":
        found = torch.cuda.is_available()
        choose("device", "cuda" if found else "cpu", "a CUDA device was found" if found else "no CUDA device was found")
        return torch.device("cuda" if found else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BertsmithError(f"device '{name}' is not known", "device", "use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise BertsmithError(f"device '{name}' is not supported", "device", "use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        fix = f"{torch.cuda.device_count()} CUDA device(s) found"
        raise BertsmithError(f"device '{name}' is not there", "device", fix)
    return device


def _compute_dtype(device: torch.device, precision: str) -> torch.dtype:
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        choose("precision", "bf16" if native else "fp32", "the card has bf16" if native else "the card has no bf16")
        return torch.bfloat16 if native else torch.float32
    ratio = bf16_speed_ratio()
    faster = ratio > 1.3
    reason = f"bf16 matrix products run at {ratio:.1f}x the speed of fp32 here"
    choose("precision", "bf16" if faster else "fp32", reason)
    return torch.bfloat16 if faster else torch.float32


@cache
def bf16_speed_ratio() -> float:
    """How many times faster a bf16 matrix product is than an fp32 one on this CPU; measured in some 50 ms.

    On one thread and in turns, the fastest of each: two threads on a busy machine wait for each other, which can
    turn the answer round.
    """
    dtypes = (torch.float32, torch.bfloat16)
    products = [(torch.ones(512, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)) for dtype in dtypes]
    fastest = [math.inf, math.inf]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(12):
            for place, (a, b) in enumerate(products):
                start = time.perf_counter()
                torch.nn.functional.linear(a, b)
                fastest[place] = min(fastest[place], time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return fastest[0] / fastest[1]
