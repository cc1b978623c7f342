"""What a GPU is expected to do in the rows of `make gpu-check`, counted without one, before it is measured.

    python benchmarks/gpu_expected.py run --out benchmarks/results/gpu-expected.json
    python benchmarks/gpu_expected.py table benchmarks/results/gpu-expected.json

`run` has PyTorch's Inductor generate the kernels of each graph for an H100 (`cuda_code.py`). `table` draws the expected
times from them (`gpu_cost.py`).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from cuda_code import Backend, CudaGraph, Product, cuda_graphs
from gpu_cost import GPU, Row, Work, host_seconds, matrix_rate, parts, row_seconds
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.base.files import read_json, write_json
from bertsmith.base.tables import aligned
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.bench.gpu.update import FLOATS
from bertsmith.bench.step.ours import FILLING_PIECE
from bertsmith.bench.step.plan import GpuSizes, gpu_plan
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

FORWARD, BACKWARD = "losses forward", "losses backward"
SUMMED = ("launches", "bytes", "flop")
MEASURED = "AdamW"
"""The optimizer of the rows of `make gpu-check`."""
UPDATES: dict[str, type[ClippedOptimizer]] = {"AdamW": AdamW, "LAMB": Lamb}
COUNTED = "block by block"
"""Which graphs and figures a row has; another name where these change."""
NO_LAUNCH = ("aten::empty", "aten::new_empty", "profiler::")
"""Operators that start nothing on a GPU, beside views."""
AIMS = {(128, 0.0): 0.50, (512, 0.0): 0.45, (128, 0.1): 0.42, (512, 0.1): 0.40}
"""Shares of the matrix rate by length and attention dropout, for BERT-large on one H100 or H200."""
AIMED_SLOTS = 16_384
"""Aims are of micro-batches of at least so many."""
TOP = 10


@dataclass(frozen=True)
class Case:
    """Micro-batches of one shape through a model. set: the name of the batches."""

    model: str
    set: str
    length: int
    side: StepSide
    batches: tuple[PretrainBatch, ...]

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.model}, {self.set}" + (", attention dropout" if self.attention_dropout else "")

    @property
    def attention_dropout(self) -> float:
        return float(self.side.model["attention_probs_dropout_prob"])


def cases(sizes: GpuSizes) -> Iterator[Case]:
    """What `gpu_plan` measures of ours compiled, and its first model with attention dropout at every length; then the
    ladder's rung of few sequences, at which launches weigh most."""
    plan = gpu_plan(sizes, {})
    known = set()
    wanted = [(match.model, name, match.ours) for match in plan.matches for name in match.sets]
    dropped = [(m, name, with_dropout(side)) for m, name, side in wanted if m == plan.model]
    rungs = [(plan.model, rung.set, rung.side) for rung in plan.ladder if rung.side.compiled]
    for model, name, side in [*wanted, *dropped, *rungs]:
        key = (model, name, side.model["attention_probs_dropout_prob"])
        if key not in known:
            known.add(key)
            batches = tuple(fix_shapes(list(plan.sets[name]), side.longest, FILLING_PIECE))
            yield Case(model, name, side.longest, side, batches)


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

    name = "Triton varlen" if case.attention_dropout else "flash varlen"
    return _graphs(case.side.model | {"num_hidden_layers": 1}, run, name)


def _graphs(fields: dict[str, Any], run: Callable[[compiled.CompiledStep], None], back_end: str) -> list[CudaGraph]:
    model = PretrainingModel(BertConfig(**fields), torch.bfloat16).train()

    def compile_and_run(backend: Backend) -> None:
        run(compiled.CompiledStep(model, torch.device("cpu"), compiler=backend))

    def on_the_gpu(*_: Any) -> str:
        return back_end

    def filled(_: torch.device) -> bool:
        return True

    # Choices are made by the device of a tensor, which is the CPU while a graph is traced.
    with ExitStack() as stack:
        for module in (attend, compiled):
            stack.enter_context(mock.patch.object(module, "back_end", on_the_gpu))
        stack.enter_context(mock.patch.object(compiled, "settle"))
        stack.enter_context(mock.patch.object(pretraining, "_fills", filled))
        return cuda_graphs(compile_and_run)


def joined(graphs: Sequence[CudaGraph], times: Sequence[int]) -> Row:
    """The counts of graphs of which each runs so many times."""
    kernels: dict[str, list[int]] = {}
    operators: dict[str, list[int]] = {}
    products: Counter[Product] = Counter()
    for graph, runs in zip(graphs, times, strict=True):
        for sums, counts in ((kernels, graph.kernels), (operators, graph.operators)):
            for name, (calls, size) in counts.items():
                before = sums.get(name, (0, 0))
                sums[name] = [before[0] + runs * calls, before[1] + runs * size]
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
    about = {"case": case.name, "model": case.model, "length": case.length, "attention_dropout": case.attention_dropout}
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
        with OperatorCounts() as counts:
            update()
    return kernels.call_count, counts.operators.total() + copies.call_count


