"""What a user can get wrong, from the command line: status 2, one message of what, where and fix, and nothing lost."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.base import files
from bertsmith.cli import main
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.weights.huggingface import load_pretraining_model, save_pretraining_model
from made_checkpoints import own_mounts
from made_commands import Command, bertsmith
from made_runs import corpus, figures, save_recipe, small_corpus, small_recipe, weights

SHORT = small_recipe(phase1__steps=2, phase2__steps=1, save_every=1)
WEIGHTS = "model.safetensors"
# Of unshare(2).
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder and what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def refuses(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end with status 2 and one message; gives what it said."""

    def run(*command: object, parts: tuple[str, ...]) -> str:
        capfd.readouterr()
        assert main(["--quiet", *map(str, command)]) == 2
        said = capfd.readouterr()
        assert said.out == ""
        assert "Traceback" not in said.err
        assert said.err.count("  where: ") == 1, said.err
        assert said.err.count("  fix:   ") == 1, said.err
        for part in parts:
            assert part in said.err, said.err
        return said.err

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(SHORT, corpus(), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    save_recipe(SHORT, tmp_path / "recipe.yaml")
    return tmp_path / "recipe.yaml"


Refuses = Callable[..., str]


def test_a_missing_source(refuses: Refuses, tmp_path: Path) -> None:
    refuses("prepare", tmp_path / "no-such.txt", "--out", tmp_path / "c", parts=("no-such.txt",))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("kind", ["file", "blank", "folder"])
def test_an_empty_source(refuses: Refuses, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
    else:
        source = tmp_path / "source.txt"
        source.write_text("" if kind == "file" else " \n\n\t\n", encoding="utf-8")
    refuses("prepare", source, "--out", tmp_path / "c", "--workers", 1, parts=("source",))
    assert not (tmp_path / "c" / "corpus.json").exists()


def test_an_unreadable_encoding_under_strict(refuses: Refuses, tmp_path: Path) -> None:
    text = ("A sentence of plain words stands here. " * 40).encode()
    (tmp_path / "latin.txt").write_bytes(text + "café".encode("latin-1") + b" " + text)
    call = ("prepare", tmp_path / "latin.txt", "--out", tmp_path / "c", "--workers", 1, "--vocabulary-size", 300)
    refuses(*call, "--strict", parts=("latin.txt", f"{len(text) + 3:,}"))
    assert not (tmp_path / "c" / "corpus.json").exists()


def test_a_finished_corpus_outlives_a_wrong_second_try(refuses: Refuses, tmp_path: Path) -> None:
    shutil.copytree(small_corpus(), tmp_path / "c")
    before = contents(tmp_path / "c")
    (tmp_path / "other.txt").write_text("Some other text than before. " * 30, encoding="utf-8")
    refuses("prepare", tmp_path / "other.txt", "--out", tmp_path / "c", parts=("--out",))
    assert contents(tmp_path / "c") == before


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("phase1:\n  stepps: 3\n", ("phase1.stepps", "phase1.steps")),
        ("phasee1:\n  steps: 3\n", ("phasee1", "phase1")),
        ("phase1:\n  steps: many\n", ("phase1.steps is 'many'", "a whole number")),
        ("masking:\n  rate: 1.5\n", ("masking.rate is 1.5", "to below 1")),
        ("optimizer:\n  trust_ratio: some\n", ("trust_ratio", "decayed")),
        ("model:\n  heads: 7\n", ("model.heads", "divides")),
        ("phase1: [", ("line",)),
    ],
)
def test_a_recipe_with_a_wrong_key_or_value(
    refuses: Refuses, tmp_path: Path, line: str, parts: tuple[str, ...]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(line, encoding="utf-8")
    refuses("pretrain", recipe, "--corpus", small_corpus(), "--out", tmp_path / "run", parts=(*parts, "recipe.yaml"))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def foreign_model(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has the corpus's pieces but for two that changed places."""
    folder = tmp_path_factory.mktemp("foreign")
    pieces = list(corpus().tokenizer().pieces)
    pieces[-1], pieces[-2] = pieces[-2], pieces[-1]
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "tokenizer")
    save_pretraining_model(load_pretraining_model(finished.model), folder / "tokenizer", folder / "model")
    return folder / "model"


def test_a_corpus_made_with_another_tokenizer(
    refuses: Refuses, foreign_model: Path, recipe_file: Path, tmp_path: Path
) -> None:
    call = ("pretrain", recipe_file, "--corpus", small_corpus(), "--out", tmp_path / "run", "--init-from")
    refuses(*call, foreign_model, parts=("another tokenizer", str(foreign_model), "--tokenizer"))
    assert not (tmp_path / "run").exists(), "the folder is free for the right model"


def test_the_right_model_is_taken_up_where_it_was(finished: Run, tmp_path: Path) -> None:
    run = pretrain(SHORT, corpus(), tmp_path / "run", init_from=finished.model)
    assert run.metrics("start")[0]["masked_loss"] == pytest.approx(
        finished.metrics("evaluation")[0]["masked_loss"], abs=0.2
    )
    assert weights(run) != weights(finished)


@pytest.mark.parametrize("damage", ["missing", "renamed", "shape", "cut", "no config"])
def test_a_model_folder_that_does_not_hold_together(
    refuses: Refuses, finished: Run, recipe_file: Path, tmp_path: Path, damage: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(finished.model, model)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    tensors = load_file(model / WEIGHTS)
    tensor = tensors.pop(name)
    if damage == "renamed":
        tensors[name.replace("query", "querry")] = tensor
    if damage == "shape":
        tensors[name] = torch.zeros(3, 3)
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    if damage == "cut":
        (model / WEIGHTS).write_bytes((finished.model / WEIGHTS).read_bytes()[:-9])
    if damage == "no config":
        (model / "config.json").unlink()
    named = {"cut": WEIGHTS, "no config": "config.json"}.get(damage, name)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "the [MASK] of it"}\n', encoding="utf-8")
    call = ("pretrain", recipe_file, "--corpus", small_corpus(), "--out", tmp_path / "run", "--init-from", model)
    for command in (call, ("predict", model, rows, "--out", tmp_path / "out.jsonl")):
        said = refuses(*command, parts=(str(model), named))
        assert ("querry" in said) == (damage == "renamed")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "out.jsonl").exists()


