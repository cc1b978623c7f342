"""Promise: `--dllogger FILE` says of a run what NVIDIA's scripts say of theirs, once for each step, however often the
run was stopped and resumed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.records.dllogger import check_run
from bertsmith.training.records.sinks import Outputs
from made_rows import QUICK, made_model, rows
from made_runs import corpus, small_recipe, stopped_after

RECIPE = small_recipe(phase1__steps=5, phase2__steps=3, log_every=2)
SEQUENCES = 5 * 8 + 3 * 4
OF_A_LINE = {"average_loss", "step_loss", "learning_rate"}
OF_THE_RUN = {"e2e_train_time", "training_sequences_per_second", "final_loss", "raw_train_time"}


def lines(path: Path) -> list[dict[str, Any]]:
    """What every line of the file says, whose outer keys are those of DLLogger's JSONStreamBackend."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        assert line.startswith("DLLL {")
        found.append(json.loads(line.removeprefix("DLLL ")))
        own = {"step", "data"} if found[-1]["type"] == "LOG" else {"metric", "metadata"}
        assert found[-1].keys() == {"timestamp", "elapsedtime", "datetime", "type", *own}
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [each for each in lines(path) if each["type"] == "LOG" and each["step"] not in ("PARAMETER", [])]


def totals(path: Path) -> dict[str, Any]:
    (found,) = [each["data"] for each in lines(path) if each.get("step") == []]
    return found


def test_a_file_has_the_figures_of_the_records_under_nvidias_names(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "run.json"
    run = pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(dllogger=path))
    records, found = run.metrics("train"), steps(path)
    assert [each["step"] for each in found] == [[each["phase"], each["step"]] for each in records]
    for record, line in zip(records, found, strict=True):
        assert line["data"].keys() == OF_A_LINE
        assert line["data"]["average_loss"] == record["loss"]
        assert line["data"]["learning_rate"] == record["learning_rate"]
        # A record of one step, as the last of each phase is here, is that step's.
        assert (line["data"]["step_loss"] == pytest.approx(record["loss"], rel=1e-6)) == (record["steps"] == 1)
    units = {each["metric"]: each["metadata"]["unit"] for each in lines(path) if each["type"] == "METADATA"}
    assert units.keys() == totals(path).keys() == OF_THE_RUN
    seconds = sum(each["steps"] * each["seconds_per_step"] for each in records)
    assert totals(path)["raw_train_time"] == pytest.approx(seconds)
    assert totals(path)["training_sequences_per_second"] == pytest.approx(SEQUENCES / seconds)
    assert totals(path)["final_loss"] == records[-1]["loss"]
    assert totals(path)["e2e_train_time"] > seconds
    assert lines(path)[0]["data"]["settings"]["phase1"]["steps"] == 5


def test_a_resumed_run_continues_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out, outputs = tmp_path / "run.json", tmp_path / "run", Outputs(dllogger=tmp_path / "run.json")
    stopped_after(3, monkeypatch, RECIPE, out, outputs=outputs)
    before = lines(path)
    # As where a kill came after the line of a step that no checkpoint has, in the middle of the next line.
    lost = {**before[-1], "step": [1, 4], "elapsedtime": "1000.0"}
    with open(path, "a", encoding="utf-8") as file:
        file.write(f'DLLL {json.dumps(lost)}\nDLLL {{"timestamp": "1')
    run = pretrain(RECIPE, corpus(), out, resume=True, outputs=outputs)
    assert (
        [each["step"][1] for each in steps(path)] == [each["step"] for each in run.metrics("train")] == [2, 4, 5, 7, 8]
    )
    assert totals(path)["e2e_train_time"] > 1000, "the session before took so long"
    seconds = sum(each["steps"] * each["seconds_per_step"] for each in run.metrics("train"))
    assert totals(path)["training_sequences_per_second"] == pytest.approx(SEQUENCES / seconds)
    assert lines(path)[: len(before)] == before


