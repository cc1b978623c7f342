"""What a graph gives to those who run it themselves, with rows that the model does not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.backends.engines import Feed, open_graph
from bertsmith.inference.backends.exported import graph_in
from bertsmith.inference.export.export import ExportOptions, export, exported_model
from made_heads import made_head, needs_engines
from made_rows import CONFIG

pytestmark = needs_engines  # what imports onnx is imported in the tests


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
@pytest.mark.parametrize("kind", ["classify", "tag", "qa", "embed", "masked words"])
def test_rows_that_no_model_reads_get_no_numbers(kind: str, engine: str, tmp_path: Path) -> None:
    """OpenVINO by itself would answer all of these, and ONNX Runtime ids below 0."""
    folder = made_head(kind, tmp_path / "model")
    export(folder, tmp_path / "out", ExportOptions(engine, int8=True, measure=False, few_lengths=True))
    whole = np.ones((2, CONFIG.max_position_embeddings), dtype=np.int64)
    usual = {"input_ids": 5 * whole, "attention_mask": whole, "token_type_ids": 0 * whole}
    one = np.eye(*whole.shape, dtype=np.int64)
    unread = {
        "too long": {name: np.hstack([each, each[:, :1]]) for name, each in usual.items()},
        "id above": {**usual, "input_ids": one * CONFIG.vocab_size},
        "id below": {**usual, "input_ids": -one},
        "type above": {**usual, "token_type_ids": one * CONFIG.type_vocab_size},
        "type below": {**usual, "token_type_ids": -one},
    }
    for precision in ("fp32", "int8"):
        run = open_graph(graph_in(tmp_path / "out", engine, precision))
        first = run(usual)
        kept = {name: each.copy() for name, each in first.items()}
        assert all(np.isfinite(each).all() for each in kept.values())
        for name, feed in unread.items():
            if engine == "onnx" and "below" not in name:
                with pytest.raises(Exception, match="out of data bounds"):
                    run(feed)
            else:
                assert all(np.isnan(each).all() for each in run(feed).values()), (name, precision)
        assert all(np.array_equal(first[name], each) for name, each in kept.items()), "as it was"


@pytest.mark.parametrize(("kind", "fault"), [("classify", 1.0), ("classify", np.nan), ("tag", 1.0)])
def test_a_graph_that_differs_is_told_with_the_length_at_which_it_does(kind: str, fault: float, tmp_path: Path) -> None:
    from bertsmith.inference.export.check import check

    folder = made_head(kind, tmp_path / "model")
    export(folder, tmp_path / "out", ExportOptions("onnx", few_lengths=True))
    run = open_graph(graph_in(tmp_path / "out", "onnx", "fp32"))

    def wrong(feed: Feed) -> dict[str, Any]:
        found = run(feed)
        found["logits"][feed["attention_mask"].sum(1) == 7] += fault
        return found

    with pytest.raises(BertsmithError, match=r"at length 7 logits is (nan|1|0\.\d+) from PyTorch's"):
        check(wrong, exported_model(folder, ExportOptions()), range(1, 12))


def test_few_lengths_are_the_short_ones_and_those_around_powers_of_two() -> None:
    from bertsmith.inference.export.check import checked_lengths

    found = checked_lengths(512, few=True)
    assert len(found) == 70
    assert found[:33] == list(range(1, 34))
    assert {255, 256, 257, 511, 512} <= set(found)
    assert checked_lengths(3, few=True) == [1, 2, 3]
    assert checked_lengths(512, few=False) == list(range(1, 513))


@pytest.mark.parametrize("most", [1, 2, 31, 50, 511, 512])
def test_the_longest_rows_are_among_those_that_are_compared(most: int) -> None:
    from bertsmith.inference.export.check import checked_lengths

    few = checked_lengths(most, few=True)
    assert checked_lengths(most, few=False) == list(range(1, most + 1))
    assert (few[0], few[-1], few) == (1, most, sorted(set(few)))


def test_each_column_of_a_map_in_int8_has_a_scale_of_its_own() -> None:
    from onnx import numpy_helper

    from bertsmith.inference.export.nodes import Nodes

    nodes = Nodes("weights")
    weight = np.array([[0.5, -1.0], [100.0, 3.0]], dtype=np.float32)  # as in torch: a row for each number of the result
    nodes.linear("x", weight, np.zeros(2, dtype=np.float32), "map")
    made = {each.name: numpy_helper.to_array(each) for each in nodes.model(["x"], {}).graph.initializer}
    assert made["map.weight_int8"].T.tolist() == [[64, -127], [127, 4]]
    assert np.allclose(made["map.weight_scales"] * 127, [1, 100])
