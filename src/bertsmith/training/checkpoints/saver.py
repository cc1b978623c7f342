"""Saves in the background: training waits for a copy of its tensors, and a thread of the first rank writes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor, nn

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.checkpoints.folders import prune, write_best, write_step
from bertsmith.training.checkpoints.position import Position, lost_bests, step_folder, step_folders
from bertsmith.training.checkpoints.state import Snapshot, state_of, weights_in
from bertsmith.training.parallel import is_sharded

RETRY_SECONDS = 60.0
"""How long after a write that failed the same checkpoint is tried again, unless a newer one comes first."""


class Saver:
    """Writes the checkpoints of a run, one at a time; used in a `with` block, whose end waits for the last one.

    A checkpoint that cannot be written, for a full disk say, is warned about and tried again every RETRY_SECONDS, and
    training continues; older ones are removed only when a newer one is there.
    """

    def __init__(self, run: Path, keep: int, keep_every: int = 0, before: Callable[[], None] = lambda: None) -> None:
        """keep, keep_every: as of `prune`. before: called, in the thread, before a checkpoint is written, for what must
        be on the disk before it; raises OSError or BertsmithError where the disk refuses."""
        self._run, self._keep, self._keep_every, self._before = run, keep, keep_every, before
        self._snapshot, self._position = Snapshot(), Position()
        # By their step: best weights that could not be written with it.
        self._best_left: dict[int, dict[str, Tensor]] = {}
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._error: BertsmithError | None = None
        self._bug: Exception | None = None
        self._told_of_wait = False
        self._taken: tuple[int, int] | None = None

    def has_taken(self, position: Position) -> bool:
        """Whether the last save was at this place of the run."""
        return self._taken == (position.stage, position.step)

    def save(self, position: Position, model: nn.Module, optimizer: ClippedOptimizer) -> None:
        """Copies the present state and starts to write it; before that it waits for the last save.

        Where `position.best` is of this step, its weights are the model's, and are written before the step folder that
        refers to them. All ranks call it alike.
        """
        is_first, self._taken = ranks.is_first(), (position.stage, position.step)
        if is_sharded(model):  # what the first rank raises, all must raise before they gather
            ranks.by_first(lambda: self._end_last(position.step))
        elif is_first:
            self._end_last(position.step)
        self._snapshot.take(state_of(model, optimizer), keep=is_first)
        if is_first:
            self._position, self._error = position, None
            self._hurry.clear()
            # A daemon: Ctrl-C pressed twice ends the process at once, and the next resume clears what is half written.
            self._thread = threading.Thread(target=self._write, name="checkpoint writer", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Waits until the last save is on the disk. Raises BertsmithError, on all ranks, where it cannot be written."""
        ranks.by_first(self._settle)

    def wait_for_bests(self) -> None:
        """Waits until the best weights of the last save are on the disk. Raises as `wait`; where the step folder alone
        cannot be written, the end of the block warns of that."""

        def settle() -> None:
            try:
                self._settle()
            except BertsmithError:
                if lost_bests(self._run, self._position):
                    raise

        ranks.by_first(settle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) or (error is not None and error is self._error):
            return  # to stop at once; or because of the very checkpoint that cannot be written
        try:
            self._settle()
        except BertsmithError as unwritten:
            warn(f"{self._name()} was not written: {unwritten.what} ({unwritten.where}); {self._kept()}")

    def _settle(self) -> None:
        self._end_last()
        if self._error is not None and not self._attempt():
            raise self._error

    def _end_last(self, next_step: int | None = None) -> None:
        """Waits for the thread, and sees to what it could not write. next_step: that of the save which waits for it."""
        if self._thread is None:
            return
        self._hurry.set()
        if next_step is not None and self._error is None and self._thread.is_alive() and not self._told_of_wait:
            self._told_of_wait = True
            say(
                f"the save of step {next_step:,} waits, because {self._name()} is still being written; a larger "
                "save_every or a faster disk avoids that (further waits are not reported)"
            )
        self._thread.join()
        self._thread = None
        if self._bug is not None:
            raise self._bug
        best = self._position.best
        if self._error is not None and best is not None and best.step == self._position.step:
            # The next snapshot overwrites them, and later step folders refer to them.
            weights = weights_in(self._snapshot.tensors).items()
            self._best_left[best.step] = {name: each.clone() for name, each in weights}
        wanted = {each.step for each in self._position.bests}
        self._best_left = {step: weights for step, weights in self._best_left.items() if step in wanted}

    def _write(self) -> None:
        try:
            while not self._attempt():
                if self._hurry.wait(RETRY_SECONDS):
                    return
        except Exception as error:  # ours: the next save raises it where it is seen
            self._bug = error

    def _attempt(self) -> bool:
        """Writes the snapshot; whether that succeeded."""
        try:
            self._snapshot.wait()
            self._before()
            self._write_folders()
        except (OSError, BertsmithError) as error:
            self._fail(_as_ours(error, step_folder(self._run, self._position.step)))
            return False
        if self._error is not None:
            say(f"{self._name()} is written now")
        self._error, self._best_left = None, {}
        self.remove_old(self._position.step)
        return True

    def remove_old(self, step: int) -> None:
        """Removes the checkpoints up to that of `step` that are not to be kept; warns where the disk refuses."""
        try:
            prune(self._run, step_folder(self._run, step), self._keep, self._keep_every)
        except OSError as error:
            warn(f"older checkpoints of {self._run} were not removed: {error.strerror}")

    def _write_folders(self) -> None:
        position, tensors = self._position, self._snapshot.tensors
        for best in position.bests:
            if best is position.best and best.step == position.step:
                write_best(self._run, best.step, weights_in(tensors))
            elif best.step in self._best_left:
                write_best(self._run, best.step, self._best_left[best.step])
        write_step(self._run, position, tensors)

    def _fail(self, error: BertsmithError) -> None:
        is_first_time, self._error = self._error is None, error
        if is_first_time:
            warn(
                f"{self._name()} could not be written: {error.what} ({error.where}); training continues, and it is "
                f"tried again every {RETRY_SECONDS:.0f} seconds and with the next save; {self._kept()}"
            )

    def _name(self) -> str:
        return step_folder(self._run, self._position.step).name

    def _kept(self) -> str:
        names = [each.name for each in step_folders(self._run)]
        return f"kept: {', '.join(names)}" if names else "there is no checkpoint yet"


def _as_ours(error: OSError | BertsmithError, where: Path) -> BertsmithError:
    if isinstance(error, BertsmithError):
        return error
    reason = os.strerror(error.errno) if error.errno else str(error)
    return BertsmithError(f"could not write: {reason}", error.filename or where, "see that the disk can be written to")
