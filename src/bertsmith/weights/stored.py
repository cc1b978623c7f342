"""The files of tensors in a model folder, whole or in shards, safetensors or torch's; nothing they hold is run."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.weights.names import CONFIG_FILE as CONFIG_FILE

EXPORT_FILE = "export.json"
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
# In the order in which transformers looks for them.
_CANDIDATES = (WEIGHTS_FILES[0], f"{WEIGHTS_FILES[0]}.index.json", WEIGHTS_FILES[1], f"{WEIGHTS_FILES[1]}.index.json")
ARCHIVE = b"PK\x03\x04"
"""How a zip archive begins."""
FOLDER_FIX = "name a model folder: one with config.json and model.safetensors"
_SYSTEM_ERROR = re.compile(r"(?:os error|code:) (\d+)")
_OBSTACLE = re.compile(r"WeightsUnpickler error:\s*(.+?)(?:\.\s|\n|$)")
_AGAIN = "copy or download the file again"


def stored_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: one, or an index and the shards that it names; none where none is there.

    Raises BertsmithError where an index is broken.
    """
    path = _entry(folder)
    if path is None:
        return []
    return [path, *(folder / shard for shard in sorted(set(_read_index(path).values())))] if _is_index(path) else [path]


def refuse_export(folder: Path) -> None:
    """Raises BertsmithError for a folder that `bertsmith export` wrote: it has a graph for another engine alone."""
    if (folder / EXPORT_FILE).is_file() and _entry(folder) is None:
        which = "predict, embed, evaluate and serve run it by --backend onnx or --backend openvino"
        fix = f"name the model that it was exported from; {which}"
        raise BertsmithError("this folder is an export, without weights for PyTorch", folder, fix)


def read_tensors(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The file that holds a folder's weights, or the index of them, and its tensors under the names it gives them.

    Raises BertsmithError where there is no such file, where it is broken, where it holds more than tensors, and where
    shards and index differ.
    """
    refuse_export(folder)
    path = _entry(folder)
    if path is None:
        raise BertsmithError(f"no weights here, neither {' nor '.join(WEIGHTS_FILES)}", folder, FOLDER_FIX)
    return path, _read_shards(path) if _is_index(path) else _read_file(path)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes safetensors straight from memory. Raises OSError where the disk refuses."""
    try:
        safetensors.torch.save_file(dict(tensors), path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:  # what the system said stands in its text alone
        number = _SYSTEM_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def load_torch_file(path: Path) -> Any:
    """What torch saved, if it is tensors and plain values; nothing that the file holds is run.

    The checksums of the archive are compared, which torch itself does not do. Raises BertsmithError.
    """
    try:
        with files.read_errors(path):
            # An archive is mapped, not read: of a checkpoint of training two thirds are the optimizer's.
            mapped = _is_sound_archive(path)
            if mapped:
                files.check_utf8(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        what = "these weights cannot be read: the file is broken, or holds more than tensors and plain values"
        fix = "where you trust it: load it yourself, and save {'model': its tensors by name} alone with torch.save"
        raise BertsmithError(f"{what} ({_reason(error)})", path, fix) from error
    except BertsmithError:
        raise
    except Exception as error:  # torch lets through whatever its unpickler stumbles on
        raise _unreadable(path, error) from error


def _reason(error: Exception) -> str:
    """What was in the way; torch says first how to read the file in spite of it."""
    match = _OBSTACLE.search(str(error))
    return " ".join(match[1].split()) if match else (str(error).splitlines() or ["no reason given"])[0]


def _is_sound_archive(path: Path) -> bool:
    """Whether it is a zip archive, as torch writes since 1.6; raises BertsmithError for one that is damaged."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            if file.read(len(ARCHIVE)) == ARCHIVE:  # what it holds is listed at its end
                raise BertsmithError("the end of this file is missing", path, _AGAIN)
        return False
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise BertsmithError(f"{damaged} in this file is not what its checksum says", path, _AGAIN)
    return True


def _entry(folder: Path) -> Path | None:
    return next((folder / name for name in _CANDIDATES if (folder / name).is_file()), None)


def _is_index(path: Path) -> bool:
    return path.name.endswith(".index.json")


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            with files.read_errors(path):
                open(path, "rb").close()  # safetensors says that a file is missing that it may not read
                tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
                return tensors
        except safetensors.SafetensorError as error:
            raise _unreadable(path, error) from error
    loaded = load_torch_file(path)
    named = isinstance(loaded, dict) and all(isinstance(name, str) for name in loaded)
    if not named or not all(isinstance(each, Tensor) for each in loaded.values()):
        raise BertsmithError("this file holds something other than named tensors", path, _AGAIN)
    return dict(loaded)


def _read_index(path: Path) -> dict[str, str]:
    """The shard of every tensor by its name."""
    index = files.read_json(path, _AGAIN)
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or not found:
        raise BertsmithError("this index has no weight_map that says where each tensor lies", path, _AGAIN)
    for name, shard in found.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise BertsmithError(f"the shard of {name} is {shard!r}, not a file of this folder", path, _AGAIN)
    return found


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of all shards, which must be those of the index, each in the shard that it names."""
    placed = _read_index(index)
    tensors: dict[str, Tensor] = {}
    problems: list[str] = []
    for shard in sorted(set(placed.values())):
        path = index.with_name(shard)
        if not path.is_file():
            raise BertsmithError(f"{shard}, which this index names, is missing", index, "copy or download all shards")
        read = _read_file(path)
        problems += _differences(shard, placed, read)
        tensors |= read
    if problems:
        what = "index and shards differ:\n    " + "\n    ".join(problems)
        raise BertsmithError(what, index, "copy or download the index and all shards of one and the same model")
    return tensors


def _differences(shard: str, placed: Mapping[str, str], read: Mapping[str, Tensor]) -> list[str]:
    wanted = {name for name, place in placed.items() if place == shard}
    lacking = [f"{name} is not in {shard}" for name in sorted(wanted - read.keys())]
    return lacking + [f"{name} is in {shard}, and the index does not say so" for name in sorted(read.keys() - wanted)]


def _unreadable(path: Path, error: Exception) -> BertsmithError:
    first_line = f"{type(error).__name__}: {error}".splitlines()[0]
    return BertsmithError(f"these weights cannot be read ({first_line})", path, _AGAIN)
