"""The commands and the Python of docs/serving.md, run as they stand: servers are started, asked and stopped."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from bertsmith.inference.server.routes.schemas import HuggingFaceRequest
from made_pages import blocks, page, typed
from made_pairs import pairs
from made_rows import QUICK, made_model, rows

ONE, SEVERAL = blocks(page("serving.md"))
(CLIENTS,) = blocks(page("serving.md"), "python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs."""
    folder = tmp_path_factory.mktemp("page")
    encoder, short = made_model(folder / "encoder"), replace(QUICK, epochs=2)
    bertsmith.finetune("classify", encoder, rows(32, 1), rows(16, 2), folder / "runs" / "labels", settings=short)
    bertsmith.finetune("embed", encoder, pairs(32, 1), pairs(16, 2), folder / "runs" / "embed", settings=short)
    return folder


def served(folder: Path, commands: str) -> str:
    """What the commands print, with a free port in place of the page's."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (folder / "clients.py").write_text(CLIENTS.replace("8082", port))
    return typed(folder, re.sub("808[12]", port, commands), HF_HUB_OFFLINE="0").stdout


def test_one_model_is_served_and_stopped(folder: Path) -> None:
    served(folder, ONE)
    predicted = json.loads((folder / "predicted.json").read_text())
    assert {each["label"] for each in predicted} == {"praise", "blame"}
    assert json.loads((folder / "info.json").read_text())["model_id"] == "labels"


def test_several_models_are_asked_by_curl_and_by_clients(folder: Path) -> None:
    said = served(folder, SEVERAL)
    assert "TextClassificationOutputElement" in said
    assert said.splitlines()[-1] == "32"
    assert [len(each) for each in json.loads((folder / "vectors.json").read_text())] == [32, 32]
    assert [len(each) for each in json.loads((folder / "batch.json").read_text())] == [2, 2]


def test_parameters_of_hugging_faces_tasks_that_are_not_taken_are_listed() -> None:
    client = pytest.importorskip("huggingface_hub").InferenceClient
    (missing,) = re.findall(r"^- Not there.*?(?=^- )", page("serving.md"), re.MULTILINE | re.DOTALL)
    taken = {"top_k", "function_to_apply", "aggregation_strategy", "ignore_labels", *HuggingFaceRequest.model_fields}
    inputs = {"self", "model", "text", "question", "context", "sentence", "other_sentences"}
    tasks = ("text_classification", "token_classification", "question_answering", "fill_mask", "feature_extraction")
    for task in (*tasks, "sentence_similarity"):
        for name in inspect.signature(getattr(client, task)).parameters.keys() - inputs - taken:
            assert f"`{name}`" in missing, (task, name)
