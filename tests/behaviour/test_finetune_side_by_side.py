"""Trainings side by side, each on a rank of its own, are to the bit those of one process, one after another."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
import made_students
from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main
from bertsmith.report.reading import read_runs
from bertsmith.tasks.finetuning import side_by_side, start
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.loop import Stage, Trainer
from bertsmith.training.objective import Step
from bertsmith.training.records.meters import read_metrics
from bertsmith.training.records.names import EVENTS_FILE
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run_folder import Run
from made_commands import Command
from made_kills import Moment, Rename, drawing
from made_ranks import ended, environment, launching
from made_rows import CONFIG, QUICK, made_model, rows
from made_runs import PATIENCE, figures, ran, weights

TRAIN, DEV, TEST = rows(44, 1), rows(20, 2), rows(6, 3)
SETTINGS = replace(
    QUICK, epochs=3, seeds=2, folds=2, learning_curve=True, patience=1, log_every=2, save_every=2, dropout=0.2,
    report=True,
)  # fmt: skip
BESIDE = replace(SETTINGS, side_by_side=True)
TWO = replace(QUICK, epochs=2, seeds=2, side_by_side=True)
TRAININGS = ["share-10", "share-30", "fold-1", "fold-2", "seed-42", "seed-43"]


def tune(model: Path, out: Path | None, settings: FinetuneSettings, given: Path | None = None) -> None:
    """What every rank does. given: where each rank writes the scores that it was given."""
    resume = out is not None
    result = bertsmith.finetune("classify", model, TRAIN, DEV, out, test=TEST, settings=settings, resume=resume)
    if given is not None:
        (given / f"{ranks.rank()}.json").write_text(json.dumps(result.scores), encoding="utf-8")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("encoder"), replace(CONFIG, num_hidden_layers=1))


@pytest.fixture(scope="module")
def unbroken(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = tmp_path_factory.mktemp("unbroken") / "run"
    tune(model, run, SETTINGS)
    return Run(run)


@pytest.fixture(scope="module")
def two(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two seeds, one after another."""
    run = tmp_path_factory.mktemp("two") / "run"
    tune(model, run, replace(TWO, side_by_side=False))
    return Run(run)


def outcome(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "finetune.json").read_text(encoding="utf-8"))
    return {name: value for name, value in found.items() if name != "seconds"}


def check_equal(found: Run, alone: Run) -> None:
    """Records, results, reports and weights to the bit; and nothing is left of the trainings' own folders."""
    free = {f"seconds_left_in_{kind}" for kind in ("share", "fold", "seed")}
    ours, theirs = ([{name: record[name] for name in record.keys() - free} for record in figures(each)]
                    for each in (found, alone))  # fmt: skip
    assert ours == theirs
    assert outcome(found) == outcome(alone)
    assert weights(found) == weights(alone)
    # Of TensorBoard's files the name is that of the process; other ranks have files for their warnings.
    listed = [
        sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.parent.name != "tensorboard"
               and not path.match("events.rank-*"))
        for run in (found, alone)
    ]  # fmt: skip
    assert listed[0] == listed[1]
    for path in (alone.folder / "report").rglob("*.json"):
        assert (found.folder / path.relative_to(alone.folder)).read_bytes() == path.read_bytes(), path


def noting(model: Path, folder: Path) -> None:
    """What every rank does: it notes which trainings it enters, and what it is given."""
    enter, number = Trainer.enter, ranks.rank()

    def entered(self: Trainer, stage: Stage) -> None:
        with open(folder / f"entered-{number}", "a", encoding="utf-8") as file:
            file.write(f"{stage.kind}-{stage.label}\n")
        enter(self, stage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "enter", entered)
        tune(model, folder / "run", BESIDE, folder)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_trainings_side_by_side_are_those_of_one_process_and_each_is_done_by_one_rank(
    unbroken: Run, model: Path, tmp_path: Path, count: int
) -> None:
    ran(noting, count, model, tmp_path) if count > 1 else noting(model, tmp_path)
    run = Run(tmp_path / "run")
    check_equal(run, unbroken)
    given = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]
    assert all(each == given[0] for each in given), "every rank is given the result"
    named = [(kind, each[kind]) for each in run.metrics() for kind in ("share", "fold", "seed") if kind in each]
    assert [f"{kind}-{label}" for kind, label in dict.fromkeys(named)] == TRAININGS
    done = [(tmp_path / f"entered-{rank}").read_text(encoding="utf-8").split() for rank in range(count)]
    assert done == [TRAININGS[::-1][rank::count][::-1] for rank in range(count)], "the last seed is the first rank's"


