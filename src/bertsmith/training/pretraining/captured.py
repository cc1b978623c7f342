"""A micro-batch's forward and backward pass as one CUDA graph, for models whose kernels take less time than the host
needs to launch them (decision 021).

A compiled step has one shape, so the same kernels run for every micro-batch, on other numbers: these are copied to
where the kernels read them, and one launch starts all. Gradients are added to tensors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.base.device import made_current, seed_generators
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice, warn
from bertsmith.model.config import BertConfig
from bertsmith.training.planning.cost import between_products
from bertsmith.training.planning.gpus import GPUS
from bertsmith.training.planning.work import Batch

Run = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From a micro-batch as a row on the device to its loss, with its graph, and its figures."""
Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records what some work launches, without running it, and gives what runs that again."""
HOST_SECONDS_A_LAYER = 7.5e-4
"""What the host needs for one more compiled block, forward and backward: 53 launches and two calls of a graph
(`benchmarks/gpu_expected.py`, decision 019). Embeddings and heads together take as long as two blocks."""
_PRODUCT_SHARE = 0.65
_CLOSE = {torch.bfloat16: 1e-2}
"""What gradients of the same micro-batch may differ by, of their norm: flash attention adds them up in any order."""
_CLOSE_WIDE = 1e-4
_NOTHING = 1e-3
_WARM_UPS = 2


def is_small(config: BertConfig, batch: Batch, compute: torch.dtype, gpu: str) -> bool:
    """Whether a GPU is expected to need less than half of the time for a micro-batch that the host needs for its
    launches; a matter of shapes and data sheets. gpu: its name; one without a data sheet here counts as an H100."""
    sheet = next((each for each in GPUS.values() if each.device in gpu), GPUS["h100"])
    half = compute == torch.bfloat16
    precision = "bf16" if half and "bf16" in (sheet.precision, *sheet.others) else "fp32"
    products = batch.flop(config) / (_PRODUCT_SHARE * sheet.peak(precision))
    host = (config.num_hidden_layers + 2) * HOST_SECONDS_A_LAYER
    return products + between_products(sheet, config, batch, half) < host / 2


def cuda_capture(work: Callable[[], None]) -> Callable[[], None]:
    """By PyTorch. Other threads, as those that save, may use the GPU meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


@dataclass(frozen=True)
class _Found:
    """Of micro-batches. figures: a row for each. gradients: of each parameter, None where it has none."""

    figures: Tensor
    gradients: list[Tensor | None]


