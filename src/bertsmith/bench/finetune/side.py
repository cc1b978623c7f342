"""A side of a fine-tuning bench: whose it is, its precision, its batches; and the cases that sides meet in."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

from bertsmith.bench.finetune.rows import Prepared
from bertsmith.bench.process import Child, environment_of
from bertsmith.bench.step.side import OURS, TRANSFORMERS, SideName

_MODULES = {OURS: "bertsmith.bench.finetune.ours", TRANSFORMERS: "bertsmith.bench.finetune.peer"}


@dataclass(frozen=True)
class Side:
    """precision: fp32 or bf16, for transformers by autocast. grouped: transformers' batches of rows of like lengths."""

    side: SideName
    precision: str
    grouped: bool = False

    @property
    def is_ours(self) -> bool:
        return self.side == OURS

    @property
    def label(self) -> str:
        """Its name in a table: "bf16", or "transformers, fp32 as shipped"."""
        if self.is_ours:
            return self.precision
        numbers = "bf16 autocast" if self.precision == "bf16" else "fp32"
        return f"{TRANSFORMERS}, {numbers}{', grouped by length' if self.grouped else ' as shipped'}"

    def start(self, task: Prepared, model: Path, device: str, folder: Path, deadline: float) -> Child:
        """Its process, which is ready later. model: a Hugging Face folder. device: such as "cpu". folder: a new one.
        deadline: of time.monotonic()."""
        environment = {"TOKENIZERS_PARALLELISM": "false", **environment_of(self.is_ours)}
        if not self.is_ours and device.startswith("cuda"):
            environment["CUDA_VISIBLE_DEVICES"] = _alone(device)
            device = "cuda"
        spec = {**asdict(self), "task": asdict(task), "model": model, "device": device, "folder": folder}
        return Child(_MODULES[self.side], spec, folder / "process", environment, deadline)


def _alone(device: str) -> str:
    """What of CUDA_VISIBLE_DEVICES leaves this GPU alone: the Trainer takes all that it sees, with a batch on each."""
    number, seen = int(device.partition(":")[2] or 0), os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen.split(",")[number] if seen else str(number)


@dataclass(frozen=True)
class Case:
    """A row of the table: ours against a peer, or alone. task: its name."""

    task: str
    ours: Side
    peer: Side | None

    @property
    def name(self) -> str:
        """Such as "MRPC: bf16 against transformers, fp32 as shipped"."""
        against = f" against {self.peer.label}" if self.peer else ""
        return f"{self.task}: {self.ours.label}{against}"


def cases_of(task: str, precision: str, has_peer: bool) -> list[Case]:
    """Ours in a precision and in fp32, each against the peer as shipped, and grouped in the same precision."""
    ours = [Side(OURS, each) for each in dict.fromkeys((precision, "fp32"))]
    if not has_peer:
        return [Case(task, side, None) for side in ours]
    shipped = Side(TRANSFORMERS, "fp32")
    grouped = {each: Side(TRANSFORMERS, each, grouped=True) for each in (precision, "fp32")}
    return [Case(task, side, peer) for side in ours for peer in (shipped, grouped[side.precision])]
