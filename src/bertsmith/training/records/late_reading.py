"""Values of a device that the host reads later, without a wait for what was queued behind them."""

from __future__ import annotations

import torch
from torch import Tensor


class LateReading:
    """A few numbers on their way to the host.

    Reading a tensor waits for all that its device has been given to do. This copy goes to pinned memory, with an event
    right behind it, so that a read one step later waits for nothing but a step that is done.
    """

    def __init__(self, values: Tensor) -> None:
        """values: [n], copied as they are at this place of the device's queue."""
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
        self._host.copy_(values, non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[float]:
        """The numbers; waits until they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        return [float(each) for each in self._host]
