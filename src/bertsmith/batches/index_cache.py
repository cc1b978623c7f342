"""Epoch indices on disk, beside the corpus: a file each, two bytes an instance, written whole, memory-mapped back.

The file is one `.npy` array of uint16: 8 of checksum, the table of shard accounts, the lengths. Its name holds a hash
of everything that the index depends on, so an index of another corpus or other settings is never taken for this one.
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
    """The file of an epoch's index. fingerprint: of corpus, seed, phase and pair settings."""
    return folder / f"epoch-{epoch}-{hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()}.npy"


def read_index(path: Path, stream: Stream, shards: int) -> EpochIndex | None:
    """The index in the file, or None where there is none. A damaged file counts as none, and is said."""
    try:
        words = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError):
        words = np.zeros(0, dtype=np.uint16)
    body = words[_CHECKSUM_WORDS:]
    if words.dtype != np.uint16 or words.ndim != 1 or not np.array_equal(words[:_CHECKSUM_WORDS], _checksum(body)):
        warn(f"the epoch index {path} is damaged; it is built again")
        return None
    table = np.array(body[: shards * _TABLE_WORDS]).view(np.int64).reshape(shards, len(ACCOUNT_FIELDS))
    return EpochIndex(stream, table, np.asarray(body[shards * _TABLE_WORDS :]))


def write_index(path: Path, index: EpochIndex) -> None:
    """Writes the index whole. Where the folder cannot be written to, training goes on without, and that is said."""
    body = np.concatenate((np.ascontiguousarray(index.table).view(np.uint16).ravel(), index.lengths))
    words = np.concatenate((_checksum(body), body))
    try:
        files.write_whole(path, lambda file: np.save(file, words, allow_pickle=False))
    except BertsmithError as error:
        warn(f"the epoch index is not kept and will be built again on every start: {error.what} ({error.where})")


def _checksum(body: NDArray[np.uint16]) -> NDArray[np.uint16]:
    digest = hashlib.blake2b(np.ascontiguousarray(body).data, digest_size=2 * _CHECKSUM_WORDS).digest()
    return np.frombuffer(digest, dtype=np.uint16)
