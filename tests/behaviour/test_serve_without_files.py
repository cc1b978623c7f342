"""A server answers on when the files of its models are deleted or truncated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bertsmith.inference.export.export import ExportOptions, export
from made_served import serving

PATH = "/models/labels/predict"
ONE = {"inputs": "lovely word1"}


def test_a_model_folder_may_vanish_under_a_server(served_models: dict[str, Path], tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("labels", "vectors", "answers")}
    for name, folder in folders.items():
        shutil.copytree(served_models[name], folder)
    with serving(folders, "--precision", "fp32") as served:
        row = {"rows": [{"question": "what is word1", "context": "word2 lovely"}]}
        asked = ((PATH, ONE), ("/embed", {"inputs": "word9 word3"}), ("/models/answers/answers", row))
        before = [served.ask(*each) for each in asked]
        for folder in folders.values():
            shutil.rmtree(folder)
        assert [served.ask(*each)[:2] for each in asked] == [each[:2] for each in before]
        assert {each[0] for each in before} == {200}


@pytest.mark.parametrize("how", ["deleted", "truncated"])
@pytest.mark.parametrize("backend", ["torch", "onnx", "openvino"])
def test_the_files_of_a_model_may_go_under_a_server(
    served_models: dict[str, Path], tmp_path: Path, backend: str, how: str
) -> None:
    folder = tmp_path / "labels"
    if backend == "torch":
        shutil.copytree(served_models["labels"], folder)
    else:
        pytest.importorskip("onnx")
        pytest.importorskip({"onnx": "onnxruntime"}.get(backend, backend))
        export(served_models["labels"], folder, ExportOptions(to=backend, few_lengths=True))
    with serving({"labels": folder}, "--precision", "fp32", "--backend", backend) as served:
        before = served.ask(PATH, ONE)[:2]
        for file in [each for each in folder.rglob("*") if each.is_file()]:
            if how == "deleted":
                file.unlink()
            else:
                os.truncate(file, 0)
        texts = [f"lovely {'word1 ' * number}" for number in range(1, 20)]
        assert {served.ask(PATH, {"inputs": text})[0] for text in texts} == {200}
        assert served.ask(PATH, ONE)[:2] == before
        assert before[0] == 200
