"""Where a folder says how long a row may be and which end of it is lost, it is cut there, as transformers cuts it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.models import Asked, Cut, open_model
from bertsmith.inference.server.refusals import Refusal
from made_heads import made_head
from made_rows import QUICK, WORDS, made_model, rows

transformers = pytest.importorskip("transformers")

CPU: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
LONG = " ".join(WORDS * 2)
LEFT = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


def said_in(folder: Path, name: str, **values: Any) -> Path:
    """The folder, whose file says this too."""
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def classifier(folder: Path) -> Path:
    """As others than Bertsmith write them."""
    made_head("classify", folder)
    (folder / "task.json").unlink()
    return folder


def pairs() -> list[dict[str, str]]:
    """Of which one text is cut at most: where both are, a classifier cuts as Google's code does."""
    draw = random.Random(1)
    lengths = [(1, 30), (60, 3), (3, 3), (2, 60), (9, 1)]
    texts = [[" ".join(draw.choices(WORDS, k=count)) for count in each] for each in lengths]
    return [{"text": text, "text_b": text_b} for text, text_b in texts]


def their_scores(folder: Path, asked: list[dict[str, str]]) -> list[list[float]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    longest, found = min(tokenizer.model_max_length, model.config.max_position_embeddings), []
    for row in asked:
        inputs = tokenizer(*row.values(), truncation=True, max_length=longest, return_tensors="pt")
        with torch.no_grad():
            found += model(**inputs).logits.softmax(-1).tolist()
    return found


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("tokenizer_config.json", {"truncation_side": "left"}, "lose their beginning"),
        ("tokenizer.json", {"truncation": LEFT}, "lose their beginning"),
        ("tokenizer_config.json", {"truncation_side": "right"}, ""),
        ("tokenizer_config.json", {"model_max_length": 20}, "longest row: 20 of 40 tokens"),
        ("tokenizer_config.json", {"model_max_length": 13, "truncation_side": "left"}, "longest row: 13 of 40 tokens"),
        ("tokenizer_config.json", {"model_max_length": 1e30}, ""),
    ],
)
def test_a_classifier_cuts_rows_as_transformers_does(tmp_path, said, name, values, told):
    folder = said_in(classifier(tmp_path / "model"), name, **values)
    for asked in (pairs(), [{"text": row["text"]} for row in pairs()], [{"text": LONG}]):
        answers = bertsmith.Predictor(folder, **CPU)(asked)
        found = [list(each["scores"].values()) for each in answers]
        assert np.abs(np.array(found) - their_scores(folder, asked)).max() < 1e-5
        assert any(each["truncated_tokens"] for each in answers)
    assert told in said.text
    assert bool(told) == ("lose their beginning" in said.text or "longest row" in said.text)


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("values", [{"truncation_side": "left"}, {"model_max_length": 20}])
def test_vectors_are_of_what_sentence_transformers_reads(tmp_path, parts, values):
    theirs = pytest.importorskip("sentence_transformers")
    folder = made_model(tmp_path / "encoder")
    if parts:
        theirs.SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "parts"))
        folder = tmp_path / "parts"
        settings = json.loads((folder / "sentence_bert_config.json").read_text())
        settings.pop("max_seq_length", None)
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    said_in(folder, "tokenizer_config.json", **values)
    expected = theirs.SentenceTransformer(str(folder), device="cpu").encode([LONG, "word3"])
    assert np.abs(bertsmith.Embedder(folder, **CPU)([LONG, "word3"]) - expected).max() < 1e-5


def test_a_model_is_trained_on_the_ends_and_its_folder_says_so_to_others(tmp_path):
    start = said_in(made_model(tmp_path), "tokenizer_config.json", truncation_side="left")
    made = [{**row, "text": f"{LONG} {row['text']}"} for row in rows(320, 1)]
    settings = replace(QUICK, max_length=15)
    result = bertsmith.finetune("classify", start, made[:256], made[256:], tmp_path / "run", settings=settings)
    assert result.tuned["dev"]["accuracy"] == 1, "what decides stands at the end of the rows"
    asked = [{"text": row["text"]} for row in made[256:]]
    answers = bertsmith.Predictor(result.model, **CPU)(asked)
    ours = np.array([list(each["scores"].values()) for each in answers])
    assert np.abs(ours - their_scores(result.model, asked)).max() < 1e-5, "of the last 15 tokens, too"


@pytest.mark.parametrize("kind", ["classify", "choice", "encoder"])
def test_a_request_that_names_no_side_is_cut_as_the_folder_says(tmp_path, kind):
    row: Any = {"text": LONG, "text_b": "lovely", "choices": ["lovely", "awful"]}
    folder = made_head(kind, tmp_path / "model")
    models = []
    for side in ("right", "left"):
        said_in(folder, "tokenizer_config.json", truncation_side=side)
        models.append(open_model("m", folder, {**CPU, "backend": "torch"}, Limits()))
    asked = Asked([LONG if kind == "encoder" else row])
    right, left = (model.encode(asked, Cut(truncate=True)).sequences.ids[0].tolist() for model in models)
    assert right != left
    assert [len(right), right[1]] == [len(left), models[0].tokenizer.pieces.index("word0")]
    own = models[1].encode(asked, Cut(truncate=True, keep_end=True)).sequences.ids[0].tolist()
    assert own == left
    if kind == "choice":
        with pytest.raises(Refusal, match="rows of a choice model are cut as its folder says"):
            models[1].encode(asked, Cut(truncate=True, keep_end=False))
    else:
        assert models[1].encode(asked, Cut(truncate=True, keep_end=False)).sequences.ids[0].tolist() == right


def test_a_server_chooses_no_precision_but_the_one_that_is_asked_for(tmp_path, said):
    open_model("m", made_head("classify", tmp_path / "model"), {**CPU, "backend": "torch"}, Limits())
    assert "precision:" not in said.text


@pytest.mark.parametrize("side", ["up", None, 1])
def test_a_side_that_there_is_not_is_refused_by_its_name(tmp_path, side):
    folder = said_in(classifier(tmp_path / "model"), "tokenizer_config.json", truncation_side=side)
    with pytest.raises(
        BertsmithError, match=f"truncation_side is {json.dumps(side)}, neither left nor right"
    ) as caught:
        bertsmith.Predictor(folder, **CPU)
    assert str(caught.value.where) == str(folder / "tokenizer_config.json")


@pytest.mark.parametrize("length", ["long", 2, True, float("nan")])
def test_a_length_that_is_none_is_refused_by_its_name(tmp_path, length):
    folder = said_in(classifier(tmp_path / "model"), "tokenizer_config.json", model_max_length=length)
    with pytest.raises(BertsmithError, match=f"model_max_length is {length!r}"):
        bertsmith.Predictor(folder, **CPU)
    said_in(folder, "tokenizer_config.json", model_max_length=float("inf"))
    assert bertsmith.Predictor(folder, **CPU).max_length == 40
