"""The options of all benches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bertsmith.base.errors import BertsmithError, TypeChecked, nearest

_OF_STEPS = ("device", "only", "minutes")
_OF_TEXT = ("source", "tokenizer", "sizes", "workers")
_OF_BATCHES = ("corpus", "lengths")
_OF_SERVERS = ("environments",)
_UNUSED = {
    "prepare": ("model", *_OF_BATCHES, *_OF_STEPS, *_OF_SERVERS),
    "batches": ("model", *_OF_STEPS, *_OF_SERVERS),
    "pretrain-step": ("model", "sizes", *_OF_SERVERS),
    "finetune": (*_OF_TEXT, *_OF_BATCHES, *_OF_SERVERS),
    "predict": (*_OF_TEXT, "corpus", "device", *_OF_SERVERS),
    "serve": (*_OF_TEXT, *_OF_BATCHES, "device"),
    "reference": ("model", "against", *_OF_TEXT, *_OF_BATCHES, *_OF_SERVERS),
    "scaling": ("model", "against", *_OF_TEXT, *_OF_BATCHES, *_OF_STEPS, *_OF_SERVERS),
}
_LENGTHS = (128, 512)
_SIZES_MB, _QUICK_SIZES_MB = (10.0, 40.0, 160.0), (0.5, 1.0, 2.0)
SIZES_FIX = "give sizes in MB, from small to large, such as 10 40 160"


@dataclass(frozen=True)
class BenchOptions(TypeChecked):
    """The options of a bench. The string under a field is its help on the command line."""

    source: tuple[str, ...] = ()
    """Text, as `prepare` takes it. Without it, the Wikipedia in $BERTSMITH_DATA, else Python's documentation."""
    tokenizer: Path | None = None
    """The vocabulary of all sides. Without it, that of bert-base-uncased in $BERTSMITH_DATA, else one is trained."""
    corpus: Path | None = None
    """For batches and pretrain-step: a prepared corpus; without it, text is prepared first."""
    sizes: tuple[float, ...] = ()
    """Megabytes of text, from small to large; 10 40 160 if none are given. Slow sides get a twentieth."""
    lengths: tuple[int, ...] = ()
    """For batches and pretrain-step: the sequence lengths, else 128 and 512. For predict: tokens of each text at
    fixed shapes, special ones included, else 32, 128 and 384, or as many as the model reads."""
    against: tuple[str, ...] | None = None
    """What to compare with: nvidia, tokenizers and datasets for prepare, datasets for batches, transformers for
    pretrain-step and finetune, transformers, onnxruntime and openvino for predict, fastapi, litserve and infinity for
    serve. Without it all of them, none if no name follows."""
    workers: int | None = None
    """Worker processes of our preparation; one per core where none is given."""
    model: Path | None = None
    """For finetune: a BERT folder of Hugging Face's layout; without it all-MiniLM-L6-v2 in $BERTSMITH_DATA. For
    predict and serve: a classifier of one text; without it BERT-base with random weights."""
    environments: Path = Path(".bench")
    """For serve: the folder with virtual environments of the peers, as `make bench-peers` makes them."""
    device: str = "auto"
    """For pretrain-step, finetune and reference: auto, cpu, cuda or cuda:N. The others measure the CPU, and refuse
    another device."""
    only: str = ""
    """For all but prepare, batches and scaling: only cases (of serve servers) whose name contains this; of predict
    a precision can be named too, as in "32 x 128 in int8"."""
    minutes: float | None = None
    """For all but prepare, batches and scaling: cases that are not done by then are left out, and named."""
    quick: bool = False
    """Small texts and models, or few steps: takes a minute or two; the figures say little about speed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers is not None and self.workers < 1:
            raise BertsmithError(f"workers is {self.workers}", "--workers", "use a whole number from 1")
        if self.minutes is not None and not self.minutes >= 0:
            raise BertsmithError(f"minutes is {self.minutes}", "--minutes", "use a number from 0")

    def check_device(self, name: str) -> None:
        """Raises BertsmithError for a device that bench `name` does not measure."""
        if "device" in _UNUSED[name] and self.device not in ("auto", "cpu"):
            others = ", ".join(each for each, unused in _UNUSED.items() if "device" not in unused)
            what = f"bench {name} measures the CPU alone, not {self.device}"
            raise BertsmithError(what, "--device", f"leave it out; a GPU is measured by {others} and `make gpu-check`")

    def without_effect(self, name: str) -> list[str]:
        """A line for each option that was set and changes nothing in bench `name`."""
        default = BenchOptions()
        changed = [each.name for each in fields(self) if getattr(self, each.name) != getattr(default, each.name)]
        unused = [f"--{each} has no effect: bench {name} does not use it" for each in changed if each in _UNUSED[name]]
        if self.corpus is None or "corpus" in _UNUSED[name]:
            return unused
        idle = [each for each in changed if each in _OF_TEXT and each not in _UNUSED[name]]
        return unused + [f"--{each} has no effect: a corpus is given, so no text is prepared" for each in idle]

    def deadline(self) -> float:
        """When `minutes` from now are over, of time.monotonic()."""
        return math.inf if self.minutes is None else time.monotonic() + 60 * self.minutes

    def sizes_bytes(self) -> tuple[int, ...]:
        """The sizes of the texts, in bytes. Raises BertsmithError for one below a byte, and for infinity and NaN."""
        sizes = self.sizes or (_QUICK_SIZES_MB if self.quick else _SIZES_MB)
        if not all(1 <= each * 1e6 < math.inf for each in sizes):
            raise BertsmithError(f"sizes are {list(sizes)}", "--sizes", SIZES_FIX)
        return tuple(round(each * 1e6) for each in sizes)

    def sequence_lengths(self) -> tuple[int, ...]:
        """Those of batches and pretrain-step, each once. Raises BertsmithError for one that no pair of segments has."""
        from bertsmith.batches.pairs import check_sequence_length  # imports numpy, which help does without

        found = tuple(dict.fromkeys(self.lengths or _LENGTHS))
        for each in found:
            check_sequence_length(each, "--lengths")
        return found

    def peers(self, known: Sequence[str], name: str) -> tuple[str, ...]:
        """What bench `name` compares with, each once. Raises BertsmithError for a name that is not among `known`."""
        chosen = tuple(known) if self.against is None else tuple(dict.fromkeys(self.against))
        for each in chosen:
            if each not in known:
                raise BertsmithError(f"there is no '{each}' to compare with", f"bench {name}", nearest(each, known))
        return chosen