class Captured:
    """Micro-batches of one shape. Before the first one a graph is recorded on another micro-batch, and run on both; it
    is taken only where it gives what kernels launched one by one give, with the same dropout, which differs between
    the two. So a graph that keeps anything of the micro-batch that it was recorded on is refused.

    other: a micro-batch of this shape that has other numbers than the first in every part. compute: the dtype of
    products. device: of the parameters. capture: `cuda_capture`, but for tests.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        run: Run,
        other: Tensor,
        compute: torch.dtype,
        device: torch.device,
        capture: Capture,
    ) -> None:
        self._parameters, self._run = list(parameters), run
        self._other = other.to(device, non_blocking=True)
        self._close, self._device, self._capture = _CLOSE.get(compute, _CLOSE_WIDE), device, capture
        self._row = self._figures = torch.empty(0)
        self._own: list[tuple[Tensor, Tensor]] = []
        self._replay: Callable[[], None] | None = None
        self.refused = ""
        """Why micro-batches run kernel by kernel; "" where they do not."""

    def __call__(self, row: Tensor) -> Tensor:
        """Adds a micro-batch's gradients to those of the parameters. Gives its figures, which the next call overwrites.
        row: on the host, in pinned memory where the device is a GPU."""
        if self._replay is None and not self.refused:
            self._make(row.to(self._device, non_blocking=True))
        if self._replay is None:
            return self._plainly(row.to(self._device, non_blocking=True))
        return self._replayed(row)

    def _replayed(self, row: Tensor) -> Tensor:
        assert self._replay is not None
        self._row.copy_(row, non_blocking=True)
        self._take_gradients()
        self._replay()
        return self._figures

    def _plainly(self, row: Tensor) -> Tensor:
        loss, figures = self._run(row)
        loss.backward()  # type: ignore[no-untyped-call]
        return figures

    def _make(self, row: Tensor) -> None:
        """Records the graph, unless it is refused. Gradients and generators are afterwards what they were before.
        Raises BertsmithError where PyTorch cannot record it."""
        before = self._set_aside()
        try:
            self._record()
        except (RuntimeError, NotImplementedError) as error:
            # What is left behind then, such as a generator that still records, is no state to train from. When the end
            # of a recording fails too, the first error is the reason.
            first = error.__context__ or error
            what = f"no CUDA graph of a micro-batch can be recorded: {(str(first).splitlines() or [repr(first)])[0]}"
            fix = "add --resume --compile no-graphs, which launches kernels one by one"
            raise BertsmithError(what, f"PyTorch {torch.__version__}", fix) from error
        why = self._difference([row, self._other])
        if why:
            self.refused, self._replay, self._own = why, None, []
            warn(f"micro-batches run kernel by kernel, not as a CUDA graph: {why}")
        else:
            log_choice("micro-batches", "as CUDA graphs", "the host needs more time for launches than the GPU for them")
        for each, gradient in zip(self._parameters, before, strict=True):
            each.grad = gradient

    def _launched(self, row: Tensor) -> Tensor:
        """A micro-batch kernel by kernel, on a stream of its own, as PyTorch wants it before a graph is recorded."""
        with _aside(self._device):
            return self._plainly(row)

    def _record(self) -> None:
        # First for all that compilers and libraries make once, during which no graph may be recorded.
        gradients = self._in_turn(self._launched, [self._other] * _WARM_UPS).gradients
        self._row = self._other.clone()
        pairs = zip(self._parameters, gradients, strict=True)
        self._own = [(each, torch.zeros_like(each)) for each, gradient in pairs if gradient is not None]
        self._take_gradients()

        def work() -> None:
            self._figures = self._plainly(self._row)

        with made_current(self._device):  # where PyTorch records, whatever is launched
            self._replay = self._capture(work)
        self._set_aside()

    def _in_turn(self, run: Callable[[Tensor], Tensor], rows: Sequence[Tensor]) -> _Found:
        """What micro-batches give together, the dropout of each drawn from a seed of its own."""
        figures = []
        for seed, row in enumerate(rows):
            with _seeded(self._device, seed):
                figures.append(run(row).clone())
        return _Found(torch.stack(figures), self._set_aside())

    def _difference(self, rows: Sequence[Tensor]) -> str:
        """What the graph gives otherwise than single launches; "" for nothing."""
        expected, found = (self._in_turn(run, rows) for run in (self._launched, self._replayed))
        errors = [*((found.figures - expected.figures).norm(dim=1) / expected.figures.norm(dim=1))]
        whole = torch.stack([each.norm() for each in expected.gradients if each is not None]).norm()
        for ours, wanted in zip(found.gradients, expected.gradients, strict=True):
            if (ours is None) != (wanted is None):
                return "it gives gradients of other parameters"
            if ours is not None and wanted is not None:
                # Some gradients, as those of key biases, are nothing but rounding.
                errors.append((ours - wanted).norm() / (wanted.norm() + _NOTHING * whole))
        worst = float(torch.stack(errors).max())
        return "" if worst <= self._close else f"it gives other gradients or losses (by {worst:.1e} of their norm)"

    def _set_aside(self) -> list[Tensor | None]:
        """The gradients so far, which the parameters have no more."""
        found = [each.grad for each in self._parameters]
        for each in self._parameters:
            each.grad = None
        return found

    def _take_gradients(self) -> None:
        """Puts the parameters' gradients where the graph adds to them: what there is, or zeros."""
        fresh = []
        for each, own in self._own:
            gradient = each.grad
            if gradient is own:  # as in all of a step but its first
                continue
            if gradient is None:
                fresh.append(own)
            else:
                own.copy_(gradient)
            each.grad = own
        if fresh:
            torch._foreach_zero_(fresh)


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """A block that draws from this seed, and after which the generators are as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seed_generators(device, seed)
        yield


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """A block whose work is queued on a stream of its own, behind and before that of the present one."""
    if device.type != "cuda":
        yield
        return
    present, other = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    other.wait_stream(present)
    with torch.cuda.stream(other):
        yield
    present.wait_stream(other)
