"""The clients that people have, as they are: huggingface_hub's InferenceClient and openai's, against a server."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub as hub
import numpy as np
import openai
import pytest
from huggingface_hub import constants, errors

from bertsmith.inference.embed import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.server import service as service_module
from bertsmith.inference.server.routes.hugging_face import _filled
from made_runs import PATIENCE
from made_served import Listening, Served, serving, serving_here

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


def client(served: Listening, name: str, token: str = TOKEN) -> Any:
    return hub.InferenceClient(base_url=f"{served.address}/models/{name}", api_key=token)


def of_openai(served: Listening) -> Any:
    """OpenAI's client, which tries nothing twice."""
    return openai.OpenAI(base_url=f"{served.address}/v1", api_key=TOKEN, max_retries=0)


def vector(one: openai.OpenAI, text: str = TEXT, model: str = "vectors") -> list[float]:
    return one.embeddings.create(input=text, model=model, encoding_format="float").data[0].embedding


def refused(ask: Callable[[], Any], status: int, says: str) -> Any:
    """The answer with this status that either client raises. Its body is of the shape that the client knows."""
    with pytest.raises((errors.HfHubHTTPError, openai.APIStatusError)) as raised:
        ask()
    answer = raised.value.response
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    if isinstance(raised.value, openai.APIStatusError):
        assert found["error"].keys() == {"message", "type", "code", "param"}
        assert (found["error"]["code"], raised.value.body) == (status, found["error"])
        assert says in found["error"]["message"]
    else:
        assert found.keys() == {"error", "error_type"}
        assert says in found["error"]
    return answer


def alone(folder: Path, *rows: Any) -> list[dict[str, Any]]:
    return Predictor(folder, "cpu", precision="fp32")(list(rows))


def test_text_classification(served: Served, served_models: dict[str, Path], only_labels: Served) -> None:
    (expected,) = alone(served_models["labels"], TEXT)
    for each in (client(served, "labels"), hub.InferenceClient(base_url=only_labels.address, api_key="any")):
        found = each.text_classification(TEXT)
        assert [one.label for one in found] == sorted(expected["scores"], key=expected["scores"].__getitem__)[::-1]
        assert found[0].score == pytest.approx(expected["score"], abs=1e-5)
    assert len(client(served, "labels").text_classification(TEXT, top_k=1)) == 1
    assert len(client(served, "labels").text_classification(TEXT, top_k=100)) == 2
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


def test_a_piece_within_a_word_continues_the_word_before_it() -> None:
    guesses = [[{"piece": piece, "probability": 0.5}] for piece in ("##s", "##s", "word")]
    found = _filled("[MASK] cat [MASK], [MASK].", {"guesses": guesses}, {"##s": 7, "word": 8}, 1)
    assert [each["sequence"] for (each,) in found] == [
        "##s cat [MASK], [MASK].", "[MASK] cats, [MASK].", "[MASK] cat [MASK], word."
    ]  # fmt: skip


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
        assert one.models.retrieve("vectors") in list(one.models.list())
        with pytest.raises(openai.NotFoundError, match="there is no model 'ada'"):
            one.models.retrieve("ada")
        with pytest.raises(openai.APIStatusError, match="labels does not give vectors of texts"):
            one.models.retrieve("labels")
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


def test_vectors_of_any_length_are_scaled_and_tokens_are_of_one_window(
    served_models: dict[str, Path], tmp_path: Path
) -> None:
    """Of a model that does not scale its vectors, and reads long texts in windows."""
    bare = shutil.copytree(served_models["vectors"], tmp_path / "bare", ignore=shutil.ignore_patterns("modules.json"))
    task = json.loads((bare / "task.json").read_text())
    (bare / "task.json").write_text(json.dumps(task | {"window_overlap": 8}))
    with serving_here({"bare": bare}) as served, of_openai(served) as one:
        served.until(200)
        assert np.linalg.norm(vector(one, model="bare")) == pytest.approx(1, abs=1e-5)
        _, found, _ = served.ask("/embed", {"inputs": [TEXT], "normalize": False})
        assert abs(np.linalg.norm(found[0]) - 1) > 0.1
        status, found, _ = served.ask("/embed_all", {"inputs": ["lovely " * 60, TEXT], "truncate": True})
        assert (status, len(found), len(found[0])) == (200, 2, 32)


def test_a_model_that_cannot_do_it_is_424(served: Served) -> None:
    with of_openai(served) as one:
        refused(lambda: vector(one, model="labels"), 424, "labels does not give vectors of texts")
        refused(
            lambda: client(served, "choices").text_classification(TEXT), 424, "choices does not give answers of Hugging"
        )
        assert len(vector(one)) == 32


