"""Rows of parquet files as documents, a batch of rows at a time; a slice is made of whole row groups.

Row groups are as large as whoever wrote the file liked, one for all rows by default; too large ones are first written
again as smaller ones (`regroup`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions, batched
from bertsmith.corpus.lines import LONGEST_LINE, Slice, decode
from bertsmith.corpus.sources.rows import no_such_field

MAGIC = b"PAR1"
# The column that names rows, where there is one.
_NAMES = "id"
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


def text_bytes(path: str, field: str) -> list[int]:
    """About how many bytes of text each row group holds, by its metadata; less where texts are the same."""
    with open_parquet(path) as file:
        found = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            columns = [group.column(place) for place in range(group.num_columns)]
            found.append(sum(each.total_uncompressed_size for each in columns if each.path_in_schema == field))
        return found


def read_parquet(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of the row groups that begin in the slice. A row group that is damaged is read up to the damage.

    Raises BertsmithError under `strict`, and where the file as a whole cannot be read.
    """
    for row, raw, name in _rows(part, options, account):
        where = f"{part.name}, row {row:,}"
        account.stream_bytes += len(raw)
        if len(raw) > LONGEST_CELL:
            what = f"cells longer than {size(LONGEST_CELL)}, cut off there"
            account.changed.note(what, 1, len(raw) - LONGEST_CELL, where)
            raw = raw[:LONGEST_CELL].decode(errors="ignore").encode()
        yield Document(f"{part.name}@{name}", decode(raw, where, 0, account, options.strict))


def regroup(part: Slice, path: Path, options: ReadOptions, account: Account, group_bytes: int) -> None:
    """Writes the texts of a file and the names of its rows into another, in row groups of about `group_bytes` of text.

    Raises BertsmithError as `read_parquet` does.
    """
    library = _library(part.path)
    import pyarrow

    kinds = {options.text_field: pyarrow.large_binary()}
    if options.text_field != _NAMES:
        kinds[_NAMES] = pyarrow.string()
    schema = pyarrow.schema(kinds.items())
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with library.ParquetWriter(path, schema, **plain) as out:
        for rows in batched(_rows(part, options, account), lambda row: len(row[1]), group_bytes):
            columns = {options.text_field: [raw for _, raw, _ in rows], _NAMES: [name for _, _, name in rows]}
            out.write_table(pyarrow.table({field: columns[field] for field in kinds}, schema), len(rows))


def _rows(part: Slice, options: ReadOptions, account: Account) -> Iterator[tuple[int, bytes, str]]:
    """(its number in the file, text, name) of each row of the row groups that begin in the slice."""
    with open_parquet(part.path) as file:
        import pyarrow

        field = options.text_field
        names = [_NAMES] if _NAMES in file.schema_arrow.names and field != _NAMES else []
        row = 0
        for group, start in enumerate(_starts(file.metadata)):
            if part.begin <= start and (part.end is None or start < part.end):
                batches = file.iter_batches(_BATCH_ROWS, [group], [field, *names], use_threads=False)
                try:
                    for number, (raw, name) in enumerate(_cells(batches, field), row):
                        yield number, raw or b"", str(number if name is None else name)
                except (pyarrow.ArrowException, OSError) as error:
                    where = f"{part.name}, row group {group} ({error})"
                    if options.strict:
                        fix = "write the file again, or leave --strict away to have what can be read"
                        raise BertsmithError("this row group cannot be read", where, fix) from error
                    account.changed.note("row groups that are damaged, read up to the damage", example=where)
            row += file.metadata.row_group(group).num_rows


def _cells(batches: Iterator[Any], field: str) -> Iterator[tuple[bytes | None, Any]]:
    """Text and name of each row, None where the row has none."""
    for batch in batches:
        texts = _as_bytes(batch.column(field))
        names = batch.column(_NAMES).to_pylist() if batch.num_columns > 1 else [None] * len(texts)
        yield from zip(texts, names, strict=True)


def _as_bytes(column: Any) -> list[bytes | None]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pyarrow.large_binary()).to_pylist()
    return values
