"""What looks at a run while it trains, and says by name what looks wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bertsmith.training.objective import Step


class Watch(Protocol):
    """On the first rank. It asks nothing of the device."""

    def count(self, step: Step) -> None:
        """Looks at what a step was given, after it."""

    def see(self, record: Mapping[str, Any]) -> dict[str, str]:
        """What a record of `metrics.jsonl` shows to be wrong: a message by its name. Those of a resumed run are seen
        again first, without a warning."""
