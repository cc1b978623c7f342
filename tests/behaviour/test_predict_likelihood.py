"""How likely texts are: each token masked in turn, as a direct and slow computation with transformers has it."""

from __future__ import annotations

import csv
import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.blimp import PHENOMENON
from bertsmith.inference.minimal_pairs import evaluate_minimal_pairs
from bertsmith.inference.predictor import Predictor, load_predictor
from bertsmith.model.initial import initialise
from bertsmith.tasks.kinds import likelihood
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.pooled import Classifier, config_labels
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import FolderContents, save_model, save_pretraining_model
from made_models import drawn_model
from made_rows import CONFIG, PIECES, WORDS

CPU = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder whose guesses are far from equal."""
    folder = tmp_path_factory.mktemp("encoder")
    Tokenizer.from_vocabulary(PIECES, lowercase=True).save(folder / "tokenizer")
    save_pretraining_model(drawn_model(CONFIG, dtype=torch.float32), folder / "tokenizer", folder / "model")
    return folder / "model"


def texts(count: int = 9) -> list[str]:
    draw = random.Random(2)
    return [" ".join(draw.choices(WORDS, k=draw.randrange(1, 20))) for _ in range(count)]


def directly(model: Path, *parts: str) -> list[float]:
    """The log probability of every token of one text or two, with one forward pass for each."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    ids, kinds = [2], [0]
    for kind, part in enumerate(parts):
        own = [*map(PIECES.index, part.split()), 3]
        ids, kinds = ids + own, kinds + [kind] * len(own)
    found = []
    for place in [each for each, number in enumerate(ids) if number not in (2, 3)]:
        masked = torch.tensor([[*ids[:place], 4, *ids[place + 1 :]]])
        with torch.no_grad():
            logits = theirs(masked, token_type_ids=torch.tensor([kinds])).logits[0, place]
        found.append(float(logits.log_softmax(-1)[ids[place]]))
    return found


@pytest.mark.parametrize(("budget", "copies"), [(8, 512), (64, 5), (8192, 512)])
def test_likelihoods_are_those_of_a_direct_computation(model, monkeypatch, budget, copies):
    monkeypatch.setattr(likelihood, "_COPIES_AT_ONCE", copies)
    predictor = load_predictor(model, likelihood=True, budget_tokens=budget, **CPU)
    for text, ours in zip(texts(), predictor(texts()), strict=True):
        expected = directly(model, text)
        assert [each["piece"] for each in ours["pieces"]] == text.split()
        assert [each["log_likelihood"] for each in ours["pieces"]] == pytest.approx(expected, abs=1e-4)
        assert ours["log_likelihood"] == pytest.approx(sum(expected), abs=1e-4)
        assert ours["tokens"] == len(expected)
        assert ours["per_token"] == pytest.approx(sum(expected) / len(expected), abs=1e-4)


def test_both_texts_of_a_pair_are_scored(model):
    (ours,) = load_predictor(model, likelihood=True, **CPU)([{"text": "word1 word2", "text_b": "word3"}])
    expected = directly(model, "word1 word2", "word3")
    assert [each["log_likelihood"] for each in ours["pieces"]] == pytest.approx(expected, abs=1e-4)


def test_files_are_scored_and_what_is_cut_is_counted(model, tmp_path):
    (tmp_path / "rows.csv").write_text("text\n" + "\n".join([*texts(3), "word1 " * 50]) + "\n")
    call = ["predict", str(model), str(tmp_path / "rows.csv"), "--likelihood", "--device", "cpu", "--precision", "fp32"]
    assert main([*call, "--out", str(tmp_path / "out.csv")]) == 0
    with open(tmp_path / "out.csv", newline="") as file:
        counts = [(row["predicted_tokens"], row["truncated_tokens"]) for row in csv.DictReader(file)]
    assert counts == [(str(len(text.split())), "0") for text in texts(3)] + [("38", "12")]


def test_a_model_that_was_not_pre_trained_is_refused(model, tmp_path):
    contents = FolderContents(Classify.architectures[0], Tokenizer.load(model).save, config_labels(["bad", "good"]))
    classifier = Classifier(CONFIG, 2)
    initialise(classifier, 0.1, seed=0)
    save_model(classifier, contents, tmp_path / "classes")
    with pytest.raises(BertsmithError, match="a model of classify, which does not know how likely texts are"):
        load_predictor(tmp_path / "classes", likelihood=True, **CPU)


SYLLABLES = [*PIECES, *(f"##{piece}" for piece in WORDS)]


