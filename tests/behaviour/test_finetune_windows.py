"""Texts that are longer than the model are read in windows, in training, prediction and serving, and nothing is cut."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith
from bertsmith import Embedder
from bertsmith.cli import main
from bertsmith.inference.embed import VectorOptions
from bertsmith.inference.export.export import export
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.models import Asked, Cut, open_model
from bertsmith.inference.server.refusals import Refusal
from bertsmith.tasks.kinds.classify import Classify
from made_heads import made_head
from made_pairs import EXACT, farthest, objective_of, pairs, stepped
from made_rows import QUICK, WORDS, rows
from made_served import Served, serving

LAYERS = 1

TRAIN, DEV = rows(160, 1), rows(60, 2)
FILLER = " ".join(f"word{number % 20}" for number in range(25))
Rows = list[dict[str, Any]]


def test_long_texts_are_read_in_windows_and_nothing_is_cut(model: Path, tmp_path: Path) -> None:
    """The word that decides is the last one, behind what the model reads at once."""
    long = [[{**row, "text": f"{FILLER} {row['text']}"} for row in those] for those in (TRAIN, DEV)]
    settings = replace(QUICK, windows=True, window_overlap=4, max_length=24, epochs=8, learning_rate=6e-3)
    result = bertsmith.finetune("classify", model, *long, tmp_path / "run", settings=settings)
    assert result.truncated["train"].rows == result.truncated["dev"].rows == 0
    assert result.mean > 0.9
    short = replace(QUICK, max_length=24, epochs=1)
    cut = bertsmith.finetune("classify", model, *long, None, settings=short)
    assert cut.truncated["train"].rows == 160
    assert cut.mean <= cut.baseline, "without windows it never sees the word"
    assert "no better than the text-blind baseline" in cut.line()
    assert "no better" not in result.line()
    answers = Predictor(tmp_path / "run", "cpu", precision="fp32")(long[1])
    right = sum(each["label"] == row["label"] for each, row in zip(answers, DEV, strict=True)) / len(DEV)
    assert right == pytest.approx(result.mean)
    assert {each["truncated_tokens"] for each in answers} == {0}


def test_windows_that_would_share_more_than_half_are_said(model: Path, said: pytest.LogCaptureFixture) -> None:
    settings = replace(QUICK, windows=True, window_overlap=13, max_length=24, max_steps=1)
    bertsmith.finetune("classify", model, TRAIN[:40], DEV, None, settings=settings)
    assert "windows of 24 tokens share at most half of what they hold of a text, not 13 tokens" in said.text


def choices(count: int, seed: int) -> Rows:
    """Of two or three long choices the one is right whose last word is awful, which random weights put last."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        last = draw.sample(["lovely", "awful", "word29"], 3)
        last = last[: draw.randrange(2, 4)] if "awful" in last[:2] else last
        listed = [f"{FILLER} {word}" for word in last]
        made.append({"text": " ".join(draw.choices(WORDS, k=4)), "choices": listed, "label": last.index("awful")})
    return made


def alike(count: int, seed: int) -> Rows:
    """Pairs behind a beginning that all texts have, which is as long as the model reads."""
    return [{name: f"{FILLER} {text}" for name, text in row.items()} for row in pairs(count, seed)]


@pytest.mark.parametrize(("kind", "made", "metric"), [("choice", choices, "accuracy"), ("embed", alike, "mrr")])
def test_rows_of_several_long_texts_are_learned_in_windows_and_predicted_so(
    model: Path,
    tmp_path: Path,
    said: pytest.LogCaptureFixture,
    kind: str,
    made: Callable[[int, int], Rows],
    metric: str,
) -> None:
    quick: dict[str, Any] = {"epochs": 4, "learning_rate": 5e-3} if kind == "choice" else {"epochs": 8}
    train, dev = made(160 if kind == "choice" else 240, 1), made(40, 2)
    settings = replace(QUICK, windows=True, window_overlap=4, max_length=24, **quick)
    result = bertsmith.finetune(kind, model, train, dev, tmp_path / "run", settings=settings)
    assert result.truncated["train"].rows == result.truncated["dev"].rows == 0
    cut = bertsmith.finetune(kind, model, train, dev, None, settings=replace(QUICK, max_length=24, epochs=2))
    assert cut.truncated["train"].rows == len(train)
    assert result.mean > 0.9 > cut.mean + 0.2
    predictor = Predictor(tmp_path / "run", "cpu", precision="fp32")
    assert predictor.evaluate(predictor.examples(dev))[metric] == pytest.approx(result.mean)
    answers = predictor([{key: value for key, value in row.items() if key != "label"} for row in dev])
    assert {each["truncated_tokens"] for each in answers} == {0}
    assert ("sentence-transformers has no windows" in said.text) == (kind == "embed")
    if kind == "choice":
        right = [each["label"] == row["label"] for each, row in zip(answers, dev, strict=True)]
        assert sum(right) / len(right) == pytest.approx(result.mean)
        return
    alone = Embedder(tmp_path / "run", "cpu", precision="fp32")
    first, second = (alone([row[name] for row in dev]) for name in dev[0])
    assert [each["similarity"] for each in answers] == pytest.approx((first * second).sum(1).tolist(), abs=1e-5)


