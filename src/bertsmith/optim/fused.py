"""An optimizer's update on a GPU in a few launches of Triton kernels, however many tensors there are.

PyTorch's own operators over lists of tensors take a launch for some dozens of tensors, and one for each tensor where a
tensor has a number of its own, as its trust ratio; compiled by Inductor, BERT-large's update was a thousand launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from bertsmith.base.device import made_current
from bertsmith.base.log import log_choice, warn

# Elements of a chunk, which a program takes, and of those worked on at once. Others were not timed.
CHUNK, WIDTH = 16384, 1024
OPTIONS = {"num_warps": 4}
_ALIGNMENT = 16


def can_take(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels run here and take these tensors: in fp32, each without gaps, and all on one GPU."""
    return bool(tensors) and tensors[0].is_cuda and _are_plain(tensors) and _runs(tensors[0].device)


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    device = tensors[0].device
    return all(each.dtype == torch.float32 and each.is_contiguous() and each.device == device for each in tensors)


@cache
def _runs(device: torch.device) -> bool:
    """Whether a kernel starts on a GPU, tried once and told: Triton has no support for some GPUs, and wants a C
    compiler and Python's headers. What it raises without them has no class in common but Exception."""
    try:
        squares([torch.ones(1, device=device)])
    except torch.OutOfMemoryError:
        raise
    except Exception as why:
        reason = (str(why).splitlines() or ["no reason given"])[0]
        warn(f"updates are made by PyTorch's operators, Triton's kernels do not run: {type(why).__name__}: {reason}")
        return False
    log_choice("updates", "in Triton kernels", "a few launches for all tensors")
    return True


@dataclass(frozen=True)
class _Chunks:
    """How tensors of n sizes are cut into chunks, on their device; see `kernels`."""

    sizes: Tensor
    owners: Tensor
    firsts: Tensor


@lru_cache(maxsize=64)
def _chunks(sizes: tuple[int, ...], chunk: int, device: torch.device) -> _Chunks:
    counts = torch.tensor([-(-size // chunk) for size in sizes])
    owners = torch.repeat_interleave(torch.arange(len(sizes)), counts).int()
    firsts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).int()
    return _Chunks(*(_sent(each, device) for each in (torch.tensor(sizes), owners, firsts)))


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """On the device. From pinned memory the copy waits for nothing."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


class _Walk:
    """Some lists of the same n tensors, for kernels to walk over together."""

    def __init__(self, *lists: Sequence[Tensor]) -> None:
        self.tensors = lists[0]
        self.device = self.tensors[0].device
        addresses = [each.data_ptr() for tensors in lists for each in tensors]
        self.addresses = _sent(torch.tensor(addresses), self.device)
        self.aligned = all(each % _ALIGNMENT == 0 for each in addresses)

    @cached_property
    def chunks(self) -> _Chunks:
        return _chunks(tuple(each.numel() for each in self.tensors), CHUNK, self.device)

    @property
    def count(self) -> int:
        """C."""
        return len(self.chunks.owners)

    def run(self, name: str, *arguments: Any, **options: Any) -> None:
        """A program for each chunk."""
        chunks = self.chunks
        where = (self.addresses, chunks.sizes, chunks.owners, chunks.firsts)
        options |= {"CHUNK": CHUNK, "W": WIDTH, "ALIGNED": self.aligned, **OPTIONS}
        if self.count:
            _launch(name, (self.count,), *where, *arguments, **options)

    def summed(self, sums: Tensor) -> Tensor:
        """sums: float64[rows, C], of chunks. float64[rows, n], of tensors."""
        rows, tensors = len(sums), len(self.tensors)
        out = sums.new_empty(rows, tensors)
        _launch("totals", (tensors, rows), sums, self.chunks.firsts, out, self.count, tensors, W=256)
        return out


def _launch(name: str, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    from bertsmith.optim import kernels

    with made_current(arguments[0].device):
        getattr(kernels, name)[grid](*arguments, **options)


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """Of the L2 norm of each of n tensors: float64[n], on their device."""
    walk = _Walk(tensors)
    sums = torch.empty(1, walk.count, dtype=torch.float64, device=walk.device)
    walk.run("squares", sums)
    return walk.summed(sums)[0]


@dataclass(frozen=True)
class Rule:
    """Of an update by w -= rate r u, u = m / (sqrt(v) + epsilon) + decay w.

    rate, step, divisor, finite: fp32 scalars on the device. step: how many updates there were with this one, infinite
    without bias correction. divisor: of the gradients. finite: 0 changes nothing.
    """

    rate: Tensor
    step: Tensor
    divisor: Tensor
    finite: Tensor
    betas: tuple[float, float]
    epsilon: float
    decay: float

    def corrections(self) -> Tensor:
        """What m and sqrt(v) are divided by, fp32[2]. In float64: in fp32 1 - 0.999 is right to four digits."""
        step = self.step.double()
        mean, square = (1 - beta**step for beta in self.betas)
        return torch.stack((mean, square.sqrt())).float()


def move(rule: Rule, lists: Sequence[Sequence[Tensor]], norms_of: Callable[[Tensor], Tensor] | None = None) -> None:
    """Updates the moments of n weights, and the weights. The gradients are not changed.

    lists: weights, gradients, means, mean squares. norms_of: gives |w| and |u|, fp32[2, n], for the squares of those
    of `lists`, float64[2, n]; r is then |w| / |u| where both are above zero. r is 1 otherwise.
    """
    walk, corrections = _Walk(*lists), rule.corrections()
    sums = torch.empty(2, walk.count, dtype=torch.float64, device=walk.device) if norms_of else corrections
    scalars, counts = (rule.finite, rule.rate, corrections), (walk.count, len(walk.tensors))
    numbers = (*(1 - beta for beta in rule.betas), rule.epsilon, rule.decay)
    walk.run("moments", rule.divisor, *scalars, sums, *counts, *numbers, SCALED=norms_of is not None)
    if norms_of is not None:
        norms = norms_of(walk.summed(sums)).contiguous()
        walk.run("scaled", *scalars, norms, len(walk.tensors), rule.epsilon, rule.decay)
