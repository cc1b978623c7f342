"""Rows of parquet files, a batch at a time; a slice is made of whole row groups.

Row groups are as large as whoever wrote the file liked, one for all rows by default; too large ones can be written
again as smaller ones (`write_groups`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice
from bertsmith.rows.lines import Fault, Report, Slice, raise_fault, spaced

MAGIC = b"PAR1"
DAMAGED_GROUPS = "row groups that are damaged, read up to the damage"
DOUBLED = "two columns"
_BATCH_ROWS = 64
_BUFFER = 1 << 20


class DamagedError(BertsmithError):
    """A parquet file that cannot be opened."""


def parquet_library(where: str, doing: str = "writing") -> tuple[Any, Any]:
    """pyarrow, and its part for parquet. Raises BertsmithError where it is not installed. where, doing: what needs it,
    for the message."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        fix = "install it with: pip install 'bertsmith[parquet]'"
        raise BertsmithError(f"{doing} parquet files needs the package pyarrow", where, fix) from error
    return pyarrow, pyarrow.parquet


def open_parquet(path: str) -> Any:
    """The `pyarrow.parquet.ParquetFile`. Raises DamagedError, and BertsmithError where the library is missing."""
    pyarrow, parquet = parquet_library(path, "reading")
    try:
        # Bytes, since pyarrow takes no name as text that is not UTF-8.
        file = pyarrow.OSFile(os.fsencode(path))
        return parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DamagedError(f"this parquet file cannot be read ({error})", path, "copy or write it again") from error


def fields_of(path: str) -> dict[str, str]:
    """The fields of a file: "" for one that holds text, else what it holds, and DOUBLED for a name of several columns.
    Raises as `open_parquet`."""
    with open_parquet(path) as file:
        from pyarrow import types

        tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)

        def held(kind: Any) -> str:
            kind = kind.value_type if types.is_dictionary(kind) else kind
            return "" if any(test(kind) for test in tests) else str(kind)

        schema = file.schema_arrow
        return {each.name: DOUBLED if schema.names.count(each.name) > 1 else held(each.type) for each in schema}


def doubled(name: str, where: str) -> BertsmithError:
    """What is raised for several columns of one name."""
    return BertsmithError(f"two columns have one name, '{name}'", where, "give every column a name of its own")


def _starts(metadata: Any) -> list[int]:
    """The byte at which each row group begins; none without columns, as pandas writes an empty table."""
    starts = []
    for number in range(metadata.num_row_groups if metadata.num_columns else 0):
        column = metadata.row_group(number).column(0)
        pages = (column.dictionary_page_offset, column.data_page_offset)
        starts.append(min(page for page in pages if page is not None and page > 0))
    return starts


def group_edges(part: Slice, part_bytes: int) -> list[int]:
    """Bytes at which row groups begin, each at least `part_bytes` after the one before."""
    with open_parquet(part.path) as file:
        return spaced(_starts(file.metadata), part_bytes)


def text_bytes(path: str, field: str) -> list[int]:
    """About how many bytes of text each row group holds, by its metadata; less where texts are the same."""
    with open_parquet(path) as file:
        found = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            columns = [group.column(place) for place in range(group.num_columns)]
            found.append(sum(each.total_uncompressed_size for each in columns if each.path_in_schema == field))
        return found


def batches(part: Slice, fields: Sequence[str] | None, report: Report) -> Iterator[tuple[int, Any]]:
    """(number of its first row in the file, batch of rows) of the row groups that begin in the slice.

    fields: those that are read; None for all. A row group that is damaged is read up to the damage, and that reported.
    Raises as `open_parquet`.
    """
    with open_parquet(part.path) as file:
        import pyarrow

        first = 0
        for group, start in enumerate(_starts(file.metadata)):
            if part.begin <= start and (part.end is None or start < part.end):
                row, rows = first, file.metadata.row_group(group).num_rows
                try:
                    for batch in file.iter_batches(_BATCH_ROWS, [group], fields, use_threads=False):
                        yield row, batch
                        row += batch.num_rows
                except (pyarrow.ArrowException, OSError) as error:
                    lost = f"{first + rows - row:,} of {rows:,} rows lost"
                    where = f"{part.name}, row group {group}, {lost} ({str(error).splitlines()[0]})"
                    raised = BertsmithError("this row group cannot be read", where, "write the file again")
                    report(Fault(DAMAGED_GROUPS, 1, 0, where, raised))
            first += file.metadata.row_group(group).num_rows


def as_bytes(column: Any) -> list[bytes | None]:
    """The texts of a column of a batch, None where a row has none."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[bytes | None] = column.cast(pyarrow.large_binary()).to_pylist()
    return values


def parquet_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, cells) of every row of a file, the cells as JSON has them: bytes that are text become text, a map
    a list of pairs, and what JSON has no type for, such as dates, is written out, and said.

    Raises BertsmithError for a file that is damaged anywhere, for two columns of one name, and for values that Python
    has no type for.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
            raise doubled(twice, path)
        written_out = [f"{each.name} ({each.type})" for each in file.schema_arrow if _is_written_out(each.type)]
    if written_out:
        log_choice(f"read as text from {path}", ", ".join(written_out), "JSON has no such type")
    for first, batch in batches(Slice(path, path, "parquet"), None, raise_fault):
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError) as error:  # nanoseconds, or a year past 9999
            where = f"{path}, rows {first + 1} to {first + batch.num_rows}"
            what = f"a value of these rows cannot be read ({str(error).splitlines()[0]})"
            raise BertsmithError(what, where, "write its column as text") from error
        for number, row in enumerate(rows, first + 1):
            yield number, {name: _plain(value) for name, value in row.items()}


def _is_written_out(kind: Any) -> bool:
    """Whether JSON has no type for what a column of this one holds, or for a part of it."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_written_out(kind.value_type)
    if types.is_nested(kind):
        return any(_is_written_out(kind.field(place).type) for place in range(kind.num_fields))
    return bool(types.is_temporal(kind) or types.is_decimal(kind))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return str(value)


def write_groups(path: Path, texts: str, names: str, groups: Iterable[list[tuple[bytes, str]]]) -> None:
    """Writes (text, name) of rows into the columns `texts` and `names` (names are left out where both are one), each
    group of rows as a row group of its own. Texts are kept byte by byte."""
    pyarrow, parquet = parquet_library(str(path))
    kinds = {texts: pyarrow.large_binary()} | ({} if texts == names else {names: pyarrow.string()})
    schema = pyarrow.schema(kinds.items())
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with open(path, "wb") as file, parquet.ParquetWriter(file, schema, **plain) as out:
        for rows in groups:
            columns = {names: [name for _, name in rows], texts: [text for text, _ in rows]}
            out.write_table(pyarrow.table({name: columns[name] for name in kinds}, schema), len(rows))