def keeping(model: Path, folder: Path, beside: bool) -> None:
    """What every rank does."""
    for keep in ("best", "median", "last"):
        tune(model, folder / keep, replace(QUICK, epochs=2, seeds=3, keep_seed=keep, side_by_side=beside))


def test_the_model_of_the_same_seed_is_kept(model: Path, tmp_path: Path) -> None:
    keeping(model, tmp_path / "alone", False)
    ran(keeping, 2, model, tmp_path / "beside", True)
    for keep in ("best", "median", "last"):
        check_equal(*(Run(tmp_path / side / keep) for side in ("beside", "alone")))


def test_killed_at_random_moments_and_resumed_by_other_ranks_they_are_unbroken(
    unbroken: Run, model: Path, tmp_path: Path
) -> None:
    draw = drawing()
    for count in (2, 3, 1):
        ran(tune, count, model, tmp_path / "run", BESIDE, kill=Moment(draw.randint(1, 8), draw.random() * 0.05))
    ran(tune, 2, model, tmp_path / "run", BESIDE)
    check_equal(Run(tmp_path / "run"), unbroken)


def test_killed_when_all_are_trained_and_resumed_they_are_unbroken(unbroken: Run, model: Path, tmp_path: Path) -> None:
    for count, file in ((2, "events.jsonl"), (1, "model")):
        ran(tune, count, model, tmp_path / "run", BESIDE, kill=Rename(f"run/{file}"))
        assert not Run(tmp_path / "run").is_finished()
    tune(model, tmp_path / "run", BESIDE)
    check_equal(Run(tmp_path / "run"), unbroken)


def test_a_rank_without_a_training_is_warned_of_and_waits(two: Run, model: Path, tmp_path: Path) -> None:
    ran(tune, 3, model, tmp_path / "run", TWO)
    check_equal(Run(tmp_path / "run"), two)
    (said,) = (tmp_path / "run").glob("events.jsonl")
    assert "1 of 3 ranks have nothing to do in 2 trainings" in said.read_text(encoding="utf-8")


def stopped_while_one_waits(model: Path, folder: Path) -> None:
    """What every rank does: the first one waits in a step until the other one is done, then both get a signal."""
    each_alone, advance, done, number = ranks.each_alone, Trainer._advance, folder / "done", ranks.rank()

    def waiting(work: Callable[[], Any]) -> list[Any]:
        def noted() -> Any:
            result = work()
            if number:
                files.write_text(done, str(os.getpid()))
            return result

        return each_alone(noted)

    def advancing(self: Trainer, step: Step) -> None:
        advance(self, step)
        if not number and self.position.step == 2:
            assert files.wait_for(done, PATIENCE)
            os.kill(int(done.read_text()), signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "each_alone", waiting)
        patch.setattr(Trainer, "_advance", advancing)
        with pytest.raises(StoppedAfterSaving, match="stopped; run the same command again to resume"):
            tune(model, folder / "run", TWO)


def test_a_signal_while_a_rank_waits_for_the_others_stops_both(two: Run, model: Path, tmp_path: Path) -> None:
    ran(stopped_while_one_waits, 2, model, tmp_path)
    assert (tmp_path / "run" / "stopped").exists()
    ran(tune, 2, model, tmp_path / "run", TWO)
    check_equal(Run(tmp_path / "run"), two)


@pytest.mark.parametrize("place", ["build_model", "load_best"])
def test_a_signal_between_two_trainings_stops_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """While a model is built, and while a training is ended."""
    built, joined, calls = start.build_model, Saver.wait_for_bests, [0]

    def building(*given: Any) -> Any:
        calls[0] += 1
        if place == "build_model" and calls[0] == 2:
            signal.raise_signal(signal.SIGTERM)
        return built(*given)

    def waiting(self: Saver) -> None:
        joined(self)
        if place != "build_model" and calls[0] == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(start, "build_model", building)
    monkeypatch.setattr(Saver, "wait_for_bests", waiting)
    with pytest.raises(StoppedAfterSaving):
        tune(model, tmp_path / "run", replace(TWO, seeds=3))
    assert calls[0] <= 2, "no further training was begun"
    assert sum(each["kind"] == "end" for path in tmp_path.glob("run/trials/*/metrics.jsonl")
               for each in read_metrics(path)) == 1  # fmt: skip


