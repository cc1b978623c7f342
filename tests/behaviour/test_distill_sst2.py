"""The measurement of students on SST-2: its table, and that what is in its file is not run again."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def script(script):
    return script("distill_sst2")


def test_the_table_has_means_deviations_and_differences_from_the_teacher(script):
    scores = [0.85, 0.86, 0.84]
    rows = [{"cell": "teacher", "score": 0.86}, *({"cell": "taught", "score": score} for score in scores)]
    *_, line = script.table_of(rows)
    assert line.split() == ["taught", "3", "85.00", f"{100 * np.std(scores, ddof=1):.2f}", "+1.00"]
    assert len(script.table_of(rows)) == len(script.table_of(rows[:2]))


def test_a_run_is_written_once_and_with_its_settings(script, tmp_path, monkeypatch):
    ran, starts = [], []

    def distill(teacher, student, out, **given):
        ran.append(given["settings"])
        starts.append(student)
        return SimpleNamespace(last_scores=[0.5], rows={"train": 2})

    monkeypatch.setattr(script.bertsmith, "distill", distill)
    out, folder = tmp_path / "scores.json", tmp_path / "folder"
    for cell in (*script.CELLS, *script.CELLS):
        script._one(out, cell, 1, ([], []), folder, folder, folder / "mlm")
    assert len(ran) == 5
    assert starts == [*[folder / "model"] * 4, folder], "the teacher's layers, and the model that it was made of"
    assert len({(each.max_steps, each.student_layers, each.seed) for each in ran}) == 1, "all at equal steps"
    assert [(each.logits_weight > 0, each.augment > 0) for each in ran] == [
        (cell.taught, cell.made) for cell in script.CELLS.values()
    ]
    names = [row["settings"]["augment_model"] for row in json.loads(out.read_text())]
    assert names == [None, "mlm", None, "mlm", None]
    monkeypatch.setattr(script, "STUDENT", script.replace(script.STUDENT, batch=16))
    with pytest.raises(SystemExit, match="was run with other settings"):
        script._one(out, "alone", 1, ([], []), folder, folder, folder / "mlm")


def test_teacher_and_students_have_one_precision_and_the_teacher_s_row_the_machine(script, tmp_path, monkeypatch):
    trained = []

    def finetune(task, model, train, dev, out, *, settings, resume):
        trained.append(settings.precision)
        (out / "model").mkdir(parents=True)
        script.files.write_json(out / "finetune.json", {"last_epoch_scores": [0.5], "seconds": 1.0})

    monkeypatch.setattr(script.bertsmith, "finetune", finetune)
    out = tmp_path / "scores.json"
    for _ in range(2):
        script.teacher_of(out, tmp_path / "work", tmp_path, [], [])
    assert trained == [script.STUDENT.precision] == ["fp32"]
    (row,) = json.loads(out.read_text())
    assert (row["cell"], row["score"], row["settings"]["precision"]) == ("teacher", 0.5, "fp32")
    assert {"versions", "cpu", "cores"} <= row.keys()
