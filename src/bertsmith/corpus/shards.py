"""The corpus folder: `corpus.json`, the tokenizer, and shards of memory-mapped `.npy` arrays.

    corpus.json                      counts, what was dropped and why, tokenizer hash, checksums of every shard file
    tokenizer/                       tokenizer.json, vocab.txt, tokenizer_config.json
    train/00000.tokens.npy           uint16[tokens] (uint32 past 65,535 pieces), all documents one behind the other
    train/00000.sentences.npy        uint16[sentences], the pieces of each sentence (a longer one is split and counted)
    train/00000.documents.npy        uint32[documents], the sentences of each document
    held_out/00000...                the same for documents that no training batch ever shows
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError

CORPUS_FORMAT = 1
SPLITS = ("train", "held_out")
LONGEST_SENTENCE = 65_535


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the five pieces that BERT's input is built with, and the number of rows of the vocabulary."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    vocabulary_size: int


@dataclass(frozen=True)
class ShardInfo:
    """A shard as `corpus.json` lists it. sha256: of each of its files, by name."""

    name: str
    documents: int
    sentences: int
    tokens: int
    sha256: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """One shard, memory-mapped.

    tokens: uint16 or uint32 [N]. sentence_offsets: int64[sentences + 1] into tokens. document_offsets:
    int64[documents + 1] into the sentences. No document and no sentence is empty.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    sentence_offsets: NDArray[np.int64]
    document_offsets: NDArray[np.int64]
