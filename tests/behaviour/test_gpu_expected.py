"""What an H100 would launch, counted on a machine without a GPU: the counts hold, and the generated kernels compile."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from bertsmith.bench.step.plan import GpuSizes
from bertsmith.model import dropout

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (it has wheels for Linux alone)"
)
SIZES = GpuSizes(models=("tiny",), lengths=(128,), tokens=1024)
GENERATIONS = (80, 90, 100)
ENDS = ("compiled, no CUDA graphs", "compiled, CUDA graphs")
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)'''", re.DOTALL)


@pytest.fixture(scope="module")
def expected(repository: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "benchmarks"))
        yield importlib.import_module("gpu_expected")
    for name in ("gpu_expected", "gpu_eager", "gpu_tables", "gpu_cost", "cuda_code"):
        sys.modules.pop(name, None)


@dataclass
class Traced:
    """A case with attention dropout, its graphs, and what is patched while they are traced, before and after that."""

    case: Any
    graphs: list[Any]
    before: list[Any]
    after: list[Any]


@pytest.fixture(scope="module")
def traced(expected: Any) -> Traced:
    interface = importlib.import_module("torch._dynamo.device_interface").CudaInterface
    watched = [(torch.cuda, "get_device_properties"), (torch.cuda, "current_device"), (interface, "is_available")]
    watched += [(expected.attend, "back_end"), (expected.pretraining, "_fills")]
    before = [getattr(owner, name) for owner, name in watched]
    case = next(each for each in expected.cases(SIZES) if each.attention_dropout)
    with mock.patch.object(dropout, "MANY", 1):
        graphs = expected.loss_graphs(case)
    return Traced(case, graphs, before, [getattr(owner, name) for owner, name in watched])


def launches(graph: Any) -> int:
    """Of generated kernels, products and operators, each once."""
    kernels = sum(count for count, _ in graph.kernels.values())
    return kernels + graph.products.total() + sum(calls for calls, _ in graph.operators.values())


def test_the_counts_of_a_block_and_nothing_left_patched(expected: Any, traced: Traced) -> None:
    case, graphs = traced.case, traced.graphs
    assert [graph.backward for graph in graphs] == 3 * [False, True]
    assert all(launches(graph) for graph in graphs)
    assert all(calls and size for graph in graphs for calls, size in graph.kernels.values())
    start, block, heads = graphs[::2]
    for graph, name in zip(graphs[2:4], ("varlen_attention", "varlen_attention_backward"), strict=True):
        assert {each: calls for each, (calls, _) in graph.operators.items() if "varlen" in each} == {
            f"bertsmith.{name}": 1
        }
    # Query, key and value are one product, the rest of a layer are three; each has two more in the backward pass.
    assert [graph.products.total() for graph in graphs[2:4]] == [4, 8]
    tokens, hidden = case.batches[0].layout.tokens, 64
    matrix, size = 3 * hidden**2, 2 * 4 * hidden * tokens
    assert block.products[tokens, 3 * hidden, hidden, "bfloat16", size + 2 * (matrix + 3 * hidden)] == 1
    assert graphs[3].products[3 * hidden, hidden, tokens, "bfloat16", size + 4 * matrix] == 1, "gradients in fp32"
    assert graphs[3].operators["bertsmith.gelu_backward"][0] == 1, "which sums the gradient of the bias too"
    assert graphs[3].operators["bertsmith.add_normalised_backward"][0] == 2, "and each of these those of three vectors"
    assert graphs[3].kernels["sum"][0] == 3, "of what groups of rows give"
    assert [graph.operators.get("bertsmith.kept_bits", [0])[0] for graph in graphs] == [1, 0, 2, 0, 0, 0]
    assert not any(re.search(r"tl\.rand|philox", graph.code) for graph in graphs), "no kernel draws place by place"
    # Of a block, bytes for each number of the hidden states: its input 2, queries, keys and values 6, what attention
    # gives 2, two sums, normalised, 8 and what was dropped of each a bit, the first of them with weight and bias 2, the
    # inner map's output and its activation 16. For each token: a number of each head and a deviation of each sum. And
    # copies of matrices in bf16.
    numbers = 36 * tokens * hidden + tokens * hidden // 4 + (4 * 2 + 2 * 4) * tokens
    assert numbers <= block.kept <= numbers + 2 * 12 * hidden**2 + 1024
    row = {"tokens": tokens, "hidden": hidden, "heads": 2, "attention_dropout": 0.1, "squared_lengths": tokens * 128.0}
    row["length"] = 128
    made = expected.summed(row | expected.joined((start, block, heads), (1, 5, 1)))
    assert made["launches"]["attention"] == 5
    assert made["kept"] == start.kept + 5 * block.kept + heads.kept
    assert made["calls"] == 7
    assert sum(made["launches"].values()) == launches(start) + 5 * launches(block) + launches(heads)
    assert traced.after == traced.before
    assert not torch.cuda.is_available() or torch.cuda.get_device_properties(0).name


def test_what_is_not_compiled_is_counted_operator_by_operator(expected: Any) -> None:
    """Of a rung of the ladder and of a call of inference: products by their shapes, and one attention a layer."""
    rows = {row["case"]: row for row in expected.ladder_rows(SIZES)}
    assert list(rows) == [f"tiny, ladder: {name}" for name in ("fp32, padded", "tf32", "bf16", "no padding")]
    unpadded, padded = rows["tiny, ladder: no padding"], rows["tiny, ladder: bf16"]
    name = "bertsmith.varlen_attention"
    assert unpadded["operators"] == {name: [2, 0], f"{name}_backward": [2, 0]}
    assert unpadded["tokens"] <= padded["tokens"] == padded["sequences"] * 128
    wide = {(m, n, k): count for m, n, k, dtype, _, count in padded["products"] if dtype == "bfloat16"}
    assert wide[padded["tokens"], 3 * 64, 64] == 2, "queries, keys and values of two layers"
    call = expected.call_row(SIZES, "tiny", 8, 128, "bf16")
    assert sum(count for *_, count in call["products"]) == 2 * 4 + 2, "and token types, and the head"
    assert call["launches"]["attention"] == 2


def test_what_rows_are_expected_to_show(expected: Any, repository: Path) -> None:
    """By the stored counts: faster on the GPU of more memory rate, and faster where the host launches once."""
    cost = importlib.import_module("gpu_cost")
    rows = json.loads((repository / "benchmarks" / "results" / "gpu-expected.json").read_text())["rows"]
    found = cost.expectations(rows)
    update = found["update alone: large, LAMB"]
    assert update["h100"] == pytest.approx(update["h200"] * 4800 / 3350, rel=0.02)
    for name, each in found.items():
        assert each["h200"] >= each["h100"] if each["figure"] == "ours" else each["h200"] <= each["h100"], name
    for model in ("bert-tiny", "bert-mini"):
        single, graph = (
            next(each for name, each in found.items() if name.startswith(model) and name.endswith(end)) for end in ENDS
        )
        assert graph["h100"] > 2 * single["h100"]
        assert single["milliseconds"]["h100"]["host"] > single["milliseconds"]["h100"]["GPU"]


def test_the_launches_of_an_update(expected: Any) -> None:
    found = {name: expected.update_launches(kind) for name, kind in expected.UPDATES.items()}
    assert {name: launches for name, (launches, _) in found.items()} == {"AdamW": 4, "LAMB": 6}
    # LAMB has two more: roots of the squares of its norms, and their rounding to fp32. So the stored rows have it.
    assert {name: small for name, (_, small) in found.items()} == {"AdamW": 35, "LAMB": 37}


@pytest.mark.parametrize(("field", "value"), [("torch", "1.0"), ("tokens", 1), ("counted", "whole")])
def test_rows_of_another_kind_are_not_mixed(expected: Any, tmp_path: Path, field: str, value: object) -> None:
    out = tmp_path / "rows.json"
    about = {"torch": torch.__version__.split("+")[0], "tokens": SIZES.tokens, "counted": expected.COUNTED}
    out.write_text(json.dumps({**about, "rows": [], field: value}))
    with pytest.raises(SystemExit, match=f"rows of {field} {value}, not {about[field]}.*--out"):
        expected.run(out, SIZES)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("of_attention", [0.0, 0.1], ids=["without dropout", "attention dropout"])
def test_the_generated_kernels_compile(
    expected: Any, of_attention: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    cases = expected.cases(GpuSizes(models=("large",), lengths=(128,)))
    case = next(each for each in cases if each.attention_dropout == of_attention)
    kernels = dict(generated(expected.loss_graphs(case), tmp_path, monkeypatch))
    assert len(kernels) > 40
    for name, kernel in kernels.items():
        for generation in GENERATIONS:
            assert machine_code(kernel, generation), (name, generation)


def test_a_step_sums_in_blocks_that_no_stop_watch_chose(
    traced: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of several configurations are timed on the GPU, and the fastest is taken: sums would be added otherwise
    after a restart elsewhere. Of one step alone, with attention dropout and with all dropout drawn as bits."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # which configurations depend on
    kernels = dict(generated(traced.graphs, tmp_path, monkeypatch))
    sums = {name: kernel for name, kernel in kernels.items() if not name.startswith("triton_poi_")}
    assert len(sums) > 10
    assert {name: len(kernel.configs) for name, kernel in sums.items()} == dict.fromkeys(sums, 1)


def generated(graphs: Sequence[Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """Inductor's kernels by their names, in Triton."""
    monkeypatch.setattr("torch._inductor.runtime.triton_helpers.set_driver_to_gpu", lambda: None)  # there is none
    monkeypatch.syspath_prepend(str(folder))
    for name, source in dict(each for graph in graphs for each in _KERNEL.findall(graph.code)).items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
        yield name, getattr(importlib.import_module(name), name)
        del sys.modules[name]


def machine_code(kernel: Any, generation: int) -> bytes:
    """Of a kernel of Inductor's in its first configuration."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    meta, config = kernel.triton_meta, kernel.configs[0]
    names = kernel.fn.arg_names
    constants = {(names.index(name),): value for name, value in {**meta["constants"], **config.kwargs}.items()}
    signature = {name: meta["signature"].get(name, "constexpr") for name in names}
    source = ASTSource(fn=kernel.fn, signature=signature, constexprs=constants, attrs=meta["configs"][0])
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    made: bytes = triton.compile(source, target=GPUTarget("cuda", generation, 32), options=options).asm["cubin"]
    return made
