"""Faults around a fine-tuning run are named, and leave what was there as it was."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.finetuning import side_by_side
from bertsmith.tasks.finetuning.folds import FoldScores
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.task import Floats
from bertsmith.training.checkpoints import saver
from bertsmith.training.run_folder import Run
from made_commands import Command
from made_rows import QUICK, rows
from made_runs import signalled_after

LAYERS = 1

TRAIN, DEV = rows(96, 1), rows(40, 2)
SETTINGS = replace(QUICK, epochs=3, seeds=2, log_every=2, save_every=2, keep=2, dropout=0.2)


def test_two_processes_cannot_work_in_one_run_folder(model: Path, tmp_path: Path, capsys) -> None:
    for name, made in (("train", TRAIN), ("dev", DEV)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    files = [f"--{name}={tmp_path / name}.jsonl" for name in ("train", "dev")]
    call = ["finetune", "classify", "--model", str(model), *files, "--out", str(tmp_path / "run"), "--log-every", "2"]
    call += ["--batch", "16", "--max-length", "32", "--device", "cpu", "--precision", "fp32"]
    with Command(*call, "--epochs", "100000", "--quiet") as first:
        while not Run(tmp_path / "run").metrics("train"):
            assert first.poll() is None, first.communicate()[1]
            time.sleep(0.01)
        assert main([*call, "--epochs", "100000", "--resume"]) == 2
        assert "another process is training in this folder" in capsys.readouterr().err
        assert first.poll() is None


def test_a_gradient_that_is_not_finite_stops_it_and_names_the_rows(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Classify.loss
    calls = [0]

    def broken(self, model, inputs, targets):  # type: ignore[no-untyped-def]
        found = loss(self, model, inputs, targets)
        calls[0] += 1
        return replace(found, loss=found.loss * float("nan")) if calls[0] == 3 else found

    monkeypatch.setattr(Classify, "loss", broken)
    with pytest.raises(BertsmithError, match="not finite") as caught:
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=SETTINGS)
    assert "seed 42, step 3" in caught.value.where
    assert "rows row " in caught.value.where
    assert "8 more rows" in caught.value.where
    assert caught.value.fix.endswith("with a lower learning rate"), "it computes in fp32 already"
    assert not (tmp_path / "run" / "model").exists()


def test_several_processes_are_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BertsmithError, match="one of 2 processes"):
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=SETTINGS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("taken", [False, True])
def test_scores_of_folds_are_kept_where_the_run_folder_is_moved_away_and_leave_those_of_another_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """taken: by another run, which has such scores too."""
    folder, moved = tmp_path / "run", tmp_path / "moved"
    theirs = folder / "folds" / "fold-1.npy"
    keep = FoldScores.keep

    def move_and_keep(self: FoldScores, part: str, scores: Floats) -> None:
        if part.startswith("fold") and not moved.exists():
            folder.rename(moved)
            if taken:
                theirs.parent.mkdir(parents=True)
                theirs.write_text("theirs")
                (folder / "run.json").write_text('{"task": "classify"}')
        keep(self, part, scores)

    monkeypatch.setattr(FoldScores, "keep", move_and_keep)
    settings = replace(SETTINGS, seeds=1, epochs=1, folds=2, report=True)
    if not taken:
        found = bertsmith.finetune("classify", model, TRAIN, DEV, folder, settings=settings)
        assert (folder / "report" / "folds").is_dir()
        assert found.scores
        return
    with pytest.raises(BertsmithError, match="this folder is another run's now"):
        bertsmith.finetune("classify", model, TRAIN, DEV, folder, settings=settings)
    assert theirs.read_text() == "theirs"
    assert sorted(each.name for each in folder.iterdir()) == ["folds", "run.json"]


def test_unused_columns_and_three_rows_are_shown(model: Path, said: pytest.LogCaptureFixture) -> None:
    train = [{"": "7", "sentence1": row["text"], "sentence2": "word1", "label": row["label"]} for row in TRAIN]
    columns = Columns(text="sentence1")
    settings = replace(SETTINGS, seeds=1, epochs=1, columns=columns)
    bertsmith.finetune("classify", model, train, train[:20], None, settings=settings)
    assert "columns of the training rows that are not used: one without a name, sentence2" in said.text
    assert sum(line.startswith("  row ") and "[CLS]" in line for line in said.messages) == 3


def test_a_damaged_older_step_folder_stops_no_training(model: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, seeds=1, epochs=2)
    write = saver.write_step

    def damaging(run, position, tensors):  # type: ignore[no-untyped-def]
        write(run, position, tensors)
        if position.step == 2:
            (run / "step-00000002" / "position.json").write_text("{")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver, "write_step", damaging)
        keeping = replace(settings, keep=5)
        assert bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "other", settings=keeping).scores


def test_weights_that_are_not_finite_are_no_finished_model(model: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, seeds=1, epochs=1, batch=96, learning_rate=1e38, warmup=0.0, max_gradient_norm=0.0)
    with pytest.raises(BertsmithError, match="not finite"):
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=settings)
    assert not (tmp_path / "run" / "model").exists()


def test_a_stop_without_a_folder_is_an_interruption(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signalled_after(0, monkeypatch, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="nothing is kept"):
        bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=SETTINGS)


def test_the_folder_of_another_kind_of_run_and_an_unfinished_one_are_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"recipe.seed": 1, "begun_on": {}}))
    with pytest.raises(BertsmithError, match="a run of pre-training, not of fine-tuning"):
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=SETTINGS, resume=True)
    with pytest.raises(BertsmithError, match="this run is not finished"):
        Predictor(tmp_path / "run")


def test_rows_that_come_twice_are_warned_about_and_a_stream_is_refused(
    model: Path, said: pytest.LogCaptureFixture
) -> None:
    settings = replace(SETTINGS, seeds=1, epochs=1, report=True)
    bertsmith.finetune("classify", model, TRAIN, DEV, None, test=DEV, settings=settings)
    assert "the test rows are the dev rows" in said.text
    assert "report: " not in said.text, "none is drawn that nobody could look at"
    for rows_of in ("-", iter(TRAIN)):
        with pytest.raises(BertsmithError, match="train rows"):
            bertsmith.finetune("classify", model, rows_of, DEV, None, settings=settings)  # type: ignore[arg-type]


def test_a_column_may_have_a_number_for_its_name_and_another_one_is_refused(model: Path) -> None:
    """Under None `csv.DictReader` has the cells that a row has too many."""
    train, dev = ([{0: each["text"], 1: each["label"], "more": 2} for each in rows] for rows in (TRAIN, DEV))
    for task in ("classify", "auto"):
        named = replace(SETTINGS, columns=Columns("0", label="1"), max_steps=1)
        assert bertsmith.finetune(task, model, train, dev, None, settings=named).rows == {"train": 96, "dev": 40}
        with pytest.raises(BertsmithError, match="a column is called None, which is no text") as caught:
            bertsmith.finetune(task, model, TRAIN, [*DEV, {**DEV[0], None: "x"}], None, settings=SETTINGS)
        assert caught.value.where == f"row {len(DEV) + 1}"


class Dataset:
    """As Hugging Face's library of that name has rows: not as a sequence."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(TRAIN)


