"""Full queues, requests that are given up, models that fail, a server that loads, stops or fails, each held still."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as web
import pytest
from pydantic import ValidationError

from bertsmith.inference.server.app import make_app
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.refusals import Refusal
from bertsmith.inference.server.routes import schemas
from bertsmith.inference.server.service import Service
from bertsmith.inference.server.service import answer as answer_of
from made_served import Gate, serving_here

PATH = "/models/labels/predict"
ONE = {"inputs": "lovely word1"}


Work = Callable[[Service, Gate, Any], Awaitable[None]]


def run(models: dict[str, Path], work: Work, names: tuple[str, ...] = ("labels",), **limits: Any) -> None:
    """Does the work with a service of these models, its gate and a client."""

    async def inside() -> None:
        service = Service({name: models[name] for name in names}, Limits(**limits))
        await service.load({"device": "cpu", "precision": "fp32", "backend": "torch"})
        gate = Gate(next(iter(service.models.values())).lane)
        transport = web.ASGITransport(make_app(service))
        try:
            async with web.AsyncClient(transport=transport, base_url="http://localhost") as client:
                await work(service, gate, client)
        finally:
            gate.open()
            assert service.close(60)

    asyncio.run(inside())


async def first_held(gate: Gate, client: Any) -> Any:
    """A request whose batch is held."""
    task = asyncio.create_task(client.post(PATH, json=ONE))
    await asyncio.to_thread(gate.wait)
    return task


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("limits", [{"queue_requests": 2}, {"queue_tokens": 8}])
def test_a_full_queue_refuses_and_takes_again(served_models: dict[str, Path], limits: dict[str, int]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        held = await first_held(gate, client)
        queued = [asyncio.create_task(client.post(PATH, json=ONE)) for _ in range(2)]
        await until(lambda: len(lane.waiting) == 2)
        refused = await client.post(PATH, json=ONE)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error_type"] == "Overloaded"
        tokenised = await client.post("/models/labels/tokenize", json=ONE)
        assert tokenised.status_code == 200, "it waits for no model"
        gate.open()
        assert {(await task).status_code for task in (held, *queued)} == {200}
        assert (await client.post(PATH, json=ONE)).status_code == 200
        assert gate.sequences == [1, 2, 1]  # what had gathered went together

    run(served_models, work, **limits)


def test_a_wait_that_would_be_too_long_is_refused(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        held = await first_held(gate, client)
        queued = asyncio.create_task(client.post(PATH, json=ONE))
        await until(lambda: bool(lane.waiting))
        lane.rate = 0.1  # four tokens take 40 s
        refused = await client.post(PATH, json=ONE)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "40")
        gate.open()
        assert {(await held).status_code, (await queued).status_code} == {200}

    run(served_models, work, queue_seconds=10)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_long_requests_leave_room_for_short_ones(served_models: dict[str, Path], count: int) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        held = await first_held(gate, client)
        lane.rate = 1000.0
        rows = [["word1 " * 25]] * (1000 // count)
        long = [asyncio.create_task(client.post(PATH, json={"inputs": rows})) for _ in range(count)]
        await until(lambda: len(lane.waiting) == count or any(task.done() for task in long))
        assert lane.tokens / lane.rate > 10 * service.limits.queue_seconds
        short = [asyncio.create_task(client.post(PATH, json=ONE)) for _ in range(8)]
        await until(lambda: len(lane.waiting) == count + 8 or any(task.done() for task in short))
        gate.open()
        assert {(await task).status_code for task in (*short, held, *long)} == {200}

    run(served_models, work)


def test_a_request_that_could_not_be_answered_in_time_is_refused(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        held = await first_held(gate, client)
        lane.rate = 1000.0
        rows = {"inputs": [["word1 " * 25]] * 450}  # 12 s each
        long = [asyncio.create_task(client.post(PATH, json=rows)) for _ in range(2)]
        await until(lambda: len(lane.waiting) == 2)
        refused = await client.post(PATH, json=rows)  # the third would share the batches with both, and end after 36 s
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "6")
        short = asyncio.create_task(client.post(PATH, json=ONE))
        await until(lambda: len(lane.waiting) == 3)
        gate.open()
        assert {(await task).status_code for task in (held, *long, short)} == {200}

    run(served_models, work, request_seconds=30)


def test_a_full_queue_of_one_model_leaves_the_others_alone(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        held = await first_held(gate, client)
        queued = asyncio.create_task(client.post(PATH, json=ONE))
        await until(lambda: bool(service.models["labels"].lane.waiting))
        assert (await client.post(PATH, json=ONE)).status_code == 429
        other = asyncio.create_task(client.post("/models/several/predict", json=ONE))
        await until(lambda: bool(service.models["several"].lane.waiting))
        gate.open()
        assert {(await task).status_code for task in (held, queued, other)} == {200}

    run(served_models, work, ("labels", "several"), queue_requests=1)


def test_a_full_queue_of_vectors_refuses_before_the_body_is_read(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        held = asyncio.create_task(client.post("/embed", json=ONE))
        await asyncio.to_thread(gate.wait)
        queued = asyncio.create_task(client.post("/embed", json=ONE))
        await until(lambda: bool(service.models["vectors"].lane.waiting))
        no_json = {"content": b"{", "headers": {"Content-Type": "application/json"}}
        assert (await client.post("/embed", **no_json)).status_code == 429
        assert (await client.post("/models/vectors/embed_all", **no_json)).status_code == 422
        gate.open()
        assert {(await held).status_code, (await queued).status_code} == {200}

    run(served_models, work, ("vectors",), queue_requests=1)


def test_requests_before_the_queue_are_counted(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        body = b'{"inputs": "lovely"}' + b" " * 80
        how = {"content": body, "headers": {"Content-Type": "application/json"}}
        tasks = [asyncio.create_task(client.post(PATH, **how)) for _ in range(64)]
        await until(lambda: service.active == 64)
        assert (await client.post(PATH, **how)).status_code == 429
        gate.open()
        assert {(await task).status_code for task in tasks} == {200}
        assert (await client.post(PATH, **how)).status_code == 200

    run(served_models, work, body_bytes=100)


def test_requests_beside_the_queue_are_bounded(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        gate.open()
        service.active += 512
        assert (await client.post(PATH, json=ONE)).status_code == 429
        service.active -= 512
        assert (await client.post(PATH, json=ONE)).status_code == 200

    run(served_models, work)


def test_a_request_that_waits_too_long_is_given_up_before_it_is_computed(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        held = asyncio.create_task(client.post(PATH, json=ONE))
        while not gate.entered.is_set():
            if held.done():  # on a busy machine it may be given up before it comes to its batch
                held = asyncio.create_task(client.post(PATH, json=ONE))
            await asyncio.sleep(0.001)
        late = await client.post(PATH, json=ONE)
        assert late.status_code == 504
        assert (await held).status_code == 504
        assert (len(lane.waiting), lane.tokens) == (0, 0)
        service.limits = replace(service.limits, request_seconds=1000.0)
        gate.open()
        assert (await client.post(PATH, json=ONE)).status_code == 200
        assert gate.sequences == [1, 1]

    run(served_models, work, request_seconds=1)


def test_requests_that_are_cancelled_leave_the_queue(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        held = await first_held(gate, client)
        gone = [asyncio.create_task(client.post(PATH, json=ONE)) for _ in range(5)]
        kept = asyncio.create_task(client.post(PATH, json={"inputs": "awful"}))
        await until(lambda: len(lane.waiting) == 6)
        for task in gone:
            task.cancel()
        await until(lambda: len(lane.waiting) == 1)
        assert lane.tokens == 3
        gate.open()
        assert {(await held).status_code, (await kept).status_code} == {200}
        assert gate.sequences == [1, 1]

    run(served_models, work)


def test_what_fails_in_a_batch_fails_alone(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        lane = service.models["labels"].lane
        compute = lane.compute

        def failing(sequences: Any) -> Any:
            if any(len(ids) == 7 for ids in sequences.ids):
                raise RuntimeError("this length")
            return compute(sequences)

        lane.compute = failing
        held = await first_held(gate, client)
        texts = ["lovely", "awful " * 5, "word1 word2"]
        tasks = [asyncio.create_task(client.post(PATH, json={"inputs": text})) for text in texts]
        await until(lambda: len(lane.waiting) == 3)
        gate.open()
        answers = [await task for task in tasks]
        assert [each.status_code for each in answers] == [200, 424, 200]
        assert answers[1].json()["error_type"] == "Backend"
        assert (await held).status_code == 200
        counted = (await client.get("/metrics")).text.splitlines()
        assert 'bertsmith_rows_total{model="labels"} 3.0' in counted, "the row that failed was not answered"

    run(served_models, work)


def test_a_request_that_no_queue_could_hold_is_too_large(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        gate.open()
        answer = await client.post(PATH, json={"inputs": [["word1 word2 word3"]] * 3})
        assert (answer.status_code, answer.json()["error"]) == (
            413,
            "this request has 15 tokens, and a queue takes 10; send fewer rows at a time",
        )
        rows = await client.post(PATH, json={"inputs": [["word1"]] * 4})
        assert (rows.status_code, "at most 3" in rows.json()["error"]) == (413, True)

    run(served_models, work, queue_tokens=10, rows=3)


def test_any_error_of_a_model_is_its_failure_and_its_words_are_not_logged(
    served_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        def failing(sequences: Any) -> Any:
            raise KeyError(" ".join(["secret", "words"]))

        service.models["labels"].lane.compute = failing
        answer = await client.post(PATH, json=ONE)
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
        assert "secret words" not in answer.text + capsys.readouterr().err

    run(served_models, work)


@pytest.mark.parametrize("part", ["check_room", "model", "answer"])  # before the routes, at their beginning and end
def test_an_error_of_the_server_itself_is_500_and_the_next_request_is_answered(
    served_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture, part: str
) -> None:
    def failing(*values: object) -> None:
        raise KeyError(" ".join(["secret", "words"]))

    with serving_here({name: served_models[name] for name in ("labels", "vectors")}) as served:
        served.until(200)
        v1 = ("/v1/embeddings", {"input": "lovely", "model": "vectors"})
        asked = (("/predict", ONE), ("/answers", {"rows": ["lovely"]}), ("/embed", ONE), v1)
        before = [served.ask(*each)[:2] for each in asked]
        assert {status for status, _ in before} == {200}
        with monkeypatch.context() as patch, closing(served.connect()) as connection:
            patch.setattr(served.service, part, failing)
            if part == "model":
                patch.setattr(served.service, "named", failing)
            for path, body in asked:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                message = "the server failed; its log says where"
                facts = {"message": message, "type": "Backend", "code": 500, "param": None}
                wanted = {"error": facts} if path == v1[0] else {"error": message, "error_type": "Backend"}
                assert (answer.status, answer.headers["content-type"]) == (500, "application/json")
                assert json.loads(answer.read()) == wanted
        assert [served.ask(*each)[:2] for each in asked] == before
    own = [each for each in said.messages if "an error of the server's own" in each]
    assert len(own) == len(asked)
    assert all(each.endswith("KeyError") and "in failing" in each for each in own)
    assert "secret words" not in said.text
    assert [json.loads(each)["status"] for each in said.messages if each.startswith('{"time"')].count(500) == len(asked)


def test_a_server_that_no_longer_computes_is_not_healthy(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        assert service.batcher.close(60)
        assert (await client.get("/health")).status_code == 503

    run(served_models, work)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("masks", {"inputs": "[MASK] " * 30, "parameters": {"top_k": 20}}, "letters in the texts of this answer"),
        ("ranks/rerank", {"query": "word1 " * 40, "texts": ["a"] * 20}, "letters in the pairs of this request"),
        ("choices/answers", {"rows": [{"text": "a", "choices": ["b"] * 60}]}, "60 choices in this request"),
        ("choices/answers", {"rows": [{"text": "a " * 60, "choices": ["b"] * 40}]}, "letters in the choices"),
        ("vectors/embed_all", {"inputs": ["word1 " * 20] * 4}, "88 tokens in this answer"),
        ("vectors/tokenize", {"inputs": ["word1 " * 50] * 3}, "150 tokens in this request"),
    ],
)
def test_what_would_grow_far_beyond_its_request_is_refused(
    served_models: dict[str, Path], path: str, body: dict[str, Any], says: str
) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        answer = await client.post(f"/models/{path}", json=body)
        assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")
        assert says in answer.json()["error"]

    names = ("labels", path.split("/")[0])
    run(served_models, work, names, body_bytes=1000, rows=50, queue_tokens=100 if "tokenize" in path else 100_000)


def test_numbers_that_are_not_finite_are_no_answer() -> None:
    for value in ([1.0, float("nan")], {"score": float("-inf")}):
        with pytest.raises(Refusal, match="not finite") as refused:
            answer_of(value)
        assert refused.value.status == 424
    assert answer_of(["NaN", "-Infinity"]).body == b'["NaN","-Infinity"]'


def test_the_header_of_lost_tokens_stays_short(served_models: dict[str, Path]) -> None:
    async def work(service: Service, gate: Gate, client: Any) -> None:
        gate.open()
        body = {"inputs": [["word1 " * 600]] * 120, "truncate": True}
        headers = (await client.post(PATH, json=body)).headers
        lost = list(map(int, headers["x-truncated-tokens"].split(",")))
        assert len(lost) == 100
        assert int(headers["x-truncated-tokens-total"]) == 120 * lost[0] > 0

    run(served_models, work)


def test_a_list_of_wrong_items_costs_one_error() -> None:
    for kind, body in (
        (schemas.EmbedRequest, {"inputs": [1] * 1000}),
        (schemas.PredictRequest, {"inputs": [[1] * 3] * 1000}),
        (schemas.RerankRequest, {"query": "a", "texts": [1] * 1000}),
        (schemas.AnswersRequest, {"rows": [1] * 1000}),
        (schemas.SimilarityInput, {"source_sentence": "a", "sentences": [None] * 1000}),
    ):
        with pytest.raises(ValidationError) as wrong:
            kind.model_validate(body)
        assert wrong.value.error_count() <= 5
