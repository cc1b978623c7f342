"""What is kept of epochs on disk, beside the corpus: the index of each, and the instances of those that are trained on.

epoch-3-HASH.npy          the index: uint16, 8 words of checksum, the table of shard accounts, the lengths
epoch-3-HASH/00012.npy    the instances of a shard: uint8, 16 bytes of checksum, its account, then column after column
.in-use-HASH/.lock        locked by each run that reads those instances, which no other run removes then

Every file is written atomically. HASH is of everything that an epoch depends on, so what belongs to another corpus or
to other settings is never used by mistake.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import alone_in, locked
from bertsmith.base.log import warn
from bertsmith.batches.epoch_index import ACCOUNT_FIELDS, EpochIndex, Stream
from bertsmith.batches.pairs import Account, Instances

_CHECKSUM_BYTES = 16
_ACCOUNT_BYTES = 8 * len(ACCOUNT_FIELDS)
# Bytes of an instance beside its two places in the tokens: two lengths and the label.
_REST_BYTES = 2 + 2 + 1
# Tries to share the lock, which another run holds alone while it removes what is past.
_TRIES, _TRY_SECONDS = 50, 0.1
_SHORT_PLACES, _LONG_PLACES = np.uint32, np.uint64


@dataclass(frozen=True)
class EpochFiles:
    """The files of the epochs of one order. fingerprint: of corpus, seed, phase and pair settings. shards: how many."""

    folder: Path
    fingerprint: str
    shards: int

    def index_path(self, epoch: int) -> Path:
        """The file of an epoch's index."""
        return self.folder / f"{self._name(epoch)}.npy"

    def read_index(self, stream: Stream) -> EpochIndex | None:
        """The index of an epoch, or None if there is none. For a damaged file it warns and returns None."""
        words = self._read(self.index_path(stream.epoch), np.uint16, "will be rebuilt: it is the index of an epoch")
        if words is None:
            return None
        edge = self.shards * _ACCOUNT_BYTES // 2
        table = np.array(words[:edge]).view(np.int64).reshape(self.shards, len(ACCOUNT_FIELDS))
        return EpochIndex(stream, table, np.asarray(words[edge:]))

    def write_index(self, index: EpochIndex) -> None:
        """Keeps an index. Raises BertsmithError if the folder cannot be written to."""
        table = np.ascontiguousarray(index.table).view(np.uint16).ravel()
        _write(self.index_path(index.stream.epoch), np.concatenate((table, index.lengths)))

    def shard_path(self, epoch: int, shard: int) -> Path:
        """The file of a shard's instances in an epoch."""
        return self.folder / self._name(epoch) / f"{shard:05d}.npy"

    def read_shard(self, epoch: int, shard: int) -> Instances | None:
        """A shard's instances in an epoch, or None if they are not kept. For a damaged file it warns, too."""
        body = self._read(self.shard_path(epoch, shard), np.uint8, "the instances of its shard are drawn again")
        if body is None:
            return None
        account = Account(*np.array(body[:_ACCOUNT_BYTES]).view(np.int64).tolist())
        count, columns = account.instances, body[_ACCOUNT_BYTES:]
        places = np.dtype(_LONG_PLACES if len(columns) > count * (2 * 4 + _REST_BYTES) else _SHORT_PLACES)
        ends = np.cumsum([count * places.itemsize] * 2 + [count * 2] * 2)
        a_start, b_start, a_length, b_length, label = np.split(columns, ends)
        return Instances(
            a_start.view(places).astype(np.int64),
            a_length.view(np.uint16).astype(np.int32),
            b_start.view(places).astype(np.int64),
            b_length.view(np.uint16).astype(np.int32),
            np.array(label, dtype=np.uint8),
            account,
        )

    def write_shard(self, epoch: int, shard: int, instances: Instances) -> None:
        """Keeps a shard's instances: 13 bytes each. Raises BertsmithError if the folder cannot be written to."""
        last = max(instances.a_start.max(initial=0), instances.b_start.max(initial=0))
        places = _SHORT_PLACES if last < 1 << 32 else _LONG_PLACES
        columns: list[NDArray[Any]] = [
            np.array(astuple(instances.account), dtype=np.int64),
            *(each.astype(places) for each in (instances.a_start, instances.b_start)),
            *(each.astype(np.uint16) for each in (instances.a_length, instances.b_length)),
            instances.next_sentence_label,
        ]
        _write(self.shard_path(epoch, shard), np.concatenate([each.view(np.uint8) for each in columns]))

    def shards_there(self, epoch: int) -> set[int]:
        """The shards whose instances are kept for an epoch."""
        return {int(path.stem) for path in (self.folder / self._name(epoch)).glob("[0-9]*.npy")}

    def are_whole(self, epoch: int) -> bool:
        """Whether an epoch's index and all of its instances are there."""
        return self.index_path(epoch).exists() and len(self.shards_there(epoch)) == self.shards

    @property
    def lock_folder(self) -> Path:
        """The folder that is locked by the runs that use these files."""
        return self.folder / f".in-use-{self._hash}"

    def forget_instances(self, before: int) -> None:
        """Removes the instances of the epochs before `before`; they can be drawn again from the key of the epoch."""
        for path in self.folder.glob(self._name("*")):
            if path.is_dir() and int(path.name.split("-")[1]) < before:
                shutil.rmtree(path, ignore_errors=True)

    @cached_property
    def _hash(self) -> str:
        return hashlib.blake2b(self.fingerprint.encode(), digest_size=8).hexdigest()

    @cached_property
    def _damaged(self) -> set[Path]:
        """Files that were warned about."""
        return set()

    def _name(self, epoch: int | str) -> str:
        return f"epoch-{epoch}-{self._hash}"

    def _read(self, path: Path, dtype: type[np.unsignedinteger[Any]], what: str) -> NDArray[Any] | None:
        """What `_write` was given, memory-mapped, or None: if there is no file, and with a warning if it is damaged.

        what: is done about a damaged one.
        """
        try:
            words = np.load(path, mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, EOFError):
            words = np.zeros(0, dtype)
        edge = _CHECKSUM_BYTES // np.dtype(dtype).itemsize
        body: NDArray[Any] = words[edge:]
        if words.dtype == dtype and words.ndim == 1 and np.array_equal(words[:edge], _checksum(body)):
            return body
        if path not in self._damaged:
            self._damaged.add(path)
            warn(f"the file {path} is damaged and {what}", of_all_ranks=True)
        return None


