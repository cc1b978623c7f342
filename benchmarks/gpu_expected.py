"""What a GPU is expected to do in the rows of `make gpu-check`, counted without one, before it is measured.

    python benchmarks/gpu_expected.py run --out benchmarks/results/gpu-expected.json
    python benchmarks/gpu_expected.py table benchmarks/results/gpu-expected.json

`run` has PyTorch's Inductor generate the kernels of each graph for an H100 (`cuda_code.py`), and counts the operators
of what is not compiled. `table` draws the expected times from them (`gpu_cost.py`).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from cuda_code import Backend, CudaGraph, Product, add_to, cuda_graphs
from gpu_cost import BACKWARD, FORWARD, Row, summed
from gpu_eager import EagerCounts, call_row, ladder_rows
from gpu_tables import named, table

from bertsmith.base import device
from bertsmith.base.files import read_json, write_json
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.bench.gpu.inference import CASES as CALLS
from bertsmith.bench.gpu.update import FLOATS
from bertsmith.bench.step.ours import FILLING_PIECE
from bertsmith.bench.step.plan import GpuSizes, gpu_plan, graph_matches
from bertsmith.bench.step.run import LADDER
from bertsmith.bench.step.side import StepSide
from bertsmith.model import pretraining
from bertsmith.model.attention import attend
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim import fused
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.lamb import Lamb
from bertsmith.training.pretraining import compiled
from bertsmith.training.pretraining.inputs import flop_of
from bertsmith.training.step import StepSums

UPDATES: dict[str, type[ClippedOptimizer]] = {"AdamW": AdamW, "LAMB": Lamb}
COUNTED = "block by block, for named rows, backward kernels with the sums for vectors, bits of dropout, products' bytes"
"""Which graphs and figures a row has; another name where these change."""


@dataclass(frozen=True)
class Case:
    """Micro-batches of one shape through a model. set: the name of the batches. rows: of `make gpu-check`, each with
    whether it runs as a CUDA graph."""

    model: str
    set: str
    length: int
    side: StepSide
    batches: tuple[PretrainBatch, ...]
    rows: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.model}, {self.set}" + (", attention dropout" if self.attention_dropout else "")

    @property
    def attention_dropout(self) -> float:
        return float(self.side.model["attention_probs_dropout_prob"])


def cases(sizes: GpuSizes) -> Iterator[Case]:
    """What `make gpu-check` measures of ours compiled, and its first model with attention dropout at every length."""
    plan = gpu_plan(sizes, {})
    small_sets, as_graphs = graph_matches(sizes, plan)
    sets = {**plan.sets, **small_sets}
    matches = [*plan.alone().matches, *as_graphs]
    wanted = [(each.model, name, each.ours, each.case(name)) for each in matches for name in each.sets]
    wanted += [(m, name, with_dropout(side), "") for m, name, side, _ in wanted if m == plan.model]
    wanted += [(plan.model, rung.set, rung.side, f"{LADDER} {rung.what}") for rung in plan.ladder if rung.side.compiled]
    found: dict[tuple[Any, ...], Case] = {}
    for model, name, side, row in wanted:
        key = (model, name, side.model["attention_probs_dropout_prob"])
        if key not in found:
            batches = tuple(fix_shapes(list(sets[name]), side.longest, FILLING_PIECE))
            found[key] = Case(model, name, side.longest, side, batches)
        if row:
            found[key].rows.append((row, side.graphs == "true"))
    yield from found.values()


def with_dropout(side: StepSide) -> StepSide:
    """The same with attention dropout."""
    return replace(side, model=side.model | {"attention_probs_dropout_prob": 0.1})


def loss_graphs(case: Case) -> list[CudaGraph]:
    """Forward and backward of the embeddings, then of a block, then of heads and losses, as `CompiledStep` has them on
    an H100."""
    batch = case.batches[0]
    counts = {"masked": len(batch.masked_positions), "next_sentence": batch.layout.sequences}

    def run(step: compiled.CompiledStep) -> None:
        step.add_losses(batch, counts, StepSums.zero(len(counts), torch.device("cpu")))

    return _graphs(case.side.model | {"num_hidden_layers": 1}, run)


def _graphs(fields: dict[str, Any], run: Callable[[compiled.CompiledStep], None]) -> list[CudaGraph]:
    model = PretrainingModel(BertConfig(**fields), torch.bfloat16).train()

    def compile_and_run(backend: Backend) -> None:
        run(compiled.CompiledStep(model, torch.device("cpu"), compiler=backend))

    def on_the_gpu(*_: Any) -> str:
        return "Triton varlen"

    def filled(_: torch.device) -> bool:
        return True

    # Choices are made by the device of a tensor, which is the CPU while a graph is traced.
    with ExitStack() as stack:
        for module in (attend, compiled):
            stack.enter_context(mock.patch.object(module, "back_end", on_the_gpu))
        stack.enter_context(mock.patch.object(compiled, "settle"))
        stack.enter_context(mock.patch.object(pretraining, "_fills", filled))
        stack.enter_context(mock.patch.object(device, "is_on_gpu", filled))
        return cuda_graphs(compile_and_run)


def joined(graphs: Sequence[CudaGraph], times: Sequence[int]) -> Row:
    """The counts of graphs of which each runs so many times."""
    kernels: dict[str, list[int]] = {}
    operators: dict[str, list[int]] = {}
    products: Counter[Product] = Counter()
    for graph, runs in zip(graphs, times, strict=True):
        for sums, counts in ((kernels, graph.kernels), (operators, graph.operators)):
            for name, (calls, size) in counts.items():
                add_to(sums, name, runs * calls, runs * size)
        for each, count in graph.products.items():
            products[each] += runs * count
    found = {"kernels": dict(sorted(kernels.items())), "operators": dict(sorted(operators.items()))}
    kept = sum(runs * graph.kept for graph, runs in zip(graphs, times, strict=True))
    counts = {"products": [[*each, products[each]] for each in sorted(products)], "kept": kept, "calls": sum(times)}
    return found | counts


def loss_rows(case: Case) -> Iterator[Row]:
    """A row of a case's forward pass and one of its backward pass. useful_flop: of `FORMULA`, without filling."""
    config, batch = BertConfig(**case.side.model), case.batches[0]
    shape = {"tokens": batch.layout.tokens, "sequences": batch.layout.sequences, "masked": len(batch.masked_positions)}
    about: Row = {
        "case": case.name,
        "model": case.model,
        "length": case.length,
        "attention_dropout": case.attention_dropout,
        "rows": case.rows,
    }
    work = {
        "real_tokens": fmean(each.tokens for each in case.batches),
        "useful_flop": fmean(flop_of(config, each) for each in case.batches),
        "squared_lengths": float((batch.layout.lengths.astype(float) ** 2).sum()),
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
    }
    graphs = loss_graphs(case)
    for number, graph in enumerate((FORWARD, BACKWARD)):
        made = joined(graphs[number::2], (1, config.num_hidden_layers, 1))
        yield summed({**about, **shape, **work, "graph": graph, **made})


