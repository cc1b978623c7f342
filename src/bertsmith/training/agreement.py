"""What all ranks must agree on before the first step of a run: settings, data, position, weights and code.

Ranks that differ in any of it would not fail. They would train on a mixture, or wait for each other for ever.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of
from bertsmith.base.ranks.together import named, together
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.norms import in_shards
from bertsmith.training.checkpoints import Position
from bertsmith.training.checkpoints.state import state_of

_PACKAGE = Path(__file__).resolve().parents[1]
_SHOWN, _LONGEST = 8, 40
# By how the names of facts begin: what makes them equal.
_FIXES = {
    "recipe": "start every rank with the same recipe and flags",
    **dict.fromkeys(("settings", "task", "resume"), "start every rank with the same flags"),
    "corpus": "give every host the same corpus; `bertsmith verify` finds a damaged file",
    **dict.fromkeys(("train_rows", "dev_rows", "test_rows"), "give every host the same rows"),
    **dict.fromkeys(("init_from", "model", "tokenizer"), "give every host the same model folder"),
    "also_evaluate": "give every host the same --also-evaluate",
    "position": "keep the run folder on one disk that every host sees",
    "weights": "see that every host reads the same files and has the same versions of all packages",
    "code": "install the same version of Bertsmith on every host",
    "torch": "install the same version of torch on every host",
    "numpy": "install the same version of numpy on every host",
    "device": "see why a host lacks what the others have, or name the --device",
}


def agree(facts: Callable[[], Mapping[str, Any]]) -> None:
    """Compares facts over all ranks, each by its name; called by every rank.

    facts: not called where there is one rank. Raises one BertsmithError, the same on all ranks, that names the ranks
    which differ from the first one and in what.
    """
    if ranks.world_size() == 1:
        return
    mine = together(facts)
    (first, _), *others = everyone = ranks.gathered((dict(mine), platform.node()))
    found: dict[str, list[int]] = {}
    names: set[str] = set()
    for number, (theirs, _) in enumerate(others, start=1):
        differing = sorted(name for name in {*first, *theirs} if first.get(name) != theirs.get(name))
        if differing:
            found.setdefault(_differences(differing, first, theirs), []).append(number)
            names.update(differing)
    if not found:
        return
    apart = [0, *sorted(number for numbers in found.values() for number in numbers)][:_SHOWN]
    fixes = dict.fromkeys(_FIXES.get(name.split(".")[0], "make it the same on every host") for name in sorted(names))
    raise BertsmithError(
        "these ranks differ from rank 0, so none was started: "
        + "; ".join(f"{named(numbers)} in {text}" for text, numbers in found.items()),
        ", ".join(f"rank {number} on {everyone[number][1]}" for number in apart),
        "; ".join(fixes),
    )


def _differences(names: Sequence[str], first: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Such as "corpus, recipe.seed (7, not 42)"; of checksums the name alone."""
    shown = []
    for name in names:
        values = [repr(each.get(name)) for each in (theirs, first)]
        is_short = all(len(value) <= _LONGEST for value in values)
        shown.append(f"{name} ({values[0]}, not {values[1]})" if is_short else name)
    return first_of(shown, _SHOWN)


def held(position: Position, model: nn.Module, optimizer: ClippedOptimizer, checkpoint: Path) -> dict[str, Any]:
    """Position, and checksum of model and optimizer, as this rank has read them from a step folder: facts for `agree`.

    Of sharded ones every rank holds a part of its own; there the files that it has read them from are compared.
    """
    state, facts = state_of(model, optimizer), {f"position.{name}": each for name, each in asdict(position).items()}
    sharded = any(map(in_shards, state.values()))
    return {**facts, "weights": _text_of(checkpoint) if sharded else checksum(state)}


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors: their names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def code_facts() -> dict[str, str]:
    """The text of this package, and the versions of what computes and draws for it: facts for `agree`."""
    return {"code": _text_of(_PACKAGE), "torch": str(torch.__version__), "numpy": np.__version__}


def _text_of(folder: Path) -> str:
    """A checksum of the files in a folder: their names and contents, wherever it is."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    text = "".join(f"{path.relative_to(folder).as_posix()} {files.sha256(path)}\n" for path in paths)
    return hashlib.sha256(text.encode()).hexdigest()
