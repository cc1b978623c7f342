"""A model folder of every kind, with random weights, and rows that its model answers."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.tasks.embedding.folders import SentenceRules, folder_files
from bertsmith.tasks.kinds.pooled import SEVERAL, config_labels
from bertsmith.tasks.registry import answering
from bertsmith.tasks.task import FolderFacts
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import FolderContents, save_model
from made_rows import CONFIG, PIECES, WORDS

needs_engines = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "openvino")),
    reason="onnx, onnxruntime or openvino is not installed",
)
LABELS = ("praise", "blame", "neither")
_TEXTS = [{"text": " ".join(WORDS[: 3 * number + 1])} for number in range(5)]
_PAIRS = [{**row, "text_b": "lovely word3"} for row in _TEXTS]
_MASKED = [{"text": row["text"] + " [MASK] lovely"} for row in _TEXTS]
_TAGS = {"id2label": {"0": "O", "1": "B-x", "2": "I-x"}, "label2id": {"O": 0, "B-x": 1, "I-x": 2}}
_NUMBER = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
# The class of transformers, keys of config.json, keys of task.json, rows.
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "classify": ("BertForSequenceClassification", config_labels(LABELS), {"pairs": True}, _PAIRS),
    "many labels": ("BertForSequenceClassification", config_labels(LABELS, SEVERAL), {"pairs": False}, _TEXTS),
    "regress": ("BertForSequenceClassification", _NUMBER, {"pairs": False, "mean": 0, "low": 0, "high": 1}, _TEXTS),
    "tag": ("BertForTokenClassification", _TAGS, {"pairs": False, "window_overlap": 4}, _TEXTS),
    "qa": ("BertForQuestionAnswering", {}, {"doc_stride": 8}, [
        {"question": "word1 word2", "context": row["text"]} for row in _TEXTS
    ]),
    "choice": ("BertForMultipleChoice", {}, {"most_choices": 3}, [
        {**row, "choices": ["lovely", "awful word1 word2", "word9"]} for row in _TEXTS
    ]),
    "embed": ("BertModel", {}, {"task": "embed", "pooling": "max"}, _TEXTS),
    "score": ("BertForSequenceClassification", {key: _NUMBER[key] for key in ("id2label", "label2id")}, {}, _PAIRS),
    "masked words": ("BertForPreTraining", {}, {}, _MASKED),
    "masked words alone": ("BertForMaskedLM", {}, {}, _MASKED),
}  # fmt: skip
# What sentence-transformers writes for a cross-encoder whose score is the model's own number.
_SCORES = {"activation_fn": "torch.nn.modules.linear.Identity"}


def made_head(kind: str, folder: Path, **changes: Any) -> Path:
    """The folder of a small model of a kind, or of an encoder alone for "encoder". changes: of its `BertConfig`."""
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    architecture, config, task, _ = KINDS["embed" if kind == "encoder" else kind]
    found = answering({"architectures": [architecture], **task, **config})
    assert found is not None
    model = found.of_folder(FolderFacts(config, task, tokenizer)).build(replace(CONFIG, **changes), None)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    named = {"task.json": task} if task and kind != "encoder" else {}
    sentence = folder_files(SentenceRules("max"), CONFIG.hidden_size) if kind == "embed" else {}
    if kind == "score":
        sentence = {"config_sentence_transformers.json": _SCORES, "sentence_bert_config.json": {"max_seq_length": 16}}
    save_model(model, FolderContents(architecture, tokenizer.save, config, {**named, **sentence}), folder)
    return folder


def assert_near(found: Any, expected: Any, bound: float = 1e-5, share: float = 0) -> None:
    """Numbers within a bound, or within this share of themselves; all else, labels and places among it, equal."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_near(found[key], value, bound, share)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_near(ours, theirs, bound, share)
    else:
        assert found == (pytest.approx(expected, rel=share, abs=bound) if isinstance(expected, float) else expected)


def made_short_classifier(run: Path) -> Path:
    """A run's folder; its model classifies texts, and reads long ones in windows of 12 tokens."""
    folder = made_head("classify", run / "model")
    (folder / "task.json").write_text(json.dumps({"pairs": False, "max_length": 12, "window_overlap": 2}))
    return run
