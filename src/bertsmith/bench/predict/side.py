"""A side of a prediction bench: who runs the model, by which engine and in which precision; and how it is timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.bench.child import Ready
from bertsmith.bench.process import Child, environment_of

OURS, PIPELINE, DIRECT = "ours", "transformers", "directly"
BATCHES = (1, 8, 32)
"""What each side may take at once where it may choose: it takes the one that it is fastest with."""
PRECISIONS = {"torch": ("fp32", "bf16"), "onnx": ("fp32", "int8"), "openvino": ("fp32", "bf16", "int8")}


@dataclass(frozen=True)
class Folders:
    """model: Hugging Face's, with its weights, from `open_classifier`. exports: ours, a folder for each engine. padded:
    graphs of transformers' model as PyTorch exports it, fp32.onnx, and what the engines' own tools make of it,
    int8.onnx and int8.xml."""

    model: Path
    exports: Path
    padded: Path


@dataclass(frozen=True)
class Side:
    """who: one of the three above. backend: torch, onnx or openvino."""

    who: str
    backend: str
    precision: str

    @property
    def is_ours(self) -> bool:
        return self.who == OURS

    @property
    def label(self) -> str:
        """Its name in a table: "ours, onnx int8", or "openvino directly, bf16"."""
        if self.who == DIRECT:
            return f"{self.backend} directly, {self.precision}"
        return f"{self.who}, {self.backend} {self.precision}" if self.is_ours else f"pipeline, {self.precision}"

    def start(self, folders: Folders, folder: Path, deadline: float) -> Child:
        """Its process, which is ready later."""
        module = "bertsmith.bench.predict.ours" if self.is_ours else "bertsmith.bench.predict.peer"
        environment = {"TOKENIZERS_PARALLELISM": "false", **environment_of(self.is_ours)}
        return Child(module, {**asdict(self), **asdict(folders)}, folder, environment, deadline)


def sides_of(peers: Sequence[str]) -> list[Side]:
    """Ours in every pair of engine and precision, then the peers: what the engines' own tools make of the model."""
    found = [Side(OURS, backend, precision) for backend, those in PRECISIONS.items() for precision in those]
    if PIPELINE in peers:
        found += [Side(PIPELINE, "torch", "fp32"), Side(PIPELINE, "torch", "bf16")]
    backends = {"onnxruntime": "onnx", "openvino": "openvino"}
    direct = [backends[peer] for peer in peers if peer in backends]
    return found + [Side(DIRECT, backend, precision) for backend in direct for precision in PRECISIONS[backend]]


BASELINE = Side(PIPELINE, "torch", "fp32")
"""What all sides are compared with."""


def groups_of(sides: Sequence[Side]) -> dict[str, list[Side]]:
    """The sides of each precision, which hold their models at the same time, with what they are compared with: all
    models at once took more than 25 GB."""
    baseline = [side for side in sides if side == BASELINE]
    return {
        precision: list(dict.fromkeys([*(side for side in sides if side.precision == precision), *baseline]))
        for precision in dict.fromkeys(side.precision for side in sides)
    }


class Timer(Ready):
    """Says first how many threads it has; each public method answers a question. call: answers texts, so many at once.
    at_once: what it may be given for all of a set."""

    def __init__(self, call: Callable[[list[str], int], object], at_once: Sequence[int]) -> None:
        super().__init__(threads=torch.get_num_threads())
        self._call, self._at_once = call, at_once
        self._best: dict[int, int] = {}

    def turn(self, texts: list[str], rows: int, seconds: float, every: bool) -> dict[str, Any]:
        """The seconds of each call, one at least. rows: how many texts a call gets, 0 for all. Calls are made until
        these seconds are over, and with `every` until each text was given."""
        fewest = math.ceil(len(texts) / rows) if every else 1
        at_once = rows or self._fastest(texts)
        found: list[float] = []
        place = 0
        while len(found) < fewest or sum(found) < seconds:
            chunk = texts if not rows else [texts[(place + number) % len(texts)] for number in range(rows)]
            place += rows
            found.append(self._seconds(chunk, at_once))
        return {"seconds": found, "at_once": at_once}

    def _fastest(self, texts: list[str]) -> int:
        """Chosen once for a set, in the turn that is not counted."""
        key = len(texts)
        if key not in self._best:
            times = {each: self._seconds(texts, each) for each in self._at_once} if len(self._at_once) > 1 else {}
            self._best[key] = min(times, key=times.__getitem__) if times else self._at_once[0]
        return self._best[key]

    def _seconds(self, texts: list[str], at_once: int) -> float:
        began = time.perf_counter()
        self._call(texts, at_once)
        return time.perf_counter() - began
