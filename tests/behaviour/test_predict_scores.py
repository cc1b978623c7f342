"""Pairs scored by models with one output: as sentence-transformers' CrossEncoder scores them, from the same folder."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.predictor import Predictor
from made_rows import WORDS, made_model


def their_model(folder: Path, **options: Any) -> Any:
    """Imported here, for that takes six seconds, which the collection of tests need not take in each process."""
    return pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), **options)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    model = their_model(made_model(tmp_path_factory.mktemp("encoder")), num_labels=1)
    torch.nn.init.normal_(model.model.classifier.weight, std=3)
    return model


@pytest.fixture(scope="module")
def folder(cross_encoder: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cross") / "model"
    cross_encoder.save_pretrained(str(out))
    return out


def pairs() -> list[dict[str, str]]:
    """Short pairs, and some that are cut."""
    draw = random.Random(1)
    return [
        {side: " ".join(draw.choices(WORDS, k=draw.choice([1, 3, 9, 30]))) for side in ("text", "text_b")}
        for _ in range(24)
    ]


def changed(folder: Path, out: Path, activation: str | None, **config: Any) -> Path:
    """The folder with another activation, as version 6 writes it and, in `config`, as earlier ones did."""
    shutil.copytree(folder, out)
    path = out / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "activation_fn": activation}))
    if activation is None:
        path.unlink()
    path = out / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return out


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("activation", "config"),
    [
        ("torch.nn.modules.activation.Sigmoid", {}),
        (IDENTITY, {}),
        (None, {}),
        (None, {"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.0.0"}}),
        (None, {"sbert_ce_default_activation_function": IDENTITY}),
        (None, {"problem_type": "regression", "sentence_transformers": {"activation_fn": IDENTITY}}),
        ("torch.nn.modules.activation.Sigmoid", {"problem_type": "regression"}),
        (IDENTITY, {"problem_type": "regression"}),
    ],
)
def test_scores_are_those_of_a_cross_encoder(folder, tmp_path, activation, config):
    copy = changed(folder, tmp_path / "copy", activation, **config)
    theirs = their_model(copy).predict([(row["text"], row["text_b"]) for row in pairs()])
    ours = Predictor(copy, "cpu", precision="fp32", budget_tokens=128)(pairs())
    assert [each["score"] for each in ours] == pytest.approx(theirs.tolist(), abs=1e-5)
    assert len({round(each["score"], 3) for each in ours}) > 5
    logits = torch.tensor([each["logit"] for each in ours])
    expected = logits if IDENTITY in (activation, *map(str, _values(config))) else logits.sigmoid()
    assert [each["score"] for each in ours] == pytest.approx(expected.tolist(), abs=1e-6)


def _values(config: Any) -> list[Any]:
    return [each for value in config.values() for each in (value.values() if isinstance(value, dict) else [value])]


def test_the_length_of_the_folder_is_kept(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 20}))
    theirs = their_model(copy).predict([(row["text"], row["text_b"]) for row in pairs()])
    predictor = Predictor(copy, "cpu", precision="fp32")
    assert predictor.max_length == 20
    assert [each["score"] for each in predictor(pairs())] == pytest.approx(theirs.tolist(), abs=1e-5)


def test_one_text_and_what_is_not_computed_here_are_refused(folder, tmp_path):
    with pytest.raises(BertsmithError, match="this row has one text"):
        Predictor(folder, "cpu")(["word1"])
    with pytest.raises(BertsmithError, match=r"its activation is torch\.nn\.modules\.activation\.Tanh"):
        Predictor(changed(folder, tmp_path / "tanh", "torch.nn.modules.activation.Tanh"), "cpu")
    prompts = changed(folder, tmp_path / "prompts", IDENTITY) / "config_sentence_transformers.json"
    prompts.write_text(json.dumps({**json.loads(prompts.read_text()), "default_prompt_name": "query"}))
    with pytest.raises(BertsmithError, match="it puts a prompt before every pair"):
        Predictor(prompts.parent, "cpu")


def test_a_number_of_a_model_that_was_fitted_to_numbers_stays_one(folder, tmp_path):
    copy = changed(folder, tmp_path / "copy", None, problem_type="regression")
    assert list(Predictor(copy, "cpu")(["word1"])[0]) == ["number", "truncated_tokens"]
    # A folder of ours that sentence-transformers saved again.
    ours = changed(folder, tmp_path / "ours", IDENTITY, problem_type="regression")
    (ours / "task.json").write_text('{"task": "regress"}')
    assert list(Predictor(ours, "cpu")(["word1"])[0]) == ["number", "truncated_tokens"]
    several = changed(folder, tmp_path / "several", None, problem_type="regression", id2label={"0": "a", "1": "b"})
    with pytest.raises(BertsmithError, match="this model gives 2 numbers for a row"):
        Predictor(several, "cpu")
    free = changed(folder, tmp_path / "free", None)
    assert list(Predictor(free, "cpu")(["word1"])[0]) == ["score", "logit", "truncated_tokens"]
