"""Step folders: whole or not there, the newest usable one found, and what does not fit named."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.checkpoints import (
    Best,
    Position,
    drop_checkpoints,
    load_best,
    load_checkpoint,
    lost_bests,
    newest_whole,
    step_folders,
)
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.run_folder import RunFacts, check_same_run, claim, opened
from made_checkpoints import DAMAGES, STATE, flip, loaded, made, names, same, update, warnings, written


def save(run: Path, step: int, seed: int = 0, keep: int = 2, best: Best | None = None) -> PretrainingModel:
    model, optimizer = made(seed=seed)
    written(run, Position(step, 1, step, 100 * step, best=best), model, optimizer, keep)
    return model


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimizer = made(seed=3)
    position = Position(7, 2, 3, 12_345, since_log=[0.1, 2 / 3, 1e-17])
    written(tmp_path, position, model, optimizer)
    other, fresh = made(seed=4)
    assert loaded(tmp_path, other, fresh) == position
    assert same(model, other)
    for each in ((model, optimizer), (other, fresh)):
        update(*each, seed=9)
    assert same(model, other), "moments and step count are the same"
    assert [float(group["step"]) for group in fresh.param_groups] == [2.0, 2.0]


def test_what_was_never_updated_has_moments_of_zero_whatever_was_there(tmp_path: Path) -> None:
    model, optimizer = made()
    optimizer.start_afresh()
    written(tmp_path, Position(1, 1, 1), model, optimizer)
    other, used = made(seed=4)
    loaded(tmp_path, other, used)
    for each in ((model, optimizer), (other, used)):
        update(*each, seed=9)
    assert same(model, other)


def test_nothing_to_load_is_none(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) is newest_whole(tmp_path / "nowhere") is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept_and_the_last_is_loaded(tmp_path: Path, keep: int) -> None:
    for number, step in enumerate((5, 10, 15, 99_999_999), 1):
        save(tmp_path, step, keep=keep)
        assert len(step_folders(tmp_path)) == min(number, keep)
    assert names(tmp_path) == ["step-00000010", "step-00000015", "step-99999999"][-keep:]
    assert loaded(tmp_path, *made()).step == 99_999_999


def test_what_was_just_written_is_never_pruned(tmp_path: Path) -> None:
    save(tmp_path, 40)
    for step in (5, 10, 15):
        save(tmp_path, step, keep=1)
        assert names(tmp_path) == [f"step-{step:08d}", "step-00000040"]


@pytest.mark.parametrize("stray", ["step", "metrics.jsonl", "model", "corpus.json"])
def test_what_no_run_json_tells_of_is_refused(tmp_path: Path, stray: str) -> None:
    if stray == "step":
        save(tmp_path, 40)
    else:
        (tmp_path / stray).mkdir()
    with pytest.raises(BertsmithError, match=r"no run\.json") as caught:
        check_same_run(tmp_path, {"a": 1})
    assert stray in caught.value.what
    assert "--out" in caught.value.fix


def test_a_full_disk_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = save(tmp_path, 5)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(files.os, name, full)
            with pytest.raises(BertsmithError, match="No space left") as caught:
                save(tmp_path, 10, seed=1)
            assert "step-00000010" in caught.value.where
        assert names(tmp_path) == ["step-00000005"]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000005"]
    model, optimizer = made(seed=8)
    assert loaded(tmp_path, model, optimizer) == Position(5, 1, 5, 500)
    assert same(model, older)


FILES = (STATE, "position.json", "checksums.json")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_named_and_set_aside_and_the_one_before_is_taken(
    tmp_path: Path, name: str, damage: str, said: pytest.LogCaptureFixture
) -> None:
    before = save(tmp_path, 5, seed=1)
    save(tmp_path, 10, seed=2)
    DAMAGES[damage](tmp_path / "step-00000010" / name)
    model, optimizer = made()
    assert loaded(tmp_path, model, optimizer) == Position(5, 1, 5, 500)
    assert same(model, before)
    (warned,) = warnings(said)
    assert "step-00000010 is damaged, so step-00000005 is taken" in warned
    where = tmp_path / "step-00000010"
    if name == "checksums.json" and damage == "a flipped bit":  # in a checksum: it cannot be said which one is right
        assert "does not match its checksum" in warned
        assert str(where) in warned
    else:
        assert str(where / name) in warned
    assert names(tmp_path) == ["step-00000005"]
    assert (tmp_path / "damaged-step-00000010").is_dir(), "nothing is thrown away"
    said.clear()
    assert loaded(tmp_path, model, optimizer) == Position(5, 1, 5, 500)
    assert not said.records, "what was set aside is not told again"


def test_every_byte_counts(tmp_path: Path) -> None:
    """A flip anywhere in any file is found, in headers, in names, in numbers and in checksums."""
    save(tmp_path, 5)
    for name in FILES:
        path = tmp_path / "step-00000005" / name
        content = path.read_bytes()
        for place in range(0, 100, 7 if name == STATE else 1):
            flip(path, place / 100)
            with pytest.raises(BertsmithError, match="no checkpoint of this run is whole"):
                newest_whole(tmp_path)
            path.write_bytes(content)
    assert newest_whole(tmp_path) == tmp_path / "step-00000005"


def test_two_damaged_ones_are_both_passed_over(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step, keep=3)
    flip(tmp_path / "step-00000015" / STATE)
    (tmp_path / "step-00000010" / "position.json").unlink()
    assert newest_whole(tmp_path) == tmp_path / "step-00000005"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "damaged-step-00000010",
        "damaged-step-00000015",
        "step-00000005",
    ]
    save(tmp_path, 15, keep=3)
    flip(tmp_path / "step-00000015" / STATE)
    assert newest_whole(tmp_path) == tmp_path / "step-00000005", "although one of this step was set aside before"


def test_a_copy_by_the_name_of_another_step_is_not_taken_for_it(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 5)
    shutil.copytree(tmp_path / "step-00000005", tmp_path / "step-00000099")
    assert newest_whole(tmp_path) == tmp_path / "step-00000005"
    assert "this checkpoint is of another step than its folder is named by" in said.text


def test_of_a_checkpoint_that_is_a_link_the_link_is_removed(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    save(run, 5)
    (run / "step-00000005").rename(tmp_path / "elsewhere")
    (run / "step-00000005").symlink_to(tmp_path / "elsewhere")
    save(run, 10, keep=1)
    assert [each.name for each in run.iterdir()] == ["step-00000010"]
    assert (tmp_path / "elsewhere" / STATE).is_file()
    assert not said.records


def test_where_none_is_whole_one_error_names_them_and_nothing_is_touched(tmp_path: Path) -> None:
    for step in (5, 10):
        save(tmp_path, step)
        flip(tmp_path / f"step-{step:08d}" / STATE)
    model, optimizer = made()
    with pytest.raises(BertsmithError, match="no checkpoint of this run is whole") as caught:
        loaded(tmp_path, model, optimizer)
    assert "step-00000010, step-00000005" in caught.value.what
    assert caught.value.where == str(tmp_path / "step-00000010" / STATE)
    assert "remove them" in caught.value.fix
    assert names(tmp_path) == ["step-00000005", "step-00000010"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_whose_best_weights_are_damaged_is_not_whole(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 5, seed=1, best=Best(0.5, 5))
    save(tmp_path, 10, seed=2, best=Best(0.6, 10))
    DAMAGES[damage](tmp_path / "best-00000010" / "weights.safetensors")
    model, optimizer = made()
    position = loaded(tmp_path, model, optimizer)
    assert position == Position(5, 1, 5, 500, best=Best(0.5, 5))


def test_best_weights_that_all_refer_to_are_lost_where_the_run_can_do_without(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step, best=Best(0.5, 5), keep=3)
    flip(tmp_path / "best-00000005" / "weights.safetensors")
    flip(tmp_path / "step-00000015" / STATE)
    with pytest.raises(BertsmithError, match="no checkpoint of this run is whole"):
        newest_whole(tmp_path)
    shutil.rmtree(tmp_path / "step-00000015")
    with pytest.raises(
        BertsmithError, match="best weights so far are damaged, and every checkpoint refers to"
    ) as caught:
        newest_whole(tmp_path)
    assert caught.value.where == str(tmp_path / "best-00000005" / "weights.safetensors")
    assert newest_whole(tmp_path, needs_best=False) == tmp_path / "step-00000010"
    position = load_checkpoint(tmp_path / "step-00000010", *made())
    assert lost_bests(tmp_path, position) == [5]
    assert position.without_bests([5]) == Position(10, 1, 10, 1000)
    assert "best-00000005 is damaged, so the best weights up to now are lost" in said.text
    assert (tmp_path / "damaged-best-00000005").is_dir()


def test_damaged_best_weights_cost_no_steps_where_the_run_can_do_without(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """Though an older step folder refers to others, which are whole."""
    save(tmp_path, 5, best=Best(0.5, 5))
    save(tmp_path, 10, best=Best(0.6, 10))
    flip(tmp_path / "best-00000010" / "weights.safetensors")
    assert newest_whole(tmp_path, needs_best=False) == tmp_path / "step-00000010"
    left = ["best-00000005", "damaged-best-00000010", "step-00000005", "step-00000010"]
    assert sorted(each.name for each in tmp_path.iterdir()) == left
    assert "best-00000010 is damaged, so the best weights up to now are lost" in said.text
    assert "step-00000010 is damaged" not in said.text


def test_folders_of_versions_without_checksums_are_taken_without_a_word(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """Their files are the same but for checksums.json, and the mark in the header that says there is one."""
    before = save(tmp_path, 5, best=Best(0.5, 5))
    for path in (tmp_path / "step-00000005" / STATE, tmp_path / "best-00000005" / "weights.safetensors"):
        save_file(load_file(path), path)
        (path.parent / "checksums.json").unlink()
    model, optimizer = made(seed=4)
    loaded(tmp_path, model, optimizer)
    assert same(model, before)
    assert not said.records
    path = tmp_path / "step-00000005" / STATE
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BertsmithError, match="no checkpoint of this run is whole"):
        loaded(tmp_path, model, optimizer)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 5}', '{"stop": 1}', '{"step": "x", "phase": 1}'])
def test_a_position_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    """In a folder without checksums, which have been found to be right where they are there."""
    save(tmp_path, 5)
    folder = tmp_path / "step-00000005"
    (folder / "position.json").write_text(text, encoding="utf-8")
    save_file(load_file(folder / STATE), folder / STATE)
    (folder / "checksums.json").unlink()
    with pytest.raises(BertsmithError, match="no checkpoint") as caught:
        loaded(tmp_path, *made())
    assert "position.json" in caught.value.where


def test_checkpoints_at_multiples_are_kept_for_good(tmp_path: Path) -> None:
    model, optimizer = made()
    with Saver(tmp_path, keep=2, keep_every=4) as saver:
        for step in range(12):  # 0: of a run that was stopped before its first step
            saver.save(Position(step, 1, step), model, optimizer)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (4, 8, 10, 11)]


def test_best_weights_stay_as_long_as_a_checkpoint_refers_to_them(tmp_path: Path) -> None:
    models, best = {}, None
    for step in range(1, 7):
        best = Best(step / 10, step) if step in (1, 4) else best
        models[step] = save(tmp_path, step, seed=step, best=best)
    assert [each.name for each in tmp_path.glob("best-*")] == ["best-00000004"]
    model, _ = made(seed=9)
    load_best(tmp_path, Best(0.4, 4), model)
    assert same(model, models[4])


def test_best_weights_that_were_damaged_since_are_not_taken(tmp_path: Path) -> None:
    save(tmp_path, 1, best=Best(0.1, 1))
    path = tmp_path / "best-00000001" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    for damaged in (bytes(content), b"short"):
        path.write_bytes(damaged)
        with pytest.raises(BertsmithError, match="the best weights are damaged: this file does not match") as caught:
            load_best(tmp_path, Best(0.1, 1), made()[0])
        assert caught.value.where == str(path)
        assert "put back a whole copy" in caught.value.fix


def test_what_a_user_puts_beside_them_by_a_name_like_theirs_stays(tmp_path: Path) -> None:
    save(tmp_path, 1, best=Best(0.1, 1))
    shutil.copytree(tmp_path / "best-00000001", tmp_path / "best-so-far")
    for name in ("best-notes.txt", "step-notes.txt"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    mine = ["best-notes.txt", "best-so-far", "step-notes.txt"]
    save(tmp_path, 2, keep=1)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*mine, "step-00000002"])
    drop_checkpoints(tmp_path, keep_every=0)
    assert sorted(each.name for each in tmp_path.iterdir()) == mine
    assert len(list((tmp_path / "best-so-far").iterdir())) == 2


@pytest.mark.parametrize(("other", "named"), [({"hidden": 12}, "pooler"), ({"layers": 2}, "layers.1.")])
def test_one_of_another_model_is_named_and_nothing_is_loaded(tmp_path: Path, other: dict[str, int], named: str) -> None:
    save(tmp_path, 5)
    model, optimizer = made(**other)
    before = [each.clone() for each in model.parameters()]
    moments = [each.clone() for state in optimizer.state.values() for each in state.values()]
    with pytest.raises(BertsmithError, match="of another model") as caught:
        loaded(tmp_path, model, optimizer)
    after = [each for state in optimizer.state.values() for each in state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
    assert "encoder" in caught.value.what
    assert named in caught.value.what or len(caught.value.what.split(",")) == 8
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_run_json_names_every_difference(tmp_path: Path) -> None:
    assert check_same_run(tmp_path, {"a": 1}) == {}
    claim(tmp_path, RunFacts({"a": 1, "b": 2, "c": 3}, "", {"device": "cpu", "precision": "bf16"}), None)
    begun_on = check_same_run(tmp_path, {"a": 1, "b": 2, "c": 3})
    assert begun_on == {"device": "cpu", "precision": "bf16"}
    with pytest.raises(BertsmithError) as caught:
        check_same_run(tmp_path, {"a": 1, "b": 5, "d": 4})
    for part in ("b was 2, is 5", "c was 3, is not given", "d was not given, is 4"):
        assert part in caught.value.what
    known = {"a": 1, "b": 2, "c": 3, "begun_on": begun_on}
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == known


def test_a_setting_without_end_is_json_and_the_same_when_the_run_is_resumed(tmp_path: Path) -> None:
    identity = {"settings.max_gradient_norm": math.inf}
    claim(tmp_path, RunFacts(identity, "", {"device": "cpu"}), None)
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert check_same_run(tmp_path, identity) == {"device": "cpu"}
    (tmp_path / "run.json").write_text(json.dumps({**identity, "begun_on": {}}))  # as earlier versions wrote it
    assert check_same_run(tmp_path, identity) == {}
    (tmp_path / "run.json").write_text('{"begun_on": {}}')
    with pytest.raises(BertsmithError, match=r"max_gradient_norm was not given, is inf"):
        check_same_run(tmp_path, identity)


def test_what_a_run_was_begun_on_is_text_whatever_an_editor_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"a": 1, "begun_on": {"ranks": 7}}', encoding="utf-8")
    assert check_same_run(tmp_path, {"a": 1}) == {"ranks": "7"}


@pytest.mark.parametrize("text", ["[]", "3", '{"begun_on": "cpu"}'])
def test_a_run_json_that_is_something_else_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(BertsmithError, match="does not say") as caught:
        check_same_run(tmp_path, {"a": 1})
    assert caught.value.where == str(tmp_path / "run.json")


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "events.rank-1.jsonl", "recipe.yaml"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(os.devnull)])
def test_what_is_no_file_in_place_of_a_log_is_named_when_a_run_is_resumed(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """A pipe would be waited for, for ever."""
    facts = RunFacts({"a": 1}, "", {})
    claim(tmp_path, facts, None)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(BertsmithError, match="this is not a file") as caught, opened(tmp_path, facts, resume=True):
        pass
    assert (caught.value.where, caught.value.fix[:12]) == (str(tmp_path / name), "move it away")