def test_the_file_for_dllogger_has_the_time_of_the_training(model: Path, tmp_path: Path) -> None:
    outputs = Outputs(dllogger=tmp_path / "dllogger.json")
    bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=TWO, outputs=outputs)
    lines = (tmp_path / "dllogger.json").read_text(encoding="utf-8").splitlines()
    (totals,) = [line for line in lines if "e2e_train_time" in line and '"LOG"' in line]
    found = json.loads(totals.partition(" ")[2])["data"]
    assert found["e2e_train_time"] > found["raw_train_time"] > 0


def test_records_that_are_missing_are_an_error(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = side_by_side._leave_if_stopped

    def losing(run: Run, *given: Any) -> None:
        (run.folder / "trials" / "seed-42" / "metrics.jsonl").unlink()
        leave(run, *given)

    monkeypatch.setattr(side_by_side, "_leave_if_stopped", losing)
    monkeypatch.setattr(files, "wait_for", Path.exists)
    with pytest.raises(BertsmithError, match="records of this training are missing"):
        tune(model, tmp_path / "run", TWO)


def stopped(model: Path, run: Path, after: int, signalled: tuple[int, ...]) -> None:
    """What every rank does: those that are named get a signal after a step of their first training."""
    advance, number, sent = Trainer._advance, ranks.rank(), list[bool]()

    def advancing(self: Trainer, step: Step) -> None:
        advance(self, step)
        if number in signalled and self.position.step == after and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_advance", advancing)
        with pytest.raises(StoppedAfterSaving, match="stopped; run the same command again to resume"):
            tune(model, run, BESIDE)


@pytest.fixture(scope="module")
def both_stopped(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose two ranks got a signal in their first trainings."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    ran(stopped, 2, model, run, 2, (0, 1))
    return run


def check_stopped_and_resumed(run: Run, trained: set[str], model: Path, unbroken: Run) -> None:
    assert (run.folder / "stopped").exists()
    assert not run.model.exists()
    assert {path.name for path in (run.folder / "trials").iterdir()} == trained
    ran(tune, 2, model, run.folder, BESIDE)
    check_equal(run, unbroken)


def test_a_signal_stops_all_when_each_has_saved(both_stopped: Path, unbroken: Run, model: Path, tmp_path: Path) -> None:
    shutil.copytree(both_stopped, tmp_path / "run")
    check_stopped_and_resumed(Run(tmp_path / "run"), {"share-10", "share-30"}, model, unbroken)


def test_a_signal_to_one_stops_all_when_the_others_are_done(unbroken: Run, model: Path, tmp_path: Path) -> None:
    ran(stopped, 2, model, tmp_path / "run", 2, (1,))
    check_stopped_and_resumed(Run(tmp_path / "run"), {*TRAININGS[1::2], "share-10"}, model, unbroken)


def test_a_report_says_where_the_trainings_are_until_all_are_done(both_stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(both_stopped, tmp_path / "run")
    (tmp_path / "run" / "stopped").unlink()
    (read,) = read_runs([tmp_path / "run"])
    assert read.state == "trains side by side, or was ended: see share-10, share-30 in its folder trials"
    (one,) = read_runs([tmp_path / "run" / "trials" / "share-10"])
    assert one.state == "stopped by a signal after saving, to be resumed"


def test_a_run_that_was_begun_side_by_side_is_not_resumed_in_another_way(
    both_stopped: Path, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(both_stopped, tmp_path / "run")
    with pytest.raises(BertsmithError, match=r"settings\.side_by_side was True, is not given"):
        tune(model, tmp_path / "run", SETTINGS)


def no_folder(model: Path, folder: Path) -> None:
    tune(model, None, TWO, folder)


def test_no_folder_is_needed(two: Run, model: Path, tmp_path: Path) -> None:
    ran(no_folder, 2, model, tmp_path)
    scores = [each["score"] for each in outcome(two)["seeds"]]
    assert [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)] == [scores] * 2


def test_checkpoints_to_be_kept_for_good_stay_in_the_folders_of_the_trainings(model: Path, tmp_path: Path) -> None:
    ran(tune, 2, model, tmp_path / "run", replace(TWO, folds=2, keep_every=4))
    left = [path.relative_to(tmp_path / "run" / "trials") for path in (tmp_path / "run" / "trials").glob("*/*")]
    assert {path.name[:5] for path in left} <= {"step-", "best-"}
    assert {path.parent.name for path in left} <= {"fold-1", "fold-2", "seed-42", "seed-43"}
    assert {"seed-42", "seed-43"} <= {path.parent.name for path in left}


def test_a_folder_of_that_name_that_is_not_the_runs_stays(model: Path, tmp_path: Path) -> None:
    for settings in (TWO, replace(TWO, side_by_side=False)):
        run = tmp_path / str(settings.side_by_side)
        files.write_text(run / "trials" / "mine" / "notes.txt", "mine")
        tune(model, run, settings)
        assert (run / "trials" / "mine" / "notes.txt").read_text(encoding="utf-8") == "mine"
        assert [path.name for path in (run / "trials").iterdir()] == ["mine"]


def test_a_single_training_has_nothing_beside_it() -> None:
    with pytest.raises(BertsmithError, match="use it with seeds, folds or learning_curve"):
        replace(QUICK, side_by_side=True)


def test_the_steps_of_several_trainings_are_not_profiled(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="several trainings at a time are not profiled"):
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=BESIDE, outputs=Outputs(profile=2))
    assert not (tmp_path / "run").exists()


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, calls = Classify.loss, [0]

    def broken(*given: Any) -> Any:
        calls[0] += 1
        found = loss(*given)
        return replace(found, loss=found.loss * float("nan")) if calls[0] == 5 else found

    monkeypatch.setattr(Classify, "loss", broken)
    with pytest.raises(BertsmithError, match="not finite") as caught:
        tune(model, tmp_path / "run", replace(BESIDE, folds=0, learning_curve=False))
    assert "seed 42, step 5" in str(caught.value)


def distil(teacher: Path, student: Path, out: Path, beside: bool) -> None:
    """What every rank does: a student of two seeds with augmented rows."""
    changes = {"augment": 1, "augment_model": str(student), "label_augmented": True, "side_by_side": beside}
    settings = replace(made_students.QUICK, seeds=2, epochs=1, dropout=0.1, attention_dropout=0.1, **changes)
    train, dev = made_students.rows(40, 1), made_students.rows(16, 2)
    bertsmith.distill(teacher, student, out, task="classify", train=train, dev=dev, settings=settings)


def test_students_side_by_side_learn_from_the_same_augmented_rows(tmp_path: Path) -> None:
    bert = made_students.made_bert(tmp_path)
    teacher = made_students.made_teacher(tmp_path / "teacher", bert, made_students.rows(40, 1))
    alone, beside = Run(tmp_path / "alone"), Run(tmp_path / "beside")
    distil(teacher, bert, alone.folder, False)
    ran(distil, 2, teacher, bert, beside.folder, True)
    assert (beside.folder / "augmented.jsonl").read_bytes() == (alone.folder / "augmented.jsonl").read_bytes()
    check_equal(beside, alone)


def test_from_the_command_line(tmp_path: Path, model: Path) -> None:
    for name, some in (("train", TRAIN), ("dev", DEV)):
        text = "".join(json.dumps(each) + "\n" for each in some)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    rows_of = ["--train", str(tmp_path / "train.jsonl"), "--dev", str(tmp_path / "dev.jsonl")]
    how = [f"--{name}={value}" for name, value in (("seeds", 3), ("epochs", 2), ("batch", 16), ("max-length", 32))]
    call = ["finetune", "classify", "--model", str(model), *rows_of, *how, "--device=cpu", "--precision=fp32"]
    beside, alone = Run(tmp_path / "beside"), Run(tmp_path / "alone")
    flags = ["--no-report", "--out", str(beside.folder), "--ranks", "2", "--side-by-side"]
    process = Command(*call, *flags, does=launching, log=tmp_path / "log", environment=environment())
    assert ended(process) == 0, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert "3 trainings side by side on 2 ranks, of which this log shows seed-42, seed-44" in said
    assert re.search(r"^seed 43: dev accuracy 0\.\d{4}, 0\.\d{4}$", said, re.MULTILINE), said
    assert main([*call, "--out", str(alone.folder)]) == 0
    assert weights(beside) == weights(alone)
    events = [json.loads(line) for line in (beside.folder / EVENTS_FILE).read_text().splitlines()]
    assert [each["kind"] for each in events].count("environment") == 1
