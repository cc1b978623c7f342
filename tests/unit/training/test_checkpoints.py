"""Step folders: whole or not there, the newest usable one found, and what does not fit named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.checkpoints import Position, load_checkpoint, save_checkpoint, step_folders
from bertsmith.training.run_folder import RunFacts, check_same_run, claim

STATE = "training-state.safetensors"


def made(hidden: int = 8, layers: int = 1, seed: int = 0) -> tuple[PretrainingModel, Lamb]:
    """A model after one update, so that the optimizer has moments."""
    config = BertConfig(
        vocab_size=20,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    model = PretrainingModel(config)
    initialise(model, 0.02, seed)
    optimizer = Lamb(parameter_groups(model, 0.01))
    update(model, optimizer, seed)
    return model, optimizer


def update(model: PretrainingModel, optimizer: Lamb, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.set_learning_rate(0.01)
    optimizer.step()


def save(run: Path, step: int, seed: int = 0, keep: int = 2) -> PretrainingModel:
    model, optimizer = made(seed=seed)
    save_checkpoint(run, Position(step, 1, step, 100 * step), model, optimizer, keep)
    return model


def same(first: PretrainingModel, second: PretrainingModel) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimizer = made(seed=3)
    position = Position(7, 2, 3, 12_345, since_log=[0.1, 2 / 3, 1e-17])
    save_checkpoint(tmp_path, position, model, optimizer, keep=2)
    other, fresh = made(seed=4)
    assert load_checkpoint(tmp_path, other, fresh) == position
    assert same(model, other)
    for each in ((model, optimizer), (other, fresh)):
        update(*each, seed=9)
    assert same(model, other), "moments and step count are the same"
    assert [float(group["step"]) for group in fresh.param_groups] == [2.0, 2.0]


def test_nothing_to_load_is_none(tmp_path: Path) -> None:
    model, optimizer = made()
    assert load_checkpoint(tmp_path, model, optimizer) is None
    assert load_checkpoint(tmp_path / "nowhere", model, optimizer) is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept_and_the_last_is_loaded(tmp_path: Path, keep: int) -> None:
    for number, step in enumerate((5, 10, 15, 99_999_999), 1):
        save(tmp_path, step, keep=keep)
        assert len(step_folders(tmp_path)) == min(number, keep)
    names = [each.name for each in step_folders(tmp_path)]
    assert names == ["step-00000010", "step-00000015", "step-99999999"][-keep:]
    loaded = load_checkpoint(tmp_path, *made())
    assert loaded is not None
    assert loaded.step == 99_999_999


def test_what_was_just_written_is_never_pruned(tmp_path: Path) -> None:
    save(tmp_path, 40)
    for step in (5, 10, 15):
        save(tmp_path, step, keep=1)
        assert [each.name for each in step_folders(tmp_path)] == [f"step-{step:08d}", "step-00000040"]


@pytest.mark.parametrize("stray", ["step", "metrics.jsonl", "model"])
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
        assert [each.name for each in step_folders(tmp_path)] == ["step-00000005"]
        assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000005"]
    model, optimizer = made(seed=8)
    assert load_checkpoint(tmp_path, model, optimizer) == Position(5, 1, 5, 500)
    assert same(model, older)


KILLED_SAVES = """
import os, random, signal, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from test_checkpoints import Position, RunFacts, claim, load_checkpoint, made, save_checkpoint, step_folders
model, optimizer = made(hidden=64, layers=2)
for attempt in range(20):
    run = Path(sys.argv[1]) / str(attempt)
    child = os.fork()
    if not child:
        for step in range(1, 10_000):
            save_checkpoint(run, Position(step, 1, step), model, optimizer, keep=2)
    while len(step_folders(run)) < 2:
        time.sleep(0.0005)
    time.sleep(random.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    position = load_checkpoint(run, model, optimizer)
    assert position.step == position.stage_step >= 2, position
    claim(run, RunFacts({{}}, "", {{}}), None)
    assert not [each for each in run.iterdir() if each.name.startswith(".")]
    assert load_checkpoint(run, model, optimizer) == position
    print(position.step, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_saving_there_is_always_a_whole_one(tmp_path: Path) -> None:
    """kill -9 at 20 moments spread over the writing, syncing and renaming; each time the newest is whole and loads."""
    script = tmp_path / "saves.py"
    script.write_text(KILLED_SAVES.format(path=sys.path), encoding="utf-8")
    call = [sys.executable, str(script), str(tmp_path / "runs")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 20


@pytest.mark.parametrize("damage", ["cut", "emptied", "header", "gone"])
def test_a_damaged_one_is_named(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 5)
    save(tmp_path, 10)
    state = tmp_path / "step-00000010" / STATE
    content = state.read_bytes()
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes({"cut": content[:-7], "emptied": b"", "header": b"\xff" * 8 + content[8:]}[damage])
    model, optimizer = made()
    with pytest.raises(BertsmithError, match="damaged") as caught:
        load_checkpoint(tmp_path, model, optimizer)
    assert caught.value.where == str(state)
    assert "step-00000010" in caught.value.fix


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 5}', '{"stop": 1}', '{"step": "x", "phase": 1}'])
def test_a_damaged_position_is_named(tmp_path: Path, text: str) -> None:
    save(tmp_path, 5)
    (tmp_path / "step-00000005" / "position.json").write_text(text, encoding="utf-8")
    model, optimizer = made()
    with pytest.raises(BertsmithError) as caught:
        load_checkpoint(tmp_path, model, optimizer)
    assert "position.json" in caught.value.where


@pytest.mark.parametrize(("other", "named"), [({"hidden": 12}, "pooler"), ({"layers": 2}, "layers.1.")])
def test_one_of_another_model_is_named_and_nothing_is_loaded(tmp_path: Path, other: dict[str, int], named: str) -> None:
    save(tmp_path, 5)
    model, optimizer = made(**other)
    before = [each.clone() for each in model.parameters()]
    with pytest.raises(BertsmithError, match="of another model") as caught:
        load_checkpoint(tmp_path, model, optimizer)
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
    for part in ("b was 2, is 5", "c was 3, is None", "d was None, is 4"):
        assert part in caught.value.what
    known = {"a": 1, "b": 2, "c": 3, "begun_on": begun_on}
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8")) == known


@pytest.mark.parametrize("text", ["[]", "3", '{"begun_on": "cpu"}'])
def test_a_run_json_that_is_something_else_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(BertsmithError, match="does not say") as caught:
        check_same_run(tmp_path, {"a": 1})
    assert caught.value.where == str(tmp_path / "run.json")
