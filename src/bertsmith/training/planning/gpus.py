"""GPUs that a plan can be made for, with the figures of NVIDIA's data sheets, and the hosts that they stand in."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.model.flop import peak_flops

CPU = "cpu"


@dataclass(frozen=True)
class Gpu:
    """name: as `plan` prints it. device: a part of `torch.cuda.get_device_name`, for `peak_flops`. memory: in bytes.
    memory_rate: bytes a second, read and written. inside: bytes a second that one GPU sends to others of its host.
    across: bytes a second that a host of 8 sends to other hosts. precision: that `auto` takes. others: that it has.
    """

    name: str
    device: str
    memory: float
    memory_rate: float
    inside: float
    across: float
    precision: str
    others: tuple[str, ...]

    def peak(self, precision: str) -> float:
        """FLOP/s. Raises BertsmithError for a precision that the GPU does not have."""
        found = peak_flops(self.device, precision)
        if found is None:
            known = " or ".join((self.precision, *self.others))
            raise BertsmithError(f"{self.name} has no fast {precision} products", "--precision", f"use {known}")
        return found


_AMPERE = ("fp16", "tf32", "fp32")
GPUS = {
    "a100": Gpu("A100 80 GB", "A100", 80e9, 2039e9, 300e9, 200e9, "bf16", _AMPERE),
    "h100": Gpu("H100 80 GB", "H100 80GB HBM3", 80e9, 3350e9, 450e9, 400e9, "bf16", _AMPERE),
    "h200": Gpu("H200 141 GB", "H200", 141e9, 4800e9, 450e9, 400e9, "bf16", _AMPERE),
    "v100": Gpu("V100 32 GB", "V100-SXM2", 32e9, 900e9, 150e9, 50e9, "fp16", ("fp32",)),
}
"""Those with NVLink, in hosts with 8 network adapters of 200 (A100) or 400 Gb/s (H100, H200), or 4 of 100 (V100)."""


def gpu_named(name: str) -> Gpu:
    """Raises BertsmithError, with the nearest name, for one that is not known."""
    if name not in GPUS:
        raise BertsmithError(f"'{name}' is not a GPU that plans are made for", "--gpu", nearest(name, (*GPUS, CPU)))
    return GPUS[name]
