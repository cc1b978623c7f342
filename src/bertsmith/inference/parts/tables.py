"""Parts of arrays and of parquet tables, joined into one .npy or .parquet file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.parts.folder import copy_files
from bertsmith.inference.parts.part import Account
from bertsmith.rows.parquet import open_parquet, parquet_library

_NUMBER_BYTES = 4


def joined_array(file: BinaryIO, parts: Sequence[Path], account: Account) -> None:
    """The Join of fp32 numbers, as an .npy file of a line for each row."""
    width, rest = divmod(sum(path.stat().st_size for path in parts), _NUMBER_BYTES * account.rows)
    assert not rest, "the parts are whole"
    head: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (account.rows, width)}
    np.lib.format.write_array_header_1_0(file, head)
    copy_files(parts, file)


def table_of(rows: Sequence[Mapping[str, Any]], added: Mapping[str, NDArray[Any]], where: str) -> bytes:
    """Rows with further columns, of numbers [N] or of vectors [N, H], as a parquet file. Raises BertsmithError for
    columns that have no one type, or hold what parquet has none for, and where pyarrow is missing."""
    arrow, parquet = parquet_library(".parquet")
    out = io.BytesIO()
    try:
        names = dict.fromkeys(name for row in rows for name in row)
        table = arrow.table({name: [row.get(name) for row in rows] for name in names})
        for name, values in added.items():
            flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
            column = flat if values.ndim == 1 else arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
            table = table.append_column(name, column)
        parquet.write_table(table, out)
    except (arrow.ArrowException, OverflowError) as error:  # the latter for a whole number of more than 64 bits
        raise _mixed(error, where) from error
    return out.getvalue()


def joined_tables(file: BinaryIO, parts: Sequence[Path], account: Account) -> None:
    """The Join of parquet files: a row group for each part. A column that is empty in a part, or has whole numbers
    there alone, takes the type that it has in the others. Raises BertsmithError for a column with several types."""
    arrow, parquet = parquet_library(".parquet")
    filled = [path for path in parts if path.stat().st_size]
    try:
        schemas = []
        for path in filled:
            with open_parquet(str(path)) as part:
                schemas.append(part.schema_arrow)
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
        with parquet.ParquetWriter(file, schema) as writer:
            for path in filled:
                with open_parquet(str(path)) as part:
                    table = part.read()
                for column in schema:
                    if column.name not in table.column_names:
                        table = table.append_column(column, arrow.nulls(len(table), column.type))
                writer.write_table(table.select(schema.names).cast(schema))
    except arrow.ArrowException as error:
        raise _mixed(error, str(parts[0].parent), "; then delete this folder, whose parts cannot be joined") from error


def _mixed(error: Exception, where: str, then: str = "") -> BertsmithError:
    what = f"a column of these rows has no one type that parquet has ({str(error).splitlines()[0]})"
    return BertsmithError(what, where, f"write to a .jsonl file, or give every column one type{then}")
