"""The peer of `bench prepare`: BERT's own preparation, as NVIDIA's scripts have it, written anew from its description.

One copy of the instances at one length: documents in memory, tokenised by transformers' pure-Python tokenizer, cut
into pairs and masked once for all, padded, and written packed. NVIDIA's recipe makes five such copies at each of two
lengths. Where its scripts write HDF5 with gzip, this writes `.npz` with the same types and the same compression.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Sentence = list[int]
Document = list[Sentence]

_SEED = 12345
_SHORT, _RANDOM_NEXT, _MASKED = 0.1, 0.5, 0.15
_TRIES = 10


@dataclass(frozen=True)
class Pieces:
    """The ids that pairs are built with, and how many rows the vocabulary has."""

    cls: int
    sep: int
    mask: int
    rows: int


def read_documents(
    path: Path, sentences: Callable[[str], list[str]], encode: Callable[[str], Sentence]
) -> tuple[list[Document], int]:
    """Every line of the file that has a sentence as a tokenised document, and the bytes of the text of all lines."""
    documents: list[Document] = []
    text_bytes = 0
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            text = line.removesuffix("\n")
            text_bytes += len(text.encode())
            document = [ids for sentence in sentences(text) if (ids := encode(sentence))]
            if document:
                documents.append(document)
    return documents, text_bytes


def pairs(documents: list[Document], length: int, draw: random.Random) -> Iterator[tuple[Sentence, Sentence, int]]:
    """(A, B, whether B is random) for every pair of all documents."""
    most = length - 3
    for number, document in enumerate(documents):
        target = draw.randint(2, most) if draw.random() < _SHORT else most
        chunk: list[Sentence] = []
        place = held = 0
        while place < len(document):
            chunk.append(document[place])
            held += len(document[place])
            if place == len(document) - 1 or held >= target:
                cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                first = [piece for sentence in chunk[:cut] for piece in sentence]
                is_random = len(chunk) == 1 or draw.random() < _RANDOM_NEXT
                if is_random:
                    second = _random_second(documents, number, target - len(first), draw)
                    place -= len(chunk) - cut
                else:
                    second = [piece for sentence in chunk[cut:] for piece in sentence]
                _truncate(first, second, most, draw)
                yield first, second, int(is_random)
                chunk, held = [], 0
            place += 1


def _random_second(documents: list[Document], number: int, wanted: int, draw: random.Random) -> Sentence:
    other = number
    for _ in range(_TRIES):
        other = draw.randint(0, len(documents) - 1)
        if other != number:
            break
    second: Sentence = []
    for sentence in documents[other][draw.randint(0, len(documents[other]) - 1) :]:
        second += sentence
        if len(second) >= wanted:
            break
    return second


def _truncate(first: Sentence, second: Sentence, most: int, draw: random.Random) -> None:
    while len(first) + len(second) > most:
        longer = first if len(first) > len(second) else second
        if draw.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def mask(ids: Sentence, pieces: Pieces, most: int, draw: random.Random) -> tuple[list[int], list[int]]:
    """Hides pieces of `ids` in place; returns the places and what stood there."""
    candidates = [place for place, piece in enumerate(ids) if piece not in (pieces.cls, pieces.sep)]
    draw.shuffle(candidates)
    places = sorted(candidates[: min(most, max(1, round(len(ids) * _MASKED)))])
    labels = [ids[place] for place in places]
    for place in places:
        if draw.random() < 0.8:
            ids[place] = pieces.mask
        elif draw.random() < 0.5:
            ids[place] = draw.randint(0, pieces.rows - 1)
    return places, labels


def write_instances(documents: list[Document], out: Path, length: int, pieces: Pieces) -> int:
    """Makes all instances in memory, shuffles them and writes them; returns their tokens, padding left out."""
    draw = random.Random(_SEED)
    draw.shuffle(documents)
    most = -(-length * 20 // 128)
    instances: list[tuple[Sentence, list[int], list[int], int, int]] = []
    for first, second, is_random in pairs(documents, length, draw):
        ids = [pieces.cls, *first, pieces.sep, *second, pieces.sep]
        places, labels = mask(ids, pieces, most, draw)
        instances.append((ids, places, labels, len(first) + 2, is_random))
    draw.shuffle(instances)
    count = len(instances)
    input_ids = np.zeros((count, length), np.int32)
    input_mask, segment_ids = np.zeros((2, count, length), np.int8)
    positions, masked_ids = np.zeros((2, count, most), np.int32)
    next_labels = np.zeros(count, np.int8)
    for row, (ids, places, labels, first_length, is_random) in enumerate(instances):
        input_ids[row, : len(ids)] = ids
        input_mask[row, : len(ids)] = 1
        segment_ids[row, first_length : len(ids)] = 1
        positions[row, : len(places)] = places
        masked_ids[row, : len(labels)] = labels
        next_labels[row] = is_random
    np.savez_compressed(
        out / "instances.npz",
        input_ids=input_ids,
        input_mask=input_mask,
        segment_ids=segment_ids,
        masked_lm_positions=positions,
        masked_lm_ids=masked_ids,
        next_sentence_labels=next_labels,
    )
    return int(input_mask.sum())
