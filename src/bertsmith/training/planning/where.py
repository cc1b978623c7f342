"""What a plan is asked for beside the run itself: on what, of how many, at which price."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertsmith.base.errors import BertsmithError, TypeChecked
from bertsmith.training.planning.gpus import CPU, gpu_named


@dataclass(frozen=True)
class Where(TypeChecked):
    """gpu: a name in `GPUS`, or cpu. gpus: of a host; on a CPU the ranks that share this machine. price: of an hour of
    one of them. Raises BertsmithError for what is not one."""

    gpu: str = "a100"
    gpus: int = 1
    price: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu != CPU:
            gpu_named(self.gpu)
        if self.gpus < 1:
            raise BertsmithError(f"--gpus is {self.gpus}", "--gpus", "give a whole number from 1")
        if not 0 <= self.price < math.inf:
            raise BertsmithError(f"--price is {self.price:g}", "--price", "give what an hour costs, from 0")

    @property
    def on_cpu(self) -> bool:
        """Whether it is for this machine's CPU."""
        return self.gpu == CPU

    def precision(self, wanted: str) -> str:
        """Of a GPU, where "auto" is not resolved by a device that is here."""
        return gpu_named(self.gpu).precision if wanted == "auto" else wanted

    def peak(self, wanted: str) -> float:
        """FLOP/s of one GPU in this precision. Raises BertsmithError for one that it does not have."""
        return gpu_named(self.gpu).peak(self.precision(wanted))
