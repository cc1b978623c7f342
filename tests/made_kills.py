"""Random moments at which a process, or a rank of `ran`, kills itself with SIGKILL, as a lost machine kills it."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertsmith.base.ranks import is_first
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step


@dataclass(frozen=True)
class Moment:
    """When a rank kills itself: so long after the step of the run, however far it has come by then; after 0 seconds it
    has taken the step, and neither logged nor saved it. saved: the first rank alone, and not before the last save is on
    the disk, which on a busy machine may take longer than the steps after it."""

    step: int
    delay_seconds: float
    saved: bool = False

    def __call__(self) -> None:
        advance, timers = Trainer._advance, []

        def advancing(trainer: Trainer, taken: Step) -> None:
            advance(trainer, taken)
            if trainer.position.step >= self.step and not timers and (is_first() or not self.saved):
                if self.saved and trainer.saver._thread is not None:
                    trainer.saver._thread.join()
                if not self.delay_seconds:
                    os.kill(os.getpid(), signal.SIGKILL)
                timers.append(threading.Timer(self.delay_seconds, os.kill, (os.getpid(), signal.SIGKILL)))
                timers[0].start()

        pytest.MonkeyPatch().setattr(Trainer, "_advance", advancing)


@dataclass(frozen=True)
class Rename:
    """When a rank kills itself: before it gives a file that it has written a name that matches this pattern."""

    pattern: str

    def __call__(self) -> None:
        replace = os.replace

        def replacing(source: Path, target: Path) -> None:
            if Path(target).match(self.pattern):
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        pytest.MonkeyPatch().setattr(os, "replace", replacing)


def drawing() -> random.Random:
    """Random moments; pytest shows the seed of a test that fails."""
    seed = random.randrange(1 << 30)
    print(f"random moments by seed {seed}")
    return random.Random(seed)
