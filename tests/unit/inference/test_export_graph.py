"""What a graph gives to those who run it themselves, with rows that the model does not read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.base.errors import BertsmithError
from bertsmith.base.processor import this_processor
from bertsmith.inference.backends.engines import Feed, Run, open_graph
from bertsmith.inference.backends.exported import graph_in
from bertsmith.inference.export.export import ExportOptions, export, exported_model
from bertsmith.inference.predictor import Predictor
from bertsmith.weights.huggingface import load_encoder
from made_heads import KINDS, LABELS, made_head, needs_engines
from made_rows import CONFIG

pytestmark = needs_engines  # what imports onnx is imported in the tests


ROWS = ("batch", "sequence")
OUTPUTS: dict[str, dict[str, tuple[str | int, ...]]] = {
    "classify": {"logits": ("batch", len(LABELS))},
    "many labels": {"logits": ("batch", len(LABELS))},
    "regress": {"logits": ("batch", 1)},
    "choice": {"logits": ("batch", 1)},
    "score": {"logits": ("batch", 1)},
    "tag": {"logits": (*ROWS, 3)},
    "qa": {"start_logits": ROWS, "end_logits": ROWS},
    "embed": {"last_hidden_state": (*ROWS, CONFIG.hidden_size), "sentence_embedding": ("batch", CONFIG.hidden_size)},
    "masked words": {"logits": (*ROWS, CONFIG.vocab_size), "seq_relationship_logits": ("batch", 2)},
    "masked words alone": {"logits": (*ROWS, CONFIG.vocab_size)},
}


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
        assert first.keys() >= OUTPUTS[kind].keys()
        assert all(np.isfinite(each).all() for each in kept.values())
        for name, feed in unread.items():
            if engine == "onnx" and "below" not in name:
                with pytest.raises(Exception, match="out of data bounds"):
                    run(feed)
            else:
                assert all(np.isnan(each).all() for each in run(feed).values()), (name, precision)
        assert all(np.array_equal(first[name], each) for name, each in kept.items()), "as it was"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The export to ONNX of a kind of model, which lies in `model` within; each made once."""
    root = tmp_path_factory.mktemp("exported")

    @cache
    def find(kind: str) -> Path:
        export(made_head(kind, root / "model" / kind), root / kind, ExportOptions("onnx", few_lengths=True))
        (root / "model" / kind).rename(root / kind / "model")
        return root / kind

    return find


def both(exported: Path) -> tuple[Run, Any]:
    """What runs a graph, and the model that this was made of."""
    return open_graph(graph_in(exported, "onnx", "fp32")), exported_model(exported / "model", ExportOptions())


def changed(run: Run, output: str, length: int, fault: float, times: float = 1.0) -> Run:
    """An engine of which one number of each token or sequence is off at a length. fault: by how much, in units of the
    largest number, or of 1. times: by what all numbers are multiplied."""

    def wrong(feed: Feed) -> dict[str, Any]:
        found = {name: times * each for name, each in run(feed).items()}
        rows = feed["attention_mask"].sum(1) == length
        place = (rows, ..., 0) if output not in ("start_logits", "end_logits") else rows
        found[output][place] += fault * max(1.0, np.abs(found[output]).max())
        return found

    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_says_what_it_reads_and_gives(kind: str, exported: Any) -> None:
    import onnx

    graph, dimensions = onnx.load(exported(kind) / "model.onnx").graph, {}
    for each in (*graph.input, *graph.output):
        dimensions[each.name] = tuple(dim.dim_param or dim.dim_value for dim in each.type.tensor_type.shape.dim)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    assert dimensions == dict.fromkeys(inputs, ROWS) | OUTPUTS[kind]
    found = both(exported(kind))[0](dict.fromkeys(inputs, np.ones((2, 5), dtype=np.int64)))
    real = {"batch": 2, "sequence": 5}
    wanted = {name: tuple(real.get(n, n) for n in shape) for name, shape in OUTPUTS[kind].items()}
    assert {name: each.shape for name, each in found.items()} == wanted


@pytest.mark.parametrize("kind", ["tag", "masked words"])
def test_a_graph_has_each_weight_once(kind: str, exported: Any) -> None:
    """The word embeddings are the decoder of masked words, too. Beside the weights there are some single numbers."""
    import onnx

    kept = onnx.load(exported(kind) / "model.onnx").graph.initializer
    numbers = sum(math.prod(each.dims) for each in kept if each.data_type == onnx.TensorProto.FLOAT)
    model = both(exported(kind))[1]
    weights = sum(each.numel() for name, each in model.named_parameters() if kind != "tag" or "pooler" not in name)
    assert 0 <= numbers - weights < 10


def test_an_encoder_without_a_pooler_is_exported(tmp_path: Path) -> None:
    path = made_head("encoder", tmp_path / "model") / "model.safetensors"
    save_file({name: each for name, each in load_file(path).items() if "pooler" not in name}, path)
    export(tmp_path / "model", tmp_path / "out", ExportOptions(few_lengths=True))


