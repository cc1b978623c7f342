"""What a preparation reads: a document, and how it is to be read; and documents some at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Item = TypeVar("Item")

# What a line break in a text means: nothing (hard-wrapped text, where blank lines part paragraphs), the end of a
# paragraph, or the end of a sentence.
LineBreaks = Literal["wrap", "paragraph", "sentence"]
LINE_BREAKS: tuple[LineBreaks, ...] = ("wrap", "paragraph", "sentence")
DocumentRule = Literal["file", "blank-line", "line"]
# Five times what the worst page known takes at the 2 MiB that MediaWiki allows (docs/decisions/007-wikitext.md).
PAGE_SECONDS = 60.0


@dataclass(frozen=True)
class Document:
    """One text. id: the source's name and the document's own id or first byte in it."""

    id: str
    text: str
    line_breaks: LineBreaks = "wrap"


@dataclass(frozen=True)
class ReadOptions:
    """How sources become documents.

    documents: what a document is in plain text. text_field: the field of rows that holds the text. strict: what
    is damaged or not UTF-8 is an error, not counted and passed over. page_seconds: CPU time after which a page of
    wikitext is given up.
    """

    documents: DocumentRule = "file"
    text_field: str = "text"
    strict: bool = False
    page_seconds: float = PAGE_SECONDS

    def deciding(self) -> dict[str, Any]:
        """What decides about the documents where no page is given up."""
        return {name: value for name, value in vars(self).items() if name != "page_seconds"}


def batched(items: Iterable[Item], size_of: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """The items in order, in lists that end where their sizes come to more than `most` together; none is empty."""
    batch: list[Item] = []
    held = 0
    for item in items:
        batch.append(item)
        held += size_of(item)
        if held > most:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
