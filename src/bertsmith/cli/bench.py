"""`bertsmith bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bertsmith.cli.verb import Call, Verb


@dataclass(frozen=True)
class BenchFlags:
    """Flags of `bench`, with those of BenchOptions."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """prepare, batches, pretrain-step, finetune, predict, serve, reference (NVIDIA's benchmark modes) or scaling."""
    json: Path | None = None
    """A file for the rows."""
    markdown: bool = False
    """Print the tables for a page."""


def _bench(call: Call) -> None:
    from bertsmith.base import files
    from bertsmith.bench.options import BenchOptions
    from bertsmith.bench.run import run_bench

    flags, options = call.read_with(BenchFlags, BenchOptions())
    report = run_bench(flags.name, options, [*call.prog.split(), *call.args])
    if flags.json:
        files.write_json(flags.json, report.as_json())
    print(report.as_markdown() if flags.markdown else report.as_text())


VERBS = {
    "bench": Verb(
        "Measure preparation, batches, steps of training and fine-tuning, prediction or serving against others.",
        "  bertsmith bench prepare --source my_texts --json prepare.json\n  bertsmith bench batches --corpus corpus\n"
        "  bertsmith bench pretrain-step --against transformers\n"
        "  bertsmith bench finetune --against transformers --json finetune.json\n"
        "  bertsmith bench predict --only real --json predict.json\n  bertsmith bench serve --against fastapi\n"
        "  bertsmith bench reference --only SQuAD\n  bertsmith bench scaling",
        _bench,
    ),
}
