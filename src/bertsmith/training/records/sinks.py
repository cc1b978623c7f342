"""What takes the records of a run as they are written to `metrics.jsonl`, and which of that a user has asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bertsmith.base.errors import BertsmithError, TypeChecked
from bertsmith.base.files import check_file
from bertsmith.corpus.shards import Corpus
from bertsmith.training.records.dllogger import WHOLE_RUN, DlloggerFile, check_run
from bertsmith.training.records.weights_and_biases import WeightsAndBiases

_OF_RUNS = ("metrics.jsonl", "events.jsonl", "run.json", "recipe.yaml", "finetune.json", "stopped", ".lock")


class Sink(Protocol):
    """Takes records on the first rank, each with `kind` and `step`."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Takes one record. Never ends training."""

    def close(self, failed: bool) -> None:
        """Takes no more. failed: an error ends the run. Raises BertsmithError where a file lacks what was written."""


@dataclass(frozen=True)
class Outputs(TypeChecked):
    """What a run measures and writes beside its own records; it changes nothing of the run.

    dllogger: a file of its records as NVIDIA's DLLogger writes them. wandb: a project of Weights & Biases. profile: how
    many steps to profile, 0 for none. also_evaluate: of pre-training, a corpus whose held-out documents are evaluated
    beside the run's own, to see what is forgotten.
    """

    dllogger: Path | None = None
    wandb: str | None = None
    profile: int = 0
    also_evaluate: Corpus | str | Path | None = None

    def check(self, run: Path | None, resume: bool) -> None:
        """Raises BertsmithError, before anything is done, for what cannot be written. run: the run folder, None for a
        temporary one. resume: whether it is resumed."""
        if self.profile < 0:
            raise BertsmithError(f"--profile is {self.profile}", "--profile", "give a number of steps, such as 3")
        if self.dllogger is not None:
            check_file(self.dllogger)
            if run is not None and self.dllogger.name in _OF_RUNS and self.dllogger.resolve().parent == run.resolve():
                what = f"a run keeps records of its own in {self.dllogger.name}"
                raise BertsmithError(what, self.dllogger, "name another file after --dllogger")
            if self.dllogger.is_file():
                if run is None or not resume:
                    what = "this file is there already, and a run that is not resumed would write over it"
                    raise BertsmithError(what, self.dllogger, "name another file after --dllogger, or remove this one")
                check_run(self.dllogger, run)
        if self.wandb is not None and importlib.util.find_spec("wandb") is None:
            raise BertsmithError("wandb is not installed", "--wandb", "pip install wandb, or leave out --wandb")

    def add_totals(self, figures: Mapping[str, float]) -> None:
        """Adds what was found after training to the DLLogger file, where one was asked for."""
        if self.dllogger is not None and figures:
            file = DlloggerFile(self.dllogger, last_step=None)
            file.log(WHOLE_RUN, figures)
            file.close()

    def sinks(self, folder: Path, recipe: str, earlier: Sequence[Mapping[str, Any]], step: int) -> list[Sink]:
        """Those that were asked for, opened. folder: of the run. recipe: the text of its `recipe.yaml`. earlier: the
        records of a run that is resumed. step: the one it is resumed after. Raises BertsmithError."""
        if self.dllogger is None and self.wandb is None:
            return []
        import yaml  # which a machine that only measures may lack

        found: list[Sink] = []
        settings: Mapping[str, Any] = yaml.safe_load(recipe)
        if self.dllogger is not None:
            parameters = {"run": str(folder.absolute()), "settings": settings}
            found.append(DlloggerFile(self.dllogger, step, earlier, parameters))
        if self.wandb is not None:
            found.append(WeightsAndBiases(self.wandb, folder, settings))
        return found