class Frame(Dataset):
    """As pandas has a table."""

    columns = ("text", "label")


class ArrowTable(Frame):
    """As pyarrow has one."""

    def to_pylist(self) -> list[dict[str, str]]:
        return TRAIN


class PolarsFrame(Frame):
    to_dicts = ArrowTable.to_pylist


@pytest.mark.parametrize(
    ("rows_of", "fix"),
    [
        (Frame(), 'table.to_dict("records")'),
        (ArrowTable(), "table.to_pylist()"),
        (PolarsFrame(), "table.to_dicts()"),
        (Dataset(), "give list(...) of them"),
        (5, "give a file, or a list"),
    ],
)
def test_what_is_no_list_of_rows_is_told_how_to_become_one(model: Path, rows_of: Any, fix: str) -> None:
    for given in ({"train": rows_of, "dev": DEV}, {"train": TRAIN, "dev": rows_of}):
        with pytest.raises(BertsmithError, match=r"rows are of type .*, which is no list of rows") as caught:
            bertsmith.finetune("classify", model, **given, settings=SETTINGS)
        assert fix in caught.value.fix


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_rows_of_python_are_named_by_their_part(model: Path, part: str) -> None:
    called = f"the {'training' if part == 'train' else part} rows"
    for rows_of, what, where in (
        ([], "no rows found", called),
        ([{"text": "a"}], "no column", called if part == "train" else f"row 1 of {called}"),
        ([{"text": "a"}] * 200, "no column", called if part == "train" else f"row 1 of {called}"),
        ([*DEV, {"text": " ", "label": "praise"}], "1 of 41 rows cannot", called),
    ):
        given: dict[str, Any] = {"train": TRAIN, "dev": DEV, part: rows_of}
        with pytest.raises(BertsmithError, match=what) as caught:
            bertsmith.finetune("classify", model, **given, settings=SETTINGS)
        assert caught.value.where == where
        assert "file" not in caught.value.fix


