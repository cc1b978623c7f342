"""`bertsmith quickstart`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.cli.verb import Call, Verb, import_torch


@dataclass(frozen=True)
class QuickstartFlags:
    """Flags of `quickstart`."""

    source: tuple[str, ...] = ()
    """Your own text: files, folders or globs. Without it, the documentation that comes with Python."""
    out: Path = Path("runs/quickstart")
    """The folder for everything it makes. Run again, it continues where it was."""
    budget: Literal["tiny", "normal"] = "normal"
    """tiny takes less than a minute and learns next to nothing; normal takes three to eight."""


def _quickstart(call: Call) -> None:
    flags = call.read(QuickstartFlags)
    import_torch()
    from bertsmith.quickstart import quickstart

    quickstart(flags.source, flags.out, flags.budget)


VERBS = {
    "quickstart": Verb(
        "The whole pipeline in minutes, on a CPU: text, vocabulary, corpus, pre-training, fine-tuning, predictions.",
        "  bertsmith quickstart\n  bertsmith quickstart --source my_texts --out runs/mine",
        _quickstart,
    ),
}
