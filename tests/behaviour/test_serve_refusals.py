"""What a server refuses: with the status of the fault, and what, where and how to mend it in its client's words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from made_served import Served, made_cross_encoder, serving

PAIR = {"text": "a", "text_b": "b"}
LONG = "lovely " + "word1 " * 40


@pytest.fixture(scope="module")
def served(served_models: dict[str, Path]) -> Iterator[Served]:
    with serving(served_models, "--precision", "fp32") as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (
            "/models/labels/embed",
            {"inputs": "a"},
            424,
            "labels does not give vectors of texts; it is a model of the kind classify",
        ),
        ("/models/vectors/predict", {"inputs": "a"}, 424, "a model of the kind embed"),
        ("/models/number/rerank", {"query": "a", "texts": ["b"]}, 424, "one number for a pair"),
        ("/models/vectors/answers", {"rows": ["a"]}, 424, "answers to rows"),
        ("/models/choices", {"inputs": "a"}, 424, "Hugging Face"),
        (
            "/models/choices/answers",
            {"rows": [{"text": LONG, "choices": ["a", "b"]}], "truncate": True, "truncation_direction": "left"},
            422,
            "are cut as its folder says",
        ),
        ("/predict", {"inputs": "a"}, 422, "name one in the path, as in /models/labels/predict"),
        ("/models/lables/predict", {"inputs": "a"}, 404, "did you mean 'labels'"),
        (
            "/models/labels/predict",
            {"inputs": ["a", "b"]},
            422,
            "one text, and this one has 2 (row 1); give each row a",
        ),
        (
            "/models/labels",
            {"inputs": {"text": "a", "text_pair": "b"}},
            422,
            "one text, and this one has 2 (row 1); leave text_pair out",
        ),
        ("/models/ranks/predict", {"inputs": "a"}, 422, "takes rows of two texts, and this one has 1"),
        *(
            ("/models/ranks/answers", {"rows": [PAIR, row]}, 422, "no 'text_b', or an empty one (row 2); give the")
            for row in ({"text": "a", "text_b": ""}, {"text": "a", "text_b": None}, {"text": "a"}, "a")
        ),
        ("/models/answers/answers", {"rows": [{"question": "a", "context": ""}]}, 422, "column 'context' is empty"),
        *(
            (f"/models/{name}/answers", {"rows": [{"body": "a"}]}, 422, f"found: body (row 1); give each row as {keys}")
            for name, keys in (
                ("labels", '{"text": ...}'),
                ("answers", '{"question": ..., "context": ...}'),
                ("choices", '{"text": ..., "choices": ...}'),
                ("tags", '{"text": ...}'),
            )
        ),
        (
            "/models/labels/answers",
            {"rows": [{f"column{number}": "a" for number in range(9000)}]},
            422,
            "column39 and 8,960 more (row 1); give each row as",
        ),
        ("/models/labels/predict", {"inputs": []}, 422, "there are no rows"),
        # What a client did not name itself is called as its route has it, not by a column.
        ("/models/labels/predict", {"inputs": " "}, 422, "inputs: the text of row 1 is empty; give a text"),
        ("/models/ranks/predict", {"inputs": [["a", "b"], ["", "b"]]}, 422, "inputs: the first text of row 2 is empty"),
        *(
            (path, body % text, 422, name + says)
            for text, says in ((b'""', " is empty"), (b'"\\ud800"', " holds half of a surrogate pair, which is not a"))
            for path, body, name in (
                ("/embed", b'{"inputs": ["a", %s]}', "inputs: the text of row 2"),
                ("/embed_all", b'{"inputs": %s}', "inputs: the text of row 1"),
                ("/models/ranks/predict", b'{"inputs": ["a", %s]}', "inputs: the second text of row 1"),
                ("/rerank", b'{"query": %s, "texts": ["a"]}', "query"),
                ("/rerank", b'{"query": "a", "texts": ["b", %s]}', "texts: the text of row 2"),
                (
                    "/similarity",
                    b'{"inputs": {"source_sentence": "a", "sentences": [%s]}}',
                    "sentences: the text of row 1",
                ),
                ("/models/vectors", b'{"inputs": {"source_sentence": %s, "sentences": ["a"]}}', "source_sentence"),
                ("/models/ranks", b'{"inputs": {"text": "a", "text_pair": %s}}', "inputs: the text_pair of row 1"),
                ("/models/answers", b'{"inputs": {"question": "a", "context": %s}}', "inputs: the context of row 1"),
                ("/models/tags", b'{"inputs": %s}', "inputs: the text of row 1"),
                ("/models/tags/answers", b'{"rows": ["a", %s]}', "rows: the text of row 2"),
                ("/v1/embeddings", b'{"input": %s, "model": "vectors"}', "input: the text of row 1"),
            )
        ),
        ("/models/labels/tokenize", b'{"inputs": ["", "\\ud800"]}', 422, "inputs: the text of row 2 holds half"),
        ("/models/labels/predict", {"inputs": 5}, 422, "inputs: give a text"),
        (
            "/models/labels/predict",
            {"inputs": [["a", "b", "c"]]},
            422,
            "inputs: give a text, or give a list of at most 2",
        ),
        ("/models/labels/predict", {"inputs": ["a", "b", "c"]}, 422, 'give each row a list of its own, as in [["a"]'),
        ("/models/labels/predict", {"inputs": [[]]}, 422, "inputs: give a text, or give a list of at least 1"),
        ("/embed", [], 422, "the body: give an object"),
        ("/embed", {"inputs": "a", "dimensions": 0}, 422, "dimensions: give 1 or more"),
        ("/embed", {"inputs": "a", "dimensions": 1.5}, 422, "dimensions: give a whole number"),
        ("/embed", {"inputs": "a", "truncate": "yes"}, 422, "truncate: give true or false"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, "truncation_direction: give 'right', 'left'"),
        ("/models/labels/answers", {"rows": ["a"], "top": 21}, 422, "top: give 20 or less"),
        *(
            (f"/models/{name}/answers", {"rows": ["a"], "top": top}, 422, f"top: {name} ({kind}) lists no answers")
            for name, kind in (("labels", "classify"), ("several", "classify"), ("number", "regress"), ("tags", "tag"))
            for top in (1, 5)
        ),
        ("/models/choices/answers", {"rows": [PAIR], "top": 1}, 422, "only models of qa and masked words read it"),
        ("/models/labels/answers", {"rows": [1]}, 422, "rows: give a text, or give an object"),
        ("/models/labels", {"inputs": "a", "parameters": []}, 422, "parameters: give an object"),
        ("/models/vectors", {"inputs": [5]}, 422, "inputs: give a text"),
        *(
            (f"/models/{name}", {"inputs": inputs, **field}, 422, "are of vectors, and this asks for none")
            for name, inputs in (("labels", "a"), ("vectors", {"source_sentence": "a", "sentences": ["b"]}))
            for field in ({"dimensions": 3}, {"normalize": False}, {"encoding_format": "float"})
        ),
        (
            "/models/answers",
            {"inputs": {"question": "a", "context": 5}},
            422,
            'give {"question", "context"}, two texts',
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"], "x y": 1}},
            422,
            "inputs.x y: there is no",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a"}, "parameters": {"truncate": 1}},
            422,
            "inputs.sentences: this is missing; parameters.truncate: give true or false",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["a", LONG]}},
            413,
            "sentences: the text of row 2 has 11 tokens more",
        ),
        ("/models/labels/predict", {"input": "a"}, 422, "inputs: this is missing; input: there is no such field"),
        ("/models/labels/predict", b"{", 422, "the body is not JSON"),
        ("/models/labels/predict", b'{"inputs": "a', 422, "Unterminated string starting at character"),
        ("/models/labels/predict", b'{"inputs": "\xff"}', 422, "the body is not JSON in UTF-8"),
        ("/models/labels/predict", b'{"inputs": "\\ud800"}', 422, "surrogate"),
        (
            "/models/labels/predict",
            b"[" * 100_000 + b"]" * 100_000,
            422,
            "objects nested too deeply; send it with fewer",
        ),
        ("/models/labels/predict", b'{"inputs": "a", "inputs": "b"}', 422, "has the key 'inputs' twice; give each"),
        ("/models/labels/answers", b'{"rows": [{"text": "a", "text": "b"}]}', 422, "the key 'text' twice"),
        ("/models/labels", b'{"inputs": "a", "inputs": "b"}', 422, "the key 'inputs' twice"),
        ("/v1/embeddings", b'{"input": "a", "model": "x", "\\ud800": 1, "\\ud800": 2}', 422, "the key '\\ud800' twice"),
        ("/models/labels/predict", b'{"inputs": %s}' % (b"1" * 5000), 422, "a number with too many digits"),
        (
            "/models/labels/predict?nosuch=1",
            {"inputs": "a"},
            422,
            "parameter 'nosuch' is not read; put it into the body",
        ),
        (
            "/models/labels/predict?truncate=true",
            {"inputs": LONG},
            422,
            "parameter 'truncate' is not read; put it into",
        ),
        (
            "/v1/embeddings?x",
            {"input": "a", "model": "vectors"},
            422,
            "parameter 'x' is not read; put it into the body",
        ),
        ("/models/labels?top_k=1", {"inputs": "a"}, 422, "parameter 'top_k' is not read"),
        ("/models/labels/info?x=1", None, 422, "the query parameter 'x' is not read; leave it out"),
        ("/nowhere?x=1", {"inputs": "a"}, 404, "there is no such route"),
        ("/embed", {"inputs": [[1, 2]]}, 422, "inputs: give a text"),
        ("/embed", {"inputs": "a", "normalize": False}, 422, "have length 1"),
        ("/embed", {"inputs": "a", "dimensions": 33}, 422, "the vectors have 32 numbers"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "prompt_name: leave it out"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 422, "there are no sentences"),
        (
            "/models/masks/answers",
            {"rows": ["no mask"]},
            422,
            "there is no [MASK] in this row: put one for a word (row 1)",
        ),
        ("/models/tags", {"inputs": "a", "parameters": {"stride": 3}}, 422, "it has aggregation_strategy"),
        ("/models/answers", {"inputs": {"question": "a"}}, 422, "question"),
        ("/models/answers", {"inputs": {"question": "a", "context": "b"}, "parameters": {"top_k": 0}}, 422, "top_k"),
        ("/models/labels", {"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}, 422, "has 'softmax'"),
        ("/models/number", {"inputs": "a", "parameters": {"function_to_apply": "softmax"}}, 422, "has 'none'"),
        ("/models/labels", {"inputs": "a", "parameters": {"top_k": 0}}, 422, "from 1"),
        ("/v1/embeddings", {"input": "a", "model": "labels"}, 424, "does not give vectors"),
        *(
            (path, body, 424, "`bertsmith finetune embed` makes a model that does, and `bertsmith embed` gives")
            for path, body in (
                ("/v1/embeddings", {"input": "a", "model": "masks"}),
                ("/models/masks/embed", {"inputs": "a"}),
                ("/models/masks/embed_all", {"inputs": "a"}),
                ("/models/masks/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
            )
        ),
        ("/v1/embeddings", {"input": "a", "model": "ada"}, 404, "there is no model 'ada'"),
        ("/nowhere", {"inputs": "a"}, 404, "there is no such route"),
        ("/info", {"inputs": "a"}, 405, "another method"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(
    served: Served, path: str, body: Any, status: int, says: str
) -> None:
    found = served.ask(path, body)
    assert found[0] == status, found[1]
    if path.startswith("/v1"):
        assert says in found[1]["error"]["message"]
        assert found[1]["error"]["code"] == status
    else:
        assert says in found[1]["error"]
        assert "--" not in found[1]["error"], "who asks a server has no flags"
        assert found[1].keys() == {"error", "error_type"}
    assert "Input should" not in str(found[1])


def test_probes_and_browsers_may_add_a_query(served: Served) -> None:
    for path in ("/health?probe=1", "/metrics?name[]=up", "/?from=mail", "/page.js?v=2"):
        assert served.ask(path)[0] == 200


def test_a_body_that_is_not_called_json_is_refused(served: Served) -> None:
    kinds = ("text/plain", "application/x-www-form-urlencoded")
    assert [served.ask("/embed", {"inputs": "a"}, {"Content-Type": kind})[0] for kind in kinds] == [415, 415]


def test_a_body_that_is_compressed_is_refused(served: Served) -> None:
    status, found, _ = served.ask("/embed", {"inputs": "a"}, {"Content-Encoding": "gzip"})
    assert (status, found["error_type"]) == (415, "Validation")
    assert "the body is compressed (Content-Encoding)" in found["error"]
    assert served.ask("/embed", {"inputs": "a"}, {"Content-Encoding": "identity"})[0] == 200


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_text_of_a_pair_is_refused(served_models: dict[str, Path], tmp_path: Path, empty: str) -> None:
    unsaid = tmp_path / "unsaid"  # nothing says whether it reads pairs
    shutil.copytree(served_models["labels"], unsaid, ignore=shutil.ignore_patterns("task.json"))
    cross = made_cross_encoder(served_models["ranks"], tmp_path / "cross")
    with serving({"cross": cross, "unsaid": unsaid, "ranks": served_models["ranks"]}) as served:
        for name in ("cross", "unsaid", "ranks"):
            for inputs in (["word1", empty], [["a", "b"], ["word1", empty]], [empty, "word1"]):
                status, found, _ = served.ask(f"/models/{name}/predict", {"inputs": inputs})
                row = 1 if isinstance(inputs[0], str) else 2
                assert (status, f"text of row {row} is empty" in found["error"]) == (422, True)
                assert "--columns" not in found["error"]
        for name in ("cross", "ranks"):
            status, found, _ = served.ask(f"/models/{name}/rerank", {"query": "word1", "texts": ["a", empty]})
            assert (status, "the text of row 2 is empty" in found["error"]) == (422, True)
