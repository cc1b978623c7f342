"""The routes of a server: each gives what the models give without one, in the shape that its clients know."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.inference.embed import Embedder
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.inference.interactive import converse
from bertsmith.inference.predictor import Predictor
from made_heads import assert_near
from made_rows import WORDS
from made_served import Served, made_cross_encoder, serving

TEXTS = ["lovely word1 word2", "awful", "word3 word4 awful word5 word6"]
LONG = "lovely " + "word1 " * 40
SIMILAR = {"source_sentence": LONG, "sentences": ["awful"]}
CLOSE = {"rel": 0, "abs": 1e-5}


@pytest.fixture(scope="module")
def served(served_models: dict[str, Path]) -> Iterator[Served]:
    with serving(served_models, "--precision", "fp32") as server:
        yield server


def alone(folder: Path) -> Predictor:
    return Predictor(folder, "cpu", precision="fp32")


def asked(served: Served, path: str, body: Any) -> Any:
    status, found, _ = served.ask(path, body)
    assert status == 200, found
    return found


def test_predict_gives_all_labels_the_likeliest_first(served: Served, served_models: dict[str, Path]) -> None:
    expected = alone(served_models["labels"])(TEXTS)
    found = asked(served, "/models/labels/predict", {"inputs": [[text] for text in TEXTS]})
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0]["label"] == theirs["label"]
        assert {each["label"]: each["score"] for each in ours} == pytest.approx(theirs["scores"], **CLOSE)
        assert ours[0]["score"] >= ours[1]["score"]
    for single in (TEXTS[0], [TEXTS[0]]):  # a list of one text is that text, as in Text Embeddings Inference
        assert_near(asked(served, "/models/labels/predict", {"inputs": single}), found[0])


def test_raw_scores_are_those_before_the_softmax(served: Served) -> None:
    for name, map_back in (("labels", "softmax"), ("several", "sigmoid")):
        raw = {
            each["label"]: each["score"]
            for each in asked(served, f"/models/{name}/predict", {"inputs": TEXTS[0], "raw_scores": True})
        }
        scores = np.array([raw[label] for label in sorted(raw)])
        p = np.exp(scores) / np.exp(scores).sum() if map_back == "softmax" else 1 / (1 + np.exp(-scores))
        found = {
            each["label"]: each["score"] for each in asked(served, f"/models/{name}/predict", {"inputs": TEXTS[0]})
        }
        assert [found[label] for label in sorted(found)] == pytest.approx(p.tolist(), **CLOSE)


def test_numbers_and_ranks(served: Served, served_models: dict[str, Path]) -> None:
    (number,) = alone(served_models["number"])([TEXTS[0]])
    found = asked(served, "/models/number/predict", {"inputs": TEXTS[0]})
    assert found == [{"label": "LABEL_0", "score": pytest.approx(number["number"], **CLOSE)}]
    pairs = alone(served_models["ranks"])([{"text": "word1 word2", "text_b": text} for text in TEXTS])
    raw = asked(served, "/rerank", {"query": "word1 word2", "texts": TEXTS, "raw_scores": True, "return_text": True})
    assert [each["text"] for each in raw] == [TEXTS[each["index"]] for each in raw]
    assert [each["score"] for each in raw] == sorted((each["score"] for each in raw), reverse=True)
    for each in raw:
        assert each["score"] == pytest.approx(pairs[each["index"]]["number"], **CLOSE)
    ties = asked(served, "/rerank", {"query": "word1 word2", "texts": [TEXTS[0]] * 3})
    assert [each["index"] for each in ties] == [0, 1, 2], "of equals the first"
    ranks = asked(served, "/rerank", {"query": "word1 word2", "texts": TEXTS})
    for ours, before in zip(ranks, raw, strict=True):
        assert ours == {
            "index": before["index"],
            "score": pytest.approx(1 / (1 + np.exp(-before["score"])), **CLOSE),
        }


def test_vectors_of_texts_and_of_tokens(served: Served, served_models: dict[str, Path]) -> None:
    embedder = Embedder(served_models["vectors"], "cpu", precision="fp32")
    expected = embedder(TEXTS)
    found = np.array(asked(served, "/embed", {"inputs": TEXTS}), dtype=np.float32)
    assert np.abs(found - expected).max() <= 1e-5
    one = np.array(asked(served, "/embed", {"inputs": TEXTS[1], "dimensions": 4}), dtype=np.float32)
    assert np.abs(one - expected[1:2, :4] / np.linalg.norm(expected[1, :4])).max() <= 1e-5
    states = asked(served, "/embed_all", {"inputs": TEXTS})
    assert [len(each) for each in states] == [len(text.split()) + 2 for text in TEXTS]
    means = np.array([np.mean(each, axis=0) for each in states])
    assert np.abs(means / np.linalg.norm(means, axis=1, keepdims=True) - expected).max() <= 1e-5
    found = asked(served, "/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}})
    assert found == pytest.approx((expected @ expected[0]).tolist(), **CLOSE)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("labels", TEXTS),
        ("several", TEXTS),
        ("number", TEXTS),
        ("tags", [*TEXTS, {"tokens": ["lovely", "word0", "awful"]}]),
        ("answers", [{"question": "what is word1", "context": "word2 lovely word3 " + "word4 " * 60}]),
        ("choices", [{"text": "word1", "choices": ["lovely", "awful", "word9"]}]),
        ("masks", ["word1 [MASK] word2", "[MASK] [MASK]"]),
    ],
)
def test_answers_are_those_of_predict(served: Served, served_models: dict[str, Path], name: str, rows: Any) -> None:
    found = asked(served, f"/models/{name}/answers", {"rows": rows})
    assert found["model"] == name
    expected = alone(served_models[name])(rows)
    assert_near(found["answers"], expected)


@pytest.mark.parametrize("top", [1, 3])
def test_answers_list_as_many_as_are_asked_for(served: Served, top: int) -> None:
    rows = [{"question": "what is word1", "context": "word2 lovely word3 word4 word5 word6"}]
    (answer,) = asked(served, "/models/answers/answers", {"rows": rows, "top": top})["answers"]
    assert len(answer["nbest"]) == top
    (answer,) = asked(served, "/models/masks/answers", {"rows": ["word1 [MASK] [MASK]"], "top": top})["answers"]
    assert [len(guesses) for guesses in answer["guesses"]] == [top, top]


def test_tokens_are_those_that_the_model_reads(served: Served, served_models: dict[str, Path]) -> None:
    (found,) = asked(served, "/models/masks/tokenize", {"inputs": "lovely  word1 [MASK]"})
    assert [each["text"] for each in found] == ["[CLS]", "lovely", "word1", "[MASK]", "[SEP]"]
    assert [(each["start"], each["stop"]) for each in found[1:-1]] == [(0, 6), (8, 13), (14, 20)]
    assert [each["special"] for each in found] == [True, False, False, True, True]
    _, sequences = alone(served_models["masks"]).encoded([("row 1", "lovely  word1 [MASK]")])
    assert [each["id"] for each in found] == sequences.ids[0].tolist()
    (typed,) = asked(served, "/models/masks/tokenize", {"inputs": "lovely [SEP] qqqqq", "add_special_tokens": False})
    assert [(each["text"], each["special"]) for each in typed] == [("lovely", False), ("[SEP]", True), ("qqqqq", False)]
    bare = asked(served, "/models/labels/tokenize", {"inputs": ["lovely", ""], "add_special_tokens": False})
    assert [[each["text"] for each in row] for row in bare] == [["lovely"], []]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/labels/predict", {"inputs": [[LONG], ["awful"]]}),
        ("/embed", {"inputs": [LONG, "awful"]}),
        ("/embed_all", {"inputs": [LONG, "awful"]}),
        ("/rerank", {"query": "word1", "texts": [LONG, "awful"]}),
        ("/models/labels/answers", {"rows": [LONG, "awful"]}),
        ("/models/vectors", {"inputs": [LONG, "awful"]}),
        ("/models/vectors", {"inputs": SIMILAR}),
        ("/models/vectors", {"inputs": SIMILAR, "parameters": {"truncate": None}}),
        ("/v1/embeddings", {"input": [LONG, "awful"], "model": "vectors"}),
    ],
)
def test_a_row_that_is_too_long_is_refused_or_cut_and_told(served: Served, path: str, body: Any) -> None:
    status, found, _ = served.ask(path, body)
    assert status == 413
    assert "than the 32 that the model reads" in str(found["error"])
    lost = "13" if path == "/rerank" else "11"
    answers = {}
    for direction in ("right", "Left"):
        status, answers[direction], headers = served.ask(
            path, {**body, "truncate": True, "truncation_direction": direction}
        )
        assert status == 200
        assert headers["x-truncated-tokens"] == f"{lost},0"
    assert answers["right"] != answers["Left"]
    assert "x-truncated-tokens" not in served.ask(path, _short(body))[2]


@pytest.mark.parametrize(
    ("path", "body", "empty"),
    [
        ("/models/labels/predict", {"inputs": [["awful"], ["\U0001f600 \U0001f601"], ["\u200b\x01"]]}, "2,3"),
        ("/models/labels/answers", {"rows": ["\U0001f600", "awful"]}, "1"),
        ("/models/labels", {"inputs": "\U0001f600"}, "1"),
        ("/models/tags/answers", {"rows": [{"tokens": ["\U0001f600"]}, {"tokens": ["awful"]}]}, "1"),
        ("/embed", {"inputs": ["awful", "\x01"]}, "2"),
        ("/v1/embeddings", {"input": ["\U0001f600"], "model": "vectors"}, "1"),
        ("/rerank", {"query": "awful", "texts": ["awful", "\x01", "\U0001f600"]}, "2,3"),
        ("/similarity", {"inputs": {"source_sentence": "\U0001f600", "sentences": ["awful"]}}, "1"),
    ],
)
def test_rows_of_which_the_model_knows_nothing_are_told(served: Served, path: str, body: Any, empty: str) -> None:
    status, found, headers = served.ask(path, body)
    assert status == 200, found
    assert headers["x-empty-rows"] == empty
    assert headers["x-empty-rows-total"] == str(len(empty.split(",")))


def test_the_count_of_empty_rows_is_logged_and_in_the_metrics(served: Served) -> None:
    name = 'bertsmith_empty_rows_total{model="several"}'
    assert served.ask("/models/several/predict", {"inputs": "awful"})[2].keys().isdisjoint({"x-empty-rows"})
    before = served.metric(name)
    served.ask("/models/several/predict", {"inputs": [["\U0001f600"], ["awful"]]})
    # A request is counted, then logged, once its answer was sent.
    served.until_seen(lambda: any(each["empty_rows"] == 1 for each in served.requests() if each["model"] == "several"))
    assert served.metric(name) == before + 1


def _short(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: _short(value) for name, value in body.items()}
    return list(map(_short, body)) if isinstance(body, list) else "awful" if body == LONG else body


def test_cutting_the_beginning_gives_what_the_end_alone_gives(served: Served) -> None:
    text = "awful " * 20 + "lovely " * 30
    cut = {"inputs": text, "truncate": True, "truncation_direction": "left"}
    assert asked(served, "/models/labels/predict", cut) == asked(
        served, "/models/labels/predict", {"inputs": "lovely " * 30}
    )


def test_info_says_what_each_model_is(served: Served, served_models: dict[str, Path]) -> None:
    models = {each["model_id"]: each for each in asked(served, "/info", None)["models"]}
    assert list(models) == list(served_models)
    types = {name: next(iter(each["model_type"])) for name, each in models.items()}
    assert types["labels"] == types["several"] == "classifier"
    assert (types["ranks"], types["vectors"], types["answers"]) == ("reranker", "embedding", "qa")
    one = asked(served, "/models/vectors/info", None)
    assert one["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (one["model_dtype"], one["max_input_length"], one["auto_truncate"]) == ("fp32", 32, False)
    assert one["max_batch_tokens"] == 1024


def test_the_log_has_a_line_for_each_request_and_no_text(served: Served) -> None:
    asked(served, "/models/labels/predict", {"inputs": [["lovely word7"], [LONG], [LONG]], "truncate": True})
    served.ask("/models/labels/answers", {"rows": ["word8", ""]})
    served.ask("/secret-word9", None)
    facts = ("method", "route", "status", "model", "rows", "tokens", "truncated_rows")
    wanted = {
        ("POST", "/predict", 200, "labels", 3, 4 + 2 * 32, 2),
        ("POST", "/answers", 422, "labels", 0, 0, 0),
        ("GET", "none", 404, "", 0, 0, 0),
    }
    served.until_seen(lambda: wanted <= {tuple(each[name] for name in facts) for each in served.requests()})
    assert all(each["ms"] > 0 for each in served.requests())
    assert not [line for line in served.lines if re.search("word[0-9]|lovely|secret", line)]


def test_metrics_count_requests_rows_and_batches(served: Served) -> None:
    asked(served, "/embed", {"inputs": "word1"})
    names = (
        'bertsmith_requests_total{method="POST",route="/embed",status="200"}',
        'bertsmith_rows_total{model="vectors"}',
        'bertsmith_batch_tokens_sum{model="vectors"}',
        'bertsmith_request_seconds_count{method="POST",route="/embed"}',
    )
    before = list(map(served.metric, names))
    asked(served, "/embed", {"inputs": ["word1", "word2 word3"]})
    assert [served.metric(name) - first for name, first in zip(names, before, strict=True)][:3] == [1, 2, 3 + 4]
    assert served.metric('bertsmith_queue_requests{model="vectors"}') == 0
    assert served.ask("/metrics")[2]["content-type"].startswith("text/plain; version=0.0.4")


def test_a_conversation_asks_a_cross_encoder_for_one_text_or_two(
    served_models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = alone(made_cross_encoder(served_models["ranks"], tmp_path / "cross"))
    typed = iter(["word1", "word2", "word1", "", ""])
    assert converse(predictor, lambda prompt: next(typed)) == 2
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == predictor([{"text": "word1", "text_b": "word2"}, {"text": "word1"}])
    assert found[0]["score"] != found[1]["score"]


def test_a_cross_encoder_ranks_as_it_scores(served_models: dict[str, Path], tmp_path: Path) -> None:
    folder = made_cross_encoder(served_models["ranks"], tmp_path / "cross")
    query = "word1 word2"
    expected = alone(folder)([{"text": query, "text_b": text} for text in TEXTS])
    with serving({"cross": folder}, "--precision", "fp32") as served:
        assert list(asked(served, "/info", None)["model_type"]) == ["reranker"]
        for raw, name in ((False, "score"), (True, "logit")):
            found = asked(served, "/rerank", {"query": query, "texts": TEXTS, "raw_scores": raw})
            for each in found:
                assert each["score"] == pytest.approx(expected[each["index"]][name], **CLOSE)
        found = asked(served, "/predict", {"inputs": [[query, text] for text in TEXTS]})
        assert [row[0]["score"] for row in found] == pytest.approx([each["score"] for each in expected], **CLOSE)


@pytest.mark.parametrize(("name", "engine"), [("labels", "onnx"), ("vectors", "openvino"), ("tags", "onnx")])
def test_an_export_gives_what_its_model_gives(
    served: Served, served_models: dict[str, Path], tmp_path: Path, name: str, engine: str
) -> None:
    export(served_models[name], tmp_path / "export", ExportOptions(engine, few_lengths=True))
    asks = {"labels": ["/predict", "/answers"], "vectors": ["/embed", "/embed_all"], "tags": ["/answers", ""]}[name]
    with serving({name: tmp_path / "export"}, "--backend", engine) as of_export:
        for path in asks:
            theirs = asked(served, f"/models/{name}{path}", _texts(path))
            ours = asked(of_export, path or "/", _texts(path))
            assert numbers_in(ours) == pytest.approx(numbers_in(theirs), abs=1e-4)
            if name == "tags":
                assert spans_in(ours) == spans_in(theirs)
                assert len(spans_in(ours)) > 1


def _texts(path: str) -> dict[str, Any]:
    inputs = [[text] for text in TEXTS] if path == "/predict" else TEXTS
    return {"rows" if path == "/answers" else "inputs": inputs}


def spans_in(found: Any) -> list[tuple[Any, ...]]:
    """The entities of all rows, of either route."""
    rows = [each["entities"] for each in found["answers"]] if isinstance(found, dict) else found
    return [tuple(entity[name] for name in ("start", "end")) for row in rows for entity in row]


def numbers_in(found: Any) -> list[float]:
    """All numbers of an answer, in order."""
    if isinstance(found, dict | list):
        inner = found.values() if isinstance(found, dict) else found
        return [number for each in inner for number in numbers_in(each)]
    return [found] if isinstance(found, float) else []


def test_no_similarity_is_beyond_1(served: Served) -> None:
    texts = [" ".join((WORDS * 3)[number : number + 1 + number % 20]) for number in range(2 * len(WORDS))]
    for text in texts:
        (found,) = asked(served, "/similarity", {"inputs": {"source_sentence": text, "sentences": [text]}})
        assert found == pytest.approx(1, abs=1e-6)
        assert found <= 1
