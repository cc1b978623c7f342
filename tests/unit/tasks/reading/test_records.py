"""Rows of files: every kind read, every bad row named by file and line."""

import bz2
import gc
import gzip
import io
import json
import lzma
import os
import re
import sys
import threading
import warnings
from dataclasses import asdict
from decimal import Decimal
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.records import Columns, read_records, read_rows


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def typed(text):
    """Standard input that gives this text."""
    return io.TextIOWrapper(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


def parts(records):
    return [(each.text, each.text_b, each.label) for each in records]


def test_csv_with_quoted_fields_that_span_lines(tmp_path):
    path = write(tmp_path / "rows.csv", 'text,label,id\n"one, two",a,1\n"three\nfour",b,2\nfive,a,3\n')
    records = read_records(path)
    assert parts(records) == [("one, two", None, "a"), ("three\nfour", None, "b"), ("five", None, "a")]
    assert [each.where for each in records] == [f"{path}:{line}" for line in (2, 3, 5)]


def test_tsv_is_not_quoted_unless_said(tmp_path):
    path = write(tmp_path / "rows.tsv", 'text\tlabel\n"Oh , he said\t1\nfine\t0\n')
    assert parts(read_records(path)) == [('"Oh , he said', None, "1"), ("fine", None, "0")]
    path = write(tmp_path / "quoted.tsv", 'text\tlabel\n"a\tb"\t1\n')
    assert parts(read_records(path, Columns(quoted=True))) == [("a\tb", None, "1")]


def test_jsonl_with_pairs_and_labels_of_any_kind(tmp_path):
    rows = [{"text": "a", "text_b": "b", "label": 1}, {"text": "c", "text_b": "d", "label": "x"}]
    path = write(tmp_path / "rows.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert parts(read_records(path)) == [("a", "b", "1"), ("c", "d", "x")]


def test_python_rows_and_bare_texts():
    assert parts(read_records([{"text": "a", "label": True}])) == [("a", None, "true")]
    assert parts(read_records(["a", "b"], labelled=False)) == [("a", None, None), ("b", None, None)]


def test_cola_has_no_header_and_other_columns(real_data):
    columns = Columns(text="4", label="2", header=False)
    records = read_records(real_data("glue/CoLA/dev.tsv"), columns)
    assert len(records) == 1043
    assert parts(records)[0] == ("The sailors rode the breeze clear of the rocks.", None, "1")


def test_mrpc_keeps_lone_quotes_and_drops_the_byte_order_mark(real_data):
    columns = Columns(text="#1 String", text_b="#2 String", label="Quality")
    records = read_records(real_data("glue/MRPC/train.tsv"), columns)
    assert len(records) == 3668
    assert sum('"' in each.text for each in records) > 100


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=8))
def test_what_json_writes_is_read_back(rows):
    lines = [json.dumps({"text": f"t{text}", "label": f"l{label}"}) for text, label in rows]
    with patch("sys.stdin", typed("\n".join(lines) + "\n")):
        assert parts(read_records("-")) == [(f"t{text}", None, f"l{label}".strip()) for text, label in rows]


def test_standard_input_may_be_csv_and_stays_open(monkeypatch):
    monkeypatch.setattr("sys.stdin", typed("text,label\nhello,a\n"))
    assert parts(read_records("-")) == [("hello", None, "a")]
    assert not sys.stdin.buffer.closed


def test_standard_input_is_utf8_whatever_the_locale_says(monkeypatch):
    latin = io.TextIOWrapper(io.BytesIO("\ufefftext,label\né,a\n".encode()), encoding="latin-1")
    monkeypatch.setattr("sys.stdin", latin)
    assert parts(read_records("-")) == [("é", None, "a")]


def test_standard_input_that_is_not_utf8_is_named_by_line(monkeypatch):
    monkeypatch.setattr("sys.stdin", typed(b"text,label\n" + b"fine,a\n" * 5000 + b"M\xfcller,b\n"))
    error = failing("-")
    assert "not UTF-8" in error.what
    assert (error.where, error.fix) == ("standard input:5002", "send rows in UTF-8")


