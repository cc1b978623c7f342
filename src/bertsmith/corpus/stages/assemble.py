"""Shards of even size out of the parts' ids: documents stay whole and in source order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.engines.parts import Part, makes_part
from bertsmith.corpus.shards import ARRAYS, offsets_of, shard_file, write_shard

# A shard of one document could draw no random second sentence.
_FEWEST_DOCUMENTS = 2


@dataclass(frozen=True)
class Piece:
    """Documents first..last of a tokenised part."""

    part: Path
    first: int
    last: int


@dataclass(frozen=True)
class ShardTask(Part):
    """One shard of a split, out of pieces of parts that follow each other."""

    split: str
    name: str
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        return f"shard {self.split}/{self.name}"


def plan_shards(parts: Sequence[Path], split: str, total_tokens: int, shard_tokens: int) -> list[list[Piece]]:
    """Cuts the documents of all parts into shards of about `shard_tokens`, evenly, each of two documents or more.

    Only one part's lengths are in memory at a time.
    """
    count = max(1, round(total_tokens / shard_tokens))
    shards: list[list[Piece]] = [[]]
    documents = tokens = 0
    for part in parts:
        lengths = _document_tokens(part, split)
        start = 0
        for index, length in enumerate(lengths.tolist()):
            if tokens >= len(shards) * total_tokens / count and documents >= _FEWEST_DOCUMENTS:
                _extend(shards[-1], part, start, index)
                shards.append([])
                start, documents = index, 0
            tokens += length
            documents += 1
        _extend(shards[-1], part, start, len(lengths))
    if len(shards) > 1 and documents < _FEWEST_DOCUMENTS:
        last = shards.pop()
        shards[-1] += last
    return [pieces for pieces in shards if pieces]


def _extend(pieces: list[Piece], part: Path, first: int, last: int) -> None:
    if last > first:
        pieces.append(Piece(part, first, last))


@makes_part
def assemble_shard(task: ShardTask, folder: Path) -> dict[str, Any]:
    """Writes the shard's files; returns its ShardInfo as JSON."""
    pieces = [_arrays(piece, task.split) for piece in task.pieces]
    joined = [np.concatenate(arrays) for arrays in zip(*pieces, strict=True)]
    return dataclasses.asdict(write_shard(folder, task.name, joined))


def _load(part: Path, split: str) -> list[NDArray[Any]]:
    return [np.load(part / shard_file(split, array), mmap_mode="r", allow_pickle=False) for array in ARRAYS]


def _document_tokens(part: Path, split: str) -> NDArray[np.int64]:
    """int64[documents]: the tokens of each document of a part."""
    _, sentences, documents = _load(part, split)
    return np.diff(offsets_of(sentences)[offsets_of(documents)])


def _arrays(piece: Piece, split: str) -> tuple[NDArray[Any], ...]:
    tokens, sentences, documents = _load(piece.part, split)
    first, last = offsets_of(documents)[[piece.first, piece.last]]
    begin, end = offsets_of(sentences)[[first, last]]
    return tokens[begin:end], sentences[first:last], documents[piece.first : piece.last]
