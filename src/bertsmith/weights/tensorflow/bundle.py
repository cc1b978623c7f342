"""A TensorFlow checkpoint in the V2 format: a table that says where each tensor lies, and files of raw tensors.

The messages in the table are those of tensorflow/core/protobuf/tensor_bundle.proto. Every tensor has a checksum.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.weights.tensorflow import table
from bertsmith.weights.tensorflow.crc32c import masked_crc32c
from bertsmith.weights.tensorflow.wire import fields

# TensorFlow's numbers of its types, those that hold weights or counters.
_DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    19: torch.float16,
}
_AGAIN = "copy or download the checkpoint again"
_OLDEST_READER = 1


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies. crc: the masked CRC-32C of its `size` bytes. sliced: it is stored in parts."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


@dataclass(frozen=True)
class Bundle:
    """A checkpoint of which the index has been read. prefix: the path before `.index` and `.data-...`."""

    prefix: Path
    shards: int
    entries: dict[str, Entry]

    @classmethod
    def open(cls, prefix: Path) -> Self:
        """Reads and checks the index. Raises BertsmithError where it is missing, damaged or of another format."""
        path = index_of(prefix)
        try:
            with files.read_errors(path):
                content = path.read_bytes()
        except FileNotFoundError as error:
            raise BertsmithError("this file of the checkpoint is missing", path, _AGAIN) from error
        try:
            found = table.entries(content)
            shards = _shards(found.pop(b""))
            return cls(prefix, shards, {name.decode(): _entry(value) for name, value in found.items()})
        except KeyError as error:
            raise BertsmithError("this table is not the index of a TensorFlow checkpoint", path, _AGAIN) from error
        except (ValueError, TypeError) as error:
            raise BertsmithError(f"this checkpoint's index is damaged ({error})", path, _AGAIN) from error

    def read(self, name: str) -> Tensor:
        """A tensor, compared with its checksum. Raises BertsmithError that names the tensor and the file."""
        entry = self.entries[name]
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.shards:05d}")
        where = f"{name} in {path}"
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or entry.sliced:
            what = "is stored in slices" if entry.sliced else f"is of TensorFlow's type {entry.dtype}"
            raise BertsmithError(f"this tensor {what}, which no BERT of Google or NVIDIA is", where, "use another")
        if entry.size != math.prod(entry.shape) * dtype.itemsize or entry.shard >= self.shards:
            what = f"the index contradicts itself: {entry.size:,} bytes for shape {list(entry.shape)}"
            raise BertsmithError(f"{what}, in part {entry.shard + 1} of {self.shards}", where, _AGAIN)
        content = _bytes_at(path, entry.offset, entry.size, where)
        if masked_crc32c(content) != entry.crc:
            raise BertsmithError("this tensor is not what its checksum says: the file is damaged", where, _AGAIN)
        if not entry.size:  # torch gives no view of nothing
            return torch.empty(entry.shape, dtype=dtype)
        return torch.from_numpy(content).view(dtype).reshape(entry.shape)


def index_of(prefix: Path) -> Path:
    """The file that holds a checkpoint's index."""
    return prefix.with_name(f"{prefix.name}.index")


def _bytes_at(path: Path, offset: int, size: int, where: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    try:
        with files.read_errors(path), open(path, "rb") as file:
            there = os.fstat(file.fileno()).st_size
            if offset + size > there:
                what = f"this tensor is cut off: it needs bytes {offset:,} to {offset + size:,} of a file of {there:,}"
                raise BertsmithError(what, where, _AGAIN)
            file.seek(offset)
            content = np.fromfile(file, np.uint8, size)
    except FileNotFoundError as error:
        raise BertsmithError("this file of the checkpoint is missing", path, _AGAIN) from error
    return content


def _shards(header: bytes) -> int:
    """How many files of tensors there are, by a BundleHeaderProto."""
    found = dict(fields(header))
    message = found.get(3, b"")
    if not isinstance(message, bytes):
        raise ValueError("its version is no message")
    version = dict(fields(message))
    if found.get(2, 0) != 0:
        raise ValueError("its numbers are big-endian")
    if int(version.get(2, 0)) > _OLDEST_READER:
        raise ValueError(f"it needs a reader of version {version[2]!r}")
    return int(found.get(1, 0))


def _entry(message: bytes) -> Entry:
    """A tensor's place, by a BundleEntryProto."""
    numbers, shape, sliced = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}, b"", False
    for number, value in fields(message):
        if number in numbers:
            numbers[number] = int(value)
        elif number == 2 and isinstance(value, bytes):
            shape = value
        sliced = sliced or number == 7
    return Entry(numbers[1], _shape(shape), numbers[3], numbers[4], numbers[5], numbers[6], sliced)


def _shape(message: bytes) -> tuple[int, ...]:
    """The sizes in a TensorShapeProto; an axis of size 0 may stand without its number."""
    axes = [dict(fields(value)) for number, value in fields(message) if number == 2 and isinstance(value, bytes)]
    return tuple(int(axis.get(1, 0)) for axis in axes)
