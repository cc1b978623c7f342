"""Where a checkpoint of another tool lies, and of which kind it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of, log_choice
from bertsmith.weights.stored import ARCHIVE, CONFIG_FILE, stored_files
from bertsmith.weights.tensorflow.bundle import index_of
from bertsmith.weights.tensorflow.table import is_table

_PART = re.compile(r"(?P<prefix>.+)\.(index|meta|data-\d{5}-of-\d{5})")
_LATEST = re.compile(r'^model_checkpoint_path:\s*"(?P<path>.+)"\s*$', re.MULTILINE)
_TORCH_BEGINNINGS = (ARCHIVE, b"\x80\x02")  # a zip archive, and the pickle that torch wrote before 1.6
_TORCH_ENDINGS = (".pt", ".pth")
_FIX = "name the .index file of a TensorFlow checkpoint, or a .pt file of NVIDIA's"


@dataclass(frozen=True)
class Place:
    """Where a checkpoint lies. path: the prefix of a TensorFlow checkpoint, or the file of torch's."""

    kind: Literal["tensorflow", "torch"]
    path: Path


def find_checkpoint(named: Path) -> Place:
    """The checkpoint that a user means by a folder, a file or the prefix of several files.

    Raises BertsmithError where there is none or more than one, and for formats that are not read.
    """
    if named.is_dir():
        return _in_folder(named)
    if (match := _PART.fullmatch(named.name)) is not None:
        named = named.with_name(match["prefix"])
    if index_of(named).is_file():
        return Place("tensorflow", named)
    if named.is_file():
        return _by_content(named)
    parts = sorted(each.name for each in named.parent.glob(f"{named.name}.*") if _PART.fullmatch(each.name))
    if parts:
        raise BertsmithError(f"of this checkpoint there is {', '.join(parts)}, but no .index", named, _FIX)
    raise BertsmithError("there is no checkpoint of this name", named, _what_to_name(named.parent))


def _in_folder(folder: Path) -> Place:
    """The newest by the folder's `checkpoint` file, else the only one."""
    _refuse_model(folder, "this is a model folder already")
    latest = folder / "checkpoint"
    if latest.is_file():
        with files.read_errors(latest):
            match = _LATEST.search(latest.read_text(encoding="utf-8", errors="replace"))
        # The path that it names is that of the machine that wrote it.
        prefix = folder / Path(match["path"]).name if match else folder
        if index_of(prefix).is_file():
            log_choice(f"checkpoint in {folder}", prefix.name, "its file `checkpoint` names it as the latest")
            return Place("tensorflow", prefix)
    there = _checkpoints(folder)
    if not there:
        _refuse_model(folder / "model", "this is the model of a run, and a model folder already")
    if len(there) != 1:
        what = f"here are {len(there)} checkpoints, and none is named as the latest" if there else "no checkpoint here"
        raise BertsmithError(what, folder, _what_to_name(folder))
    log_choice(f"checkpoint in {folder}", there[0], "it is the only one")
    return find_checkpoint(folder / there[0])


def _refuse_model(folder: Path, what: str) -> None:
    if (folder / CONFIG_FILE).is_file() and stored_files(folder):
        raise BertsmithError(what, folder, "use it as it is; import makes such folders")


def _checkpoints(folder: Path) -> list[str]:
    """The names of a folder's checkpoints: prefixes of TensorFlow's, files of torch's."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    return sorted([*prefixes, *(name for name in names if name.endswith(_TORCH_ENDINGS))])


def _what_to_name(folder: Path) -> str:
    there = _checkpoints(folder)
    return f"in {folder} there are: {first_of(there)}" if there else _FIX


def _by_content(path: Path) -> Place:
    with files.read_errors(path), open(path, "rb") as file:
        beginning = file.read(4)
        file.seek(max(0, path.stat().st_size - 8))
        ending = file.read(8)
    if beginning.startswith(_TORCH_BEGINNINGS):
        return Place("torch", path)
    if is_table(ending):
        what = "this is a TensorFlow checkpoint of the V1 format, which came before .index and .data files"
        fix = "save it again with tf.train.Saver(write_version=tf.train.SaverDef.V2)"
        raise BertsmithError(what, path, fix)
    raise BertsmithError("this file is neither a TensorFlow checkpoint nor one of torch's", path, _FIX)
