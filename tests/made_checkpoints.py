"""A tiny model and optimizer to save and load, damage to what was saved, and small disks to save to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.checkpoints import Position, load_checkpoint, newest_whole, step_folders
from bertsmith.training.checkpoints.saver import Saver

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
    """One step, by gradients that follow from the seed."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.set_learning_rate(0.01)
    optimizer.step()


def same(first: PretrainingModel, second: PretrainingModel) -> bool:
    """Whether two models have the same weights, to the bit."""
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def written(run: Path, position: Position, model: PretrainingModel, optimizer: Lamb, keep: int = 2) -> None:
    """Saves, and waits for it."""
    with Saver(run, keep) as saver:
        saver.save(position, model, optimizer)
        saver.wait()


def loaded(run: Path, model: PretrainingModel, optimizer: Lamb) -> Position:
    """Restores the newest whole checkpoint."""
    return load_checkpoint(newest_whole(run), model, optimizer)


def names(run: Path) -> list[str]:
    """Of its step folders, oldest first."""
    return [each.name for each in step_folders(run)]


def warnings(said: pytest.LogCaptureFixture) -> list[str]:
    """Those that were said, in order."""
    return [each.message for each in said.records if each.levelname == "WARNING"]


def flip(path: Path, place: float = 0.7) -> None:
    """Changes one bit of a file, at a share of its length."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "a flipped bit": flip,
    "gone": lambda path: path.unlink(),
}


def _has_own_mounts() -> bool:
    call = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(call, capture_output=True, check=False).returncode == 0


own_mounts = pytest.mark.skipif(not _has_own_mounts(), reason="needs leave to mount a small disk (unshare -rm)")


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes; skips the test where this user may not mount one."""
    folder.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small disk, which this test fills")
    call = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fills a disk to its last byte; gives the file to remove."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        for block in (1 << 16, 1 << 12, 1):
            try:
                while shutil.disk_usage(disk).free >= block:
                    file.write(bytes(block))
            except OSError:
                continue
    return filler
