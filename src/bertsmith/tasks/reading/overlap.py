"""Texts that come more than once: in two parts, or in one with different labels.

Texts are compared without regard to case, white space and Unicode form, as files of an Apple computer have another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from unicodedata import normalize


class Item(NamedTuple):
    """A row. where: "file:line". key: of its texts, by `text_key`. label: as text; "" where it does not count."""

    where: str
    key: bytes
    label: str


def text_key(texts: Iterable[str | None], any_form: bool = True) -> bytes:
    """16 bytes that stand for the texts of a row in their order, None for a text that the row has not. any_form: of
    Unicode; of each alone it is another key."""
    found = hashlib.blake2b(digest_size=16)
    for text in texts:
        composed = normalize("NFC", text or "") if any_form else text or ""
        folded = " ".join(composed.split()).casefold().encode(errors="surrogatepass")
        found.update(f"{'-' if text is None else len(folded)}:".encode() + folded)
    return found.digest()


def rows_in_both(part: Sequence[Item], other: Sequence[Item]) -> list[str]:
    """The rows of a part whose texts are those of a row of the other, whatever their labels; each in words."""
    first: dict[bytes, Item] = {}
    for each in other:
        first.setdefault(each.key, each)
    return [_pair(each, first[each.key]) for each in part if each.key in first]


def _pair(one: Item, other: Item) -> str:
    both = one.label and other.label and one.label != other.label
    labels = f" (labelled {one.label}, there {other.label})" if both else ""
    return f"{one.where} is {other.where}{labels}"


def contradictions(part: Sequence[Item]) -> list[str]:
    """The texts of a part that have rows with different labels; each in words."""
    first: dict[bytes, Item] = {}
    found: dict[bytes, tuple[Item, Item]] = {}
    for each in part:
        before = first.setdefault(each.key, each)
        if each.label != before.label:
            found.setdefault(each.key, (before, each))
    return [f"{one.where} is labelled {one.label}, {other.where} {other.label}" for one, other in found.values()]
