"""Blank lines of tables: a row where there is one column, and else passed over and counted."""

from __future__ import annotations

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.bad_rows import pass_over
from bertsmith.tasks.reading.records import Columns, read_rows


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_blank_line_is_a_row_of_one_column_and_said_of_several(tmp_path, ending, said):
    (tmp_path / f"one.{ending}").write_text("\ntext\none\n\ntwo\r\n\r\nthree\n\n\n")
    found = list(read_rows(tmp_path / f"one.{ending}", Columns()))
    assert [(where.rsplit(":")[-1], row["text"]) for where, row in found] == [
        ("3", "one"),
        ("4", ""),
        ("5", "two"),
        ("6", ""),
        ("7", "three"),
    ]
    mark = {"csv": ",", "tsv": "\t"}[ending]
    (tmp_path / f"two.{ending}").write_text("text,n\n\none,1\n\n\ntwo,2\n\n".replace(",", mark))
    assert [row["text"] for _, row in read_rows(tmp_path / f"two.{ending}", Columns())] == ["one", "two"]
    assert f"one.{ending}: 1 blank line before or between its rows" in said.text
    assert f"two.{ending}: 3 blank lines before or between its rows" in said.text


def test_the_first_row_behind_blank_lines_must_be_readable(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"\n\nt\xe9xt,n\none,1\n")
    with pytest.raises(BertsmithError, match="UTF-8"):
        list(read_rows(tmp_path / "rows.csv", Columns(), report=pass_over))
