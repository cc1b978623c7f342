"""Rows that cannot be used are named; where the user allows it they are left out, counted and collected."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.reading.bad_rows import SkippedRows, check_list, raise_at_once
from bertsmith.tasks.reading.files import Form, rows_of
from bertsmith.tasks.reading.records import Columns, RowReader, read_records


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def collected(path, folder, most=0.5):
    """(texts that are left, lines of the file of bad rows)."""
    skipped = SkippedRows(most)
    records = read_records(path, skipped=skipped)
    skipped.write(folder / "bad.jsonl")
    lines = (folder / "bad.jsonl").read_text(encoding="utf-8").splitlines()
    return [each.text for each in records], [json.loads(line) for line in lines]


def test_bad_rows_of_a_table(tmp_path):
    rows = b'text,label\ngood,a\n,a\nfine,\ntoo,many,cells\nM\xfcller,a\nbetter,b\nwell,b\n"open,a\nbest,a\nmost,b\n'
    path = write(tmp_path / "rows.csv", rows)
    texts, bad = collected(path, tmp_path)
    assert texts == ["good", "better", "well", "best", "most"]
    assert [each["where"] for each in bad] == [f"{path}:{line}" for line in (3, 4, 5, 6, 9)]
    found = {each["where"].rsplit(":", 1)[1]: (each["why"], each["row"]) for each in bad}
    assert found["3"] == ("column 'text' is empty", {"text": "", "label": "a"})
    assert found["4"] == ("no label in column 'label'", {"text": "fine", "label": ""})
    assert found["5"] == ("this row has 3 fields and the first one has 2", "too,many,cells")
    assert found["6"] == ("this line is not UTF-8", "M\\xfcller,a")
    assert "its quote is never closed" in found["9"][0]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_line_of_names_within_the_rows_is_a_bad_row(tmp_path, mark):
    """As where files were joined by `cat`."""
    path = write(tmp_path / "rows.csv", f"{mark}text,label\ngood,a\n" + f"{mark}text,label\nbetter,b\n")
    texts, bad = collected(path, tmp_path)
    assert texts == ["good", "better"]
    assert [each["why"] for each in bad] == ["this row is the names of the columns again"]
    write(path, "text\ntext\nmore\n")
    assert [row["text"] for _, row in rows_of(path, Form(), raise_at_once)] == ["text", "more"], "it may be a text"


def test_a_line_of_names_where_there_should_be_none_is_a_bad_row(tmp_path):
    for line in ("text,label", "index,sentence"):
        path = write(tmp_path / "rows.csv", f"{line}\na,b\n")
        with pytest.raises(BertsmithError, match="this row holds names of columns, which") as caught:
            list(rows_of(path, Form(header=False), raise_at_once))
        assert "--columns.header" in caught.value.fix
    for line in ("text,good", "text"):
        path = write(tmp_path / "rows.csv", f"{line}\n")
        assert len(list(rows_of(path, Form(header=False), raise_at_once))) == 1, "it may be a text"


def test_quotes_behind_a_space_are_not_taken_for_letters(tmp_path):
    path = write(tmp_path / "rows.csv", 'text,label\n"good", "a"\n" ""so"" ",a\n" """"",a\nfine,"b"\nwell, b\n')
    texts, bad = collected(path, tmp_path)
    assert texts == [' "so" ', ' ""', "fine", "well"]
    assert [each["row"] for each in bad] == ['"good", "a"']
    assert [each["why"] for each in bad] == ["a quote behind a space quotes nothing"]
    write(tmp_path / "rows.tsv", 'text\tlabel\n "so"\ta\n')
    assert collected(tmp_path / "rows.tsv", tmp_path) == ([' "so"'], []), "which quotes nothing there"
    write(tmp_path / "rows.csv", 'text\n "so"\n')
    assert [row["text"] for _, row in rows_of(path, Form(), raise_at_once)] == [' "so"'], "it is behind no separator"


