"""The flags of what a run that trains writes beside its own records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.cli.ranks import RankFlags

if TYPE_CHECKING:
    from bertsmith.training.records.sinks import Outputs


@dataclass(frozen=True, kw_only=True)
class OutputFlags(RankFlags):
    """Flags of the verbs that train."""

    dllogger: Path | None = None
    """Also write the records to this file as NVIDIA's DLLogger does, with the keys of its BERT's scripts."""
    wandb: str | None = None
    """Also send the records to this project of Weights & Biases; WANDB_MODE=offline is respected, and no failure there
    ends the run."""
    profile: int = 0
    """Profile so many steps, after a few for warm-up: a trace in the run's `profile`, and a table; 0 for none."""

    def outputs(self) -> Outputs:
        """What these flags ask for."""
        from bertsmith.training.records.sinks import Outputs

        return Outputs(self.dllogger, self.wandb, self.profile)
