"""What every parser of a format gives: a row with its cells, or with what is wrong with it, and where it is."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Cells = TypeVar("Cells")


class Row(NamedTuple, Generic[Cells]):
    """A row. The caller decides what a fault means: to stop, or to count it and go on.

    begin: its first byte, in the decompressed file in UTF-8. line: the number of its first line, from 1, where the file
    was read from its beginning; of a slice, counted from the slice's beginning. raw: its bytes. size_bytes: of the row,
    with what was skipped where it is too long to be kept. cells: None where there is a fault, unless the parser says
    otherwise. fault: in words that are the same for all rows with it. detail: of this row's fault. is_utf8: False where
    bytes are not UTF-8; in JSON they are U+FFFD, in tables surrogate escapes.
    """

    begin: int
    line: int
    raw: bytes
    size_bytes: int
    cells: Cells | None
    fault: str = ""
    detail: str = ""
    is_utf8: bool = True