def test_standard_input_that_is_closed_is_said(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert "closed" in failing("-").what


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("text", [b"text,label\nhello,a\nworld,b\n", b'{"text": "hello", "label": "a"}\n'])
def test_standard_input_may_be_compressed(monkeypatch, pack, text):
    monkeypatch.setattr("sys.stdin", typed(pack(text)))
    assert parts(read_records("-"))[0] == ("hello", None, "a")


def test_what_is_read_from_a_pipe_in_vain_is_named(monkeypatch):
    packed = gzip.compress(b"text,label\n" + b"".join(f"{number} {number**9},a\n".encode() for number in range(9999)))
    for content, what in (
        (packed[:-2000], "cannot be read to its end"),
        (b"PAR1\x15\x04\n", "parquet cannot be read from a pipe"),
        (b"", "no rows found"),
    ):
        monkeypatch.setattr("sys.stdin", typed(content))
        error = failing("-")
        assert what in error.what
        assert error.where == "standard input"
        assert error.fix


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", ["pipe", "rows.tsv"])
def test_a_named_pipe_is_read_as_standard_input_is(tmp_path, name, request):
    """A tab parts the cells where the name says so, and a quote is then text."""
    os.mkfifo(tmp_path / name)
    content = b'text\tlabel\n"hello\ta\n' if name == "rows.tsv" else gzip.compress(b"text,label\nhello,a\n")
    writer = threading.Thread(target=(tmp_path / name).write_bytes, args=(content,))
    writer.start()
    request.addfinalizer(gc.unfreeze)
    gc.freeze()  # what was there before is not looked through
    with warnings.catch_warnings(record=True, action="always", category=ResourceWarning) as left_open:
        assert parts(read_records(tmp_path / name)) == [('"hello' if name == "rows.tsv" else "hello", None, "a")]
        gc.collect()
    assert not left_open
    writer.join()


def failing(path, columns=None):
    with pytest.raises(BertsmithError) as caught:
        read_records(path, columns)
    return caught.value


def test_bad_rows_are_all_counted_and_the_first_are_named(tmp_path):
    rows = "text,label\n" + "good,a\n" * 3 + " ,a\n" * 6 + "fine,\n"
    error = failing(write(tmp_path / "rows.csv", rows))
    assert error.what.startswith("7 of 10 rows cannot be used")
    assert f"{tmp_path / 'rows.csv'}:5: column 'text' is empty" in error.what
    assert "and 2 more" in error.what


@pytest.mark.parametrize("column", ["text", "text_b", "label"])
def test_half_a_surrogate_pair_is_named_by_row_and_column(tmp_path, column):
    good = {"text": "a \U0001f600", "text_b": "b", "label": "c"}
    rows = [json.dumps(good), json.dumps({**good, column: "broken \ud83d"})]
    error = failing(write(tmp_path / "rows.jsonl", "\n".join(rows)))
    assert f"rows.jsonl:2: column '{column}' holds half of a surrogate pair" in error.what
    with pytest.raises(BertsmithError, match=f"row 1: column '{column}' holds half"):
        read_records([{**good, column: "\udc00"}])


@pytest.mark.parametrize(
    ("name", "text", "what", "line"),
    [
        ("rows.csv", "texts,label\na,b\n", "no column 'text'", 2),
        ("rows.csv", "text,labels\na,b\n", "no column 'label'", 2),
        ("rows.csv", "text,label\na,b\nc,d,e\n", "has 3 fields and the first one has 2", 3),
        ("rows.csv", 'text,label\n"a,b\nc,d\n', "cannot be read", 2),
        ("rows.csv", "text,text\na,b\n", "two columns have one name, 'text'", 1),
        ("rows.jsonl", '{"text": "a", "label": "b"}\n{"text"\n', "not JSON", 2),
        ("rows.jsonl", '{"text": "a", "label": "b"}\n[1]\n', "not a JSON object", 2),
        ("rows.csv", b"text,label\na,b\nM\xfcller,c\n", "not UTF-8", 3),
        ("rows.csv", b"text,label\na,b\n\xfcber,c\n", "not UTF-8", 3),
        ("rows.csv", b'text,label\na,b\n"c\n\xfcber",d\n', "not UTF-8", 4),
        ("rows.csv", b'text,label\r\na,b\r\n"c\r\nd\xfc",e\r\n', "not UTF-8", 4),
    ],
)
def test_what_cannot_be_read_is_named_by_line(tmp_path, name, text, what, line):
    path = write(tmp_path / name, text)
    error = failing(path)
    assert what in error.what
    assert error.where == f"{path}:{line}"


@pytest.mark.parametrize(
    ("columns", "what", "flag"),
    [
        (Columns(), "no column 'text'", "--columns.text, in Python Columns(text=...)"),
        (Columns("body", label="mark"), "no column 'mark'", "--columns.label"),
        (Columns("body", text_b="other"), "no column 'other'", "--columns.text-b"),
    ],
)
def test_a_wrong_column_lists_those_found_and_the_flag_that_names_one(tmp_path, columns, what, flag):
    error = failing(write(tmp_path / "rows.csv", "body,label\na,b\n"), columns)
    assert what in error.what
    assert f"found: body, label; name one with {flag}" in error.fix
    assert parts(read_records(tmp_path / "rows.csv", Columns("body"))) == [("a", None, "b")], "text_b may be missing"


def test_other_kinds_missing_files_and_empty_ones(tmp_path):
    assert "not a kind" in failing(write(tmp_path / "rows.xlsx", "")).what
    assert "does not exist" in failing(tmp_path / "none.csv").what
    assert "no row" in failing(write(tmp_path / "rows.csv", "text,label\n")).what


def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.symlink_to(path)
    error = failing(path)
    assert "cannot be read" in error.what
    assert error.where == str(path)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ([], "not an object"),
        ({"texts": "body"}, "no 'texts' among the columns; did you mean 'text'?"),
        ({"text": 3}, "text is 3"),
        ({"quoted": "yes"}, "quoted is 'yes'"),
        ({"header": None}, "header is None"),
    ],
)
def test_columns_that_json_does_not_hold_are_refused(columns, what):
    with pytest.raises(ValueError, match=re.escape(what)):
        Columns.from_json(columns)