def test_a_model_that_fails_is_424_and_answers_what_it_can(
    served_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_here({"vectors": served_models["vectors"]}) as served, of_openai(served) as one:
        served.until(200)
        expected = Embedder(served_models["vectors"], "cpu", precision="fp32")([TEXT])[0]
        lane = served.service.models["vectors"].lane
        compute = lane.compute

        def failing(sequences: Any) -> Any:
            if any(len(ids) == 3 for ids in sequences.ids):
                raise RuntimeError("secret words")
            return compute(sequences)

        monkeypatch.setattr(lane, "compute", failing)
        for ask in (lambda: vector(one, "lovely"), lambda: client(served, "vectors").feature_extraction("lovely")):
            assert "secret" not in refused(ask, 424, "the model failed (RuntimeError)").text
        assert np.abs(np.array(vector(one)) - expected).max() <= 1e-5
        assert np.abs(client(served, "vectors").feature_extraction(TEXT)[0] - expected).max() <= 1e-5


def test_a_full_queue_is_429_and_says_when_to_try_again(served_models: dict[str, Path]) -> None:
    models = {"vectors": served_models["vectors"]}
    expected = Embedder(models["vectors"], "cpu", precision="fp32")([TEXT])[0]
    with ThreadPoolExecutor(2) as pool, serving_here(models, queue_requests=1) as served, of_openai(served) as one:
        served.until(200)
        gate = served.hold("vectors")
        asked = [pool.submit(vector, one)]
        gate.wait()
        asked.append(pool.submit(vector, one))
        while not served.service.models["vectors"].lane.waiting:
            time.sleep(0.001)
        for ask in (lambda: vector(one), lambda: client(served, "vectors").feature_extraction(TEXT)):
            answer = refused(ask, 429, "the queue is full; try again in")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        with pytest.raises(openai.RateLimitError):
            vector(one)
        gate.open()
        for each in [*(task.result() for task in asked), vector(one)]:
            assert np.abs(np.array(each) - expected).max() <= 1e-5


def test_an_answer_that_does_not_come_in_time_is_504(served_models: dict[str, Path]) -> None:
    models = {"vectors": served_models["vectors"]}
    with serving_here(models, request_seconds=1) as served, of_openai(served) as one:
        served.until(200)
        served.hold("vectors")
        for ask in (lambda: vector(one), lambda: client(served, "vectors").feature_extraction(TEXT)):
            refused(ask, 504, "there was no answer within 1 s")
        assert not served.service.models["vectors"].lane.waiting


def test_while_models_are_loaded_it_is_503(served_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    may_load, opening = threading.Event(), service_module.open_model

    def held(*values: Any) -> Any:
        assert may_load.wait(PATIENCE)
        return opening(*values)

    monkeypatch.setattr(service_module, "open_model", held)
    with serving_here({"vectors": served_models["vectors"]}) as served, of_openai(served) as one:
        try:
            says_503(served, one, "the models are being loaded; try again")
            assert served.ask("/models/vectors/info")[0] == 503
            assert served.ask("/info")[1]["models"] == []
        finally:
            may_load.set()
        served.until(200)
        assert hub.InferenceClient(base_url=served.address, provider="hf-inference", api_key="any").health_check()
        assert len(vector(one)) == 32


def test_while_it_stops_it_is_503_and_what_it_has_is_answered(served_models: dict[str, Path]) -> None:
    models = {"vectors": served_models["vectors"]}
    expected = Embedder(models["vectors"], "cpu", precision="fp32")([TEXT])[0]
    with ThreadPoolExecutor(1) as pool, serving_here(models) as served, of_openai(served) as one:
        served.until(200)
        gate = served.hold("vectors")
        asked = pool.submit(vector, one)
        gate.wait()
        served.stop.requested = True
        served.until(503)
        says_503(served, one, "the server is stopping; try again")
        gate.open()
        assert np.abs(np.array(asked.result()) - expected).max() <= 1e-5


def says_503(served: Listening, one: openai.OpenAI, says: str) -> None:
    """Holds that each client learns so, and that nothing of it waits for a model."""
    status, found, headers = served.ask("/health")
    assert (status, found) == (503, {"error": says, "error_type": "Unhealthy"})
    assert headers["retry-after"] == "2"
    assert served.ask("/metrics")[0] == 200
    assert not hub.InferenceClient(base_url=served.address, provider="hf-inference", api_key="any").health_check()
    for ask in (lambda: vector(one), one.models.list, lambda: client(served, "vectors").feature_extraction(TEXT)):
        assert refused(ask, 503, says).headers["retry-after"] == "2"