def test_quotes_of_tsv_that_look_like_those_of_csv_are_told_of(tmp_path, said):
    rows = 'text\tlabel\n"he said ""so"""\ta\n'
    path = write(tmp_path / "rows.tsv", rows)
    assert [row["text"] for _, row in rows_of(path, Form(), raise_at_once)] == ['"he said ""so"""']
    assert f"quotes in {path}: read as parts of the text" in said.text
    assert "--columns.quoted" in said.text
    for name, content, form in (
        ("a", rows, Form(quoted=True)),
        ("b", rows, Form(quoted=False)),
        ("c", 't\tl\n"so\ta\n', Form()),
    ):
        list(rows_of(write(tmp_path / f"{name}.tsv", content), form, raise_at_once))
        assert f"quotes in {tmp_path / name}.tsv" not in said.text


_BYTES = bytes(range(256)) * 8


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04" + _BYTES,
        b"\xd0\xcf\x11\xe0\xa1\xb1" + _BYTES,
        b"7z\xbc\xaf\x27\x1c" + _BYTES,
        gzip.compress(gzip.compress(b"text,label\na,b\n")),
        gzip.compress(b"rows.csv".ljust(257, b"\0") + b"ustar".ljust(255, b"\0") + b"text,label\na,b\n"),
    ],
    ids=["zip", "old office", "7z", "gzip twice", "tar.gz"],  # gzip's bytes have the time in them
)
def test_an_archive_by_the_name_of_a_table_is_not_to_be_converted(tmp_path, content):
    with pytest.raises(BertsmithError, match="this is an archive, a workbook of Excel, or compressed twice") as caught:
        read_records(write(tmp_path / "rows.csv", content))
    assert "save its table as csv" in caught.value.fix


def test_bad_rows_of_json_lines(tmp_path):
    lines = [
        '{"text": "a", "label": 1}',
        '{"text": "b"}',
        "[1]",
        "{",
        '{"text": "c", "label": 2}',
        '{"label": 1, "text": "d"}',
        '{"text": "\\ud800", "label": 1}',
        '{"text": "e", "label": 1}',
    ]
    path = write(tmp_path / "rows.jsonl", "\n".join(lines))
    texts, bad = collected(path, tmp_path)
    assert texts == ["a", "c", "d", "e"]
    found = {each["where"].rsplit(":", 1)[1]: each for each in bad}
    assert set(found) == {"2", "3", "4", "7"}
    assert found["2"]["why"] == "there is no column 'label'"
    assert found["2"]["row"] == {"text": "b"}
    assert found["4"]["row"] == "{"
    assert found["7"]["row"]["text"] == "\ud800"


def test_rows_of_python(tmp_path):
    texts, bad = collected([{"text": "a", "label": 1}, {"text": "b", "label": 2}, {"text": 3, "label": 1}], tmp_path)
    assert texts == ["a", "b"]
    assert bad == [{"where": "row 3", "why": "column 'text' holds no text", "row": {"text": 3, "label": 1}}]


def test_a_list_takes_the_place_of_nothing_but_a_list(tmp_path):
    path = tmp_path / "bad.jsonl"
    check_list(path)
    assert not path.exists()
    for bad in ([], [(BertsmithError("why", "where"), b"row")]):
        SkippedRows(1.0, bad).write(path)
        check_list(path)
    for other in ("text,label\na,b\n", '{"where": "Paris", "text": "a", "label": 1}\n'):
        path.write_text(other)
        with pytest.raises(BertsmithError, match="is no list of bad rows, and would be written over"):
            check_list(path)


def test_a_row_that_lacks_a_column_is_one_of_many(tmp_path):
    rows = [{"text": word, "label": word} for word in "abc"]
    for place in (0, 3):
        several = [*rows[:place], {"text": "d"}, *rows[place:]]
        what = rf"1 of 4 rows cannot be used:\n    row {place + 1}: there is no column 'label'"
        with pytest.raises(BertsmithError, match=what):
            read_records(several)
    optional = [{"text": "a", "text_b": "b", "n": "c"}, {"text": "d", "text_b": "e"}]
    for rows in (optional, optional[::-1]):
        found = read_records(rows, Columns(negative="n"), reader=Embed)
        assert [each.text for each in found] == [row["text"] for row in rows], "not every row needs one"
    left, bad = collected([{"text": "a", "label": 1}, *[{"text": "b"}] * 200], tmp_path, most=1.0)
    assert (left, len(bad)) == (["a"], 200), "one row with it shows that the others lack it"
    for count in (1, 3, 1000):
        with pytest.raises(BertsmithError, match="there is no column 'label'") as raised:
            read_records([{"text": "a"}] * count)
        assert raised.value.where == "row 1"
        assert "found: text" in raised.value.fix


