"""Promises of tagging: it learns, schemes and spans are one, transformers answers alike, and faults are named."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.scoring.entities import agreement_by_type, overall
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.tagging.schemes import SCHEMES, spans_of, tags_of
from bertsmith.tokens.tokenizer import Tokenizer
from made_entities import Row, entities_of, tagged_rows, with_spans
from made_rows import QUICK as PLAIN

LAYERS = 1

TRAIN, DEV = tagged_rows(120, 1), tagged_rows(40, 2)
LONG = tagged_rows(20, 3, words=70)
QUICK = replace(PLAIN, report=True, epochs=8, learning_rate=5e-3)
SHORT = replace(QUICK, epochs=1, dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tagger") / "run"
    bertsmith.finetune("tag", model, TRAIN, DEV, out, settings=QUICK)
    return out


def predictor(folder: Path) -> Predictor:
    return Predictor(folder, "cpu", precision="fp32")


def losses(model: Path, train: list[Row], **changes: Any) -> list[float]:
    dev = [with_spans(row) for row in DEV] if "spans" in train[0] else DEV
    result = bertsmith.finetune("tag", model, train, dev, None, settings=replace(SHORT, **changes))
    return [each.train_loss for each in result.seeds[0].epochs]


def score(predictions: list[Row], rows: list[Row]) -> float:
    true = [spans_of(row["tags"]) for row in rows]
    return overall(agreement_by_type([spans_of(each["tags"]) for each in predictions], true)).f1


def test_it_learns_and_answers_what_was_scored(run: Path) -> None:
    result = json.loads((run / "finetune.json").read_text())
    assert result["mean"] > 0.95
    assert result["baseline"] == 0
    assert result["class_counts"].keys() == {"praise", "blame"}
    by_words = predictor(run)(DEV)
    assert score(by_words, DEV) == pytest.approx(result["mean"])
    by_text = predictor(run)([with_spans(row)["text"] for row in DEV])
    assert [entities_of(each) for each in by_text] == [entities_of(each) for each in by_words]
    for row, answer in zip(DEV, by_text, strict=True):
        assert "tags" not in answer
        text = " ".join(row["tokens"])
        assert all(text[each["start"] : each["end"]] == each["text"] for each in answer["entities"])
        assert all(0.2 < each["score"] <= 1 for each in answer["entities"])


def test_every_scheme_and_spans_are_the_same_training(model: Path) -> None:
    train = TRAIN[:40]
    expected = losses(model, train)
    for scheme in SCHEMES:
        rows = [{**row, "tags": tags_of(spans_of(row["tags"]), len(row["tokens"]), scheme)} for row in train]
        assert losses(model, rows) == expected
    assert losses(model, [with_spans(row) for row in train]) == expected
    as_cells = [{name: " ".join(value) for name, value in row.items()} for row in train]
    assert losses(model, as_cells) == expected


def test_micro_batches_change_nothing(model: Path) -> None:
    rows = TRAIN[:30] + LONG[:6]
    expected = losses(model, rows)
    assert losses(model, rows, micro_batch_tokens=64) == pytest.approx(expected, rel=1e-5)


def test_long_sentences_are_read_whole(run: Path, model: Path) -> None:
    """In windows of the model's 32 tokens, which are joined; and in training too, where each word counts once."""
    (answers, whole) = (predictor(run)(LONG), predictor(run)([with_spans(row)["text"] for row in LONG]))
    assert all(len(each["tags"]) == len(row["tokens"]) for each, row in zip(answers, LONG, strict=True))
    assert all(each["truncated_tokens"] == 0 for each in answers)
    assert score(answers, LONG) > 0.95
    assert [entities_of(each) for each in answers] == [entities_of(each) for each in whole]
    result = bertsmith.finetune("tag", model, TRAIN + LONG[:10], LONG, None, settings=replace(QUICK, report=False))
    assert result.mean > 0.95
    assert result.truncated["train"].tokens == 0


def test_the_window_rule_is_in_the_folder(model: Path, tmp_path: Path) -> None:
    bertsmith.finetune("tag", model, TRAIN, DEV, tmp_path / "run", settings=replace(SHORT, window_overlap=5))
    task = json.loads((tmp_path / "run" / "model" / "task.json").read_text())
    assert (task["window_overlap"], task["scheme"], task["max_length"]) == (5, "BIO", 32)


