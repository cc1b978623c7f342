"""A side of a serving bench: which server it is, the command that starts it, what it is asked and how it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.serve.client import HOST

OURS, FASTAPI, LITSERVE, INFINITY = "ours", "fastapi", "litserve", "infinity"
PEERS = (FASTAPI, LITSERVE, INFINITY)
PACKAGES = {FASTAPI: "fastapi", LITSERVE: "litserve", INFINITY: "infinity-emb"}
"""Of each peer, whose version a report names, beside transformers' and torch's."""
_NAMES = {FASTAPI: "FastAPI over pipeline", LITSERVE: "litserve over pipeline", INFINITY: "infinity-emb"}
_SCRIPTS = {FASTAPI: "tutorial.py", LITSERVE: "with_litserve.py"}
"""What their own Python runs."""
_PATHS = {INFINITY: "/classify"}
_MODEL = "model"
"""What our server and infinity-emb call it."""


@dataclass(frozen=True)
class Side:
    """who: one of the four above. precision: fp32 or bf16; of the peers fp32, as they are shipped."""

    who: str
    precision: str

    @property
    def label(self) -> str:
        """Its name in a table: "ours, bf16"."""
        return f"{_NAMES.get(self.who, self.who)}, {self.precision}"

    @property
    def path(self) -> str:
        """The route that classifies a text."""
        return _PATHS.get(self.who, "/predict")

    def command(self, model: Path, port: int, environments: Path) -> list[str]:
        """What starts it. Raises BertsmithError where a peer's virtual environment is not there."""
        where = [str(model), str(port)]
        if self.who == OURS:
            run_by = ["--device", "cpu", "--precision", self.precision, "--port", str(port)]
            return [sys.executable, "-m", "bertsmith", "serve", f"{_MODEL}={model}", *run_by]
        python = self.python(environments)
        if self.who in _SCRIPTS:
            return [str(python), str(Path(__file__).with_name(_SCRIPTS[self.who])), *where]
        how = ["--device", "cpu", "--engine", "torch", "--dtype", "float32", "--no-bettertransformer"]
        served = ["--model-id", str(model), "--served-model-name", _MODEL, "--host", HOST, "--port", str(port)]
        return [str(python.with_name("infinity_emb")), "v2", *served, *how]

    def python(self, environments: Path) -> Path:
        """The Python of a peer's virtual environment. Raises BertsmithError where that is not there."""
        python = environments / self.who / "bin" / "python"
        if not python.exists():
            what = f"its virtual environment is not in {environments}; `make bench-peers` makes it"
            raise BertsmithError(what, self.label)
        return python.absolute()

    def versions(self, environments: Path) -> str:
        """Of what its virtual environment has: "litserve 0.2.19, transformers 5.0.0, torch 2.13.0"."""
        code = "import importlib.metadata, sys\nfor n in sys.argv[1:]: print(n, importlib.metadata.version(n))"
        names = [PACKAGES[self.who], "transformers", "torch"]
        done = subprocess.run(
            [self.python(environments), "-c", code, *names], capture_output=True, text=True, check=False
        )
        return ", ".join(done.stdout.splitlines())

    def body(self, text: str) -> bytes:
        """The JSON of a request for the class of a text, which may lose its end."""
        if self.who == OURS:
            return _json({"inputs": text, "truncate": True})
        if self.who == INFINITY:
            return _json({"model": _MODEL, "input": [text]})
        return _json({"text": text})

    def scores(self, body: bytes) -> dict[str, float]:
        """The labels of an answer with their probabilities: all of them, or the likeliest alone. Raises ValueError for
        something else."""
        try:
            found: Any = json.loads(body)
            if self.who == INFINITY:
                found = found["data"][0]
            each: Sequence[Any] = found if isinstance(found, list) else [found]
            return {str(one["label"]): float(one["score"]) for one in each}
        except (LookupError, TypeError) as error:
            raise ValueError(f"no labels with scores: {body[:200]!r}") from error


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def sides_of(peers: Sequence[str], precision: str) -> list[Side]:
    """Ours in the precision that it chooses here and in fp32, then the peers."""
    return [*(Side(OURS, each) for each in dict.fromkeys((precision, "fp32"))), *(Side(each, "fp32") for each in peers)]
