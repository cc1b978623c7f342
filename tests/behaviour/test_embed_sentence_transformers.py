"""The folder of a fine-tuned embedder opens in sentence-transformers and gives the same vectors, and the reverse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.embed import VectorOptions
from bertsmith.inference.export.export import ExportOptions, export
from made_pairs import EXACT, pairs, scored_pairs
from made_rows import WORDS
from made_served import serving_here

CLOSE = 1e-5
CPU: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
# Some longer than the models read.
TEXTS = [" ".join(WORDS[(number + place) % 30] for place in range(1 + number % 29)) for number in range(60)]


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


def saved(model: Path, folder: Path, pooling: str, unit: bool, length: int = 20) -> Any:
    """A model of sentence-transformers on these weights, saved."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    encoder = Transformer(str(model), max_seq_length=length)
    width = encoder.get_embedding_dimension()
    made = SentenceTransformer(modules=[encoder, Pooling(width, pooling), *[Normalize()] * unit], device="cpu")
    made.save(str(folder))
    return made


@pytest.mark.parametrize("negatives", [False, True])
def test_a_finished_run_opens_there_and_gives_the_same_vectors(theirs, model, tmp_path, negatives):
    settings = replace(EXACT, epochs=1, max_length=16)
    result = bertsmith.finetune(
        "embed", model, pairs(48, 1, negatives), scored_pairs(20, 2), tmp_path / "run", settings=settings
    )
    opened = theirs.SentenceTransformer(str(result.model), device="cpu")
    assert opened.max_seq_length == 16
    expected = opened.encode(TEXTS)
    ours = bertsmith.Embedder(tmp_path / "run", "cpu", precision="fp32")
    assert ours.max_length == 16
    assert np.abs(ours(TEXTS) - expected).max() < CLOSE
    answers = bertsmith.Predictor(tmp_path / "run", "cpu", precision="fp32")(TEXTS)
    assert np.abs(np.float32([each["embedding"] for each in answers]) - expected).max() < CLOSE
    assert np.allclose(np.linalg.norm(expected, axis=1), 1)
    start = bertsmith.Embedder(model, "cpu", precision="fp32")(TEXTS)
    assert np.abs(start / np.linalg.norm(start, axis=1, keepdims=True) - expected).max() > 0.01, "it has learned"


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("unit", [True, False])
def test_a_folder_of_theirs_gives_their_vectors_here(theirs, model, tmp_path, pooling, unit):
    expected = saved(model, tmp_path / "folder", pooling, unit).encode(TEXTS)
    ours = bertsmith.Embedder(tmp_path / "folder", "cpu", precision="fp32")
    assert ours.max_length == 20
    assert np.abs(ours(TEXTS) - expected).max() < CLOSE
    assert np.allclose(np.linalg.norm(expected, axis=1), 1) == unit


def cut_to(folder: Path, dimensions: int) -> None:
    path = folder / "config_sentence_transformers.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, "truncate_dim": dimensions}))


@pytest.mark.parametrize("unit", [True, False])
def test_vectors_are_cut_to_the_first_numbers_as_the_folder_says(theirs, model, tmp_path, said, unit):
    saved(model, tmp_path / "folder", "mean", unit)
    cut_to(tmp_path / "folder", 8)
    opened = theirs.SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    expected = opened.encode(TEXTS)
    ours = bertsmith.Embedder(tmp_path / "folder", **CPU)
    assert expected.shape == (len(TEXTS), 8)
    assert (ours.width, ours.unit) == (8, False), "what is left of a vector of length 1 is shorter"
    assert "vectors: the first 8 of 32 numbers" in said.text
    assert np.abs(ours(TEXTS) - expected).max() < CLOSE
    scaled = bertsmith.Embedder(tmp_path / "folder", **CPU, vectors=VectorOptions(unit=True))
    assert scaled.unit
    assert np.abs(scaled(TEXTS) - opened.encode(TEXTS, normalize_embeddings=True)).max() < CLOSE
    tokens = bertsmith.Embedder(tmp_path / "folder", **CPU, vectors=VectorOptions(layers=(-1,)))
    assert tokens(["word1"]).shape == (3, 32), "vectors of tokens are not cut"
    cut_to(tmp_path / "folder", 99)
    whole = bertsmith.Embedder(tmp_path / "folder", **CPU)
    assert (whole.width, whole.unit) == (32, unit)


