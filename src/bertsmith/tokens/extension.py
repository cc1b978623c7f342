"""Extending a vocabulary with words of a domain, and telling whether a vocabulary is an extension of another.

A new piece is a whole word. Every old piece keeps its id, so a model of the old vocabulary needs new rows only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertsmith.base.errors import BertsmithError
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import rounded_size

UNUSED = re.compile(r"\[unused\d+\]")
# A word that occurs once trains its row next to nothing.
FEWEST = 2


@dataclass(frozen=True)
class NewWord:
    """A word for a vocabulary. count: in the sample. pieces: what the old vocabulary makes of it."""

    word: str
    count: int
    pieces: tuple[str, ...]

    @property
    def saved(self) -> int:
        """What words are ranked by: the pieces that the sample is shorter by, where a word that was [UNK] counts as if
        it had been two."""
        return self.count * max(len(self.pieces) - 1, 1)


def costly_words(tokenizer: Tokenizer, words: Mapping[str, int]) -> list[NewWord]:
    """The counted words that are no single piece, those first whose splitting costs most: count x (pieces - 1).

    words: as the tokenizer's own normaliser and pre-tokenizer give them.
    """
    known, pieces = set(tokenizer.pieces), tokenizer.pieces
    candidates = sorted(word for word, count in words.items() if count >= FEWEST and word not in known)
    encoded = tokenizer.encode_ids(candidates)
    found = [
        NewWord(word, words[word], tuple(pieces[number] for number in ids.tolist()))
        for word, ids in zip(candidates, encoded, strict=True)
        if len(ids)
    ]
    return sorted(found, key=lambda each: (-each.saved, each.word))


def extend(
    tokenizer: Tokenizer, words: Sequence[NewWord], size: int | None = None, use_unused: bool = False
) -> tuple[Tokenizer, list[NewWord]]:
    """The extended tokenizer, and the words that it took, from the first of `words` on.

    size: its rows, rounded up to a multiple of 64 (None: as many as there are); what words do not fill are further
    [unusedN]. use_unused: words take the places of [unusedN] pieces before new rows. Raises BertsmithError where there
    is no room for a word, and for a tokenizer with added tokens.
    """
    if tokenizer.has_added_tokens:
        what = "this tokenizer has tokens beside its vocabulary, whose ids would be in the way of new pieces"
        fix = "extend the vocab.txt that it was made from, in a folder without the files that name these tokens"
        raise BertsmithError(what, "the tokenizer to extend", fix)
    pieces = list(tokenizer.pieces)
    places = [number for number, piece in enumerate(pieces) if use_unused and UNUSED.fullmatch(piece)]
    rows = len(pieces) if size is None else rounded_size(size)
    room = len(places) + rows - len(pieces)
    if rows < len(pieces) or not room:
        fix = f"use more than {len(pieces):,} pieces" + ("" if use_unused else ", or use the [unusedN] ones")
        raise BertsmithError(f"a vocabulary of {rows:,} pieces has no room for a new one", "vocabulary size", fix)
    taken = list(words[:room])
    for place, new in zip(places[: len(taken)], taken[: len(places)], strict=True):
        pieces[place] = new.word
    pieces += [new.word for new in taken[len(places) :]]
    first = max((int(piece[7:-1]) for piece in pieces if UNUSED.fullmatch(piece)), default=-1) + 1
    pieces += [f"[unused{first + number}]" for number in range(rows - len(pieces))]
    return tokenizer.with_vocabulary(pieces), taken


def new_rows(old: Tokenizer, new: Tokenizer) -> dict[int, list[int]] | None:
    """What the old vocabulary made of each piece that is new, by its id; None where `new` does not extend `old`.

    A further [unusedN] was made of all old ones of its kind, or of all pieces where there were none.
    """
    if old.has_added_tokens or new.has_added_tokens or new.size < old.size:
        return None
    if old.with_vocabulary(new.pieces).sha256 != new.sha256:
        return None
    differing = [number for number, piece in enumerate(old.pieces) if new.pieces[number] != piece]
    if not all(UNUSED.fullmatch(old.pieces[number]) for number in differing):
        return None
    unused = [number for number, piece in enumerate(old.pieces) if UNUSED.fullmatch(piece)]
    numbers = [*differing, *range(old.size, new.size)]
    encoded = old.encode_ids([new.pieces[number] for number in numbers])
    rows = {}
    for number, ids in zip(numbers, encoded, strict=True):
        fresh = bool(UNUSED.fullmatch(new.pieces[number]))
        rows[number] = (unused or list(range(old.size))) if fresh else ids.tolist()
    return rows