def test_a_step_of_pairs_in_windows_is_the_same_however_it_is_cut_up(model: Path) -> None:
    settings = replace(EXACT, windows=True, window_overlap=2)
    whole, step = objective_of(model, 9999, settings=settings, max_length=8)
    assert len(step.micro_batches) == 1
    assert len(step.micro_batches[0].examples.sequences.ids) > len(step.micro_batches[0].examples.sequences.text_starts)
    gradients, figures = stepped(whole, step)
    parts, step = objective_of(model, 160, settings=settings, max_length=8)
    assert len(step.micro_batches) == 4
    found, its_figures = stepped(parts, step)
    assert its_figures == pytest.approx(figures, rel=1e-5)
    assert farthest(found, gradients) < 1e-5


@pytest.fixture(scope="module")
def in_windows(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of vectors of texts in windows of 12 tokens."""
    run = tmp_path_factory.mktemp("vectors") / "run"
    settings = replace(QUICK, windows=True, window_overlap=4, max_length=12, epochs=1)
    bertsmith.finetune("embed", model, pairs(48, 1), pairs(16, 2), run, settings=settings)
    return run


@pytest.fixture(scope="module")
def served(in_windows: Path) -> Iterator[Served]:
    with serving({"vectors": in_windows / "model"}, "--precision", "fp32") as server:
        yield server


def test_vectors_of_long_texts_are_joined_wherever_they_are_asked_for(
    in_windows: Path, served: Served, tmp_path: Path
) -> None:
    texts = ["lovely", " ".join(WORDS[:25]), f"{FILLER} awful"]
    embedder = Embedder(in_windows, "cpu", precision="fp32")
    # Windows of 10 words that share 4, as texts of their own.
    spans = [texts[1].split()[start : start + 10] for start in (0, 6, 12, 18)]
    parts = embedder([" ".join(words) for words in spans])
    mean = parts.mean(0)
    expected = embedder(texts)
    assert expected[1] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)
    assert np.abs(expected[2] - embedder([FILLER])[0]).max() > 1e-3, "the end of a text changes its vector"
    rows_file = tmp_path / "rows.jsonl"
    rows_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    on_cpu = ["--device", "cpu", "--precision", "fp32"]
    for out in ("v.npy", "v.jsonl"):
        assert main(["embed", str(in_windows), str(rows_file), "--out", str(tmp_path / out), *on_cpu]) == 0
    assert np.load(tmp_path / "v.npy", allow_pickle=False) == pytest.approx(expected, abs=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()]
    assert np.array([line["embedding"] for line in lines]) == pytest.approx(expected, abs=1e-6)
    assert [line["truncated_tokens"] for line in lines] == [0, 0, 0]
    unscaled = Embedder(in_windows, "cpu", precision="fp32", vectors=VectorOptions(unit=False))
    assert unscaled([texts[1]])[0] == pytest.approx(unscaled([" ".join(words) for words in spans]).mean(0), abs=1e-5)
    status, found, headers = served.ask("/embed", {"inputs": texts})
    assert (status, "x-truncated-tokens" in headers) == (200, False)
    assert np.array(found) == pytest.approx(expected, abs=1e-5)
    body = {"source_sentence": texts[0], "sentences": texts}
    status, found, _ = served.ask("/similarity", {"inputs": body})
    assert found == pytest.approx((expected @ expected[0]).tolist(), abs=1e-5)
    status, found, _ = served.ask("/v1/embeddings", {"model": "vectors", "input": texts})
    assert np.array([each["embedding"] for each in found["data"]]) == pytest.approx(expected, abs=1e-5)


def test_an_export_joins_windows_as_pytorch_does(in_windows: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    export(in_windows, tmp_path / "export")
    texts = [" ".join(WORDS[:25]), "lovely"]
    expected = Embedder(in_windows, "cpu", precision="fp32")(texts)
    assert Embedder(tmp_path / "export", backend="onnx")(texts) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("overlap", "what"),
    [
        (None, "row 2 has 38 tokens more than the 12 that the model reads"),
        (2, "the shorter text of row 2 is 8 tokens longer than a window has room for"),
    ],
)
def test_a_row_that_would_be_cut_is_refused_with_what_to_shorten(
    tmp_path: Path, overlap: int | None, what: str
) -> None:
    """Two choices of 8 words, of which a window has room for 4 beside a part of the context."""
    folder = made_head("choice", tmp_path / "model")
    task = {"most_choices": 2, "max_length": 12, "window_overlap": overlap}
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    model = open_model("m", folder, {"device": "cpu", "precision": "fp32", "backend": "torch"}, Limits())
    long = {"text": " ".join(WORDS[:20]), "choices": [" ".join(WORDS[:8]), " ".join(WORDS[8:16])]}
    asked = Asked([{"text": "lovely", "choices": ["word1", "word2"]}, long])
    with pytest.raises(Refusal, match=what):
        model.encode(asked, Cut())
    assert len(model.encode(asked, Cut(truncate=True)).records) == 2


def test_what_is_cut_is_told_with_the_remedy(model: Path, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    for windows in (False, True):
        settings = replace(QUICK, max_length=24, max_steps=1, windows=windows)
        bertsmith.finetune("classify", model, TRAIN[:40], DEV, tmp_path / f"run-{windows}", settings=settings)
        said.clear()
        Predictor(tmp_path / f"run-{windows}", "cpu")([f"{FILLER} lovely"])
        assert ("fine-tuned with --windows reads long texts whole" in said.text) == (not windows)


@pytest.mark.parametrize(
    ("fillers", "length", "settings", "told"),
    [
        ((4,), 24, {}, "--windows reads long texts whole, and a larger --max-length more of them"),
        ((4,), 40, {}, "--windows reads long texts whole"),  # the model has no more positions
        ((4,), 24, {"windows": True}, None),
        ((1,), 28, {}, None),
        ((4,), 40, {"max_length": 24}, None),  # was chosen
        ((4, 4), 40, {}, "--windows reads the longer of two texts whole"),
        ((4, 4), 40, {"windows": True, "window_overlap": 0}, None),
    ],
)
def test_a_great_loss_of_training_text_is_warned_of_with_what_reads_it(
    model: Path,
    said: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fillers: tuple[int, ...],
    length: int,
    settings: dict[str, Any],
    told: str | None,
) -> None:
    monkeypatch.setattr(Classify, "usual_length", length)
    more = " ".join([FILLER] * fillers[0])
    second = {"text_b": more} if len(fillers) > 1 else {}
    long = [{**row, "text": f"{more} {row['text']}", **second} for row in TRAIN[:40]]
    chosen = replace(QUICK, max_steps=1, **{"max_length": 0, **settings})
    bertsmith.finetune("classify", model, long, long, None, settings=chosen)
    assert " 40 of 40 rows truncated" in said.text or settings.get("windows")
    warnings = [each for each in said.messages if "of the text of train is not read" in each]
    (share,) = re.findall("train: .* rows truncated, ([0-9.]+%) of the tokens lost", said.text)
    expected = [] if told is None else [f"warning: {share} of the text of train is not read: {told}"]
    assert warnings == expected


def test_vectors_of_tokens_are_those_of_one_window_and_what_is_cut_is_told(in_windows: Path, served: Served) -> None:
    text = " ".join(WORDS[:25])
    layers = Embedder(in_windows, "cpu", vectors=VectorOptions(layers=(-1,)))
    vectors, sequences = layers.embed([("row 1", text)])
    assert (len(vectors), sequences.row_lost_tokens.tolist()) == (12, [15])
    status, found, _ = served.ask("/embed_all", {"inputs": [text]})
    assert (status, "15 tokens more" in str(found["error"])) == (413, True)
    status, found, headers = served.ask("/embed_all", {"inputs": [text], "truncate": True})
    assert (status, len(found[0]), headers["x-truncated-tokens"]) == (200, 12, "15")
