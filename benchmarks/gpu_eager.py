"""What is not compiled in the rows of `make gpu-check`, counted operator by operator on tensors without numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from cuda_code import Product, add_to
from gpu_cost import ATTENTION_OPERATOR, CALL, EAGER, Row, summed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.step.made_batches import padded
from bertsmith.bench.step.plan import GpuSizes, gpu_plan, gpu_shape
from bertsmith.bench.step.run import LADDER
from bertsmith.bench.step.side import StepSide
from bertsmith.model import encoder, layers, losses
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.model.triton.attention import _attention
from bertsmith.tasks.kinds.qa import SpanModel
from bertsmith.training.objective import mean_loss
from bertsmith.training.pretraining.objective import Pretraining

META = torch.device("meta")
NO_LAUNCH = ("aten::empty", "aten::new_empty", "profiler::")
"""Operators that start nothing on a GPU, beside views."""


def ladder_rows(sizes: GpuSizes) -> Iterator[Row]:
    """A row of each rung of the ladder that is not compiled: forward and backward of its batch."""
    plan = gpu_plan(sizes, {})
    for rung in plan.ladder:
        if not rung.side.compiled:
            (given,) = plan.sets[rung.set]
            yield ladder_row(plan.model, f"{LADDER} {rung.what}", rung.side, given) | {"real_tokens": given.tokens}


def ladder_row(model: str, name: str, side: StepSide, given: PretrainBatch) -> Row:
    batch = padded(given, side.longest) if side.padded else given
    config = BertConfig(**side.model)
    with META:
        net = PretrainingModel(config, torch.bfloat16 if side.precision == "bf16" else None)

    def step() -> None:
        found = Pretraining(net, META).forward(batch, META).losses
        mean_loss(list(found.values()), [1, 1]).backward()  # type: ignore[no-untyped-call]

    about = {"case": f"{model}, {name}", "model": model, "rows": [(name, False)], "graph": EAGER}
    return eager_row(about, config, side.precision, batch.layout, step)


def call_row(sizes: GpuSizes, model: str, sequences: int, length: int, precision: str) -> Row:
    """A row of a call of inference: SQuAD's head, with weights kept once."""
    config = BertConfig(**gpu_shape(model, sizes.vocabulary))
    with META:
        net = SpanModel(config, torch.bfloat16 if precision == "bf16" else None).eval()
    net.encoder.keep_weights_once()
    layout = Layout.from_lengths([length] * sequences)
    ids = torch.zeros(layout.tokens, dtype=torch.int64, device=META)

    def call() -> None:
        with torch.no_grad():
            net.qa_outputs(net.encoder(ids, ids, ids, Packed(layout, META)).float())

    name = f"inference: {model}, {sequences} x {length}, {precision}"
    about = {"case": name, "model": model, "rows": [(name, False)], "graph": CALL}
    return eager_row(about, config, precision, layout, call)


def eager_row(about: Row, config: BertConfig, precision: str, layout: Layout, work: Callable[[], None]) -> Row:
    """The counts of some work on tensors without numbers, whose operators start a kernel each; attention is counted as
    the fused kernel that a GPU has for it."""

    def attention(qkv: torch.Tensor, heads: int, packed: Offsets, dropout: float = 0.0) -> torch.Tensor:
        # The operator itself: what is around it would start a kernel.
        out: torch.Tensor = _attention(qkv, heads, packed.offsets, packed.longest, 0.0, packed.offsets)[0]
        return out

    with ExitStack() as stack:
        for module, name, given in (
            (layers, "attend", attention),
            (encoder, "check_ids", lambda *_: None),
            (losses, "check_labels", lambda *_: None),
        ):
            stack.enter_context(mock.patch.object(module, name, given))
        counts = stack.enter_context(EagerCounts())
        work()
    shape = {"tokens": layout.tokens, "sequences": layout.sequences, "masked": 0, "hidden": config.hidden_size}
    more = {"squared_lengths": float((layout.lengths.astype(float) ** 2).sum()), "heads": config.num_attention_heads}
    found = {"length": layout.longest, "attention_dropout": 0.0, "precision": precision, "kept": 0, "calls": 0}
    products = [[*each, count] for each, count in sorted(counts.products.items())]
    return summed(
        {
            **about,
            **shape,
            **more,
            **found,
            "kernels": counts.kernels,
            "operators": counts.operators,
            "products": products,
        }
    )


class EagerCounts(TorchDispatchMode):
    """What operators read and write, products apart, as a graph's counts have it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, list[int]] = {}
        self.operators: dict[str, list[int]] = {}
        self.products: Counter[Product] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().partition("::")[2].partition(".")[0]
        if func.name().startswith("bertsmith::varlen_attention"):
            add_to(self.operators, f"{ATTENTION_OPERATOR}{'_backward' if 'backward' in name else ''}", 1, 0)
        elif name in ("mm", "addmm"):
            a, b = args[-2:]
            dtype, size = str(a.dtype).removeprefix("torch."), sum(map(_bytes, (*args, out)))
            self.products[(a.shape[0], b.shape[1], a.shape[1], dtype, size)] += 1
        elif not func.is_view and not func.name().startswith(NO_LAUNCH):
            add_to(self.kernels, name, 1, sum(map(_bytes, (*tree_leaves((args, kwargs)), *tree_leaves(out)))))
        return out


def _bytes(x: Any) -> int:
    return x.numel() * x.element_size() if isinstance(x, torch.Tensor) else 0