@pytest.fixture(scope="module")
def syllables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder whose vocabulary has pieces within words."""
    folder = tmp_path_factory.mktemp("syllables")
    Tokenizer.from_vocabulary(SYLLABLES, lowercase=True).save(folder / "tokenizer")
    config = replace(CONFIG, vocab_size=len(SYLLABLES))
    save_pretraining_model(drawn_model(config, dtype=torch.float32), folder / "tokenizer", folder / "model")
    return folder / "model"


def sentences(count: int) -> list[str]:
    """Of words of one to four pieces."""
    draw = random.Random(3)
    return [
        " ".join("".join(draw.choices(WORDS, k=draw.randrange(1, 5))) for _ in range(draw.randrange(1, 7)))
        for _ in range(count)
    ]


def left_to_right(theirs: Any, tokenizer: Tokenizer, text: str) -> float:
    """One forward pass for each piece, which is masked with the later ones of its word."""
    pieces = [tokenizer.pieces[each] for each in tokenizer.encode_ids([text])[0]]
    ids, total = torch.tensor([[2, *map(SYLLABLES.index, pieces), 3]]), 0.0
    for place in range(len(pieces)):
        masked, end = ids.clone(), place + 1
        while end < len(pieces) and pieces[end].startswith("##"):
            end += 1
        masked[0, place + 1 : end + 1] = 4
        with torch.no_grad():
            total += float(theirs(masked).logits[0, place + 1].log_softmax(-1)[ids[0, place + 1]])
    return total


def test_within_words_sentences_are_scored_as_one_by_one(syllables: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(syllables).eval()
    ours, drawn = load_predictor(syllables, **CPU).for_likelihood(left_to_right=True), sentences(80)
    expected = [left_to_right(theirs, ours.tokenizer, text) for text in drawn]
    assert [each["log_likelihood"] for each in ours(drawn)] == pytest.approx(expected, abs=1e-4)
    plain = [each["log_likelihood"] for each in load_predictor(syllables, likelihood=True, **CPU)(drawn)]
    assert plain != pytest.approx(expected, abs=1e-2)


def test_minimal_pairs_are_told_by_likelihood(
    syllables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor = load_predictor(syllables, **CPU).for_likelihood(left_to_right=True)
    folder, drawn = tmp_path / "pairs", sentences(60)
    folder.mkdir()
    pairs = list(zip(drawn[::2], drawn[1::2], strict=True))
    expected = {}
    for name, some in (("passive_1", pairs[:12]), ("passive_2", pairs[12:20]), ("own", pairs[20:])):
        write_pairs(folder / f"{name}.jsonl", some)
        told = [predictor(good)[0]["log_likelihood"] > predictor(bad)[0]["log_likelihood"] for good, bad in some]
        expected[name] = sum(told) / len(told)
    found = evaluate_minimal_pairs(syllables, folder, **CPU)
    assert found.rows == {"passive_1": 12, "passive_2": 8, "own": 10}
    assert found.files == pytest.approx(expected)
    both = (expected["passive_1"] + expected["passive_2"]) / 2
    mean = sum(expected.values()) / 3
    assert found.figures == pytest.approx({"argument structure": both, "own": expected["own"], "mean": mean})
    assert 0 < found.figures["mean"] < 1
    call = ["evaluate", str(syllables), "--device", "cpu", "--precision", "fp32"]
    assert main([*call, "--minimal-pairs", str(folder), "--json", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["files"], written["precision"]) == (found.files, "fp32")
    assert f"{found.figures['argument structure']:.4f}" in capsys.readouterr().out
    assert main(call) == 2
    assert main([*call, "--minimal-pairs", str(folder), "--data", str(folder)]) == 2
    assert "and not both" in capsys.readouterr().err
    assert main([*call, "--minimal-pairs", str(folder), "--report", str(tmp_path / "report")]) == 2
    assert "--report is not read for minimal pairs" in capsys.readouterr().err
    (folder / "three.jsonl").write_text('{"sentence_good": "word1"}\n')
    assert main([*call, "--minimal-pairs", str(folder)]) == 2
    assert "no column 'sentence_bad'" in capsys.readouterr().err


def test_a_bare_name_is_looked_up_in_the_data_folder(
    syllables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "blimp"
    folder.mkdir(parents=True)
    write_pairs(folder / "own.jsonl", [("word1 word2", "word2 word1")])
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    call = ["evaluate", str(syllables), "--device", "cpu", "--precision", "fp32", "--minimal-pairs"]
    assert main([*call, "blimp"]) == 0
    assert "own" in capsys.readouterr().out
    assert main([*call, "others"]) == 2
    assert f"no such folder here, nor in {tmp_path / 'data'}" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "--submission", "--skip-bad-rows"])
def test_what_cannot_be_written_is_refused_before_any_scoring(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    call = ["evaluate", str(tmp_path / "no-model"), "--data", str(tmp_path / "file"), flag]
    assert main([*call, str(tmp_path / "file" / "x")]) == 2
    assert "a file is in the way of this folder" in capsys.readouterr().err
    assert main([*call, str(tmp_path)]) == 2
    assert "a file is to be written here" in capsys.readouterr().err


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> None:
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n" for good, bad in pairs]
    path.write_text("".join(lines), encoding="utf-8")


def test_equally_likely_sentences_are_drawn_the_same_each_time(
    syllables: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    for name in ("same", "other"):
        write_pairs(tmp_path / f"{name}.jsonl", [(text, text) for text in sentences(100)])
    one, two = (evaluate_minimal_pairs(syllables, tmp_path, **CPU) for _ in range(2))
    assert one == two
    assert one.ties == 200
    assert 0.3 < one.figures["mean"] < 0.7
    assert one.files["same"] != one.files["other"], "each file has draws of its own"
    assert "200 of equally likely sentences (drawn)" in caplog.text


def test_likelihoods_that_differ_in_their_last_bits_alone_are_equal(
    syllables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sentences are computed in other company."""
    write_pairs(tmp_path / "near.jsonl", [("word1", "word2")] * 2)
    usual = Predictor.predict

    def near(predictor: Predictor, rows: Any) -> Any:
        answers, sequences = usual(predictor, rows)
        found = (-100.0, -100.00005, -100.0, -100.0005)
        return [{**each, "log_likelihood": value} for each, value in zip(answers, found, strict=True)], sequences

    monkeypatch.setattr(Predictor, "predict", near)
    assert evaluate_minimal_pairs(syllables, tmp_path, **CPU).ties == 1


