"""What is given in Python: paths as a text or a Path, numbers of NumPy, and models that are loaded already."""

import copy
import os
import pickle
import signal
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import Embedder
from bertsmith.base import fp32_products
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.embed_file import embed_file
from bertsmith.inference.evaluate import evaluate, evaluate_predictions
from bertsmith.inference.evaluate_benchmark import evaluate_benchmark
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.inference.minimal_pairs import evaluate_minimal_pairs
from bertsmith.inference.predict_file import predict_file
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.finetune import finetune
from made_commands import Command
from made_heads import needs_engines
from made_rows import QUICK, rows

FP32 = {"device": "cpu", "precision": "fp32"}
QUESTIONS = [{"id": "1", "question": "who", "context": "Ann asked", "answers": {"text": ["Ann"], "answer_start": [0]}}]


@pytest.fixture(scope="module")
def labels(model, tmp_path_factory):
    """A fine-tuned model."""
    run = tmp_path_factory.mktemp("run") / "labels"
    finetune("classify", model, rows(32, 1), rows(16, 2), run, settings=QUICK)
    return Predictor(run, "cpu", precision="fp32")


def test_a_mapping_of_columns_is_told_to_be_rows(labels, model):
    for answer in (labels, Embedder(model, "cpu")):
        with pytest.raises(
            BertsmithError, match="'text' holds no text, but a list; a row holds one text, so give a row for each"
        ):
            answer({"text": ["word1", "word2"]})


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


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda model: evaluate(model, rows(4, 1), columns={"label": "other"}), "columns"),
        (lambda model: evaluate_benchmark(model, "glue", benchmark="sst2", precision="bf16"), "precision"),
        (lambda model: evaluate_minimal_pairs(model, ".", device="cuda"), "device"),
    ],
)
def test_what_a_loaded_model_would_not_follow_is_refused(call, name, labels, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glue").mkdir()
    (tmp_path / "own.jsonl").touch()
    with pytest.raises(BertsmithError, match=f"loaded already, so this would have no effect: {name}\n"):
        call(labels)


def test_numbers_of_numpy_and_any_mapping_are_options_of_files(model, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "word1 [MASK]"}\n')
    options = {"columns": MappingProxyType({"text": "body"}), "budget_tokens": np.int64(64), "device": "cpu"}
    assert predict_file(model, tmp_path / "rows.jsonl", tmp_path / "a.jsonl", top=np.int64(3), **options).rows == 1
    assert embed_file(model, tmp_path / "rows.jsonl", tmp_path / "b.npy", **options).rows == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda model, run, folder: predict_file(run, folder / "rows.jsonl", folder / "out.jsonl", **FP32),
        lambda model, run, folder: embed_file(model, folder / "rows.jsonl", folder / "out.npy", **FP32),
        lambda model, run, folder: evaluate(run, rows(4, 1), **FP32),
        lambda model, run, folder: evaluate_minimal_pairs(model, folder / "pairs", **FP32),
        lambda model, run, folder: evaluate_benchmark(run, folder, benchmark="sst2", **FP32),
        pytest.param(
            lambda model, run, folder: export(model, folder / "onnx", ExportOptions(few_lengths=True)),
            marks=needs_engines,
        ),
    ],
    ids=["predict_file", "embed_file", "evaluate", "evaluate_minimal_pairs", "evaluate_benchmark", "export"],
)
def test_what_loads_a_model_for_one_call_puts_back_how_fp32_products_are_made(
    call, model, labels, tmp_path, monkeypatch
):
    (tmp_path / "rows.jsonl").write_text('{"text": "word1 word2"}\n')
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "own.jsonl").write_text('{"sentence_good": "word1 word2", "sentence_bad": "word2 word1"}\n')
    chosen = []

    def choose(of_run):
        chosen.append(of_run)
        fp32_products.use(fp32_products.ONEDNN)
        return fp32_products.ONEDNN

    monkeypatch.setattr(fp32_products, "choose_fp32_products", choose)
    before = torch.get_float32_matmul_precision()
    with fp32_products.kept():
        with suppress(BertsmithError):  # the folder of a benchmark lacks its files, which is found out after loading
            call(model, labels.folder, tmp_path)
        assert chosen
        assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("kind", [Predictor, Embedder])
def test_a_loaded_model_says_that_it_stays_in_its_process(kind, model):
    loaded = kind(model, "cpu")
    for send in (pickle.dumps, copy.deepcopy):
        with pytest.raises(
            BertsmithError, match=f"a loaded {kind.__name__} can be neither pickled nor copied by"
        ) as caught:
            send(loaded)
        assert "load its folder again" in caught.value.fix
    again = copy.copy(loaded)
    assert (type(again), vars(again)) == (kind, vars(loaded))


def uses_after_a_fork(does: str, model: str, out: str) -> int:
    torch.set_num_threads(2)
    if does == "load_encoder":
        bertsmith.load_encoder(model)
    else:
        loaded = (Embedder if does == "Embedder" else Predictor)(model, "cpu")
        loaded(["word1 [MASK]"] * 64)
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(60)  # or it would be waited for forever

    def use() -> object:
        if does == "finetune":
            made = rows(64, 1)
            return finetune("classify", model, made[:48], made[48:], out, settings=replace(QUICK, epochs=1)).rows[
                "train"
            ]
        if does == "load_encoder":
            return type(bertsmith.load_encoder(model)).__name__
        return len(loaded(["word1 [MASK]"] * 8))

    try:
        use()
    except BertsmithError as error:
        print(error.what)
    torch.set_num_threads(1)
    print(use())
    return 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    ("does", "gives"), [("Predictor", "8"), ("Embedder", "8"), ("finetune", "48"), ("load_encoder", "Encoder")]
)
def test_a_forked_process_is_refused_until_it_has_one_thread(does, gives, model, tmp_path):
    with Command(does, str(model), str(tmp_path / "run"), does=uses_after_a_fork) as command:
        printed, said = command.communicate()
        assert command.wait() == 0, said
    refused, *_, given = printed.splitlines()
    assert ("forked from one that had used a model" in refused, given) == (True, gives)


@pytest.mark.usefixtures("no_figures")
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
