"""The clients that people have, as they are: huggingface_hub's InferenceClient and openai's, against a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub as hub
import numpy as np
import openai
import pytest
from huggingface_hub import constants, errors

from bertsmith.inference.embed import Embedder
from bertsmith.inference.predictor import Predictor
from made_served import Served, serving

TOKEN = "a-token"
TEXT = "word3 lovely word0 word5 awful"


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets huggingface_hub reach this machine; the tests have no other network anyway."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def served(served_models: dict[str, Path]) -> Iterator[Served]:
    with serving(served_models, "--precision", "fp32", BERTSMITH_TOKEN=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def only_labels(served_models: dict[str, Path]) -> Iterator[Served]:
    with serving({"labels": served_models["labels"]}, "--precision", "fp32") as server:
        yield server


def client(served: Served, name: str, token: str = TOKEN) -> Any:
    return hub.InferenceClient(base_url=f"{served.address}/models/{name}", api_key=token)


def alone(folder: Path, *rows: Any) -> list[dict[str, Any]]:
    return Predictor(folder, "cpu", precision="fp32")(list(rows))


def test_text_classification(served: Served, served_models: dict[str, Path], only_labels: Served) -> None:
    (expected,) = alone(served_models["labels"], TEXT)
    for each in (client(served, "labels"), hub.InferenceClient(base_url=only_labels.address, api_key="any")):
        found = each.text_classification(TEXT)
        assert [one.label for one in found] == sorted(expected["scores"], key=expected["scores"].__getitem__)[::-1]
        assert found[0].score == pytest.approx(expected["score"], abs=1e-5)
    assert len(client(served, "labels").text_classification(TEXT, top_k=1)) == 1
    raw = client(served, "labels").text_classification(TEXT, function_to_apply="none")
    assert abs(sum(one.score for one in raw) - 1) > 1e-3


def test_token_classification(served: Served, served_models: dict[str, Path]) -> None:
    (expected,) = alone(served_models["tags"], TEXT)
    found = client(served, "tags").token_classification(TEXT, aggregation_strategy="simple")
    assert found
    assert [(one.entity_group, one.word, one.start, one.end) for one in found] == [
        (one["label"], one["text"], one["start"], one["end"]) for one in expected["entities"]
    ]
    label = found[0].entity_group
    rest = client(served, "tags").token_classification(TEXT, ignore_labels=[label])
    assert [one.entity_group for one in rest] == [
        one.entity_group for one in found if one.entity_group != label
    ]  # fmt: skip


def test_question_answering(served: Served, served_models: dict[str, Path]) -> None:
    row = {"question": "what is word1", "context": "word2 lovely word3 " + "word4 " * 50}
    (expected,) = alone(served_models["answers"], row)
    found = client(served, "answers").question_answering(**row)
    assert (found.answer, found.start, found.end) == (expected["answer"], expected["start"], expected["end"])
    best = client(served, "answers").question_answering(**row, top_k=3)
    assert [each["answer"] for each in best] == [each["text"] for each in expected["nbest"][:3]]


def test_fill_mask(served: Served, served_models: dict[str, Path]) -> None:
    (expected,) = alone(served_models["masks"], "word1 [MASK] word2")
    found = client(served, "masks").fill_mask("word1 [MASK] word2", top_k=3)
    assert [one.token_str for one in found] == [one["piece"] for one in expected["guesses"][0][:3]]
    assert found[0].sequence == f"word1 {found[0].token_str} word2"


def test_feature_extraction_and_sentence_similarity(served: Served, served_models: dict[str, Path]) -> None:
    expected = Embedder(served_models["vectors"], "cpu", precision="fp32")([TEXT, "lovely"])
    found = client(served, "vectors").feature_extraction(TEXT)
    assert found.shape == (1, 32)
    assert np.abs(found - expected[:1]).max() <= 1e-5
    both = client(served, "vectors").feature_extraction([TEXT, "lovely"])
    assert np.abs(both - expected).max() <= 1e-5
    (cosine,) = client(served, "vectors").sentence_similarity(TEXT, other_sentences=["lovely"])
    assert cosine == pytest.approx(float(expected[0] @ expected[1]), abs=1e-5)


def test_what_the_server_does_not_have_is_refused_to_the_client(served: Served) -> None:
    error = errors.HfHubHTTPError
    with pytest.raises(error, match="targets"):
        client(served, "masks").fill_mask("a [MASK]", targets=["b"])
    with pytest.raises(error, match="aggregation_strategy"):
        client(served, "tags").token_classification(TEXT, aggregation_strategy="max")
    with pytest.raises(error, match="401"):
        client(served, "labels", "wrong").text_classification(TEXT)
    with pytest.raises(error, match="413"):
        client(served, "labels").text_classification("word1 " * 50)


def test_endpoint_info_and_health(only_labels: Served) -> None:
    one = hub.InferenceClient(base_url=only_labels.address, provider="hf-inference", api_key="any")
    assert one.health_check()
    assert one.get_endpoint_info()["model_id"] == "labels"


def test_openai_embeddings_as_base64_and_as_numbers(served: Served, served_models: dict[str, Path]) -> None:
    expected = Embedder(served_models["vectors"], "cpu", precision="fp32")([TEXT, "lovely"])
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=TOKEN) as one:
        assert [model.id for model in one.models.list()] == ["vectors"]
        for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            found = one.embeddings.create(input=[TEXT, "lovely"], model="vectors", **options)
            vectors = [each.embedding for each in found.data]
            if isinstance(vectors[0], str):  # asked for by name, it is left as it comes
                import base64

                vectors = [np.frombuffer(base64.b64decode(each), dtype="<f4") for each in vectors]
            assert np.abs(np.array(vectors) - expected).max() <= 1e-5
            assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("vectors", 10, 10)
            assert [each.index for each in found.data] == [0, 1]
        assert len(one.embeddings.create(input=TEXT, model="vectors", dimensions=8).data[0].embedding) == 8
        cut = one.embeddings.create(input="word1 " * 50, model="vectors", extra_body={"truncate": True})
        assert cut.truncated_tokens == [20]
        with pytest.raises(openai.NotFoundError, match="there is no model 'ada'"):
            one.embeddings.create(input=TEXT, model="ada")
        with pytest.raises(openai.APIStatusError, match="413"):
            one.embeddings.create(input="word1 " * 50, model="vectors")
    with (
        openai.OpenAI(base_url=f"{served.address}/v1", api_key="wrong") as other,
        pytest.raises(openai.AuthenticationError, match="a token is wanted"),
    ):
        other.embeddings.create(input=TEXT, model="vectors")


def test_only_probes_and_the_page_are_open_without_the_token(served: Served) -> None:
    assert [served.ask(path)[0] for path in ("/health", "/", "/page.js", "/page.css")] == [200] * 4
    for path in ("/info", "/metrics", "/openapi.json", "/v1/models"):
        assert served.ask(path)[0] == 401
        assert served.ask(path, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    for header in ("Bearer a-toke", f"Basic {TOKEN}", TOKEN, "Bearer", "Bearer \xe9"):
        status, found, headers = served.ask("/embed", {"inputs": "a"}, {"Authorization": header})
        assert (status, found["error_type"], headers["www-authenticate"]) == (401, "Unauthorized", "Bearer")
