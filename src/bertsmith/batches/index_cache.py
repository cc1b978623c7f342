"""Epoch indices on disk, beside the corpus: one file each, two bytes per instance, written atomically, memory-mapped.

The file is one `.npy` array of uint16: 8 words of checksum, the table of shard accounts, the lengths. Its name has a
hash of everything that the index depends on, so an index of another corpus or other settings is never used by mistake.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.batches.epochs import ACCOUNT_FIELDS, EpochIndex, Stream

_CHECKSUM_WORDS = 8
_TABLE_WORDS = 4 * len(ACCOUNT_FIELDS)


def index_path(folder: Path, fingerprint: str, epoch: int) -> Path:
    """The path of an epoch's index. fingerprint: of corpus, seed, phase and pair settings."""
    return folder / f"epoch-{epoch}-{hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()}.npy"


def read_index(path: Path, stream: Stream, shards: int) -> EpochIndex | None:
    """The index in the file, or None if there is none. For a damaged file it warns and returns None."""
    try:
        words = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):
        words = np.zeros(0, dtype=np.uint16)
    body = words[_CHECKSUM_WORDS:]
    if words.dtype != np.uint16 or words.ndim != 1 or not np.array_equal(words[:_CHECKSUM_WORDS], _checksum(body)):
        warn(f"the epoch index {path} is damaged and will be rebuilt")
        return None
    table = np.array(body[: shards * _TABLE_WORDS]).view(np.int64).reshape(shards, len(ACCOUNT_FIELDS))
    return EpochIndex(stream, table, np.asarray(body[shards * _TABLE_WORDS :]))


def write_index(path: Path, index: EpochIndex) -> None:
    """Writes the index. If the folder cannot be written to, it warns, and training continues without the cache."""
    body = np.concatenate((np.ascontiguousarray(index.table).view(np.uint16).ravel(), index.lengths))
    words = np.concatenate((_checksum(body), body))
    try:
        files.write_whole(path, lambda file: np.save(file, words, allow_pickle=False))
    except BertsmithError as error:
        warn(f"the epoch index was not saved and will be rebuilt at every start: {error.what} ({error.where})")


def _checksum(body: NDArray[np.uint16]) -> NDArray[np.uint16]:
    digest = hashlib.blake2b(np.ascontiguousarray(body).data, digest_size=2 * _CHECKSUM_WORDS).digest()
    return np.frombuffer(digest, dtype=np.uint16)
