"""The rows of a file through an export: workers, parts and bad rows as through PyTorch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from made_entities import tagged_rows
from made_heads import assert_near
from made_rows import made_model

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime")),
    reason="onnx or onnxruntime is not installed",
)
SKIP = RowOptions(on_error="skip", part_rows=4)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    export(made_model(folder / "encoder"), folder / "onnx")
    return folder / "onnx"


def masked_rows(path: Path) -> Path:
    """Rows of which the tenth, in line 10, has no mask."""
    texts = [f"word{number} " * (1 + number % 5) + ("[MASK]" if number != 9 else "") for number in range(20)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_two_workers_write_what_one_writes_and_leave_the_same_rows_out(exported, tmp_path, quick_workers):
    source, written = masked_rows(tmp_path / "rows.jsonl"), []
    for workers in (1, 2):
        out = tmp_path / f"{workers}.jsonl"
        options = RowOptions(on_error="skip", part_rows=4, workers=workers)
        done = predict_file(exported, source, out, rows=options, backend="onnx")
        assert (done.rows, done.skipped) == (19, 1)
        written.append((out.read_bytes(), PartsFolder(out).bad.read_bytes()))
    assert written[0] == written[1]
    assert json.loads(written[0][1])["where"] == f"{source}:10"


def test_parts_of_an_export_are_not_continued_by_another_engine(exported, tmp_path):
    source, out = masked_rows(tmp_path / "rows.jsonl"), tmp_path / "out.jsonl"
    with pytest.raises(BertsmithError, match=r"no \[MASK\]"):
        predict_file(exported, source, out, rows=RowOptions(part_rows=4), backend="onnx")
    resumed = RowOptions(on_error="skip", part_rows=4, resume=True)
    model = exported.parent / "encoder" / "model"
    with pytest.raises(BertsmithError, match="made from another model and backend"):
        predict_file(model, source, out, rows=resumed, device="cpu", precision="fp32")
    predict_file(exported, source, out, rows=resumed, backend="onnx")
    predict_file(exported, source, tmp_path / "whole.jsonl", rows=SKIP, backend="onnx")
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["tags", "answers", "choices"])
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_an_export_of_tags_answers_and_choices_answers_as_its_model(served_models, tmp_path, name, engine):
    """Rows of words and texts, longer than a window of the model, and such that the vocabulary does not know."""
    pytest.importorskip(engine)
    export(served_models[name], tmp_path / "out", ExportOptions(engine, few_lengths=True))
    words = [row["tokens"] for row in tagged_rows(30, 9)]
    many = [word for each in words for word in each]
    rows: dict[str, list[Any]] = {
        "tags": [
            *({"tokens": each} for each in [*words, many]),
            " ".join(many),
            "lovely \U0001f600 word1",
            "\U0001f600",
        ],
        "answers": [{"question": "what is word1", "context": "word2 lovely word3 " * times} for times in (1, 2, 30)],
        "choices": [{"text": "word1 " * times, "choices": ["lovely", "awful word3"]} for times in (1, 60)],
    }
    found = Predictor(tmp_path / "out", backend=engine)(rows[name])
    assert_near(found, Predictor(served_models[name], "cpu", precision="fp32")(rows[name]), 1e-4)
    assert name != "tags" or sum(len(each["entities"]) for each in found) > 40