def test_no_file_hides_behind_the_mean_of_all(syllables: Path, tmp_path: Path) -> None:
    for name in ("mean", "other"):
        write_pairs(tmp_path / f"{name}.jsonl", [("word1 word2", "word2 word1")])
    with pytest.raises(BertsmithError, match="'mean' is what the mean of all files is called") as raised:
        evaluate_minimal_pairs(syllables, tmp_path, **CPU)
    assert raised.value.where == str(tmp_path / "mean.jsonl")


@pytest.mark.parametrize(("column", "lacks"), [("text", "sentence_good"), ("sentence_good", "sentence_bad")])
def test_rows_that_are_no_pairs_are_refused_without_columns_that_pairs_do_not_take(
    syllables: Path, tmp_path: Path, column: str, lacks: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({column: "word1"}) + "\n")
    with pytest.raises(BertsmithError, match=f"no column '{lacks}'") as raised:
        evaluate_minimal_pairs(syllables, tmp_path, **CPU)
    assert raised.value.where == f"{tmp_path / 'rows.jsonl'}:1"
    assert "'sentence_good' and 'sentence_bad'" in raised.value.fix
    assert "columns" not in raised.value.fix


def test_sentences_without_a_token_that_the_model_knows_are_counted(
    syllables: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sentence without any token is likelier than every other one."""
    write_pairs(tmp_path / "a.jsonl", [("\x01\u200b", "word1 word2"), ("word1", "word2")])
    write_pairs(tmp_path / "b.jsonl", [("word3", "\U0001f600"), ("word1 " * 50, "\x07")])
    found = evaluate_minimal_pairs(syllables, tmp_path, **CPU)
    assert found.truncated_tokens == 12
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"warning: rows with {what}: {count} of 8, such as {tmp_path / row}; the answer says nothing of such a text"
        for what, count, row in (
            ("a text without any token", 2, "a.jsonl:1, sentence_good"),
            ("a text of which the vocabulary has nothing ([UNK] alone)", 1, "b.jsonl:1, sentence_bad"),
        )
    ]


def test_every_paradigm_of_blimp_has_its_phenomenon(real_data: Callable[[str], Path]) -> None:
    assert len(PHENOMENON) == 67
    assert len(set(PHENOMENON.values())) == 12
    assert {path.stem for path in real_data("blimp").glob("*.jsonl")} == PHENOMENON.keys()


@pytest.mark.parametrize("likelihood", [False, True])
def test_scores_that_are_not_finite_are_refused(model, likelihood):
    predictor = load_predictor(model, likelihood=likelihood, **CPU)
    with torch.no_grad():
        for each in predictor.model.parameters():
            each.fill_(float("nan"))
    with pytest.raises(BertsmithError, match="not finite"):
        predictor("word1 [MASK]")


def test_a_number_of_guesses_beside_likelihood_is_refused(model, capsys):
    assert main(["predict", str(model), "rows.jsonl", "--likelihood", "--n-best", "2"]) == 2
    assert "--likelihood lists nothing that --n-best could count" in capsys.readouterr().err
    with pytest.raises(BertsmithError, match="--likelihood lists nothing"):
        load_predictor(model, likelihood=True, top=2)


def test_an_export_gives_the_same_likelihoods(model, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from bertsmith.inference.export.export import export

    export(model, tmp_path / "onnx")
    expected = load_predictor(model, likelihood=True, **CPU)(texts())
    found = load_predictor(tmp_path / "onnx", likelihood=True, backend="onnx")(texts())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["per_token"] == pytest.approx(theirs["per_token"], abs=1e-4)
