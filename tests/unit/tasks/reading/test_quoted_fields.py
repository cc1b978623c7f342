"""Fields of a tsv that another program has quoted, as R and pandas do, are told of: those of GLUE's never are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.tasks.reading.bad_rows import pass_over
from bertsmith.tasks.reading.files import Form, rows_of


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ('"text"\t"label"\n"a"\t"1"\n', True),
        ('\ufeff"text"\t"label"\n"a"\t"1"\n', True),
        ('text\tlabel\n"a ""b"" c"\t1\nfine\t0\n', True),
        ('"text"\t"label"\n' + f"{'a' * 400}\t1\n" * 200, True),  # whose beginning tells, cut within a line
        ('text\tlabel\n"a b" c\t1\nfine\t0\n', False),
        ("text\tlabel\nfine\t0\n", False),
    ],
    ids=["names", "marked", "doubled", "long", "text", "none"],
)
def test_fields_that_look_quoted_are_told_of_once(
    tmp_path: Path, said: pytest.LogCaptureFixture, text: str, warned: bool
) -> None:
    words = "read as parts of the text"
    for name, quoted in (("rows.tsv", None), ("rows.tsv", None), ("a.tsv", True), ("b.tsv", False), ("c.csv", None)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        list(rows_of(tmp_path / name, Form(quoted=quoted), pass_over))
    told = [each for each in said.messages if words in each]
    assert [f"quotes in {tmp_path / 'rows.tsv'}: " in each for each in told] == [True] * warned
