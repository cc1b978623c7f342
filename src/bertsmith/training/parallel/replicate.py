"""Gradients of weights that every rank holds: one flat buffer, summed bucket by bucket during the last backward pass.

PyTorch's DistributedDataParallel averages, reduces in the dtype of the gradients, and cuts its buckets anew after the
first backward pass, so that on three and more ranks a resumed run rounds differently. Buckets here never change.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from bertsmith.base.ranks import rank, world_size
from bertsmith.training.parallel.reached import Reached

BUCKET_BYTES = 25 * 2**20
"""Enough for the full speed of a network, little enough that the first one is complete early."""


@dataclass
class _Bucket:
    """flat: a stretch of the buffer. members: its parameters, each with its place in it. missing: the ids of those that
    have no whole gradient yet."""

    flat: Tensor
    members: list[tuple[Tensor, Tensor]]
    missing: set[int] = field(default_factory=set)


class Replicated:
    """`Gradients` of parameters that are on every rank; with one rank it sums over that one.

    A parameter's `grad` is a view of the buffer, so nothing is copied in or out. Buckets hold the parameters from the
    last to the first, as a backward pass reaches them. Each is summed as soon as it and those before it are complete,
    so all ranks start the same sums in the same order, whatever got a gradient; what got none on some rank counts as
    zeros there, and what got none on any has none afterwards (`Reached`).
    """

    def __init__(
        self, parameters: Sequence[Tensor], sums: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        """sums: the dtype in which buckets travel, where it is not the parameters'."""
        self.ranks = world_size()
        backwards, first = list(reversed(parameters)), parameters[0]
        sizes = [each.numel() for each in backwards]
        self._flat = torch.zeros(sum(sizes) + self.ranks, dtype=first.dtype, device=first.device)
        self._sums = sums or first.dtype
        *parts, self._faulty = torch.split(self._flat, [*sizes, self.ranks])
        views = [part.view_as(each) for part, each in zip(parts, backwards, strict=True)]
        self._buckets = self._cut(list(zip(backwards, views, strict=True)), bucket_bytes)
        self._bucket_of = {id(each): bucket for bucket in self._buckets for each, _ in bucket.members}
        self._reached = Reached(backwards)
        self._number_of = {id(each): number for number, each in enumerate(backwards)}
        self._started, self._is_last = 0, False
        self._norms: list[Tensor] = []
        self._under_way: list[tuple[dist.Work, Tensor, Tensor]] = []
        itself = weakref.ref(self)  # a hook that held it would keep it, and the parameters, for ever

        def arrived(parameter: Tensor) -> None:
            if (found := itself()) is not None:
                found._arrived(parameter)

        for each in backwards:
            each.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]

    def _cut(self, members: list[tuple[Tensor, Tensor]], most_bytes: int) -> list[_Bucket]:
        """Buckets of at most so many bytes, or of one parameter. The flags of faulty ranks travel in the last one."""
        buckets: list[_Bucket] = []
        group: list[tuple[Tensor, Tensor]] = []
        start = end = 0
        for each, view in members:
            if group and (end - start + each.numel()) * self._flat.itemsize > most_bytes:
                buckets.append(_Bucket(self._flat[start:end], group))
                start, group = end, []
            group.append((each, view))
            end += each.numel()
        return [*buckets, _Bucket(self._flat[start:], group)]

    def begin(self) -> None:
        """Makes every gradient a zero in the buffer."""
        self._flat.zero_()
        self._started, self._is_last = 0, False
        self._norms.clear()
        for bucket in self._buckets:
            bucket.missing = {id(each) for each, _ in bucket.members}
            for each, view in bucket.members:
                each.grad = view

    def before_last(self) -> None:
        """From now on, what arrives is whole."""
        self._is_last = True

    def finish(self, norms: Sequence[Tensor] = ()) -> Tensor | None:
        """Sums what is left, and waits: the host on a CPU, only the queue of the device elsewhere.

        norms: of what else this rank has summed, for its flag. Returns as `Gradients.finish`.
        """
        self._norms += norms
        while self._started < len(self._buckets):
            self._start_next()
        for work, sent, flat in self._under_way:
            work.wait()
            if sent is not flat:
                flat.copy_(sent)
        self._under_way.clear()
        self._reached.drop_others()
        return self._faulty.clone() if self.ranks > 1 else None

    def drop(self) -> None:
        """Nothing was started yet."""

    def _arrived(self, parameter: Tensor) -> None:
        """Called when a backward pass has added all that it has for a parameter."""
        self._reached.note(self._number_of[id(parameter)])
        if not self._is_last:
            return
        self._bucket_of[id(parameter)].missing.discard(id(parameter))
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_next()

    @torch.no_grad()
    def _start_next(self) -> None:
        """Starts the sum of the next bucket, in the order that all ranks have."""
        bucket = self._buckets[self._started]
        self._started += 1
        for parameter, view in bucket.members:
            if parameter.grad is not view:  # something has put another tensor there
                view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
                parameter.grad = view
        self._norms.append(torch.linalg.vector_norm(bucket.flat))
        if self._started == len(self._buckets):
            self._faulty[rank()] = ~torch.isfinite(torch.stack(self._norms)).all()
        sent = bucket.flat if bucket.flat.dtype == self._sums else bucket.flat.to(self._sums)
        if self.ranks > 1:
            work = dist.all_reduce(sent, async_op=True)
            assert work is not None
            self._under_way.append((work, sent, bucket.flat))