@pytest.mark.parametrize("column", ["text", "text_b", "label"])
def test_a_column_that_is_named_is_wanted_of_every_row(column):
    rows = [{"text": "a", "other": "b", "label": "x"}, {"text": "a", "other": "b", "label": "x"}]
    columns, name = Columns(text_b="other"), "other" if column == "text_b" else column
    del rows[1][name]
    with pytest.raises(BertsmithError, match=f"row 2: there is no column '{name}'"):
        read_records(rows, columns)
    with pytest.raises(ValueError, match=f"no .*column '{name}'"):
        RowReader.record(rows[1], columns, True, "row 2")


def test_texts_for_vectors_need_no_second_text_whatever_column_a_model_learned_it_from():
    rows = [{"text": "a"}, {"text": "a", "other": "b"}]
    found = read_records(rows, Columns(text_b="other"), labelled=False, reader=Embed)
    assert [each.text_b for each in found] == [None, "b"]


def test_an_empty_text_b_is_no_second_text():
    for empty in ("", None):
        assert read_records([{"text": "a", "text_b": empty, "label": "x"}])[0].text_b is None


def test_none_gives_an_empty_file(tmp_path):
    assert collected([{"text": "a", "label": 1}], tmp_path) == (["a"], [])


@pytest.mark.parametrize(
    ("bad", "good", "most", "may"),
    [(1, 1, 0.5, True), (2, 1, 0.5, False), (2, 1, 0.7, True), (1, 99, 0.005, False), (3, 0, 1.0, False)],
)
def test_too_many_bad_rows_are_refused(tmp_path, bad, good, most, may):
    path = write(tmp_path / "rows.csv", "text,label\n" + "fine,a\n" * good + "empty,\n" * bad)
    if may:
        assert len(collected(path, tmp_path, most)[1]) == bad
        return
    with pytest.raises(BertsmithError, match=f"{bad} of {bad + good} rows cannot be used") as caught:
        collected(path, tmp_path, most)
    assert f"{path}:{good + 2}: no label in column 'label'" in caught.value.what
    assert ("--bad-share" in caught.value.fix) == (good > 0)
    assert ("flags that say how it is read" in caught.value.fix) == (good == 0), "then all rows have one fault"
    assert not (tmp_path / "bad.jsonl").exists()


@pytest.mark.parametrize(("bad", "good"), [(1, 2), (1, 1), (2, 1), (999, 1)])
def test_rows_are_left_out_as_the_message_says(tmp_path, bad, good):
    path = write(tmp_path / "rows.csv", "text,label\n" + "fine,a\n" * good + "empty,\n" * bad)
    with pytest.raises(BertsmithError, match=f"{bad} of {bad + good:,} rows cannot be used") as caught:
        read_records(path)
    assert ("with --skip-bad-rows FILE;" in caught.value.fix) == (bad <= good)
    if bad <= good:
        assert len(collected(path, tmp_path)[1]) == bad


def test_a_fault_of_all_rows_is_told_once_and_no_row_is_to_be_removed(tmp_path):
    path = write(tmp_path / "rows.csv", "text,label,kind\na,x,y\nb,x,z\nc,x,y\n")
    with pytest.raises(BertsmithError, match="3 of 3 rows cannot be used, all for the same reason") as caught:
        read_records(path, Columns(label="toxic,spam"), reader=Classify)
    assert caught.value.what.count("no column 'toxic'") == 1
    assert "flags that say how it is read" in caught.value.fix
    write(path, "text,toxic,spam\na,ja,nein\nb,nein,ja\n")
    with pytest.raises(BertsmithError, match="2 of 2 rows cannot be used, all for the same reason") as caught:
        read_records(path, Columns(label="toxic,spam"), reader=Classify)
    assert "'ja'" in caught.value.what, "what the cell of the first row holds"
    assert "flags that say how it is read" in caught.value.fix
    write(path, "text,label\n,x\nb,\n")
    with pytest.raises(BertsmithError, match="2 of 2 rows cannot be used:") as caught:
        read_records(path)
    assert "correct or remove these rows" in caught.value.fix, "which have faults of their own"
    assert "--skip-bad-rows" not in caught.value.fix, "which never leaves out all rows"
    with pytest.raises(BertsmithError, match=r"(?s)rows cannot be used:.*'text' is empty.*'text_b' is empty"):
        read_records([{"text": "", "text_b": "b"}, {"text": "a", "text_b": ""}], reader=Embed)