def test_a_disk_that_refuses_at_any_write_leaves_what_was_saved(
    capfd: pytest.CaptureFixture[str],
    finished: Run,
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk fills at every second or third sync in turn; each time the run is resumed, and it comes to the same
    end."""
    call = ("pretrain", recipe_file, "--corpus", small_corpus(), "--out", tmp_path / "run", "--resume")
    real, space = os.fsync, 0

    def filling(handle: int) -> None:
        nonlocal space
        space -= 1
        if space < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    newest = [""]
    monkeypatch.setattr(files.os, "fsync", filling)
    for free in (first + more for first in range(1, 60, 5) for more in (0, 2)):
        space = free
        if main(["--quiet", *map(str, call)]) == 0:
            break
        said = capfd.readouterr().err
        assert "could not write" in said
        assert "space" in said
        assert "Traceback" not in said
        newest.append(max((folder.name for folder in step_folders(tmp_path / "run")), default=""))
    assert newest == sorted(newest), "a step that was saved stays"
    assert len(set(newest)) > 2, "it was refused before, between and after checkpoints"
    assert figures(Run(tmp_path / "run")) == figures(finished)
    assert weights(Run(tmp_path / "run")) == weights(finished)


def on_a_disk(disk: Path, size: str, copy: Path, *arguments: str) -> int:
    """The command line, in a process that alone sees a disk of this size there; then copies the run that is on it."""
    user, group = os.geteuid(), os.getegid()
    assert ctypes.CDLL(None).unshare(NEW_USER | NEW_MOUNTS) == 0
    for name, text in {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}.items():
        Path("/proc/self", name).write_text(text)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)], check=True)
    status = bertsmith(*arguments)
    shutil.copytree(disk / "run", copy)
    return status


@own_mounts
@pytest.mark.parametrize(
    ("steps", "save_every", "size"), [(8, 2, "600k"), (50, 100_000, "48k")], ids=["checkpoint", "metrics"]
)
def test_a_disk_that_is_really_full(tmp_path: Path, steps: int, save_every: int, size: str) -> None:
    """A disk of this size, filled by checkpoints in one run and by lines of metrics in the other: both train to their
    end, where no model can be written."""
    save_recipe(small_recipe(phase1__steps=steps, save_every=save_every), tmp_path / "recipe.yaml")
    (tmp_path / "disk").mkdir()
    call = ["pretrain", str(tmp_path / "recipe.yaml"), "--corpus", str(small_corpus())]
    does = partial(on_a_disk, tmp_path / "disk", size, tmp_path / "copy")
    with Command(*call, "--out", str(tmp_path / "disk" / "run"), "--quiet", does=does) as process:
        _, said = process.communicate()
        assert process.wait() == 2, said
    assert "Traceback" not in said
    assert "space left on" in said
    assert "where: " in said
    kept = step_folders(tmp_path / "copy")
    assert [folder.name for folder in kept] == (["step-00000002"] if save_every == 2 else [])
    left = [each.name for each in (tmp_path / "copy").glob(".*") if each.name != ".lock"]
    assert not left, "nothing half written is left"