@pytest.mark.parametrize(
    "columns", [Columns(), Columns("a", "b", "c", header=False, quoted=True), Columns(quoted=False)]
)
def test_columns_come_back_from_json(columns):
    assert Columns.from_json(json.loads(json.dumps(asdict(columns)))) == columns


def test_rows_are_read_one_by_one(tmp_path):
    path = write(tmp_path / "rows.csv", "text\na\nb,too many\n")
    rows = read_rows(path, Columns())
    assert next(rows) == (f"{path}:2", {"text": "a"})
    with pytest.raises(BertsmithError, match="2 fields"):
        next(rows)


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.jsonl", "ROWS.CSV"])
def test_compressed_files_are_read_as_plain_ones(tmp_path, name, suffix, pack):
    rows = [("one", "a"), ("two", "b")]
    if name.endswith("jsonl"):
        text = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    else:
        mark = "\t" if name.endswith("tsv") else ","
        text = "".join(mark.join(row) + "\n" for row in [("text", "label"), *rows])
    path = write(tmp_path / f"{name}{suffix.upper() if name.isupper() else suffix}", pack(text.encode()))
    assert parts(read_records(path)) == [("one", None, "a"), ("two", None, "b")]


def test_zstandard_files_are_read(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = write(tmp_path / "rows.csv.zst", zstandard.compress(b"text,label\none,a\n"))
    assert parts(read_records(path)) == [("one", None, "a")]


def test_a_compressed_file_that_is_cut_short_is_an_error_and_not_fewer_rows(tmp_path):
    rows = "text,label\n" + "".join(f"row number {n * 7919 % 10007},a\n" for n in range(20_000))
    error = failing(write(tmp_path / "rows.csv.gz", gzip.compress(rows.encode())[:-2000]))
    assert "cannot be read to its end" in error.what
    assert "rows.csv.gz, after byte" in error.where


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_the_separator_of_csv_is_found(tmp_path, mark, caplog):
    path = write(tmp_path / "rows.csv", f'text{mark}label\nHello, world{mark}a\n"quoted {mark} here"{mark}b\n')
    with caplog.at_level("INFO", "bertsmith"):
        records = read_records(path)
    assert parts(records) == [("Hello, world", None, "a"), (f"quoted {mark} here", None, "b")]
    assert [each.where for each in records] == [f"{path}:2", f"{path}:3"]
    assert f"separator of {path}: {mark!r}" in caplog.text


@pytest.mark.parametrize(("name", "mark"), [("rows.csv", ","), ("rows.csv", ";"), ("rows.tsv", ";"), ("rows.csv", "^")])
def test_a_first_line_that_names_the_separator_is_taken_at_its_word(tmp_path, name, mark, caplog):
    path = write(tmp_path / name, f"\ufeffsep={mark}\r\ntext{mark}label\r\none{mark}a\r\ntwo\r\n")
    with caplog.at_level("INFO", "bertsmith"):
        assert failing(path).where == f"{path}:4"
    assert f"separator of {path}: {mark!r} (its first line names it, and is not a row)" in caplog.text
    path = write(tmp_path / f"one-{name}", f"sep={mark}\ntext\n1. two|three\tfour\n")
    assert [row for _, row in read_rows(path, Columns())] == [{"text": "1. two|three\tfour"}]


def test_a_comma_separates_where_semicolons_are_text(tmp_path):
    path = write(tmp_path / "rows.csv", "text,label\nfirst; second,a\nthird; fourth; fifth,b\n")
    assert parts(read_records(path)) == [("first; second", None, "a"), ("third; fourth; fifth", None, "b")]


def test_one_column_with_commas_is_an_error_as_before(tmp_path):
    assert "has 2 fields and the first one has 1" in failing(write(tmp_path / "rows.csv", "text\nHello, world\n")).what
    assert "use --columns.quoted, in Python" in failing(write(tmp_path / "rows.tsv", 'a\tb\n"c\td"\te\n')).fix


def test_text_in_utf16_and_line_ends_of_old_programs(tmp_path):
    path = write(tmp_path / "rows.csv", "\ufefftext,label\né,a\n".encode("utf-16-le"))
    assert parts(read_records(path)) == [("é", None, "a")]
    path = write(tmp_path / "short.csv", "text,label\n".encode("utf-16-le"))
    error = failing(path)
    assert (error.what, error.where) == ("this looks like UTF-16LE without a byte order mark", str(path))
    assert "iconv -f UTF-16LE" in error.fix
    path = write(tmp_path / "mac.csv", "text,label\rone,a\rtwo\r")
    error = failing(path)
    assert "has 1 field" in error.what
    assert error.where == f"{path}:3"


def test_parquet_rows_are_those_of_the_same_csv(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    days = pa.array([0, 1, 2], pa.date32())
    pq.write_table(pa.table({"text": ["one", "two", None], "label": [1, 0, 1], "day": days}), path, row_group_size=1)
    where, row = next(iter(read_rows(path, Columns())))
    assert (where, row) == (f"{path}, row 1", {"text": "one", "label": 1, "day": "1970-01-01"})
    error = failing(path)
    assert "1 of 3 rows cannot be used" in error.what
    assert f"{path}, row 3: column 'text' holds no text" in error.what
    pq.write_table(pa.table({"text": ["one", "two"], "label": ["a", "b"]}), path)
    assert parts(read_records(path)) == [("one", None, "a"), ("two", None, "b")]
    error = failing(write(tmp_path / "rows.parquet.gz", gzip.compress(path.read_bytes())))
    assert "all but parquet may be compressed" in error.fix
    error = failing(write(tmp_path / "rows.csv.gz", b"text,label\na,b\n"))
    assert "the content of this file is not compressed as its name says ('.gz')" in error.what


def test_values_of_parquet_that_json_has_no_type_for_are_written_out_and_said(tmp_path, said):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "text": ["one"],
        "day": pa.array([[1]], pa.list_(pa.date32())),
        "price": pa.array([Decimal("150.00")], pa.decimal128(20, 2)),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "struct": [{"a": 1.5, "b": [b"bytes", None]}],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    ((_, row),) = read_rows(tmp_path / "rows.parquet", Columns())
    assert row == {
        "text": "one", "day": ["1970-01-02"], "price": "150.00", "map": [["k", 1]],
        "struct": {"a": 1.5, "b": ["bytes", None]},
    }  # fmt: skip
    (line,) = [each for each in said.text.splitlines() if "JSON has no such type" in each]
    assert all(name in line for name in ("day (list<", "price (decimal128(20, 2))"))
    assert not any(name in line for name in ("text (", "map (", "struct ("))
    times = pa.array([1 << 60], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["one"], "at": times}), tmp_path / "rows.parquet")
    error = failing(tmp_path / "rows.parquet")
    assert ("a value of these rows cannot be read" in error.what, bool(error.fix)) == (True, True)


def test_bytes_of_parquet_that_are_not_utf8_are_called_so(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [b"one", b"tw\xff"], "label": ["a", "b"]}), tmp_path / "rows.parquet")
    error = failing(tmp_path / "rows.parquet")
    assert "row 2: column 'text' holds bytes that are not UTF-8" in error.what


def test_standard_input_gives_each_row_as_it_comes(monkeypatch):
    class Slow(io.RawIOBase):
        """Fails when a line is wanted before the row of the line before was given."""

        def __init__(self):
            self.lines = [b"text\n", b"one\n", b"two\n"]
            self.may_read = 2

        def readline(self, size=-1):
            assert self.may_read > 0, "a row was held back"
            self.may_read -= 1
            return self.lines.pop(0) if self.lines else b""

    buffer = Slow()
    monkeypatch.setattr("sys.stdin", type("Typed", (), {"buffer": buffer})())
    rows = read_rows("-", Columns())
    assert next(rows)[1] == {"text": "one"}
    buffer.may_read = 1
    assert next(rows)[1] == {"text": "two"}