def test_large_weights_lie_in_a_file_beside_the_graph(tmp_path: Path, monkeypatch: Any) -> None:
    folder = made_head("classify", tmp_path / "drawn")
    expected = Predictor(folder, "cpu", precision="fp32")([{"text": "word1", "text_b": "word2"}])
    monkeypatch.setattr("bertsmith.inference.export.files.EXTERNAL_FROM_BYTES", 1)
    files = {"onnx": {"model.onnx", "model.onnx.data"}, "openvino": {"openvino_model.xml", "openvino_model.bin"}}
    for engine, names in files.items():
        out = tmp_path / engine
        facts = export(folder, out, ExportOptions(to=engine))
        graph = {each.name: each.stat().st_size for each in out.iterdir() if "model" in each.name}
        assert (graph.keys(), facts["bytes"]) == (names, {"fp32": sum(graph.values())})
        (found,) = Predictor(out, backend=engine)([{"text": "word1", "text_b": "word2"}])
        assert found["score"] == pytest.approx(expected[0]["score"], abs=1e-4)
    assert (tmp_path / "onnx" / "model.onnx").stat().st_size < (tmp_path / "onnx" / "model.onnx.data").stat().st_size


@pytest.mark.parametrize(("to", "int8"), [("onnx", False), ("triton", False), ("triton", True)])
def test_a_graph_with_weights_beside_it_runs_wherever_it_is_moved(
    to: str, int8: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    """By ONNX Runtime itself, as users of the folder run it."""
    import onnxruntime

    monkeypatch.setattr("bertsmith.inference.export.files.EXTERNAL_FROM_BYTES", 1)
    facts = export(made_head("encoder", tmp_path / "drawn"), tmp_path / "out", ExportOptions(to, int8, measure=False))
    assert list(facts["bytes"]) == ["int8" if int8 else "fp32"]
    (tmp_path / "out").rename(tmp_path / "moved")
    (path,) = (tmp_path / "moved").rglob("model.onnx")
    assert all(each.parent == path.parent for each in (tmp_path / "moved").rglob("*.data")), "of this graph alone"
    assert path.stat().st_size < sum(each.stat().st_size for each in path.parent.glob("*.onnx.data"))
    options = onnxruntime.SessionOptions()
    if not this_processor().vnni:  # where the usual 8-bit products overflow
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ids = np.arange(40).reshape(4, 10) % CONFIG.vocab_size
    mask = (np.arange(10) < np.array([[1], [4], [9], [10]])).astype(np.int64)
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (hidden,) = session.run(["last_hidden_state"], feed)
    with torch.no_grad():
        expected = (
            load_encoder(tmp_path / "drawn").encode_padded(*(torch.from_numpy(feed[name]) for name in feed)).numpy()
        )
    apart = np.abs(hidden - expected)[mask > 0].max()
    assert 1e-4 < apart < 0.05 if int8 else apart < 1e-4


LENGTHS = [*range(1, 41)] * 3  # of several batches


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("classify", "logits"),
        ("tag", "logits"),
        ("qa", "start_logits"),
        ("qa", "end_logits"),
        ("encoder", "last_hidden_state"),
        ("encoder", "sentence_embedding"),
        ("masked words", "logits"),
        ("masked words", "seq_relationship_logits"),
    ],
)
@pytest.mark.parametrize(("length", "fault"), [(7, 1.2e-4), (7, np.nan), (38, 1.2e-4)])
def test_a_graph_that_differs_is_told_with_the_length_at_which_it_does(
    kind: str, output: str, length: int, fault: float, exported: Any
) -> None:
    from bertsmith.inference.export.check import check

    run, model = both(exported(kind))
    with pytest.raises(BertsmithError, match=rf"at length {length} {output} is (nan|0.00012) from PyTorch's"):
        check(changed(run, output, length, fault), model, LENGTHS)


@pytest.mark.parametrize("length", [7, 38])
@pytest.mark.parametrize("times", [0.001, 1000.0])
def test_a_difference_is_a_share_of_the_largest_number_where_that_is_above_1(
    times: float, length: int, exported: Any
) -> None:
    """The largest difference of all lengths is told."""
    from bertsmith.inference.export.check import check

    run, model = both(exported("tag"))
    with torch.no_grad():
        for each in model.classifier.parameters():
            each *= times
    found = check(changed(run, "logits", length, 0.9e-4, times), model, LENGTHS)
    assert (found.lengths, found.differences) == (LENGTHS, {"logits": pytest.approx(0.9e-4, rel=0.05)})


def test_what_is_compared_has_all_ids_and_both_types() -> None:
    from bertsmith.inference.export.check import drawn

    found = drawn(CONFIG, [10] * 200)
    assert {*np.concatenate(found.ids).tolist()} == {*range(CONFIG.vocab_size)}
    assert {*found.first_segments.tolist()} == {*range(11)}
    assert {*drawn(replace(CONFIG, type_vocab_size=1), [10] * 20).first_segments.tolist()} == {10}


def test_few_lengths_are_the_short_ones_and_those_around_powers_of_two(exported: Any) -> None:
    from bertsmith.inference.export.check import checked_lengths

    facts = json.loads((exported("tag") / "export.json").read_text())
    assert facts["checked"]["lengths"] == [*range(1, 34), 39, 40]
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
