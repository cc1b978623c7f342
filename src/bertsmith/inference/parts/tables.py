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


class OneSchema:
    """The columns of the parts of a parquet file that were added so far, each with one type: one that is empty in a
    part, or has whole numbers there alone, takes the type that it has in the others."""

    def __init__(self) -> None:
        self.columns: Any = None

    def add(self, path: Path) -> None:
        """Raises BertsmithError for a part with a column of another type than in those before."""
        arrow, _ = parquet_library(".parquet")
        try:
            with open_parquet(str(path)) as part:
                both = [each for each in (self.columns, part.schema_arrow) if each is not None]
        except BertsmithError:  # an empty part, or a damaged one, which is named before all are joined
            return
        try:
            self.columns = arrow.unify_schemas(both, promote_options="permissive")
        except arrow.ArrowException as error:
            raise _mixed(error, path.parent) from error


def joined_tables(file: BinaryIO, parts: Sequence[Path], account: Account) -> None:
    """The Join of parquet files: a row group for each part. Raises BertsmithError for a column with several types."""
    arrow, parquet = parquet_library(".parquet")
    filled, found = [path for path in parts if path.stat().st_size], OneSchema()
    for path in filled:
        found.add(path)
    schema = found.columns
    try:
        with parquet.ParquetWriter(file, schema) as writer:
            for path in filled:
                with open_parquet(str(path)) as part:
                    table = part.read()
                for column in schema:
                    if column.name not in table.column_names:
                        table = table.append_column(column, arrow.nulls(len(table), column.type))
                writer.write_table(table.select(schema.names).cast(schema))
    except arrow.ArrowException as error:
        raise _mixed(error, parts[0].parent) from error


def _mixed(error: Exception, where: str | Path) -> BertsmithError:
    """where: the first of some rows, or the folder of the parts."""
    then = "; then delete this folder, whose parts cannot be joined" if isinstance(where, Path) else ""
    what = f"a column of these rows has no one type that parquet has ({str(error).splitlines()[0]})"
    return BertsmithError(what, where, f"write to a .jsonl file, or give every column one type{then}")
