"""Which device and which precision, chosen by what is there and said with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import torch

from bertsmith.base import fp32_products, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import choose, warn

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
_COMPUTE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TENSOR_CORES, _AMPERE = (7, 0), (8, 0)


@dataclass(frozen=True)
class Device:
    """A device and the dtype that activations and matrix products have on it; parameters stay fp32 masters.

    tf32: whether fp32 products are made from numbers cut to 10 bits of mantissa. fp32_products: the library that makes
    them on a CPU, of `choose_fp32_products`; "" where none was chosen.
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
        """By the name that `choose_device` takes: "fp32", "tf32", "bf16" or "fp16"."""
        return next(name for name, dtype in _COMPUTE.items() if dtype == self.compute and self.tf32 == (name == "tf32"))

    @property
    def scales_losses(self) -> bool:
        """Whether gradients need a loss scale: fp16 holds nothing under 6e-8."""
        return self.compute == torch.float16

    def facts(self) -> dict[str, str]:
        """What a run that goes on must find again, for `device_of_run`."""
        known = {"device": self.torch_device.type, "precision": self.precision}
        return known | ({"fp32_products": self.fp32_products} if self.fp32_products else {})


def choose_device(device: str = "auto", precision: str = "auto", fp32_products_of_run: str = "") -> Device:
    """Picks the device ("auto", "cpu", "cuda", "cuda:1") and the precision (of `PRECISIONS`), and says why.

    Sets what is one for the whole process: tf32 on or off on a card; on a CPU in fp32 the library of its products,
    fp32_products_of_run if it is named and can be had.
    Raises BertsmithError for a device that is not there and a precision that is not known or not to be had on it.
    """
    if precision not in PRECISIONS:
        fix = f"use one of: {', '.join(PRECISIONS)}"
        raise BertsmithError(f"precision '{precision}' is not known", "precision", fix)
    chosen = _device(device)
    if precision == "auto":
        precision = _precision_of_cpu() if chosen.type == "cpu" else _precision_of_card(chosen)
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


def device_of_run(device: str, precision: str, begun_on: Mapping[str, str], folder: Path) -> Device:
    """`choose_device` for a run in a folder, alike on all ranks. Where the user says "auto", a run that goes on keeps
    what was chosen when it was begun: in the middle of a run another precision or device is another result.

    begun_on: the `facts` of its device; empty for a new run. Raises BertsmithError as `choose_device` does, and where a
    run of a CUDA device goes on without one.
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
    products = begun_on.get("fp32_products", fp32_products.DEFAULT) if begun_on else ""
    # The first rank measures for all.
    chosen = ranks.by_first(lambda: choose_device(device, precision, products))
    if not ranks.is_first():
        chosen = choose_device(device, chosen.precision, chosen.fp32_products)
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


def _precision_of_card(device: torch.device) -> str:
    capability = torch.cuda.get_device_capability(device)
    if torch.cuda.is_bf16_supported(including_emulation=False):
        precision, reason = "bf16", "the card has bf16"
    elif capability >= _TENSOR_CORES:
        precision, reason = "fp16", "the card has tensor cores for it, and no bf16"
    else:
        precision, reason = "fp32", "the card has no bf16 and no tensor cores"
    choose("precision", precision, reason)
    return precision


def _precision_of_cpu() -> str:
    ratio = bf16_speed_ratio()
    faster = ratio > 1.3
    reason = f"bf16 matrix products run at {ratio:.1f}x the speed of fp32 here"
    choose("precision", "bf16" if faster else "fp32", reason)
    return "bf16" if faster else "fp32"


def _check_tf32(device: torch.device) -> None:
    """tf32 came with Ampere; elsewhere PyTorch would compute in fp32 and not say so."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _AMPERE:
        return
    found = "a CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    fix = "use --precision fp32, or bf16 or fp16 for speed"
    raise BertsmithError(f"tf32 needs an NVIDIA card of Ampere or newer, and this is {found}", "precision", fix)


@cache
def bf16_speed_ratio() -> float:
    """How many times faster a bf16 matrix product is than an fp32 one on this CPU; measured in some 50 ms.

    fp32 as it would be used: by the library that `fp32_products.fastest` names.
    """
    dtypes = (torch.float32, torch.bfloat16)
    products = [(torch.ones(512, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)) for dtype in dtypes]
    with fp32_products.using(fp32_products.fastest()[0]):
        fp32, bf16 = fp32_products.fastest_in_turns([partial(torch.nn.functional.linear, *pair) for pair in products])
    return fp32 / bf16
