"""What the files of a run folder are called, and some of what they say: those who read a run need no PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bertsmith.weights.names import RUN_FILE as RUN_FILE

MODEL_FOLDER, BEST_FOLDER, TRIALS_FOLDER, RECIPE_FILE = "model", "best", "trials", "recipe.yaml"
# What a job's script looks for, to start the job again; beside it exit statuses may be those of a scheduler.
STOPPED_MARK = "stopped"
STARTED_ON, TASK = "begun_on", "task"
# In `begun_on`: a name that no other start of a run has, the same command's included.
START = "start"
METRICS_FILE, EVENTS_FILE = "metrics.jsonl", "events.jsonl"
EVENTS_FILES = "events*.jsonl"
"""Those of all ranks, as a pattern of names."""
STAGES = ("phase", "seed", "fold", "share")
"""The kinds of stages, by which a record names its own, beside its step in it (`phase_step`)."""
ENVIRONMENT, WARNING, ERROR = "environment", "warning", "error"
PLACE = ("kind", "step", *STAGES, *(f"{kind}_step" for kind in STAGES))
"""What a record begins with, which is none of its figures."""
_WITH_FIGURES = ("train", "evaluation", "start", "before", "final", "end")
# Of the others, NaN and infinity are facts about a run, and null stands for them.
_ALWAYS_FINITE = (*PLACE, "steps", "sequences", "sequence_length", "seconds_per_step")


def fault_of(found: Any) -> str:
    """What keeps a line of JSON from being a record, in words; "" for a record."""
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str) or type(found.get("step")) is not int:
        return "it has no kind and step"
    if found["kind"] in _WITH_FIGURES:
        for name, value in found.items():
            if name in _ALWAYS_FINITE and name != "kind" and not _is_finite(value):
                return f"its {name} is not a finite number"
            if name not in _ALWAYS_FINITE and not (isinstance(value, float | None) or _is_finite(value)):
                return f"its {name} is not a number"
    return ""


def _is_finite(value: Any) -> bool:
    """Nor is an integer that no float can hold."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names: {"phase1.steps": 100}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
