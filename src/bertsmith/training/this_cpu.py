"""This machine's CPU, ready to be measured for a plan as a run of `training.run` would use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from bertsmith.base.device import Device, choose_device
from bertsmith.base.processes import default_workers
from bertsmith.model.config import BertConfig
from bertsmith.training.records.meters import memory_bytes
from bertsmith.training.run import micro_batch_tokens


@dataclass(frozen=True)
class Here:
    """base: bytes of a process that could train, before it has a model or a corpus."""

    device: Device
    base: float

    @classmethod
    def of(cls, precision: str) -> Self:
        """Chooses as a run does, and says so. Raises BertsmithError for a precision that the CPU does not have."""
        device = choose_device("cpu", precision)
        return cls(device, memory_bytes(device.torch_device))

    def micro_batch_tokens(self, asked: int, config: BertConfig, longest: int, ranks: int) -> int:
        """As a run of so many ranks that share this CPU has them."""
        return micro_batch_tokens(asked, config, longest, self.device, max(1, default_workers() // ranks))
