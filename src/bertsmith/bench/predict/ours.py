"""Our side of a prediction bench, run as `python -m bertsmith.bench.predict.ours SPEC`: a `Predictor`."""

from __future__ import annotations

from pathlib import Path

from bertsmith.bench.child import Answer, serve
from bertsmith.bench.predict.side import Timer
from bertsmith.inference.predictor import Predictor


def start(spec: Answer) -> Timer:
    """spec: of a `Side` and its `Folders`. How many rows go through at once is the predictor's to choose."""
    backend = spec["backend"]
    folder = Path(spec["model"]) if backend == "torch" else Path(spec["exports"], backend)
    predictor = Predictor(folder, "cpu", precision=spec["precision"], backend=backend)
    return Timer(lambda texts, at_once: predictor(texts), (0,))


if __name__ == "__main__":
    serve(start)
