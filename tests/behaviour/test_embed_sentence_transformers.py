"""The folder of a fine-tuned embedder opens in sentence-transformers and gives the same vectors, and the reverse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from made_pairs import EXACT, pairs, scored_pairs
from made_rows import WORDS

CLOSE = 1e-5
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
    lines = (real_data("glue/STS-B/dev.tsv")).read_text(encoding="utf-8").splitlines()[1:41]
    texts = [line.split("\t")[column] for line in lines for column in (7, 8)]
    expected = saved(weights, tmp_path / "folder", "mean", True, 256).encode(texts)
    found = bertsmith.Embedder(tmp_path / "folder", "cpu", precision="fp32")(texts)
    assert np.abs(found - expected).max() < CLOSE
    bare = bertsmith.Embedder(weights, "cpu", precision="fp32")(texts)
    assert np.abs(bare - theirs.SentenceTransformer(str(weights), device="cpu").encode(texts)).max() < 10 * CLOSE