class Use:
    """A run's use of the files of an order, which several runs may share, such as those of a sweep of learning rates:
    what one of them reads is removed by none, and what is past is removed by the first that finds itself alone."""

    def __init__(self, files: EpochFiles) -> None:
        self._files = files
        self._held = ExitStack()

    def begin(self) -> None:
        """Shares the lock until `end`; where that fails, says so."""
        why = ""
        for number in range(_TRIES):
            time.sleep(_TRY_SECONDS if number else 0)
            try:
                self._held.enter_context(locked(self._files.lock_folder, shared=True, doing="removing instances"))
            except (BertsmithError, OSError) as error:
                why = str(error)
            else:
                return
        warn(f"another run with the same order of instances may remove them, so that they are drawn again: {why}")

    def end(self) -> None:
        """Gives back the lock."""
        self._held.close()

    def forget_instances(self, before: int) -> None:
        """As of `EpochFiles`; nothing where other runs use them, of which the last one removes more."""
        self.end()
        try:
            with alone_in(self._files.lock_folder) as alone:
                if alone:
                    self._files.forget_instances(before)
        except (BertsmithError, OSError) as error:
            warn(f"instances that are past were not removed: {error}")
        self.begin()


def _write(path: Path, body: NDArray[Any]) -> None:
    words = np.concatenate((_checksum(body), body))
    files.write_whole(path, lambda file: np.save(file, words, allow_pickle=False))


def _checksum(body: NDArray[Any]) -> NDArray[Any]:
    digest = hashlib.blake2b(np.ascontiguousarray(body).data, digest_size=_CHECKSUM_BYTES).digest()
    return np.frombuffer(digest, dtype=body.dtype)
