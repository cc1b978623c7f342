"""A teacher, a student or settings that do not fit are refused by one message, before anything is written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from made_students import PIECES, QUICK, made_bert, made_teacher, rows

TRAIN, DEV = rows(40, 1), rows(20, 2)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def teacher(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_teacher(tmp_path_factory.mktemp("teacher") / "run", bert, TRAIN)


def refused(teacher: Path, student: Path | str | None, out: Path, **more: Any) -> BertsmithError:
    given: dict[str, Any] = {"task": "classify", "train": TRAIN, "dev": DEV, "settings": QUICK}
    with pytest.raises(BertsmithError) as caught:
        bertsmith.distill(teacher, student, out / "run", **{**given, **more})
    assert not (out / "run").exists()
    assert caught.value.fix
    return caught.value


def test_a_teacher_of_other_labels(bert: Path, teacher: Path, tmp_path: Path) -> None:
    other = rows(40, 1, ("good", "bad"))
    error = refused(teacher, bert, tmp_path, train=other, dev=other)
    assert error.what == "the teacher's labels are blame, praise and the training rows' bad, good"
    error = refused(teacher, bert, tmp_path, settings=replace(QUICK, labels="praise,blame"))
    assert error.what == "the teacher's labels are blame, praise and the training rows' praise, blame", "in that order"


def test_a_teacher_of_another_task(bert: Path, teacher: Path, tmp_path: Path) -> None:
    numbers = [{**row, "label": str(place / 7)} for place, row in enumerate(TRAIN)]
    error = refused(teacher, bert, tmp_path, task="regress", train=numbers, dev=numbers)
    assert error.what == "the teacher is fine-tuned for single_label_classification, and the rows are of regression"
    several = [{**row, "label": [row["label"]]} for row in TRAIN]
    error = refused(teacher, bert, tmp_path, train=several, dev=several)
    assert (
        error.what
        == "the teacher is fine-tuned for single_label_classification, and the rows are of multi_label_classification"
    )


def test_a_kind_without_distillation_is_refused_before_its_rows_are_read(teacher: Path, tmp_path: Path) -> None:
    unusable = [{"text": "bam", "text_b": ""}]
    error = refused(teacher, None, tmp_path, task="embed", train=unusable, dev=unusable)
    assert (error.what, error.where) == ("embed has no distillation", str(teacher))


def test_a_teacher_of_pairs(bert: Path, teacher: Path, tmp_path: Path) -> None:
    pairs = [{**row, "text_b": "bam den"} for row in TRAIN]
    error = refused(teacher, bert, tmp_path, train=pairs, dev=pairs)
    assert error.what == "the teacher reads one text a row, and the rows have two texts"


def test_a_teacher_that_is_not_fine_tuned(bert: Path, tmp_path: Path) -> None:
    assert "the teacher is not fine-tuned: it holds BertForPreTraining" in refused(bert, bert, tmp_path).what


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"task.json": []}, "this file does not describe a task: it holds no JSON object"),
        ({"task.json": {"pairs": "x"}}, "this file does not describe a task: pairs is 'x'"),
        (
            {"task.json": {"task": "embed"}, "config.json": {"architectures": ["BertModel"]}},
            "the teacher is fine-tuned for embed, and the rows are of single_label_classification",
        ),
    ],
)
def test_a_teacher_whose_files_say_otherwise(
    bert: Path, teacher: Path, tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    changed = shutil.copytree(teacher / "model", tmp_path / "changed")
    for name, values in changes.items():
        if isinstance(values, dict):
            values = {**files.read_json(changed / name), **values}
        files.write_json(changed / name, values)
    assert refused(changed, bert, tmp_path).what == what


@pytest.mark.parametrize(
    ("name", "change"),
    [("task.json", {"temperature": "x"}), ("config.json", {"id2label": {"0": "blame", "7": "praise"}})],
)
def test_a_teachers_damaged_file_is_named_with_its_folder(
    bert: Path, teacher: Path, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    changed = shutil.copytree(teacher / "model", tmp_path / "changed")
    files.write_json(changed / name, {**files.read_json(changed / name), **change})
    assert refused(changed, bert, tmp_path).where == str(changed / name)


def test_a_student_with_another_vocabulary(teacher: Path, tmp_path: Path) -> None:
    other = made_bert(tmp_path / "bert", [*PIECES, "more"])
    assert "the teacher's tokenizer is not the student's" in refused(teacher, other, tmp_path).what


def test_a_teacher_that_is_too_short(bert: Path, tmp_path: Path) -> None:
    short = made_teacher(
        tmp_path / "teacher", made_bert(tmp_path / "short", max_position_embeddings=16), TRAIN, max_length=16
    )
    assert refused(short, bert, tmp_path).what == "the teacher has 16 positions and sequences 32 tokens"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"student_layers": 3}, "student_layers is 3, and the folder's model has 2"),
        ({"student_layers": 1, "frozen_layers": 2}, "frozen_layers is 2"),
        ({"frozen_layers": 2, "label_weight": 0.0, "logits_weight": 0.0}, "nothing above them learns"),
        ({"layer_map": "1:3"}, "the layer map '1:3' names layer 3 of the teacher, which has 2"),
        ({"augment": 1, "augment_model": "MODEL"}, "this model has no masked-word head: it holds BertForSequence"),
    ],
)
def test_settings_that_do_not_fit_the_models(
    bert: Path, teacher: Path, tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    changes = {name: str(teacher / "model") if each == "MODEL" else each for name, each in changes.items()}
    assert what in refused(teacher, bert, tmp_path, settings=replace(QUICK, **changes)).what


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"label_weight": -1.0}, "label_weight is -1"),
        ({"label_weight": 0.0, "logits_weight": 0.0, "hidden_weight": 0.0}, "label_weight is 0"),
        ({"soft_temperature": 0.0}, "soft_temperature is 0"),
        ({"augment": 2}, "one of augment and augment_model"),
        ({"augment_model": "x"}, "one of augment and augment_model"),
        ({"augment": 1, "augment_model": "x", "folds": 2}, "augmented rows would be on both sides"),
        ({"augment": 1, "augment_model": "x", "logits_weight": 0.0, "hidden_weight": 0.0}, "nothing would be learned"),
        ({"augment_share": 0.0}, "augment_share is 0"),
        ({"augment_top": 0}, "augment_top is 0"),
        ({"augment_top": 5}, r"(?s)augment_top is 5\n.*use it with augment"),
        ({"augment_share": 0.5}, r"(?s)augment_share is 0.5\n.*use it with augment"),
        ({"label_augmented": True}, r"(?s)label_augmented is True\n.*use it with augment"),
        (
            {"logits_weight": 0.0, "soft_temperature": 5.0},
            r"(?s)soft_temperature is 5.0\n.*with logits_weight, which is 0",
        ),
        ({"hidden_weight": 0.0, "layer_map": "0:0"}, r"(?s)layer_map is 0:0\n.*with hidden_weight, which is 0"),
        ({"label_weight": 0.0, "focal": 2.0}, r"(?s)focal is 2.0\n.*with label_weight, which is 0"),
        ({"label_weight": 0.0, "label_smoothing": 0.1}, r"(?s)label_smoothing is 0.1\n.*with label_weight, which is 0"),
        ({"label_weight": 0.0, "class_weights": "balanced"}, r"(?s)class_weights is balanced\n.*with label_weight"),
        (
            {"label_weight": 0.0, "label_augmented": True, "augment": 1, "augment_model": "x"},
            r"(?s)label_augmented is True\n.*with label_weight, which is 0",
        ),
    ],
)
def test_settings_that_contradict_each_other(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(BertsmithError, match=what):
        replace(QUICK, **changes)


def test_layers_of_a_recipe_s_student(teacher: Path, tmp_path: Path) -> None:
    error = refused(teacher, "bert-tiny", tmp_path, settings=replace(QUICK, student_layers=1))
    assert error.what == "student_layers takes layers of a model, and the student is a recipe's"


def test_a_student_that_is_not_there(teacher: Path, tmp_path: Path) -> None:
    assert "neither a model folder nor a recipe" in refused(teacher, "bert-teeny", tmp_path).what


def test_words_of_tagged_rows_are_not_replaced(bert: Path, tmp_path: Path) -> None:
    tagged = [{"tokens": ["bam", "den"], "tags": ["B-X", "O"]}] * 20
    of_tags = made_teacher(tmp_path / "teacher", bert, tagged, "tag")
    settings = replace(QUICK, augment=1, augment_model=str(bert))
    error = refused(of_tags, bert, tmp_path, task="tag", train=tagged, dev=tagged, settings=settings)
    assert "words of tag rows are not replaced" in error.what


def test_numbers_are_compared_without_a_temperature(bert: Path, tmp_path: Path) -> None:
    numbers = [{"text": row["text"], "label": len(row["text"]) / 10} for row in rows(20, 1)]
    of_numbers = made_teacher(tmp_path / "teacher", bert, numbers, "regress")
    settings = replace(QUICK, soft_temperature=5.0)
    error = refused(of_numbers, bert, tmp_path, task="regress", train=numbers, dev=numbers, settings=settings)
    assert error.what == "regress models do not take soft temperature"


def test_a_corpus_and_rows_exclude_each_other(bert: Path, teacher: Path, tmp_path: Path) -> None:
    error = refused(teacher, "bert-tiny", tmp_path, task="auto", corpus=tmp_path, settings=None)
    assert error.what == "a corpus and train and dev exclude each other"


def test_the_flags_of_a_corpus_and_of_rows_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["distill", "--teacher", "t", "--student", "bert-tiny", "--out", str(tmp_path / "run"), "--corpus=c"]
    assert main([*call, "--train", "train.csv", "--dev=dev.csv"]) == 2
    assert "--corpus and --dev, --train exclude each other" in capsys.readouterr().err


def test_a_corpus_and_a_task_exclude_each_other(teacher: Path, tmp_path: Path) -> None:
    alone: dict[str, Any] = {"corpus": tmp_path, "train": None, "dev": None, "settings": None}
    error = refused(teacher, "bert-tiny", tmp_path, task="sst2", **alone)
    assert error.what == "a corpus and task exclude each other"


def test_without_rows_and_corpus_both_ways_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distill", "--teacher", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "neither training rows nor a corpus" in said
    assert all(flag in said for flag in ("--train", "--data", "--corpus", "--student"))


def test_the_command_line_names_what_is_wrong(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in TRAIN))
    names = ["--teacher", str(bert), "--train", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "run")]
    assert main(["distill", "classify", *names]) == 2
    assert "the teacher is not fine-tuned" in capsys.readouterr().err
    corpus = ["--teacher", str(bert), "--student", str(bert), "--corpus", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(["distill", *corpus]) == 2
    assert "on a corpus the student is a recipe" in capsys.readouterr().err
    assert main(["distill", *names, "--soft-temprature", "2"]) == 2
    assert "--soft-temperature" in capsys.readouterr().err
