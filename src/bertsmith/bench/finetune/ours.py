"""Our side of a fine-tuning bench, run as `python -m bertsmith.bench.finetune.ours SPEC`: the loop that
`bertsmith finetune` runs, some steps a turn."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from bertsmith.base.device import Device
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.finetune.rows import Prepared, encode
from bertsmith.bench.machine import running_on
from bertsmith.bench.step.matrix_rate import seconds_of
from bertsmith.bench.step.profile import profile_steps
from bertsmith.tasks.finetuning.start import started
from bertsmith.tasks.finetuning.trials import trials
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.objective import RowSteps
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.training.records.meters import memory_bytes
from bertsmith.training.run_folder import Run, RunFacts
from bertsmith.weights.huggingface import read_config


class Ours(Ready):
    """A run that is started and takes steps when asked; each public method answers a question."""

    def __init__(self, spec: Answer, ends: ExitStack) -> None:
        """spec: of `Side.start`. ends: what ends the run."""
        model, folder = Path(spec["model"]), Path(spec["folder"]) / "run"
        prepared = Prepared.of_json(spec["task"])
        changes = {"precision": spec["precision"], "device": spec["device"]}
        settings = replace(prepared.task.settings, **changes)
        task, parts = encode(prepared.task, prepared.rows, model, settings)
        self._config = read_config(model)
        work = Work(model, task, load_tokenizer(model, self._config), settings, settings.max_length, parts)
        work, self._trainer, stages = ends.enter_context(started(work, Run(folder), RunFacts({}, "", {})))
        self._stage, self._order = stages[1](), trials(work)[0].order()
        self._trainer.enter(self._stage)
        super().__init__(**running_on(self._trainer.device))

    def turn(self, steps: int) -> Answer:
        """The next steps of the run, with all that the loop does beside them; it waits for the device at both ends."""
        return {"seconds": seconds_of(self._trainer.device, lambda: self._take(steps))}

    def _take(self, steps: int) -> None:
        before = self._trainer.position.stage_step
        self._trainer.run(replace(self._stage, loader=lambda done: RowSteps(self._order, done, done + steps)))
        assert self._trainer.position.stage_step == before + steps

    def memory(self) -> Answer:
        """The most memory held so far."""
        return {"bytes": memory_bytes(self._trainer.device)}

    def profile(self, steps: int) -> Answer:
        """Where the time of so many steps goes, after as many that are not counted."""
        device = Device(self._trainer.device, torch.float32)
        return profile_steps(lambda: self._take(steps), self._config.vocab_size, device)


if __name__ == "__main__":
    with ExitStack() as ends:
        serve(lambda spec: Ours(spec, ends))
