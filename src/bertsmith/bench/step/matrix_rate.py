"""How fast this device multiplies matrices: the rate that a step's speed is a share of."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from bertsmith.base.device import Device
from bertsmith.base.layout import round_up

Shape = tuple[int, int, int]
"""(m, n, k): [m, k] times [k, n]."""

_CPU_SIDE, _GPU_SIDE = 2048, 8192


def wait(device: torch.device) -> None:
    """Waits until the device has done what was queued, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(device: torch.device, work: Callable[[], object], times: int = 1) -> float:
    """The seconds of so many calls of `work`, one after the other; the device is waited for at both ends."""
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return time.perf_counter() - start


def step_shapes(hidden: int, intermediate: int, vocabulary: int, tokens: int, masked: int) -> list[Shape]:
    """The products of a step: each map forward, then its gradients by input and by weight."""
    maps = [(tokens, 3 * hidden, hidden), (tokens, hidden, hidden), (tokens, intermediate, hidden)]
    maps += [(tokens, hidden, intermediate), (round_up(masked), vocabulary, hidden)]
    return [shape for m, n, k in maps for shape in ((m, n, k), (m, k, n), (n, k, m))]


def matrix_rate(device: Device, shapes: list[Shape]) -> float:
    """The best FLOP/s of these products and of a large square one, in the device's dtype.

    Random data, because a GPU multiplies zeros faster. Operands are laid out as for a linear layer, the second
    transposed.
    """
    side = _CPU_SIDE if device.is_cpu else _GPU_SIDE
    return max(_rate(device, *shape) for shape in {*shapes, (side, side, side)})


def _rate(device: Device, m: int, n: int, k: int) -> float:
    a = torch.randn(m, k, device=device.torch_device).to(device.compute)
    b = torch.randn(n, k, device=device.torch_device).to(device.compute)
    # The first one finds kernels and memory.
    each = [seconds_of(device.torch_device, lambda: torch.nn.functional.linear(a, b)) for _ in range(4)]
    return 2.0 * m * n * k / min(each)
