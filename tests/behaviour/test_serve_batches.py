"""What was computed together changes nothing, and a server does not grow over very many requests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith
from bertsmith.inference.embed import Embedder
from bertsmith.inference.predictor import Predictor
from made_heads import assert_near
from made_rows import CONFIG, QUICK, WORDS, made_model, rows
from made_served import Served, in_threads, serving

# Of probabilities and of vectors of length 1; the second is that of docs/parity.md.
FP32, BF16 = 1e-5, 1 / 50


def texts(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices([*WORDS, "lovely", "awful"], k=draw.randrange(1, 28))) for _ in range(count)]


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(served_models: dict[str, Path], precision: str) -> Iterator[Served]:
    with serving(served_models, "--precision", precision) as server:
        yield server


def test_neighbours_change_no_answer(served: Served, served_models: dict[str, Path], precision: str) -> None:
    asked, bound = texts(64), FP32 if precision == "fp32" else BF16
    alone = Predictor(served_models["labels"], "cpu", precision=precision)
    classes = [alone([text])[0]["scores"] for text in asked]
    embedder = Embedder(served_models["vectors"], "cpu", precision=precision)
    vectors = [embedder.embed([("row 1", text)])[0][0] for text in asked]
    found = in_threads(32, lambda text: served.ask("/models/labels/predict", {"inputs": text})[1], asked)
    near = in_threads(32, lambda text: served.ask("/embed", {"inputs": text})[1][0], asked)
    assert batches(served, "labels") < len(asked)  # some went together
    for ours, theirs in zip(found, classes, strict=True):
        assert {each["label"]: each["score"] for each in ours} == pytest.approx(theirs, rel=0, abs=bound)
        assert ours[0]["label"] == max(theirs, key=theirs.__getitem__) or abs(np.diff([*theirs.values()])[0]) < bound
    assert np.linalg.norm(np.array(near) - np.array(vectors), axis=1).max() <= bound


def row_of(kind: str, text: str) -> dict[str, Any]:
    """A row for a model of this name, as `made_models` names them."""
    if kind == "answers":
        return {"question": "what is word1", "context": text}
    more = {"ranks": {"text_b": "word1 word2"}, "choices": {"choices": ["lovely", "awful word3"]}}
    return {"text": f"{text} [MASK]" if kind == "masks" else text, **more.get(kind, {})}


def best_of(answer: dict[str, Any]) -> list[dict[Any, float]]:
    """What an answer lists as the best, with their probabilities; of several masks a list for each."""
    if "nbest" in answer:
        return [{(each["start"], each["end"]): each["probability"] for each in answer["nbest"]}]
    return [{each["piece"]: each["probability"] for each in guesses} for guesses in answer.get("guesses", [])]


def assert_within_bf16(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Numbers within the bound for bf16 of themselves, all else equal. Of lists of the best, what only one has is
    within it of the last that the other has."""
    lists = [best_of(answer) for answer in (found, expected)]
    assert len(lists[0]) == len(lists[1])
    for ours, theirs in zip(*lists, strict=True):
        for one, other in ((ours, theirs), (theirs, ours)):
            for name, probability in one.items():
                assert probability <= other.get(name, min(other.values())) * (1 + BF16)
    if not lists[0]:
        assert_near(found, expected, FP32, BF16)


@pytest.mark.parametrize("kind", ["several", "number", "ranks", "tags", "answers", "choices", "masks"])
def test_neighbours_change_no_answer_of_any_kind(served: Served, kind: str, precision: str) -> None:
    bodies = [{"rows": [row_of(kind, text)]} for text in texts(40) if len(text.split()) < 20]
    path = f"/models/{kind}"
    assert served.ask(f"{path}/info")[1]["model_dtype"] == precision
    alone = [served.ask(f"{path}/answers", body)[:2] for body in bodies]
    before = batches(served, kind)
    together = in_threads(32, lambda body: served.ask(f"{path}/answers", body)[:2], bodies)
    assert batches(served, kind) < 2 * before
    assert {status for status, _ in (*alone, *together)} == {200}
    near = assert_near if precision == "fp32" else assert_within_bf16
    for (_, found), (_, expected) in zip(together, alone, strict=True):
        near(found["answers"][0], expected["answers"][0])