class OperatorCounts(TorchDispatchMode):
    """How often each operator runs that would start something on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and not func.name().startswith(NO_LAUNCH):
            self.operators[func.name()] += 1
        return func(*args, **(kwargs or {}))


def update_rows(model: str, fields: dict[str, Any]) -> Iterator[Row]:
    """A row for each optimizer's update."""
    with torch.device("meta"):
        parameters = sum(each.numel() for each in PretrainingModel(BertConfig(**fields)).parameters())
    for name, kind in UPDATES.items():
        launches, small = update_launches(kind)
        kernels = {"all tensors": [launches, 4 * FLOATS[name] * parameters], "single numbers": [small, 0]}
        made = {"kernels": kernels, "products": [], "operators": {}, "kept": 0, "calls": 0}
        yield summed({"model": model, "graph": f"update, {name}", **made})


def summed(row: Row) -> Row:
    """The row with launches, bytes and FLOP by part, for a reader of the file."""
    work = parts(row)
    sums = {what: {name: round(getattr(each, what)) for name, each in work.items()} for what in SUMMED}
    return {**row, **sums}


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

    out.parent.mkdir(parents=True, exist_ok=True)
    models: dict[str, dict[str, Any]] = {}
    for case in cases(sizes):
        keep(case.name, loss_rows(case))
        models[case.model] = case.side.model
    for model, fields in models.items():
        keep(model, update_rows(model, fields))


def table(rows: list[Row]) -> list[str]:
    """Counts, expected times, and the kernels that move most, as aligned text."""
    first = next(row for row in rows if row["graph"] == FORWARD)
    step = [row for row in rows if named(row) == named(first)] + [update_of(rows, first["model"])]
    return [
        *(
            "Counts of each pass: kernels launched, GB moved and kept for the backward pass, TFLOP of products",
            "",
            *count_lines(rows),
            "",
        ),
        *(f"Expected on one {GPU.name}, with {MEASURED}; aims are of BERT-large", "", *expected_lines(rows), ""),
        *(f"Where the bytes of fused kernels go: {named(first)}, with {MEASURED}", "", *kind_lines(step)),
    ]


def named(row: Row) -> str:
    """The case of a row; the model's name where it has none."""
    return str(row.get("case", row["model"]))


def update_of(rows: list[Row], model: str) -> Row:
    """The update that `make gpu-check` measures."""
    return next(row for row in rows if row["model"] == model and row["graph"] == f"update, {MEASURED}")


def count_lines(rows: list[Row]) -> list[str]:
    """A line a pass."""
    names = ("fused", "products", "attention", "others")
    cells = [["", "pass", "launches:", *names, "GB:", *names, "kept", "TFLOP:", *names[1:3]]]
    for row in rows:
        work = parts(row)
        launches = [f"{work[name].launches:,.0f}" for name in names]
        size = [f"{work[name].bytes / 1e9:,.1f}" for name in names]
        flop = [f"{work[name].flop / 1e12:,.2f}" for name in names[1:3]]
        graph = row["graph"].removeprefix("losses ")
        cells.append([named(row), graph, "", *launches, "", *size, f"{row['kept'] / 1e9:,.1f}", "", *flop])
    return aligned(cells, "llr")


def expected_lines(rows: list[Row]) -> list[str]:
    """A line a case: milliseconds of a step of one micro-batch and an update, and the share of the matrix rate."""
    head = ["", "slots", "products", "attention", "fused", "others", "update", "GPU, ms", "host, ms"]
    cells = [[*head, "real tokens/s", "of the matrix rate", "without update", "aim"]]
    for forward, backward in zip(*(of(rows, graph) for graph in (FORWARD, BACKWARD)), strict=True):
        update = update_of(rows, forward["model"])
        both = [parts(row) for row in (forward, backward)]
        times = [sum(work[name].seconds for work in both) for name in ("products", "attention", "fused", "others")]
        of_batch = host_seconds(forward) + host_seconds(backward)
        # The host runs ahead of the GPU, and waits for nothing: the slower of both decides.
        batch = max(sum(times), of_batch)
        gpu, host = sum(times) + row_seconds(update), of_batch + host_seconds(update)
        shares = [forward["useful_flop"] / seconds / matrix_rate() for seconds in (max(gpu, host), batch)]
        aimed = forward["model"] == "large" and forward["tokens"] >= AIMED_SLOTS
        aim = AIMS.get((forward["length"], forward["attention_dropout"])) if aimed else None
        cells.append(
            [
                *(named(forward), f"{forward['tokens']:,}"),
                *(f"{1e3 * seconds:.1f}" for seconds in (*times, row_seconds(update), gpu, host)),
                *(f"{forward['real_tokens'] / max(gpu, host):,.0f}", *(f"{share:.0%}" for share in shares)),
                f"{aim:.0%}" if aim else "",
            ]
        )
    return aligned(cells)


def of(rows: list[Row], graph: str) -> list[Row]:
    """Those of a graph."""
    return [row for row in rows if row["graph"] == graph]


def kind_lines(rows: list[Row]) -> list[str]:
    """The kinds of fused kernels that move most bytes in a step."""
    kinds = []
    for row in rows:
        for name, (launches, size) in row["kernels"].items():
            work = Work()
            work.add(launches, size)
            kinds.append((size, launches, 1e3 * work.seconds, row["graph"], name))
    total = sum(kind[0] for kind in kinds)
    cells = [["GB", "of all", "launches", "ms", "pass", "operators in it"]]
    for size, launches, ms, graph, name in sorted(kinds, reverse=True)[:TOP]:
        cells.append([f"{size / 1e9:.1f}", f"{size / total:.0%}", f"{launches}", f"{ms:.1f}", graph, name])
    return aligned(cells, "rrrrl")


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