def update_launches(kind: type[ClippedOptimizer]) -> tuple[int, int]:
    """Launches of an update of two groups, over all tensors and over single numbers, copies to the GPU among these.

    An update is no graph: its operators are counted as it makes them, with kernels that do nothing.
    """
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
    gradients = [torch.ones(2) for _ in parameters]
    optimizer = kind([{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:]}])

    def update() -> None:
        for each, gradient in zip(parameters, gradients, strict=True):
            each.grad = gradient
        optimizer.set_learning_rate(0.1)
        optimizer.step()

    def same(values: torch.Tensor, _: torch.device) -> torch.Tensor:
        return values

    with (
        mock.patch.object(fused, "can_take", bool),
        mock.patch.object(fused, "_launch") as kernels,
        mock.patch.object(fused, "_sent", side_effect=same) as copies,
    ):
        # The first one makes the moments, and the tables of chunks. `bool` lets kernels take whatever is there.
        update()
        kernels.reset_mock()
        copies.reset_mock()
        with EagerCounts() as counts:
            update()
    return kernels.call_count, sum(calls for calls, _ in counts.kernels.values()) + copies.call_count


def update_rows(model: str, fields: dict[str, Any]) -> Iterator[Row]:
    """A row for each optimizer's update."""
    with torch.device("meta"):
        parameters = sum(each.numel() for each in PretrainingModel(BertConfig(**fields)).parameters())
    for name, kind in UPDATES.items():
        launches, small = update_launches(kind)
        kernels = {"all tensors": [launches, 4 * FLOATS[name] * parameters], "single numbers": [small, 0]}
        made = {"kernels": kernels, "products": [], "operators": {}, "kept": 0, "calls": 0}
        yield summed({"model": model, "graph": f"update, {name}", **made})


def run(out: Path, sizes: GpuSizes) -> None:
    """Counts everything and writes the rows as they come; a case that the file has is not counted again.

    SystemExit for a file whose rows were counted with another PyTorch, for micro-batches of other sizes, or in another
    way.
    """
    about: Row = {"torch": torch.__version__.split("+")[0], "tokens": sizes.tokens, "counted": COUNTED}
    stored: Row = read_json(out) if out.is_file() else {**about, "rows": []}
    rows = stored["rows"]
    for name, value in about.items():
        if stored.get(name) != value:
            raise SystemExit(f"{out} has rows of {name} {stored.get(name)}, not {value}: name another file with --out")

    def keep(name: str, more: Iterator[Row]) -> None:
        if name not in map(named, rows):
            rows.extend(more)
            write_json(out, {**about, "rows": rows})
            print(name, flush=True)

    models: dict[str, dict[str, Any]] = {}
    for case in cases(sizes):
        keep(case.name, loss_rows(case))
        models[case.model] = case.side.model
    for model, fields in models.items():
        keep(model, update_rows(model, fields))
    for model in sizes.models:
        for call in CALLS:
            row = call_row(sizes, model, *call)
            keep(row["case"], iter([row]))
    for row in ladder_rows(sizes):
        keep(row["case"], iter([row]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    counting, drawing = verbs.add_parser("run"), verbs.add_parser("table")
    counting.add_argument("--out", type=Path, required=True, help="a file for the rows")
    sizes = GpuSizes()
    counting.add_argument("--models", nargs="+", default=sizes.models, help="of those that the bench knows")
    counting.add_argument("--lengths", nargs="+", type=int, default=sizes.lengths)
    counting.add_argument("--tokens", type=int, default=sizes.tokens, help="slots of a micro-batch of full sequences")
    drawing.add_argument("rows", type=Path)
    asked = parser.parse_args()
    if asked.verb == "run":
        run(asked.out, replace(sizes, models=tuple(asked.models), lengths=tuple(asked.lengths), tokens=asked.tokens))
    else:
        print("\n".join(table(read_json(asked.rows)["rows"])))


if __name__ == "__main__":
    main()
