"""The collectives of a step: which, when, with how many bytes; and what `docs/what-is-reduced.md` says of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from made_runs import ran_by_ranks
from made_steps import MODES, SHAPE, model_for, take_step

RANKS, HALF = 2, torch.bfloat16
PARTS = {1: [[*range(16)]], 3: [[0, 1, 2], [3, 4, 5, 6], [*range(7, 16)]]}
CASES = [
    (mode, compute, sums, micro_batches)
    for mode in MODES
    for compute in (None, HALF)
    for sums in (torch.float32, HALF)
    for micro_batches in PARTS
]

KINDS = {
    "c10d::allreduce_": "summed",
    "c10d::_reduce_scatter_base_": "scattered",
    "c10d::_allgather_base_": "gathered",
}


class Collectives(TorchDispatchMode):
    """Bytes that this rank puts into sums and takes out of gathers, by kind; and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.name().split(".")[0]
        if name.startswith("c10d::"):
            kind = KINDS.get(name, name)
            tensors = {"summed": args[0], "scattered": args[1:2], "gathered": args[:1]}.get(kind, ())
            self.calls[kind] += 1
            self.bytes[kind] += sum(each.numel() * each.element_size() for each in tensors)
        return func(*args, **(kwargs or {}))


def key(case: tuple) -> str:
    return " ".join(map(str, case))


def counted(mode: str, compute: torch.dtype | None, sums: torch.dtype, micro_batches: int) -> dict[str, dict[str, int]]:
    """The collectives of a second step, without its update and of its update."""
    model = model_for(mode, compute=compute, sums=sums)
    optimizer = Lamb(parameter_groups(model, 0.01))
    take_step(model, optimizer, PARTS[micro_batches])
    of_update, step = Collectives(), optimizer.step

    def noting() -> None:
        with of_update:
            step()

    optimizer.step = noting
    with Collectives() as of_step:
        take_step(model, optimizer, PARTS[micro_batches])
    of_step.bytes.subtract(of_update.bytes)
    of_step.calls.subtract(of_update.calls)
    return {"bytes": +of_step.bytes, "calls": +of_step.calls, "update": +of_update.bytes}


def work_of_a_rank(rank: int, folder: Path, made: Path) -> None:
    found = {key(case): {name: dict(each) for name, each in counted(*case).items()} for case in CASES}
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, dict[str, int]]]]:
    folder = ran_by_ranks(work_of_a_rank, RANKS, tmp_path_factory.mktemp("ranks"))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def sizes(shapes: Mapping[str, torch.Size], ranks: int = 1) -> dict[str, int]:
    """Parameters in matrices of layers, in other matrices, and in vectors; rows filled up to equal shards."""
    found = dict.fromkeys(("layers", "others", "vectors"), 0)
    for name, shape in shapes.items():
        kind = "vectors" if len(shape) < 2 else "layers" if ".layers." in name else "others"
        rows = shape[0] if kind == "vectors" else math.ceil(shape[0] / ranks) * ranks
        found[kind] += rows * math.prod(shape[1:])
    return found


def shapes_of(config: BertConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: each.shape for name, each in PretrainingModel(config).named_parameters()}


def expected(
    mode: str, compute: torch.dtype | None, sums: torch.dtype, micro_batches: int, ranks: int
) -> dict[str, int]:
    shapes = shapes_of(BertConfig(**SHAPE, num_attention_heads=2))
    size, width = sizes(shapes, ranks), sums.itemsize
    if mode == "replicate":
        return {"summed": width * (sum(sizes(shapes).values()) + ranks)}
    return {
        "summed": width * (size["vectors"] + ranks),
        "scattered": width * (size["layers"] + size["others"]),
        "gathered": 4 * size["others"] + 2 * micro_batches * (compute or torch.float32).itemsize * size["layers"],
    }


@pytest.mark.parametrize("case", CASES, ids=key)
def test_the_bytes_of_a_step_are_those_of_the_page(found: list[dict], case: tuple) -> None:
    mode, _, _, micro_batches = case
    layers = SHAPE["num_hidden_layers"]
    for each in found:
        assert each[key(case)]["bytes"] == expected(*case, RANKS)
        sharded = {"summed": 1, "scattered": layers + 1, "gathered": 1 + 2 * layers * micro_batches}
        assert each[key(case)]["calls"] == (sharded if mode == "shard" else {"summed": 1})


@pytest.mark.parametrize("mode", MODES)
def test_an_update_sums_squares_of_norms_alone(found: list[dict], mode: str) -> None:
    """Of every matrix: of its gradient, and for the trust ratio of itself and of its update."""
    shapes = shapes_of(BertConfig(**SHAPE, num_attention_heads=2))
    matrices = sum(len(shape) > 1 for shape in shapes.values())
    for case in CASES:
        if case[0] == mode:
            wanted = {"summed": 8 * 3 * matrices} if mode == "shard" else {}
            assert all(each[key(case)]["update"] == wanted for each in found)


def rows_of_the_page() -> dict[str, list[float]]:
    text = (Path(__file__).resolve().parents[2] / "docs" / "what-is-reduced.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if line.startswith("|")]
    return {
        name: [float(value.removesuffix(" A")) for value in values]
        for name, *values in cells
        if len(values) == 2 and values[0][:1].isdigit()
    }


def test_the_table_of_the_page_is_right() -> None:
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    base, large = (sizes(shapes_of(BertConfig(**each))) for each in ({}, large))
    wanted = {
        "replicate, sums in fp32": lambda size: 4 * sum(size.values()),
        "replicate, sums in bf16": lambda size: 2 * sum(size.values()),
        "shard, sums of matrices in fp32": lambda size: 4 * (size["layers"] + size["others"]),
        "shard, sums of matrices in bf16": lambda size: 2 * (size["layers"] + size["others"]),
        "shard, sums of vectors in fp32": lambda size: 4 * size["vectors"],
        "shard, gathers of embeddings and heads": lambda size: 4 * size["others"],
        "shard, gathers of layers in bf16 or fp16": lambda size: 2 * 2 * size["layers"],
        "shard, gathers of layers in fp32": lambda size: 2 * 4 * size["layers"],
    }
    rows = rows_of_the_page()
    assert rows.keys() == wanted.keys()
    for name, formula in wanted.items():
        assert rows[name] == [round(formula(size) / 1e6, 1) for size in (base, large)], name