@pytest.mark.parametrize("task", ["classify", "auto"])
def test_a_first_row_that_is_none_is_named_and_left_out_where_asked(model: Path, tmp_path: Path, task: str) -> None:
    settings = replace(SETTINGS, seeds=1, max_steps=1)
    train: Any = [None, *TRAIN]
    with pytest.raises(BertsmithError, match="row 1: this row is of type NoneType"):
        bertsmith.finetune(task, model, train, DEV, None, settings=settings)
    skipping = replace(settings, skip_bad_rows=str(tmp_path / "bad.jsonl"))
    found = bertsmith.finetune(task, model, train, DEV, None, settings=skipping)
    assert found.rows["train"] == len(TRAIN)


def test_what_a_user_puts_beside_the_checkpoints_of_a_training_stays(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, mine = side_by_side._leave_if_stopped, tmp_path / "run" / "trials" / "seed-42"

    def putting(run: Run, *given: Any) -> None:
        for name in ("best-so-far", "step-copied", "copied"):
            shutil.copytree(min(mine.glob("step-*")), mine / name)
        (mine / "notes.txt").write_text("mine", encoding="utf-8")
        (mine / "link").symlink_to(model)
        (mine / ".step-00000002.1-ab.part").mkdir()
        leave(run, *given)

    monkeypatch.setattr(side_by_side, "_leave_if_stopped", putting)
    settings = replace(QUICK, epochs=1, seeds=2, side_by_side=True)
    bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=settings)
    assert [each.name for each in mine.parent.iterdir()] == ["seed-42"]
    assert {each.name for each in mine.iterdir()} == {"best-so-far", "step-copied", "copied", "notes.txt", "link"}
    assert (model / "config.json").exists()
    assert (mine / "copied" / "position.json").exists()


def test_a_refused_folder_is_left_as_it_was(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "mine")
    with pytest.raises(BertsmithError, match=r"config\.json"):
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "mine", settings=SETTINGS)
    assert {each.name for each in (tmp_path / "mine").iterdir()} == {each.name for each in model.iterdir()}


def test_a_place_that_cannot_be_written_is_refused_before_any_row_is_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    missing = tmp_path / "missing.csv"
    with pytest.raises(BertsmithError, match="in the way of this folder"):
        bertsmith.finetune("classify", model, missing, missing, tmp_path / "file" / "run", settings=SETTINGS)
    for report in (tmp_path / "file", tmp_path / "file" / "report"):
        with pytest.raises(BertsmithError, match="in the way of this folder"):
            evaluate(model, missing, report=report)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