def test_a_server_cuts_vectors_as_the_folder_says(theirs, model, tmp_path):
    saved(model, tmp_path / "folder", "mean", True)
    cut_to(tmp_path / "folder", 8)
    expected = theirs.SentenceTransformer(str(tmp_path / "folder"), device="cpu").encode(["word1", "word2 word3"])
    with serving_here({"vectors": tmp_path / "folder"}) as served:
        served.until(200)
        asked = {"inputs": ["word1", "word2 word3"]}
        assert np.abs(served.ask("/embed", {**asked, "normalize": False})[1] - expected).max() < CLOSE
        scaled = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        assert np.abs(served.ask("/embed", asked)[1] - scaled).max() < CLOSE
        assert np.shape(served.ask("/embed_all", {"inputs": ["word1"]})[1]) == (1, 3, 32)
        assert served.ask("/embed", {**asked, "dimensions": 9})[0] == 422


def test_an_export_cuts_vectors_as_the_folder_says(theirs, model, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    saved(model, tmp_path / "folder", "mean", True)
    cut_to(tmp_path / "folder", 8)
    expected = theirs.SentenceTransformer(str(tmp_path / "folder"), device="cpu").encode(["word1 word2"])
    export(tmp_path / "folder", tmp_path / "out", ExportOptions(few_lengths=True))
    found = bertsmith.Embedder(tmp_path / "out", "cpu", backend="onnx")
    assert np.abs(found(["word1 word2"]) - expected).max() < CLOSE
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    told = {each.name: each.type.tensor_type.shape.dim for each in graph.output}
    assert [each.dim_param or each.dim_value for each in told["sentence_embedding"]] == ["batch", 8]
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    feed = {each.name: np.ones((2, 5), dtype=np.int64) for each in session.get_inputs()}
    assert session.run(["sentence_embedding"], feed)[0].shape == (2, 8)


def test_a_fine_tuned_model_whose_vectors_are_cut_answers_no_rows_and_teaches_whole_vectors(model, tmp_path, said):
    settings = replace(EXACT, epochs=1)
    result = bertsmith.finetune("embed", model, pairs(30, 1), pairs(9, 2), tmp_path / "run", settings=settings)
    cut_to(result.model, 8)
    assert bertsmith.Embedder(tmp_path / "run", **CPU).width == 8
    with pytest.raises(BertsmithError, match="it cuts vectors") as caught:
        bertsmith.Predictor(tmp_path / "run", **CPU)
    assert str(caught.value.where) == str(result.model / "config_sentence_transformers.json")
    bertsmith.finetune("embed", result.model, pairs(30, 1), pairs(9, 2), tmp_path / "more", settings=settings)
    assert f"truncate_dim of {result.model} is not for training" in said.text
    assert bertsmith.Embedder(tmp_path / "more", **CPU).width == 32


@pytest.mark.parametrize("pooling", ["lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
def test_a_pooling_that_is_not_here_is_refused_by_its_name(theirs, model, tmp_path, pooling):
    saved(model, tmp_path / "folder", pooling, True)
    for use in (
        lambda: bertsmith.Embedder(tmp_path / "folder"),
        lambda: bertsmith.finetune("embed", tmp_path / "folder", pairs(8, 1), pairs(4, 2), None, settings=EXACT),
    ):
        with pytest.raises(BertsmithError, match=pooling):
            use()


def test_training_keeps_the_pooling_of_the_folder_it_starts_from(theirs, model, tmp_path, said):
    saved(model, tmp_path / "folder", "cls", True)
    settings = replace(EXACT, epochs=1)
    result = bertsmith.finetune(
        "embed", tmp_path / "folder", pairs(30, 1), pairs(9, 2), tmp_path / "run", settings=settings
    )
    assert "pooling: cls" in said.text
    opened = theirs.SentenceTransformer(str(result.model), device="cpu")
    assert opened[1].pooling_mode == "cls"
    ours = bertsmith.Embedder(tmp_path / "run", "cpu", precision="fp32")
    assert np.abs(ours(TEXTS) - opened.encode(TEXTS)).max() < CLOSE


def test_a_real_model_gives_the_same_vectors(theirs, real_data, tmp_path):
    weights = real_data("weights/all-MiniLM-L6-v2")
    lines = (real_data("glue/STS-B/dev.tsv")).read_text(encoding="utf-8").splitlines()[1:21]
    texts = [line.split("\t")[column] for line in lines for column in (7, 8)]
    expected = saved(weights, tmp_path / "folder", "mean", True, 256).encode(texts)
    found = bertsmith.Embedder(tmp_path / "folder", "cpu", precision="fp32")(texts)
    assert np.abs(found - expected).max() < CLOSE
    bare = bertsmith.Embedder(weights, "cpu", precision="fp32")(texts)
    assert np.abs(bare - theirs.SentenceTransformer(str(weights), device="cpu").encode(texts)).max() < 10 * CLOSE
