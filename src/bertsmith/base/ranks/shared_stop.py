"""A stop that all ranks learn of at the same point of their work, without a wait for their devices."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from bertsmith.base.ranks import host_group, world_size
from bertsmith.base.stopping import StopSignal

_LOOK_SECONDS = 0.5


class SharedStop:
    """Whether a signal has come to any rank. All ranks must look equally often.

    A look starts an all-reduce of this rank's flags between the hosts, and returns what the look before it has
    collected: usually that is there already. So a signal counts one look later, on all ranks alike. With one rank it
    counts at once.
    """

    def __init__(self, signal: StopSignal) -> None:
        self._signal = signal
        self._pending: tuple[dist.Work, Tensor] | None = None
        self._several = world_size() > 1
        self._group = host_group() if self._several else None
        self.requested = self.interrupted = False

    def look(self) -> bool:
        """Whether to stop; `requested` and `interrupted` (by Ctrl-C) hold it too."""
        if self._several:
            self.finish()
            flags = torch.tensor([self._signal.requested, self._signal.interrupted], dtype=torch.int32)
            work = dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            assert work is not None
            self._pending = work, flags
        else:
            self.requested, self.interrupted = self._signal.requested, self._signal.interrupted
        return self.requested

    def wait(self, ready: Callable[[float], bool]) -> bool:
        """Waits until all ranks are ready, or a signal has come to one of them; whether it has. All ranks must call it
        at the same point of their work.

        ready: waits so many seconds at most, and tells whether this rank can go on.
        """
        self.finish()
        waiting = True
        while waiting:
            waiting = not ready(_LOOK_SECONDS)
            flags = [self._signal.requested, self._signal.interrupted, waiting]
            if self._several:
                shared = torch.tensor(flags, dtype=torch.int32)
                dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._group)
                flags = [bool(flag) for flag in shared.tolist()]
            self.requested, self.interrupted, waiting = flags
            waiting = waiting and not self.requested
        return self.requested

    def finish(self) -> None:
        """Takes what the last look has collected, so that no all-reduce is left under way."""
        if self._pending is not None:
            work, flags = self._pending
            work.wait()
            self.requested, self.interrupted = (bool(flag) for flag in flags.tolist())
            self._pending = None
