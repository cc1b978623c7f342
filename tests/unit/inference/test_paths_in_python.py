"""Paths that are given in Python: as a text or a Path, and anything else is named."""

from functools import partial

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.evaluate import evaluate, evaluate_predictions
from bertsmith.inference.evaluate_benchmark import evaluate_benchmark
from bertsmith.inference.minimal_pairs import evaluate_minimal_pairs
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.finetune import finetune
from made_rows import QUICK, rows

QUESTIONS = [{"id": "1", "question": "who", "context": "Ann asked", "answers": {"text": ["Ann"], "answer_start": [0]}}]


@pytest.fixture(scope="module")
def labels(model, tmp_path_factory):
    """A fine-tuned model."""
    run = tmp_path_factory.mktemp("run") / "labels"
    finetune("classify", model, rows(32, 1), rows(16, 2), run, settings=QUICK)
    return Predictor(run, "cpu", precision="fp32")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda _: predict_file("model", ["lovely"], "out.jsonl"), "source is of type list"),
        (lambda _: predict_file("model", "rows.csv", None), "out is of type NoneType"),
        (lambda _: embed_file("model", None, "out.npy"), "source is of type NoneType"),
        (lambda _: embed_file("model", "rows.csv", 5), "out is of type int"),
        (lambda model: evaluate(model, rows(4, 1), report=5), "report is of type int"),
        (lambda _: evaluate_predictions(["Ann"], QUESTIONS), "predictions is of type list"),
        (lambda model: evaluate_benchmark(model, None, benchmark="sst2"), "data is of type NoneType"),
        (lambda model: evaluate_minimal_pairs(model, None), "folder is of type NoneType"),
    ],
)
def test_what_is_no_path_is_named(call, name, labels):
    with pytest.raises(BertsmithError, match=f"^{name}, which is no path"):
        call(labels)


def test_a_text_does_for_a_path(labels, tmp_path):
    evaluate(labels, rows(8, 1), report=str(tmp_path / "report"))
    assert (tmp_path / "report" / "per_class.json").is_file()
    (tmp_path / "answers.json").write_text('{"1": "Ann"}')
    (tmp_path / "scores.json").write_text('{"1": 0.5}')
    scored = partial(evaluate_predictions, str(tmp_path / "answers.json"), QUESTIONS)
    assert (
        scored().figures["exact_match"]
        == scored(null_scores=str(tmp_path / "scores.json")).figures["exact_match"]
        == 100
    )
    (tmp_path / "pairs").mkdir()
    with pytest.raises(BertsmithError, match=r"there is no \.jsonl file"):
        evaluate_minimal_pairs(labels, str(tmp_path / "pairs"))