def test_transformers_reads_the_folder_to_the_same_scores_and_labels(run: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(run / "model").eval()
    assert type(theirs).__name__ == "BertForTokenClassification"
    assert theirs.config.id2label == {0: "O", 1: "B-blame", 2: "I-blame", 3: "B-praise", 4: "I-praise"}
    ours = predictor(run)
    records = [Tag.record(row, ours.columns, False, "row") for row in DEV]
    sequences = ours._task.encode(records, ours.tokenizer, 32)
    scores = ours._runner.scores(ours.model, sequences, per_token=True)
    start = 0
    for ids in sequences.ids:
        with torch.no_grad():
            logits = theirs(torch.from_numpy(ids)[None]).logits[0]
        assert torch.allclose(logits, torch.from_numpy(scores[start : start + len(ids)]), atol=1e-4)
        start += len(ids)


@pytest.mark.parametrize("strategy", ["simple", "first"])
def test_the_pipeline_of_transformers_finds_the_same_entities(run: Path, strategy: str) -> None:
    """Every word is one piece here; where a word has several, "first" is the strategy that looks at the first alone."""
    transformers = pytest.importorskip("transformers")
    pipe = transformers.pipeline(
        "token-classification", model=str(run / "model"), device="cpu", aggregation_strategy=strategy
    )
    ours = predictor(run)
    for row in DEV:
        text = " ".join(row["tokens"])
        for theirs, answer in (
            (pipe(text), ours(text)[0]),
            (pipe([row["tokens"]], is_split_into_words=True)[0], ours(row)[0]),
        ):
            found = [(each["entity_group"], each["start"], each["end"]) for each in theirs]
            assert found == [(span.label, span.start, span.end) for span in entities_of(answer)]
            scores = [each["score"] for each in answer["entities"]]
            assert scores == pytest.approx([float(each["score"]) for each in theirs], abs=1e-4)


def write_lines(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_commands_of_a_new_user(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, dev = write_lines(tmp_path / "train.jsonl", TRAIN), write_lines(tmp_path / "dev.jsonl", DEV)
    out = tmp_path / "run"
    flags = ["--epochs", "2", "--max-length", "32", "--device", "cpu", "--precision", "fp32", "--metric", "macro_f1"]
    command = ["finetune", "tag", "--model", str(model), "--train", str(train), "--dev", str(dev), "--out", str(out)]
    assert main([*command, *flags]) == 0
    said = capsys.readouterr().err
    assert "train entities by type: " in said
    assert "scheme of the tags: BIO" in said
    assert "(praise)" in said
    tables = []
    for name, rows in (("words.jsonl", DEV), ("text.jsonl", [{"text": " ".join(row["tokens"])} for row in DEV])):
        table = tmp_path / f"{name}.csv"
        assert main(["predict", str(out), str(write_lines(tmp_path / name, rows)), "--out", str(table)]) == 0
        with table.open(newline="") as file:
            tables.append([json.loads(row["predicted_entities"]) for row in csv.DictReader(file)])
    assert tables[0] == tables[1]
    assert (
        main(["predict", str(out), str(dev), "--out", str(tmp_path / "out.jsonl"), "--columns.tokens", "tokens"]) == 0
    )
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [row["tokens"] for row in DEV]
    assert all(len(line["prediction"]["tags"]) == len(line["tokens"]) for line in lines)


GOOD = {"tokens": ["word1", "lovely"], "tags": ["O", "B-praise"]}


@pytest.mark.parametrize(
    ("rows", "message", "where"),
    [
        ([GOOD, {**GOOD, "tags": ["O", "positive"]}], "word 2, 'lovely': 'positive' is not a tag of a span", "jsonl:2"),
        ([{**GOOD, "tags": ["O", "O"]}], "no training row has an entity", "jsonl:1"),
        ([{"text": "word1 lovely", "spans": [[0, 12, "a"], [6, 12, "b"]]}], "two spans overlap", "jsonl:1"),
        ([{"text": "word1 lovely", "label": "praise"}], "tag needs a column of words and one of as many tags", "jsonl"),
        ([{"sentence": "word1"}], "or a text and one of spans; there are:\n    'sentence'", "jsonl"),
    ],
)
def test_bad_rows_are_named_before_any_work(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[Row], message: str, where: str
) -> None:
    train, out = write_lines(tmp_path / "train.jsonl", rows), tmp_path / "run"
    command = ["finetune", "tag", "--model", str(model), "--train", str(train), "--dev", str(train)]
    assert main([*command, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert where in said
    assert not out.exists()


def conll(rows: list[Row]) -> str:
    """CoNLL's columns, with one of chunks between word and tag."""
    lines = (zip(row["tokens"], row["tags"], strict=True) for row in rows)
    return "\n".join("".join(f"{word} B-NP {tag}\n" for word, tag in each) for each in lines)


def test_files_in_conlls_columns(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {part: tmp_path / f"{part}.conll" for part in ("train", "dev")}
    for part, rows in (("train", TRAIN), ("dev", DEV)):
        files[part].write_text(conll(rows))
    result = bertsmith.finetune(
        "tag", model, files["train"], files["dev"], tmp_path / "run", settings=replace(SHORT, report=True)
    )
    assert [each.train_loss for each in result.seeds[0].epochs] == losses(model, TRAIN)
    figures = json.loads((tmp_path / "run" / "report" / "dev" / "per_class.json").read_text())["classes"]
    assert sum(each["support"] for each in figures) == sum(len(spans_of(row["tags"])) for row in DEV)
    assert main(["predict", str(tmp_path / "run"), str(files["dev"]), "--out", str(tmp_path / "out.jsonl")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [row["tokens"] for row in DEV]
    columns = replace(SHORT.columns, tags="2")
    chunks = bertsmith.finetune(
        "tag", model, files["train"], files["dev"], None, settings=replace(SHORT, columns=columns)
    )
    assert chunks.class_counts == {"NP": sum(len(row["tokens"]) for row in TRAIN)}
    capsys.readouterr()
    files["dev"].write_text("word1 O\nlovely\n\nawful B-blame\n")
    command = ["finetune", "tag", "--model", str(model), "--train", str(files["train"]), "--dev", str(files["dev"])]
    assert main([*command, "--out", str(tmp_path / "other")]) == 2
    said = capsys.readouterr().err
    assert "the lines of this sentence have 1 and 2 columns" in said
    assert "dev.conll:1" in said


def test_one_type_and_a_type_in_dev_alone(model: Path, said: pytest.LogCaptureFixture) -> None:
    train = [{**row, "tags": [tag if tag.endswith("praise") else "O" for tag in row["tags"]]} for row in TRAIN]
    result = bertsmith.finetune("tag", model, train, DEV, None, settings=replace(QUICK, report=False))
    assert result.class_counts.keys() == {"praise"}
    figures = result.seeds[0].best.dev
    assert figures["precision"] > 0.9
    assert figures["recall"] < 0.8  # the others count as missed
    missed = sum(tag == "B-blame" for row in DEV for tag in row["tags"])
    assert f"entities of the type 'blame', which no training row has, missed in the score: {missed};" in said.text


def test_answers_are_the_same_from_one_sentence_and_from_many(run: Path) -> None:
    ours = predictor(run)
    rows: list[Any] = [*DEV[:5], " ".join(DEV[5]["tokens"]), *LONG[:2]]
    together = ours(rows)
    for row, expected in zip(rows, together, strict=True):
        (alone,) = ours([row])
        assert entities_of(alone) == entities_of(expected)


def test_the_report_counts_what_no_answer_finds(model: Path, tmp_path: Path) -> None:
    rows = [Tag.record(row, FinetuneSettings().columns, True, "row") for row in DEV]
    task = Tag.of_records(rows, QUICK)
    examples = task.examples(rows, Tokenizer.load(model), 32)
    scores = torch.zeros(int(examples.sequences.lengths.sum()), len(task.names)).numpy()
    task.write(scores, examples, tmp_path)
    figures = {each["label"]: each for each in json.loads((tmp_path / "per_class.json").read_text())["classes"]}
    assert figures["blame"]["support"] == sum(tag == "B-blame" for row in DEV for tag in row["tags"])
    assert figures["blame"]["f1"] == 0


def test_empty_answers_are_no_fault(run: Path) -> None:
    answers = predictor(run)(["word1 word2", {"tokens": ["\u200b"]}, {"tokens": ["word1", ""]}])
    assert [each["entities"] for each in answers] == [[], [], []]
    assert answers[1]["tags"] == ["O"]
    assert answers[2]["tags"] == ["O", "O"]
    with pytest.raises(BertsmithError, match="column 'tokens' is empty"):
        predictor(run)({"tokens": []})


def test_the_report_is_of_the_answers(run: Path) -> None:
    """Its figures are those of the run, its table has every type, and a doubtful tag has its word and sentence."""
    report = run / "report" / "dev"
    figures = json.loads((report / "intervals.json").read_text())
    tuned = json.loads((run / "finetune.json").read_text())["tuned"]["dev"]
    assert figures["count"] == len(DEV)
    assert figures["figures"]["micro_f1"]["value"] == pytest.approx(tuned["entity_f1"])
    assert figures["figures"]["macro_f1"]["value"] == pytest.approx(tuned["macro_f1"])
    answers = predictor(run)([{"tokens": row["tokens"]} for row in DEV])
    assert figures["figures"]["micro_f1"]["value"] == pytest.approx(score(answers, DEV))
    table = json.loads((report / "per_class.json").read_text())["classes"]
    assert sum(row["f1"] for row in table) / len(table) == pytest.approx(tuned["macro_f1"])
    assert sum(row["predicted"] for row in table) == sum(len(each["entities"]) for each in answers)
    words = json.loads((report / "confusion.json").read_text())
    assert words["count"] == sum(len(row["tokens"]) for row in DEV)
    right = sum(row.get(name, 0) for name, row in words["predicted_by_true_label"].items())
    assert right / words["count"] == pytest.approx(tuned["tag_accuracy"])


def test_a_planted_wrong_tag_is_the_likeliest_error(model: Path, tmp_path: Path) -> None:
    wrong = [dict(row) for row in DEV]
    number = next(number for number, row in enumerate(DEV) if set(row["tags"]) != {"O"})
    wrong[number]["tags"] = ["O" if tag != "O" else tag for tag in DEV[number]["tags"]]
    bertsmith.finetune("tag", model, TRAIN, wrong, tmp_path / "run", settings=QUICK)
    found = json.loads((tmp_path / "run" / "report" / "dev" / "likely_label_errors.json").read_text())
    first = found["likely_label_errors"][0]
    assert (first["where"], first["given"]) == (f"row {number + 1}", "O")
    assert first["word"] in DEV[number]["tokens"]
    assert first["suggested"] in DEV[number]["tags"]
