"""Every kind of task has a student: like its teacher it has nothing to learn from it, and smaller it comes nearer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.registry import TASKS
from bertsmith.training.run_folder import Run
from made_students import QUICK, WORDS, made_bert, made_teacher, rows

Rows = list[dict[str, Any]]
STILL = replace(QUICK, dropout=0.0, attention_dropout=0.0, max_length=12)
IN_WINDOWS = {"qa": {"doc_stride": 4}}  # the other kinds share an overlap


def several(count: int) -> Rows:
    def labels(row: dict[str, Any]) -> list[str]:
        return [row["label"], *(["long"] if len(row["text"]) > 25 else [])]

    return [{**row, "label": labels(row)} for row in rows(count, 3)]


def numbers(count: int) -> Rows:
    return [{**row, "label": len(row["text"].split()) / 4} for row in rows(count, 3)]


def tagged(count: int) -> Rows:
    draw = random.Random(4)
    tokens = [draw.choices(WORDS, k=draw.randrange(2, 14)) for _ in range(count)]
    return [{"tokens": each, "tags": ["B-X" if word.startswith("b") else "O" for word in each]} for each in tokens]


def questions(count: int) -> Rows:
    draw, made = random.Random(5), []
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randrange(3, 12))
        words.insert(draw.randrange(len(words)), "lovely")
        text = " ".join(words)
        answers = [{"text": "lovely", "answer_start": text.index("lovely")}]
        made.append({"id": str(number), "question": "bam", "context": text, "answers": answers})
    return made


def choices(count: int) -> Rows:
    draw, made = random.Random(6), []
    for _ in range(count):
        listed = draw.sample(WORDS, k=draw.randrange(2, 4))
        label = draw.randrange(len(listed))
        listed[label] = "lovely"
        made.append({"text": " ".join(draw.choices(WORDS, k=draw.randrange(1, 16))), "choices": listed, "label": label})
    return made


KINDS: dict[str, tuple[str, Callable[[int], Rows]]] = {
    "classify": ("classify", lambda count: rows(count, 3)),
    "several labels": ("classify", several),
    "regress": ("regress", numbers),
    "tag": ("tag", tagged),
    "qa": ("qa", questions),
    "choice": ("choice", choices),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_task_has_a_student(name: str, tmp_path: Path) -> None:
    kind, make = KINDS[name]
    train, dev = make(40), make(12)
    windows = IN_WINDOWS.get(kind, {"windows": True, "window_overlap": 2})
    settings = replace(STILL, **windows)
    bert = made_bert(tmp_path / "bert")
    teacher = made_teacher(tmp_path / "teacher", bert, train, kind, **windows, max_length=12, epochs=5)
    given: dict[str, Any] = {"task": kind, "train": train, "dev": dev}
    once = replace(settings, max_steps=1)
    bertsmith.distill(teacher, None, tmp_path / "same", **given, settings=once)
    (same,) = Run(tmp_path / "same").metrics("train")
    assert same["hidden_loss"] == same["logits_loss"] == 0
    assert same.get("logits_accuracy", 1) == 1  # numbers have none
    assert same["logits_count"] == same[f"{kind}_count"] > 0
    narrow = made_bert(tmp_path / "narrow", hidden_size=24)
    taught = replace(settings, epochs=3, label_weight=0.0)
    bertsmith.distill(teacher, narrow, tmp_path / "run", **given, settings=taught)
    first, *_, last = Run(tmp_path / "run").metrics("train")
    assert last["logits_loss"] < first["logits_loss"]
    assert last["hidden_loss"] < first["hidden_loss"]
    assert len(Predictor(tmp_path / "run", "cpu")(dev)) == 12


def test_a_teacher_that_cut_long_texts_is_told_of(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    train, bert = rows(20, 3), made_bert(tmp_path / "bert")
    teacher = made_teacher(tmp_path / "teacher", bert, train, "classify", epochs=1)
    given: dict[str, Any] = {"task": "classify", "train": train, "dev": train}
    told = "long texts were cut when the teacher was trained, and are read in windows here, for both models"
    for windows in (False, True):
        settings = replace(STILL, windows=windows, max_steps=1)
        bertsmith.distill(teacher, None, tmp_path / f"run-{windows}", **given, settings=settings)
        assert (told in said.text) == windows


def test_every_kind_is_tried_or_has_no_student() -> None:
    assert {kind for kind, task in TASKS.items() if task.can_be_distilled()} == {kind for kind, _ in KINDS.values()}


def test_a_benchmark_has_a_student(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    numbers = {"praise": "1", "blame": "0"}
    (tmp_path / "data" / "SST-2").mkdir(parents=True)
    for part, count in (("train", 40), ("dev", 12)):
        lines = [f"{row['text']}\t{numbers[row['label']]}" for row in rows(count, 7)]
        path = tmp_path / "data" / "SST-2" / f"{part}.tsv"
        path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    labelled = [{**row, "label": numbers[row["label"]]} for row in rows(40, 7)]
    teacher = made_teacher(tmp_path / "teacher", made_bert(tmp_path / "bert"), labelled)
    settings = replace(STILL, max_length=32, student_layers=1, max_steps=2)
    given: dict[str, Any] = {"task": "sst2", "data": tmp_path / "data", "settings": replace(settings, labels="0,1")}
    result = bertsmith.distill(teacher, None, tmp_path / "run", **given)
    assert result.rows == {"train": 40, "dev": 12}
    assert "the score is not comparable with published ones" in said.text
    assert "label_weight" not in said.text.split("is not comparable")[0]
