"""Columns stand below each other, whatever their cells."""

from __future__ import annotations

from bertsmith.base.tables import aligned


def test_the_first_column_is_flush_left_and_the_others_right() -> None:
    rows = [("", "count", "share"), ("documents", "1,024", "3%"), ("x", "7", "100.0%")]
    assert aligned(rows) == ["           count   share", "documents  1,024      3%", "x              7  100.0%"]


def test_sides_and_rows_of_other_lengths() -> None:
    assert aligned([("a", "1", "text"), ("bb", "10", "longer text")], "lrl") == ["a    1  text", "bb  10  longer text"]
    assert aligned([("a", "1"), ("b",), ("c", "22", "z")], "l") == ["a  1", "b", "c  22  z"]
    assert aligned([]) == []
    assert aligned([("", "")]) == [""]