def test_neighbours_change_no_vector_of_a_real_model(real_data: Callable[[str], Path], precision: str) -> None:
    folder = real_data("weights/all-MiniLM-L6-v2")
    draw = random.Random(1)
    words = [
        *("the", "a", "of", "river", "bank", "holds", "water", "and"),
        *("money", "for", "people", "who", "never", "swim", "in", "it"),
    ]
    asked = [" ".join(draw.choices(words, k=draw.choice((2, 5, 12, 40, 120)))) for _ in range(16)]
    embedder = Embedder(folder, "cpu", precision=precision)
    expected = np.array([embedder.embed([("row 1", text)])[0][0] for text in asked])
    with serving({"real": folder}, "--precision", precision) as served:
        found = in_threads(16, lambda text: served.ask("/embed", {"inputs": text, "normalize": False})[1][0], asked)
    distances = np.linalg.norm(np.array(found) - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert distances.max() <= (FP32 if precision == "fp32" else BF16)


def batches(served: Served, name: str) -> float:
    """How many a model has computed."""
    return served.metric(f'bertsmith_batch_sequences_count{{model="{name}"}}')


def ask_many(served: Served, numbers: range, body_of: Callable[[int], bytes], threads: int = 8) -> None:
    """Asks the requests of these numbers over as many connections as there are threads."""

    def some(place: int) -> None:
        connection = served.connect()
        for number in numbers[place::threads]:
            connection.request("POST", "/predict", body_of(number), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status in (200, 413, 422)
            answer.read()
        connection.close()

    in_threads(threads, some, range(threads))


def grown(folder: Path, inputs: Sequence[Any], warm: int, count: int) -> float:
    """By how much of itself a server grows over so many requests, some of them refused, after `warm` ones. Prints its
    memory at the beginning, in the middle and at the end."""

    def body_of(number: int) -> bytes:
        """Two of its words are in no other text: a server may not remember all of them."""
        row = inputs[number % len(inputs)]
        text = f"{row} new{number} other{number}" if isinstance(row, str) else row
        return json.dumps({"inputs": text, "truncate": number % 10 > 0}).encode()

    with serving({"labels": folder}, "--precision", "fp32", anew=True) as served:
        found = []
        for first, end in pairwise((0, warm, warm + count // 2, warm + count)):
            ask_many(served, range(first, end), body_of)
            found.append(served.resident_bytes())
            print(f"{found[-1] / 1e6:.1f} MB after {end:,} requests")
        assert (served.stop(), served.lines[-1]) == (143, "the server has stopped"), "as one from a shell does"
        return found[-1] / found[0] - 1


def test_a_server_does_not_grow_over_many_requests(served_models: dict[str, Path]) -> None:
    assert grown(served_models["labels"], [*texts(300), "word1 " * 40, 5], 500, 1_000) <= 0.05


def real_texts(real_data: Callable[[str], Path]) -> list[str]:
    """Sentences of SST-2, and the questions and contexts of SQuAD's dev set, mixed."""
    found = []
    for part in ("train", "dev"):
        lines = real_data(f"glue/SST-2/{part}.tsv").read_text(encoding="utf-8").splitlines()
        found += [line.split("\t")[0] for line in lines[1:]]
    squad = json.loads(real_data("squad/v1.1/dev-v1.1.json").read_text(encoding="utf-8"))
    for paragraph in (each for article in squad["data"] for each in article["paragraphs"]):
        found += [paragraph["context"], *(each["question"] for each in paragraph["qas"])]
    random.Random(0).shuffle(found)
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_server_of_bert_tiny_does_not_grow_over_100_000_requests(
    tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    pieces = (real_data("vocab/bert-base-uncased") / "vocab.txt").read_text(encoding="utf-8").splitlines()
    inputs = [*real_texts(real_data), 5]
    tiny = replace(CONFIG, vocab_size=len(pieces), hidden_size=128, intermediate_size=512, max_position_embeddings=512)
    encoder = made_model(tmp_path / "encoder", tiny, pieces)
    settings = replace(QUICK, epochs=1, max_length=512)
    bertsmith.finetune("classify", encoder, rows(32, 1), rows(16, 2), tmp_path / "run", settings=settings)
    assert grown(tmp_path / "run", inputs, 13_000, 100_000) <= 0.05
