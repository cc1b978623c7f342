"""Rows of parquet files as documents, a batch of rows at a time; a slice is made of whole row groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.account import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.lines import LONGEST_LINE, Slice, decode
from bertsmith.corpus.rows import no_such_field

MAGIC = b"PAR1"
_BATCH_ROWS = 64
_BUFFER = 1 << 20
LONGEST_CELL = LONGEST_LINE


class DamagedError(BertsmithError):
    """A parquet file that cannot be opened."""


def _library(path: str) -> Any:
    """The module `pyarrow.parquet`. Raises BertsmithError where it is not installed."""
    try:
        import pyarrow.parquet as library
    except ImportError as error:
        fix = "install it with: pip install 'bertsmith[parquet]'"
        raise BertsmithError("reading parquet files needs the package pyarrow", path, fix) from error
    return library


def open_parquet(path: str) -> Any:
    """The `pyarrow.parquet.ParquetFile`. Raises DamagedError, and BertsmithError where the library is missing."""
    library = _library(path)
    import pyarrow

    try:
        return library.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DamagedError(f"this parquet file cannot be read ({error})", path, "copy or write it again") from error


def check_parquet(path: str, field: str) -> None:
    """Raises DamagedError, and BertsmithError where the file has no field of that name with text in it."""
    with open_parquet(path) as file:
        from pyarrow import types

        schema = file.schema_arrow
        if field not in schema.names:
            raise no_such_field(field, schema.names, path)
        kind = schema.field(field).type
        kind = kind.value_type if types.is_dictionary(kind) else kind
        tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
        if not any(test(kind) for test in tests):
            fix = "name a field of text by --text-field"
            raise BertsmithError(f"the field '{field}' holds {kind}, not text", path, fix)


def _starts(metadata: Any) -> list[int]:
    """The byte at which each row group begins."""
    starts = []
    for number in range(metadata.num_row_groups):
        column = metadata.row_group(number).column(0)
        pages = (column.dictionary_page_offset, column.data_page_offset)
        starts.append(min(page for page in pages if page is not None and page > 0))
    return starts


def group_edges(part: Slice, part_bytes: int) -> list[int]:
    """Bytes at which row groups begin, each at least `part_bytes` after the one before."""
    edges, last = list[int](), 0
    with open_parquet(part.path) as file:
        for start in _starts(file.metadata):
            if start - last >= part_bytes:
                last = start
                edges.append(last)
    return edges


def read_parquet(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of the row groups that begin in the slice. A row group that is damaged is read up to the damage.

    Raises BertsmithError under `strict`, and where the file as a whole cannot be read.
    """
    with open_parquet(part.path) as file:
        import pyarrow

        names = ["id"] if "id" in file.schema_arrow.names and options.text_field != "id" else []
        row = 0
        for group, start in enumerate(_starts(file.metadata)):
            rows = file.metadata.row_group(group).num_rows
            if part.begin <= start and (part.end is None or start < part.end):
                batches = file.iter_batches(_BATCH_ROWS, [group], [options.text_field, *names], use_threads=False)
                try:
                    yield from _documents(batches, row, part, options, account)
                except (pyarrow.ArrowException, OSError) as error:
                    where = f"{part.name}, row group {group} ({error})"
                    if options.strict:
                        fix = "write the file again, or leave --strict away to have what can be read"
                        raise BertsmithError("this row group cannot be read", where, fix) from error
                    account.changed.note("row groups that are damaged, read up to the damage", example=where)
            row += rows


def _documents(
    batches: Iterator[Any], row: int, part: Slice, options: ReadOptions, account: Account
) -> Iterator[Document]:
    for batch in batches:
        texts = _as_bytes(batch.column(options.text_field))
        names = batch.column("id").to_pylist() if batch.num_columns > 1 else [None] * len(texts)
        for raw, name in zip(texts, names, strict=True):
            where = f"{part.name}, row {row:,}"
            raw = raw or b""
            account.stream_bytes += len(raw)
            if len(raw) > LONGEST_CELL:
                what = f"cells longer than {size(LONGEST_CELL)}, cut off there"
                account.changed.note(what, 1, len(raw) - LONGEST_CELL, where)
                raw = raw[:LONGEST_CELL].decode(errors="ignore").encode()
            text = decode(raw, where, 0, account, options.strict)
            yield Document(f"{part.name}@{row if name is None else name}", text)
            row += 1


def _as_bytes(column: Any) -> list[bytes | None]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pyarrow.large_binary()).to_pylist()
    return values
