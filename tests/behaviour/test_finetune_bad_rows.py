"""A bad row of a user's own is named by the task that the others show, and left out where asked; labels and tags may be
written as other data sets have them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.interactive import converse
from bertsmith.inference.predictor import Predictor
from bertsmith.training.records.sinks import Outputs
from made_questions import questions, squad
from made_rows import QUICK, WORDS, rows

LAYERS = 1

ROWS = rows(100, 1)
FAST = replace(QUICK, epochs=1)
CALL = ["--epochs=1", "--batch=16", "--max-length=32", "--device=cpu", "--precision=fp32", "--learning-rate=3e-3"]
CALL += ["--no-report"]


def lines(path: Path, made: list[dict[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def kinds_of_rows() -> dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]]:
    """For each kind rows, a change that makes a bad one, and what is then said of it."""
    words = [row["text"].split() for row in ROWS[:40]]
    tags = [["B-x" if word in ("lovely", "awful") else "O" for word in each] for each in words]
    answer = [{"text": "lovely" if "lovely" in row["text"] else "awful"} for row in ROWS[:40]]
    two = ["lovely", "awful"]
    return {
        "choice": (
            [{"text": row["text"], "choices": two, "label": number % 2} for number, row in enumerate(ROWS[:40])],
            {"label": 7},
            "the label '7' is not the number of a choice",
        ),
        "tag": (
            [{"tokens": these, "tags": those} for these, those in zip(words, tags, strict=True)],
            {"tags": ["O"]},
            "column 'tags' has 1 tag for ",
        ),
        "regress": (
            [{"text": row["text"], "label": number / 7 + 0.1} for number, row in enumerate(ROWS[:40])],
            {"label": "n/a"},
            "the label 'n/a' is not a number",
        ),
        "qa": (
            [
                {"question": "word1", "context": row["text"], "answers": [gold], "id": f"q{number}"}
                for number, (row, gold) in enumerate(zip(ROWS, answer, strict=False))
            ],
            {"answers": [{"text": "nowhere"}]},
            "the answer is not in the context",
        ),
    }


@pytest.mark.parametrize("kind", ["choice", "tag", "regress", "qa"])
def test_a_bad_row_is_named_by_the_task_that_the_others_show(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    made, change, what = kinds_of_rows()[kind]
    train = lines(tmp_path / "train.jsonl", [*made[:5], {**made[5], **change}, *made[6:]])
    dev = lines(tmp_path / "dev.jsonl", [{**made[0], **change}, *made[1:3]] if kind == "qa" else made[:3])
    call = ["finetune", "--model", str(model), "--train", str(train), "--dev", str(dev), *CALL]
    status = main([*call, "--out", str(tmp_path / "stopped")])
    said = capsys.readouterr().err
    assert status == (0 if kind == "qa" else 2), "a question that cannot be learned is left out, as in run_squad.py"
    assert what in said
    assert f"{train}:6" in said
    if kind == "qa":
        assert "1 of 3 questions have a first answer that is not in the context, or not where" in said
        assert f"should start:\n    {dev}:1 (id q0)" in said
    bad = tmp_path / "bad.jsonl"
    assert main([*call, "--out", str(tmp_path / "run"), "--skip-bad-rows", str(bad)]) == 0
    said = capsys.readouterr().err
    assert f"task: {kind} (" in said
    assert f"1 bad row left out: {bad}" in said
    means = {"choice": "accuracy", "qa": "f1"}
    moved = f"so that a single one moves {means[kind]} by up to 33.3%" if kind in means else "too few to say much"
    assert f"dev has 3 rows, {moved}; use more, or --folds 5" in said, "one row may move other metrics by more"
    (row,) = map(json.loads, bad.read_text().splitlines())
    assert row["where"] == f"{train}:6"
    assert what in row["why"]
    assert json.loads((tmp_path / "run" / "finetune.json").read_text())["rows"]["train"] == 39


@pytest.mark.parametrize("part", ["train", "dev"])
@pytest.mark.parametrize("skip", [True, False])
def test_labels_of_choices_that_count_from_one_are_refused_and_not_left_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, skip: bool
) -> None:
    """Without the rows of the last choice the others would be learned, each with the choice behind its own."""
    four = [
        {"text": row["text"], "choices": WORDS[:4], "label": number % 4 if number else 4}
        for number, row in enumerate(ROWS[:40])
    ]
    made = {"train": four[1:], "dev": four[1:13]}
    good = lines(tmp_path / "zero.jsonl", made["train"])
    made[part] = [{**row, "label": row["label"] + 1} for row in made[part]]
    files = {name: lines(tmp_path / f"{name}.jsonl", those) for name, those in made.items()}
    call = ["finetune", "choice", "--model", str(model), "--out", str(tmp_path / "run"), *CALL]
    call += ["--skip-bad-rows", str(tmp_path / "bad.jsonl")] if skip else []
    assert main([*call, "--train", str(files["train"]), "--dev", str(files["dev"])]) == 2
    said = capsys.readouterr().err
    count = 10 if part == "train" else 3
    assert f"{count} labels are the number of choices in their row and 0 are 0, as if counted from 1" in said
    assert f"where: {files[part]}" in said
    assert "subtract 1 from all labels; choices are counted from 0" in said
    assert not (tmp_path / "run").exists()
    lines(good, [row for row in four if row["label"]])  # one label out of range is a slip, though none is 0
    assert main([*call, "--train", str(good), "--dev", str(good)]) == (0 if skip else 2)
    assert "counted from 1" not in capsys.readouterr().err


@pytest.mark.parametrize("over", ["train", "dev", "other"])
def test_a_list_of_bad_rows_takes_no_other_files_place(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], over: str
) -> None:
    paths = {name: lines(tmp_path / f"{name}.jsonl", ROWS[:20]) for name in ("train", "dev", "other")}
    before = paths[over].read_bytes()
    call = ["finetune", "--model", str(model), "--train", str(paths["train"]), "--dev", str(paths["dev"]), *CALL]
    assert main([*call, "--out", str(tmp_path / "run"), "--skip-bad-rows", str(paths[over])]) == 2
    assert "would be written over" in capsys.readouterr().err
    assert paths[over].read_bytes() == before


def test_a_list_of_bad_rows_and_records_of_dllogger_are_not_mixed_in_one_file(model: Path, tmp_path: Path) -> None:
    for name in (str(tmp_path / "bad.jsonl"), str(tmp_path / "." / "elsewhere" / ".." / "bad.jsonl")):
        settings, outputs = replace(QUICK, skip_bad_rows=name), Outputs(dllogger=tmp_path / "bad.jsonl")
        with pytest.raises(BertsmithError, match="name the same file") as caught:
            bertsmith.finetune(
                "classify", model, rows(32, 1), rows(8, 2), tmp_path / "run", settings=settings, outputs=outputs
            )
        assert caught.value.fix
    assert not list(tmp_path.iterdir())


def test_scoring_answers_writes_over_nothing_that_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{name}.json" for name in ("answers", "data", "null")]
    for path in paths:
        path.write_text("{}")
    answers, data, null = map(str, paths)
    for read in paths:
        assert main(["evaluate", answers, "--data", data, "--null-scores", null, "--json", str(read)]) == 2
        assert "this file is read here, and would be written over" in capsys.readouterr().err
        assert read.read_text() == "{}"


@pytest.mark.parametrize("flag", ["--json", "--skip-bad-rows", "--submission"])
def test_evaluating_writes_over_nothing_that_it_reads(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    data = lines(tmp_path / "data.jsonl", ROWS[:20])
    before = data.read_bytes()
    assert main(["evaluate", str(model), "--data", str(data), flag, str(data)]) == 2
    assert "this file is read here, and would be written over" in capsys.readouterr().err
    assert data.read_bytes() == before


def test_too_many_questions_that_cannot_be_learned_are_not_left_out(model: Path, tmp_path: Path) -> None:
    made, change, _ = kinds_of_rows()["qa"]
    own = [{**row, **change} for row in made[:25]] + made[25:]
    settings = replace(FAST, skip_bad_rows=str(tmp_path / "bad"))
    with pytest.raises(BertsmithError, match="25 of 40 rows cannot be used"):
        bertsmith.finetune("qa", model, own, made[30:], None, settings=settings)
    assert not (tmp_path / "bad").exists()


def test_numbers_as_tags_have_the_names_that_are_given(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        {"tokens": row["tokens"], "ner_tags": [int(tag != "O") for tag in row["tags"]]}
        for row in kinds_of_rows()["tag"][0]
    ]
    train = lines(tmp_path / "train.jsonl", made)
    call = ["finetune", "--model", str(model), "--train", str(train), "--out", str(tmp_path / "run"), *CALL]
    assert main(call) == 2
    said = capsys.readouterr().err
    assert f"{train}:1: column 'ner_tags' has numbers as tags" in said
    assert "--labels O,B-PER,I-PER" in said
    assert main([*call, "--labels=O,B-mood,I-mood"]) == 0
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert set(config["label2id"]) == {"O", "B-mood", "I-mood"}
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(train), "--device=cpu"]) == 0, "the folder knows them"


def test_a_column_for_each_label_is_learned_measured_and_answered(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        {"text": row["text"], **{name: int(name == row["label"]) for name in ("praise", "blame", "spam")}}
        for row in ROWS
    ]
    train, run = lines(tmp_path / "train.jsonl", made), tmp_path / "run"
    call = ["finetune", "--model", str(model), "--train", str(train), "--out", str(run), *CALL]
    assert main(call) == 2
    assert "--columns.label praise,blame,spam" in capsys.readouterr().err
    assert main([*call, "--columns.label=praise,blame,spam"]) == 0
    said = capsys.readouterr().err
    assert "no training row has the label spam" in said
    assert "that are not used" not in said
    assert main(["evaluate", str(run), "--data", str(train), "--device=cpu"]) == 0
    assert "micro_f1" in capsys.readouterr().out
    (answer,) = bertsmith.Predictor(run, "cpu")([{"text": "word1 lovely"}])
    assert set(answer["scores"]) == {"praise", "blame", "spam"}


def test_a_pair_of_which_one_text_is_given_is_named_and_the_next_one_answered(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [{"text": f"word{n % 5}", "text_b": f"word{n % 3}", "label": "ab"[n % 2]} for n in range(12)]
    bertsmith.finetune("classify", model, pairs, pairs, tmp_path / "run", settings=FAST)
    typed = iter(["word1", "", "word1", "word2", ""])
    capsys.readouterr()
    assert converse(Predictor(tmp_path / "run", "cpu"), lambda prompt: next(typed)) == 1
    printed = capsys.readouterr()
    needs = "each row of this model needs text and text_b; give the row again"
    assert f"not answered, because text_b is empty: {needs}\n" in printed.err
    assert json.loads(printed.out)["label"] in ("a", "b")


def test_evaluate_leaves_bad_rows_out(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bertsmith.finetune("classify", model, ROWS, rows(40, 2), tmp_path / "run", settings=FAST)
    data, bad = lines(tmp_path / "test.jsonl", [*ROWS, {"text": "", "label": "praise"}]), tmp_path / "bad.jsonl"
    call = ["evaluate", str(tmp_path / "run"), "--data", str(data), "--device=cpu"]
    assert main(call) == 2
    assert f"{data}:101: column 'text' is empty" in capsys.readouterr().err
    assert main([*call, "--bad-share=0.9"]) == 2
    assert "--bad-share is for --skip-bad-rows" in capsys.readouterr().err
    for share in ("nan", "inf", "2", "0"):
        assert main([*call, "--skip-bad-rows", str(bad), f"--bad-share={share}"]) == 2
        assert f"--bad-share is {share}" in capsys.readouterr().err
    assert main([*call, "--skip-bad-rows", str(bad), "--bad-share=0.001"]) == 2
    assert not bad.exists()
    capsys.readouterr()
    assert main([*call, "--skip-bad-rows", str(bad)]) == 0
    assert f"1 bad row left out: {bad}" in capsys.readouterr().err
    assert json.loads(bad.read_text())["where"] == f"{data}:101"
    assert main([*call[:2], "--data", str(tmp_path), "--skip-bad-rows", str(bad)]) == 2


@pytest.mark.parametrize("kind", ["classify", "classify, several labels", "regress", "choice"])
def test_the_most_rows_decide_whether_rows_are_pairs_and_the_others_are_bad_ones(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    made = [{**row, "text_b": f"word{number % 9}"} for number, row in enumerate(ROWS[:60])]
    if kind != "classify":
        labels = {"classify, several labels": lambda row: [row["label"]], "regress": lambda row: len(row["text"]) / 7}
        right = labels.get(kind, lambda row: int(row["label"] == "blame"))
        choices = {"choices": ["lovely", "awful"]} if kind == "choice" else {}
        made = [{**row, **choices, "label": right(row)} for row in made]
    single = {name: value for name, value in made[0].items() if name != "text_b"}
    train = lines(tmp_path / "train.jsonl", [single, *made])
    dev = lines(tmp_path / "dev.jsonl", [*made[:20], single])
    run, bad = tmp_path / "run", tmp_path / "bad.jsonl"
    task = kind.partition(",")[0]
    call = ["finetune", task, "--model", str(model), "--train", str(train), "--dev", str(dev), *CALL]
    assert main([*call, "--out", str(run)]) == 2
    said = capsys.readouterr().err
    assert "1 of 61 rows cannot be used" in said
    assert f"{train}:1: this row has one text, and the training rows have two" in said
    assert main([*call, "--out", str(run), "--skip-bad-rows", str(bad)]) == 0
    where = [json.loads(line)["where"] for line in bad.read_text().splitlines()]
    assert where == [f"{train}:1", f"{dev}:21"]
    assert json.loads((run / "finetune.json").read_text())["rows"] == {"train": 60, "dev": 20}

    measure = ["evaluate", str(run), "--data", str(dev), "--device=cpu"]
    assert main(measure) == 2
    assert f"{dev}:21: this row has one text, and the training rows have two" in capsys.readouterr().err
    assert main([*measure, "--skip-bad-rows", str(bad)]) == 0
    assert [json.loads(line)["where"] for line in bad.read_text().splitlines()] == [f"{dev}:21"]


def test_a_second_text_among_single_ones_is_named(model: Path, tmp_path: Path) -> None:
    own = [{**ROWS[0], "text_b": "word1"}, *ROWS[1:]]
    with pytest.raises(BertsmithError, match="row 1: this row has two texts, and the training rows have one"):
        bertsmith.finetune("classify", model, own, rows(40, 2), tmp_path / "run", settings=FAST)


def test_a_model_that_learned_from_lists_is_measured_on_cells_of_joined_labels(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [{"text": row["text"], "label": [row["label"], "some"]} for row in ROWS[:60]]
    bertsmith.finetune("classify", model, made, made[:30], tmp_path / "run", settings=FAST)
    data = tmp_path / "test.csv"
    data.write_text("text,label\n" + "".join(f"{row['text']},{';'.join(row['label'])}\n" for row in made))
    call = ["evaluate", str(tmp_path / "run"), f"--data={data}", "--device=cpu", "--precision=fp32"]
    assert main(call) == 2
    assert "the training rows have no label" in capsys.readouterr().err
    assert main([*call, "--columns.label-separator=;", f"--json={tmp_path / 'scores.json'}"]) == 0
    figures = json.loads((tmp_path / "scores.json").read_text())["figures"]
    assert figures == pytest.approx(evaluate(tmp_path / "run", made, device="cpu", precision="fp32").figures)


def test_questions_that_lack_the_key_of_answers_are_bad_rows_and_can_be_answered(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = squad(questions(40, 1))
    train, dev, bad, run = (tmp_path / name for name in ("train.json", "dev.json", "bad.jsonl", "run"))
    dev.write_text(json.dumps(value))
    value["data"][0]["paragraphs"][2]["qas"][0] = {"id": "unlabelled", "question": "what is word1"}
    train.write_text(json.dumps(value))
    place = f"{train}, data[0].paragraphs[2].qas[0]"
    call = ["finetune", "qa", f"--model={model}", f"--train={train}", f"--dev={dev}", f"--out={run}", *CALL]
    assert main(call) == 2
    assert f"{place}: no answers in column 'answers'" in capsys.readouterr().err
    assert main([*call, f"--skip-bad-rows={bad}"]) == 0
    assert "39 with an answer\n" in capsys.readouterr().err, "none is taken for a question without an answer"
    assert [json.loads(line)["where"] for line in bad.read_text().splitlines()] == [place]
    assert main(["evaluate", str(run), f"--data={train}", "--device=cpu"]) == 2
    assert f"{place}: no answers in column 'answers'" in capsys.readouterr().err
    assert main(["predict", str(run), str(train), f"--out={tmp_path / 'answers.jsonl'}", "--device=cpu"]) == 0
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 40


@pytest.mark.parametrize("kind", ["classify", "classify, pairs", "regress", "choice", "tag", "qa", "embed"])
def test_texts_of_which_the_normaliser_leaves_nothing_are_warned_of(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    pairs = [{"text": row["text"], "text_b": f"word{number % 29} lovely"} for number, row in enumerate(ROWS[:40])]
    made, column, nothing = {
        **{kind: (rows, "text", "\u200b") for kind, (rows, _, _) in kinds_of_rows().items()},
        "classify": (ROWS[:40], "text", "\u200b"),
        "classify, pairs": ([{**pair, **row} for pair, row in zip(pairs, ROWS[:40], strict=True)], "text_b", "\u0001"),
        "embed": (pairs, "text_b", "\u200b"),
    }[kind]
    if kind == "qa":
        column, nothing = "question", "\u0001\u200b"
    change = {"tokens": ["\u200b"], "tags": ["O"]} if kind == "tag" else {column: nothing}
    train = lines(tmp_path / "train.jsonl", [*made[:5], {**made[5], **change}, *made[6:]])
    dev = lines(tmp_path / "dev.jsonl", made[:10])
    files = [f"--train={train}", f"--dev={dev}", f"--out={tmp_path / 'run'}"]
    assert main(["finetune", kind.partition(",")[0], f"--model={model}", *files, *CALL]) == 0
    said = capsys.readouterr().err
    assert f"train rows with a text without any token: 1 of 40, such as {train}:6" in said
    assert "dev rows with a text without" not in said
    assert main(["evaluate", str(tmp_path / "run"), f"--data={train}", "--device=cpu"]) == 0
    assert f"rows with a text without any token: 1 of 40, such as {train}:6" in capsys.readouterr().err


def test_few_rows_to_measure_the_f1_of_several_labels_or_vectors_on_are_only_called_few(
    model: Path, said: pytest.LogCaptureFixture
) -> None:
    several = [{"text": row["text"], "label": [row["label"]]} for row in ROWS[:20]]
    pairs = [{"text": row["text"], "text_b": f"word{number} lovely"} for number, row in enumerate(ROWS[:20])]
    for kind, made in (("classify", several), ("embed", pairs)):
        said.clear()
        bertsmith.finetune(kind, model, made, made[:10], None, settings=FAST)
        assert "dev has 10 rows, too few to say much; use more" in said.text
    said.clear()
    bertsmith.finetune("embed", model, pairs, pairs[:1], None, settings=FAST)
    assert "dev has 1 row, too few to say much; use more" in said.text
    said.clear()
    bertsmith.finetune("classify", model, several, several[:10], None, settings=replace(FAST, metric="subset_accuracy"))
    assert "dev has 10 rows, so that a single one moves subset_accuracy by up to 10.0%" in said.text


def test_rows_of_unknown_words_alone_are_counted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not those with one known word, nor those without any token, which are counted by themselves."""
    texts = ["\U0001f600 \U0001f680", "\U0001f600 lovely", "\u200b", *(row["text"] for row in ROWS[3:40])]
    made = [{**row, "text": text} for row, text in zip(ROWS[:40], texts, strict=True)]
    train, dev = lines(tmp_path / "train.jsonl", made), lines(tmp_path / "dev.jsonl", ROWS[40:50])
    call = ["finetune", "classify", f"--model={model}", f"--train={train}", f"--dev={dev}", *CALL]
    assert main([*call, f"--out={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr().err
    unknown = "rows with a text of which the vocabulary has nothing ([UNK] alone)"
    assert f"train {unknown}: 1 of 40, such as {train}:1" in said
    assert f"train rows with a text without any token: 1 of 40, such as {train}:3" in said
    assert f"dev {unknown}" not in said
