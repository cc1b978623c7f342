"""A whole fine-tuning, run as `python -m bertsmith.bench.gpu.finetuning_run SPEC`."""

from __future__ import annotations

import time

from bertsmith.base.device import choose_device
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.tasks.benchmarks.inputs import benchmark_settings
from bertsmith.tasks.finetune import finetune


class Worker(Ready):
    """Each public method answers a question. Its device is that of the other rows."""

    def __init__(self, spec: Answer) -> None:
        """spec: a benchmark's name, changes of its settings, the folders of the model and of the data, and a device."""
        super().__init__()
        self._spec = spec

    def run(self) -> Answer:
        """Fine-tunes; gives the figures on the dev rows, the rows, and the seconds from rows on disk to figures."""
        name, began = self._spec["benchmark"], time.perf_counter()
        device = self._spec["device"]
        precision = choose_device(device).precision
        settings = benchmark_settings(name, device=device, precision=precision, **self._spec["changes"])
        result = finetune(name, self._spec["model"], data=self._spec["data"], settings=settings)
        return {
            "figures": result.seeds[0].best.dev,
            "rows": result.rows["train"],
            "precision": precision,
            "seconds": time.perf_counter() - began,
        }


if __name__ == "__main__":
    serve(Worker)
