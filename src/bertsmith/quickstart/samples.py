"""Predictions to look at: masked words of held-out sentences, and classes of rows that were held out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.streams import generator, stream_key
from bertsmith.corpus.shards import Corpus
from bertsmith.inference.predictor import Predictor
from bertsmith.tokens.tokenizer import Tokenizer

SHORTEST, LONGEST = 12, 48
GUESSES = 5
_AROUND = 30


def guess_masked_words(corpus: Corpus, model: Path, count: int) -> list[dict[str, Any]]:
    """Masks one whole word in each of `count` held-out sentences of 12 to 48 pieces, drawn evenly, and guesses it.

    Returns {"text", "true", "guesses"} each; fewer where the held-out documents have fewer such sentences.
    """
    tokenizer = corpus.tokenizer()
    sentences = list(_sentences(corpus))
    order = generator(stream_key(0, "sample sentences")).permutation(len(sentences))
    rows = list(itertools.islice(_mask(tokenizer, (sentences[index] for index in order)), count))
    found = Predictor(model)([{"text": row["text"]} for row in rows])
    guesses = ([guess["piece"] for guess in each["guesses"][0][:GUESSES]] for each in found)
    return [{**row, "guesses": best} for row, best in zip(rows, guesses, strict=True)]


def _sentences(corpus: Corpus) -> Iterator[NDArray[np.int64]]:
    for index in range(len(corpus.shards("held_out"))):
        shard = corpus.open_shard("held_out", index)
        for begin, end in itertools.pairwise(shard.sentence_offsets):
            if SHORTEST <= end - begin <= LONGEST:
                yield np.asarray(shard.tokens[begin:end], dtype=np.int64)


def _mask(tokenizer: Tokenizer, sentences: Iterator[NDArray[np.int64]]) -> Iterator[dict[str, Any]]:
    """One word of each sentence: letters only, three at least, one piece of its own, not at the edge."""
    whole = tokenizer.is_alphabetic & ~tokenizer.is_continuation
    for ids in sentences:
        alone = whole[ids[1:-1]] & ~tokenizer.is_continuation[ids[2:]]
        long = np.array([len(tokenizer.pieces[piece]) >= 3 for piece in ids[1:-1]])
        places = np.flatnonzero(alone & long) + 1
        if len(places):
            place = int(generator(stream_key(0, "sample word", *ids.tolist())).choice(places))
            before, after = tokenizer.decode(ids[:place]), tokenizer.decode(ids[place + 1 :])
            yield {"text": f"{before} [MASK] {after}", "true": tokenizer.pieces[ids[place]]}


def show_masked_words(guesses: Sequence[dict[str, Any]]) -> str:
    """A line a sentence: the masked word's surroundings, the true word, the best five guesses."""
    lines = ["", "Masked words of held-out sentences (* where the first guess is right), and the best guesses:"]
    for each in guesses:
        before, after = each["text"].split("[MASK]", 1)
        shown = f"{before[-_AROUND:]:>{_AROUND}}[{each['true']}]{after[:_AROUND]}"
        right = "*" if each["true"] == each["guesses"][0] else " "
        lines.append(f" {right} {shown:{2 * _AROUND + 14}} | {', '.join(each['guesses'])}")
    return "\n".join(lines)


def show_classes(model: Path, rows: Path, count: int) -> str:
    """A line a row: the text's beginning, the true class, the predicted one with its probability."""
    read = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    chosen = [read[index] for index in np.linspace(0, len(read) - 1, min(count, len(read))).astype(int)]
    lines = ["Classes of held-out rows:"]
    for row, found in zip(chosen, Predictor(model)([{"text": row["text"]} for row in chosen]), strict=True):
        right = "*" if found["label"] == row["label"] else " "
        text = " ".join(row["text"].split())[:60]
        lines.append(f" {right} {row['label']:>14} | predicted {found['label']:>14} ({found['score']:.2f}) | {text}")
    return "\n".join([*lines, ""])