def test_totals_stand_once_where_the_end_was_lost_and_came_again(tmp_path: Path) -> None:
    """As where the finished model was removed, because it was damaged."""
    path, out, outputs = tmp_path / "run.json", tmp_path / "run", Outputs(dllogger=tmp_path / "run.json")
    run = pretrain(RECIPE, corpus(), out, outputs=outputs)
    before = totals(path)
    shutil.rmtree(run.model)
    pretrain(RECIPE, corpus(), out, resume=True, outputs=outputs)
    assert run.is_finished()
    assert totals(path) == before | {"e2e_train_time": totals(path)["e2e_train_time"]}
    assert totals(path)["e2e_train_time"] > before["e2e_train_time"]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("of an earlier run\n", encoding="utf-8")
    wrongs = {path: "there already", tmp_path: "this is a folder", path / "run.json": "a file is in the way"}
    for wrong, message in wrongs.items():
        with pytest.raises(BertsmithError, match=message):
            pretrain(RECIPE, corpus(), tmp_path / "run", outputs=Outputs(dllogger=wrong))
    assert not (tmp_path / "run").exists()
    assert path.read_text(encoding="utf-8") == "of an earlier run\n"


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json"])
def test_the_runs_own_files_are_not_written_into(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(BertsmithError, match=f"a run keeps records of its own in {name}"):
        pretrain(RECIPE, corpus(), tmp_path / "run", resume=resume, outputs=Outputs(dllogger=tmp_path / "run" / name))
    assert not any((tmp_path / "run").iterdir())


def test_a_run_that_may_be_resumed_leaves_the_file_of_another(tmp_path: Path) -> None:
    """As jobs on a cluster, which are told to resume whether there is anything to resume or not."""
    path = tmp_path / "run.json"
    pretrain(RECIPE, corpus(), tmp_path / "first", resume=True, outputs=Outputs(dllogger=path))
    before = path.read_bytes()
    theirs = b'DLLL {"step": "PARAMETER", "data": {"Config": "as NVIDIA has it"}}\n'
    steps_alone = b'DLLL {"step": [1, 2], "data": {"average_loss": 3.0}}\n'
    for wrong in (before, b"notes\n", b"notes", theirs, steps_alone, theirs.replace(b"data", b"date")):
        path.write_bytes(wrong)
        message = "of another run, .*first" if wrong is before else "not one that a run of Bertsmith has written"
        with pytest.raises(BertsmithError, match=message):
            pretrain(RECIPE, corpus(), tmp_path / "second", resume=True, outputs=Outputs(dllogger=path))
        assert path.read_bytes() == wrong
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("start", ["runs/first", "first", "."])
def test_a_run_finds_its_file_again_by_another_path_and_where_it_was_moved(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "run.json", tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    monkeypatch.chdir({"runs/first": tmp_path, "first": tmp_path / "runs", ".": folder}[start])
    pretrain(RECIPE, corpus(), Path(start), outputs=Outputs(dllogger=path))
    check_run(path, Path(start))
    check_run(path, folder)
    monkeypatch.chdir(tmp_path)
    folder.rename(tmp_path / "first")
    check_run(path, tmp_path / "first")
    (tmp_path / "other" / "first").mkdir(parents=True)
    with pytest.raises(BertsmithError, match="of another run"):
        check_run(path, tmp_path / "other" / "first")  # of the same name, where no run was yet
    path.write_text(path.read_text().replace(json.dumps(str(folder)), json.dumps("runs/first")))
    check_run(path, tmp_path / "first")  # as earlier versions recorded it
    with pytest.raises(BertsmithError, match="of another run"):
        check_run(path, tmp_path / "second")


def test_fine_tuning_has_epochs_and_ends_with_its_scores(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    result = bertsmith.finetune(
        "classify",
        made_model(tmp_path / "model"),
        rows(40, 1),
        rows(20, 2),
        tmp_path / "run",
        settings=replace(QUICK, epochs=2, batch=16, log_every=2),
        outputs=Outputs(dllogger=path),
    )
    records = Run(tmp_path / "run").metrics("train")
    assert [each["step"] for each in steps(path)] == [[1, 2], [1, 3], [2, 4], [2, 6]]
    assert [each["data"]["average_loss"] for each in steps(path)] == [each["loss"] for each in records]
    training, scores = [each["data"] for each in lines(path) if each.get("step") == []]
    assert training.keys() == OF_THE_RUN
    seconds = sum(each["steps"] * each["seconds_per_step"] for each in records)
    assert training["training_sequences_per_second"] == pytest.approx(2 * 40 / seconds)
    assert scores["exact_match"] == result.tuned["dev"]["accuracy"]