def test_a_wrong_column_is_not_taken_for_bad_rows(tmp_path):
    path = write(tmp_path / "rows.csv", "texts,label\na,b\nc,d\n")
    with pytest.raises(BertsmithError, match="there is no column 'text'") as caught:
        collected(path, tmp_path)
    assert "found: texts, label; name one with --columns.text" in caught.value.fix


def test_a_line_of_names_that_cannot_be_read_is_not_skipped(tmp_path):
    with pytest.raises(BertsmithError, match="not UTF-8") as caught:
        collected(write(tmp_path / "rows.csv", b"text,label,M\xfcller\na,b,c\nd,e,f\n"), tmp_path)
    assert caught.value.where.endswith("rows.csv:1")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in caught.value.fix, "as Excel writes tables"
    assert caught.value.fix.endswith("-FILE"), "with its ending, by which a table is known"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("rows.csv", ["text,label\n", "caf\xe9,a\n", "th\xe9,b\n"]),
        ("rows.jsonl", ['{"text": "caf\xe9"}\n', '{"text": "th\xe9"}\n']),
        ("rows.conll", ["caf\xe9 O\nbar B-LOC\n\n", "th\xe9 O\n\n"]),
    ],
)
def test_a_line_of_another_encoding_is_not_mended_by_spoiling_the_others(tmp_path, name, rows):
    """iconv from WINDOWS-1252 makes two letters of every one that is UTF-8 already."""
    *begin, good = (each.encode() for each in rows[:-1])
    bad = rows[-1].encode("cp1252")
    within = bad.replace(b"\xe9", b"\xe9\xc3\xa9")
    for several in ([good, bad], [bad, good], [within]):
        (tmp_path / name).write_bytes(b"".join([*begin, *several]))
        with pytest.raises(BertsmithError, match="not UTF-8") as caught:
            list(rows_of(tmp_path / name, Form(), raise_at_once))
        assert "convert this one alone" in caught.value.fix, several
        assert "iconv -f" not in caught.value.fix
    by_chance = bad.replace(b"\xe9", b"\xe9" * 101 + b" \xc9\x85")  # \xc9 and three dots, or a letter in UTF-8
    for spoiled in ("".join(rows).encode("cp1252"), b"".join([*begin, by_chance])):
        (tmp_path / name).write_bytes(spoiled)
        with pytest.raises(BertsmithError, match="iconv -f WINDOWS-1252"):
            list(rows_of(tmp_path / name, Form(), raise_at_once))


@pytest.mark.parametrize(
    ("label", "labelled", "is_told"), [("label", True, True), ("answer", True, False), ("label", False, False)]
)
def test_rows_that_an_annotator_rejected_are_counted(label, labelled, is_told, said):
    rows = [{"text": "a", "label": "x", "answer": each} for each in ("accept", "reject", "ignore")]
    assert len(read_records(rows, Columns(label=label), labelled, name="the training rows")) == 3
    told = "2 rows of the training rows with reject or ignore in column 'answer', such as row 2, used like the others"
    assert (told in said.text) is is_told


def test_an_answer_that_is_read_is_no_verdict_of_an_annotator_and_may_be_anything(said):
    rows = [{"label": "x", "answer": each} for each in ("accept", "ignore")]
    assert len(read_records(rows, Columns(text="answer"))) == 2
    assert len(read_records([{"text": "a", "label": "x", "answer": np.array([1, 2])}])) == 1
    assert "in column 'answer'" not in said.text
