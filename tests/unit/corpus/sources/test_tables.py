"""csv and tsv: dialects, rows, slices, and tables that are broken."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.formats import edges_of, read_documents
from bertsmith.rows import tables
from bertsmith.rows.lines import Slice

OPTIONS = ReadOptions()
ROWS = [
    ["7", 'He said "yes", then left.\r\nA second line; here.', "a"],
    ["8", "größer, and\ttabs", "b"],
    ["9", '"', ""],
]


def as_csv(rows: list[list[str]], **dialect: Any) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file, **dialect).writerows([["id", "text", "label"], *rows])
    return file.getvalue().encode()


def read(part: Slice, options: ReadOptions = OPTIONS) -> tuple[list[Document], Account]:
    account = Account()
    return list(read_documents(part, options, account)), account


def found(path: Path, content: bytes, options: ReadOptions = OPTIONS) -> Slice:
    path.write_bytes(content)
    return find_files([path], options)[0][0].whole()


@pytest.mark.parametrize(
    ("name", "dialect", "cells"),
    [
        ("a.csv", {}, ',"'),
        ("a", {}, ',"'),
        ("a.txt", {"delimiter": ";"}, ';"'),
        ("a.csv", {"delimiter": "|"}, '|"'),
        ("a.tsv", {"delimiter": "\t"}, '\t"'),
        ("a.csv", {"lineterminator": "\n"}, ',"'),
    ],
)
def test_dialects_are_told_by_content(tmp_path: Path, name: str, dialect: dict[str, str], cells: str) -> None:
    part = found(tmp_path / name, as_csv(ROWS, **dialect))
    assert (part.kind, part.cells) == ("csv", cells)
    documents, account = read(part)
    assert documents == [Document(f"{name}@{row[0]}", row[1]) for row in ROWS]
    assert account.stream_bytes == (tmp_path / name).stat().st_size
    assert not account.dropped


@pytest.mark.parametrize("mark", [",", ";"])
def test_a_first_line_that_names_the_separator_is_no_row(
    tmp_path: Path, mark: str, said: pytest.LogCaptureFixture
) -> None:
    content = f"sep={mark}\r\n".encode() + as_csv(ROWS, delimiter=mark)
    part = found(tmp_path / "a.csv", content)
    assert part.cells == f'{mark}"'
    assert read(part)[0] == [Document(f"a.csv@{row[0]}", row[1]) for row in ROWS]
    assert f"separator of {tmp_path / 'a.csv'}: {mark!r}" in said.text
    edges = edges_of(part, len(content), 20)
    slices = [replace(part, begin=begin or 0, end=end) for begin, end in itertools.pairwise(edges)]
    assert len(slices) > 2
    assert [each for one in slices for each in read(one)[0]] == read(part)[0]


@pytest.mark.parametrize("text", ['A lone " is text', '"Begun, and', '"Yes."', 'say ""x""', '""'])
def test_quotes_between_tabs_are_text(tmp_path: Path, text: str) -> None:
    part = found(tmp_path / "a.tsv", f"text\tlabel\n{text}\t1\nplain\t0\n".encode())
    assert (part.kind, part.cells) == ("tsv", "\t")
    assert [document.text for document in read(part)[0]] == [text, "plain"]


def test_prose_and_lists_are_no_tables(tmp_path: Path) -> None:
    for content in (b"the text, as it stands\nis short, and no table\n", b"text\nno\nsecond\ncell\n", b"text,label\n"):
        assert found(tmp_path / "a.txt", content).kind == "file"
    assert found(tmp_path / "a.csv", b"text\nno\nsecond\ncell\n").kind == "csv"
    assert found(tmp_path / "a.txt", as_csv(ROWS)).kind == "csv"
    assert found(tmp_path / "a.txt", as_csv(ROWS), ReadOptions("line")).kind == "line", "the user said what it is"


def test_a_wrong_field_lists_those_there_and_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError) as caught:
        found(tmp_path / "a.csv", as_csv(ROWS), ReadOptions(text_field="texts"))
    assert caught.value.fix.startswith("fields found: 'id', 'text', 'label'; did you mean 'text'?")


def test_rows_that_do_not_fit_are_dropped_and_placed(tmp_path: Path) -> None:
    content = b"id,text\n1,one\n2,two,more\n\n3\n4,caf\xe9\n5,\n6,a\rb\n"
    documents, account = read(found(tmp_path / "a.csv", content))
    assert [document.text for document in documents] == ["one", "caf\ufffd", ""]
    entry = account.dropped["rows with another number of cells than the header"]
    assert (entry.count, entry.bytes, entry.examples) == (2, 13, ["a.csv, byte 14", "a.csv, byte 26"])
    entry = account.dropped["rows with a carriage return in a cell that is not quoted"]
    assert (entry.count, entry.bytes, entry.examples) == (1, 6, ["a.csv, byte 38"])
    assert account.documents == 3, "dropped rows count as read; the others where they are cleaned"
    assert account.changed["bytes that are not UTF-8, replaced by U+FFFD"].examples == ["a.csv, byte 33"]
    with pytest.raises(BertsmithError, match="another number of cells"):
        read(found(tmp_path / "a.csv", content), ReadOptions(strict=True))


def test_a_quote_that_is_never_closed_costs_its_line(tmp_path: Path) -> None:
    rows = b"".join(b"%d,row of text\n" % n for n in range(10))
    documents, account = read(found(tmp_path / "a.csv", b'id,text\n0,"fine, too"\n11,"open\n' + rows))
    assert [document.text for document in documents] == ["fine, too", *["row of text"] * 10]
    assert account.dropped["rows with a quote that is never closed"].examples == ["a.csv, byte 22"]


@pytest.mark.parametrize("cell", ["one_line " * 30, "many\nlines\n" * 30])
def test_rows_too_long_are_dropped_whole(tmp_path: Path, cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LONGEST_ROW", 100)
    monkeypatch.setattr("bertsmith.rows.lines.LONGEST_LINE", 100)
    rows = [["1", "before", ""], ["2", cell + ' "x"', "y"], ["3", "after", ""]]
    content = as_csv(rows)
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    documents, account = read(Slice(str(path), "a.csv", "csv", cells=',"'))
    assert [document.text for document in documents] == ["before", "after"]
    entry = account.dropped["rows longer than 100 B"]
    assert (entry.count, entry.bytes) == (1, len(as_csv(rows[1:2])) - len(as_csv([])))
    assert account.stream_bytes == len(content)


WRITTEN = st.lists(
    st.lists(st.text(st.sampled_from('ab ",;\n\r\té'), max_size=8), min_size=3, max_size=3), max_size=8
).map(as_csv)
# Rows by no rule at all, under a sound header.
RAW = st.text(st.sampled_from('ab,"\n\r'), max_size=60).map(lambda text: b"id,text\n" + text.encode())


@pytest.mark.parametrize("content", [WRITTEN, RAW], ids=["written", "raw"])
def test_slices_of_a_table_read_what_the_whole_reads(
    content: st.SearchStrategy[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("slices") / "a.csv"

    @settings(max_examples=200, deadline=None)
    @given(content=content, part_bytes=st.integers(1, 40))
    def check(content: bytes, part_bytes: int) -> None:
        path.write_bytes(content)
        whole = Slice(str(path), "a.csv", "csv", cells=',"')
        edges = edges_of(whole, len(content), part_bytes)
        account, documents = Account(), []
        for begin, end in itertools.pairwise(edges):
            documents += read_documents(replace(whole, begin=begin or 0, end=end), OPTIONS, account)
        assert (documents, account) == read(whole)
        assert account.stream_bytes == len(content)

    check()


def test_any_table_that_csv_writes_is_read_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("back") / "a.csv"

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6))
    def check(texts: list[str]) -> None:
        path.write_bytes(as_csv([["x", text, ""] for text in texts]))
        documents, account = read(Slice(str(path), "a.csv", "csv", cells=',"'))
        assert [document.text for document in documents] == texts
        assert not account.dropped

    check()


def test_glue_rows_are_all_read(real_data: Callable[[str], Path]) -> None:
    for name, field in (("SST-2/dev.tsv", "sentence"), ("QNLI/dev.tsv", "sentence"), ("MRPC/train.tsv", "#1 String")):
        path = real_data(f"glue/{name}")
        documents, account = read(
            find_files([path], ReadOptions(text_field=field))[0][0].whole(), ReadOptions(text_field=field)
        )
        assert len(documents) == len(path.read_bytes().splitlines()) - 1
        assert not account.dropped
