"""Engines give what PyTorch gives, for every kind of model; what they do not have is refused."""

from __future__ import annotations

import gc
import json
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import write_json
from bertsmith.inference.backends.engines import openvino_core
from bertsmith.inference.backends.exported import BACKENDS
from bertsmith.inference.embed import Embedder
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.embedding.folders import SentenceRules, folder_files
from bertsmith.tasks.embedding.pooling import POOLINGS
from made_commands import Command
from made_heads import KINDS, assert_near, made_head, needs_engines
from made_rows import CONFIG

ENGINES = ("onnx", "openvino")
pytestmark = needs_engines


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a model of a kind, and its export to an engine; each made once."""
    root = tmp_path_factory.mktemp("heads")

    def find(kind: str, engine: str = "") -> Path:
        if not engine:
            return root / kind if (root / kind).exists() else made_head(kind, root / kind)
        out = root / f"{kind}-{engine}"
        if not out.exists():
            export(find(kind), out, ExportOptions(to=engine))
        return out

    return find


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_pytorch(kind: str, engine: str, folders: Any) -> None:
    rows = KINDS[kind][3]
    expected = Predictor(folders(kind), "cpu", precision="fp32")(rows)
    assert_near(Predictor(folders(kind, engine), backend=engine)(rows), expected, 1e-4)


@pytest.mark.parametrize("engine", ["torch", *ENGINES])
def test_threads_that_share_a_model_have_their_own_answers(engine: str, folders: Any) -> None:
    predictor = Predictor(folders("many labels", "" if engine == "torch" else engine), "cpu", backend=engine)
    asked = [[f"lovely word{number} awful"] * (1 + number) for number in range(8)] * 8
    expected = [predictor(rows) for rows in asked[:8]] * 8
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(predictor, asked), expected, strict=True):
            assert_near(found, wanted, 1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["classify", "embed"])
def test_a_program_may_load_and_use_models_in_inference_mode(kind: str, precision: str, folders: Any) -> None:
    rows = KINDS[kind][3]
    expected = Predictor(folders(kind), "cpu", precision=precision)(rows)
    with torch.inference_mode():
        loaded = Predictor(folders(kind), "cpu", precision=precision)
        assert loaded(rows) == expected
    assert loaded(rows) == expected


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["encoder", "embed"])
def test_vectors_are_those_of_pytorch(kind: str, engine: str, folders: Any) -> None:
    texts = [row["text"] for row in KINDS["embed"][3]]
    expected = Embedder(folders(kind), "cpu", precision="fp32")(texts)
    assert np.abs(Embedder(folders(kind, engine), backend=engine)(texts) - expected).max() < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("encoder", "embed")])
def test_an_export_without_hidden_states_gives_no_vectors(kind: str, engine: str, folders: Any) -> None:
    with pytest.raises(BertsmithError, match="no hidden states to make vectors of") as raised:
        Embedder(folders(kind, engine), backend=engine)
    assert "--backend torch" in raised.value.fix


def test_bf16_by_openvino_is_as_near_as_by_pytorch(folders: Any) -> None:
    """The bound of docs/parity.md: at most 1.5 times the distance."""
    texts = [row["text"] for row in KINDS["embed"][3]]
    exact = Embedder(folders("encoder"), "cpu", precision="fp32")(texts)
    ours = Embedder(folders("encoder"), "cpu", precision="bf16")(texts)
    found = Embedder(folders("encoder", "openvino"), backend="openvino", precision="bf16")(texts)
    assert np.linalg.norm(found - exact) <= 1.5 * np.linalg.norm(ours - exact)
    if "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert np.abs(found - exact).max() > 1e-4, "this is fp32"


def embed_in_bf16(folder: str) -> None:
    log.configure()
    Embedder(folder, backend="openvino", precision="bf16")(["word1 word2"])


def test_fp32_in_place_of_bf16_is_told(folders: Any) -> None:
    older = {"OV_CPU_MAX_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    with Command(str(folders("encoder", "openvino")), does=embed_in_bf16, **older) as command:
        _, said = command.communicate()
        assert command.wait() == 0
    assert "warning: OpenVINO has no bf16 on this processor, and computes in fp32" in said


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_pooled_as_the_folder_says_whatever_was_exported(
    pooling: str, folders: Any, tmp_path: Path
) -> None:
    """The graph itself has the mean."""
    source, copy = folders("encoder", "onnx"), tmp_path / "copy"
    shutil.copytree(source, copy)
    for name, value in folder_files(SentenceRules(pooling), CONFIG.hidden_size).items():  # type: ignore[arg-type]
        write_json(copy / name, value)
        write_json(tmp_path / "torch" / name, value)
    shutil.copytree(folders("encoder"), tmp_path / "torch", dirs_exist_ok=True)
    texts = [row["text"] for row in KINDS["embed"][3]]
    expected = Embedder(tmp_path / "torch", "cpu", precision="fp32")(texts)
    assert np.abs(Embedder(copy, backend="onnx")(texts) - expected).max() < 1e-4


@pytest.mark.parametrize("kind", [*KINDS, "encoder"])
def test_every_length_is_checked(kind: str, folders: Any) -> None:
    facts = json.loads((folders(kind, "onnx") / "export.json").read_text())
    assert facts["checked"]["lengths"] == list(range(1, 41))
    assert 0 < max(facts["checked"]["differences"].values()) <= 1e-4


@pytest.mark.parametrize(
    ("backend", "precision"), [("torch", "int8"), ("onnx", "bf16"), ("openvino", "fp16"), ("onnx", "tf32")]
)
def test_a_pair_that_is_not_there_is_refused_with_those_that_are(backend: str, precision: str, folders: Any) -> None:
    with pytest.raises(BertsmithError, match=f"{backend} does not run in {precision}") as error:
        Predictor(folders("classify"), backend=backend, precision=precision)
    assert all(name in error.value.fix for name in BACKENDS)


def test_what_is_no_name_of_an_engine_is_refused(folders: Any) -> None:
    for backend in (["onnx"], None):
        with pytest.raises(BertsmithError, match="is not known"):
            Predictor(folders("classify"), backend=backend)


def test_a_folder_of_another_kind_is_refused_with_the_command_that_helps(folders: Any, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="was not written by `bertsmith export`") as error:
        Predictor(folders("classify"), backend="onnx")
    assert f"export {folders('classify')} --to onnx" in error.value.fix
    (tmp_path / "weightless").mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "task.json"):
        shutil.copy(folders("classify") / name, tmp_path / "weightless")
    with pytest.raises(BertsmithError, match="was not written by `bertsmith export`") as error:
        Predictor(tmp_path / "weightless", backend="onnx")
    assert "export MODEL --to onnx" in error.value.fix
    with pytest.raises(BertsmithError, match="this is a file, not a model folder"):
        Predictor(folders("classify") / "config.json")
    with pytest.raises(BertsmithError, match="an export, without weights for PyTorch") as error:
        Predictor(folders("classify", "onnx"))
    assert "--backend onnx" in error.value.fix
    with pytest.raises(BertsmithError, match="an export, without weights for PyTorch"):
        bertsmith.finetune("classify", folders("classify", "onnx"), [{"text": "a", "label": ""}], [])  # before the rows
    with pytest.raises(BertsmithError, match="an export to onnx, not to openvino"):
        Predictor(folders("classify", "onnx"), backend="openvino")
    with pytest.raises(BertsmithError, match="no graph in int8") as error:
        Predictor(folders("classify", "onnx"), backend="onnx", precision="int8")
    assert "--int8 --data" in error.value.fix
    with pytest.raises(BertsmithError, match="on the CPU here, not on cuda"):
        Predictor(folders("classify", "onnx"), "cuda", backend="onnx")
    with pytest.raises(BertsmithError, match="backend 'onx' is not known") as error:
        Predictor(folders("classify", "onnx"), backend="onx")
    assert "onnx" in error.value.fix


@pytest.mark.parametrize(("engine", "name"), [("onnx", "model.onnx"), ("openvino", "openvino_model.xml")])
def test_a_broken_graph_is_named(engine: str, name: str, folders: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for each in folders("classify", engine).iterdir():
        (broken / each.name).write_bytes(each.read_bytes() if each.name != name else b"nothing that can be read")
    with pytest.raises(BertsmithError, match=f"{engine} cannot read this graph") as error:
        Predictor(broken, backend=engine)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("graph_of", "kind"), [("classify", "tag"), ("tag", "classify"), ("qa", "masked words"), ("classify", "regress")]
)
def test_the_graph_of_another_model_is_refused(graph_of: str, kind: str, folders: Any, tmp_path: Path) -> None:
    """Where its shapes differ: it was run, and its first numbers were answered, or it failed with a traceback."""
    mixed = shutil.copytree(folders(kind, "onnx"), tmp_path / "mixed")
    shutil.copy(folders(graph_of, "onnx") / "model.onnx", mixed)
    with pytest.raises(BertsmithError, match=r"this graph is of another model than config\.json") as refused:
        Predictor(mixed, backend="onnx")
    assert refused.value.where == str(mixed / "model.onnx")


def test_an_engine_that_is_not_installed_is_named_with_its_extra(folders: Any, monkeypatch: Any) -> None:
    folder = folders("classify", "onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BertsmithError, match="onnxruntime is not installed") as error:
        Predictor(folder, backend="onnx")
    assert "bertsmith[onnx]" in error.value.fix


def load_openvino_alone(folder: str) -> None:
    assert "openvino" not in sys.modules
    Predictor(folder, backend="openvino")("word1")
    assert sys.modules["openvino_telemetry"] is None
    assert not any(name.startswith("openvino_telemetry.") for name in sys.modules)


def test_openvino_tells_nobody_that_it_is_used(folders: Any, tmp_path: Path) -> None:
    """Imported as it is, it sends an event, and keeps a number for the user in a folder of theirs."""
    (tmp_path / "home").mkdir()
    home = str(tmp_path / "home")
    with Command(str(folders("tag", "openvino")), does=load_openvino_alone, HOME=home) as command:
        _, told = command.communicate()
        assert command.wait() == 0, told
    assert not any((tmp_path / "home").rglob("*openvino*"))


def outlive_models_of_openvino(folder: str) -> None:
    first, second = (Predictor(folder, backend="openvino") for _ in range(2))
    first("word1"), second("word1")
    del first
    gc.collect()
    del second
    gc.collect()
    signal.signal(signal.SIGTERM, lambda *_: print("came"))
    signal.raise_signal(signal.SIGTERM)


def test_signals_come_through_when_models_of_openvino_are_gone(folders: Any) -> None:
    with Command(str(folders("tag", "openvino")), does=outlive_models_of_openvino) as command:
        printed, said = command.communicate()
        assert (command.wait(), printed.split()[-1:]) == (0, ["came"]), said
