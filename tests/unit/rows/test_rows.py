"""Every parser says of a row where it begins, in bytes and in lines, and of a bad one what is wrong."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.rows import tables
from bertsmith.rows.conll import NOT_NUMBERED, UNEVEN, conll_rows
from bertsmith.rows.json_lines import NO_OBJECT, NOT_JSON, REPEATED, json_rows
from bertsmith.rows.lines import split_at_returns
from bertsmith.rows.parquet import parquet_rows
from bertsmith.rows.row import Row
from bertsmith.rows.squad import is_squad, paragraphs, parse_json
from bertsmith.rows.tables import OPEN_QUOTE, cells_of, named_separator, table_rows


def lines(content: bytes) -> list[tuple[int, bytes]]:
    found, begin = [], 0
    for line in content.splitlines(keepends=True):
        found.append((begin, line))
        begin += len(line)
    return found


def places(content: bytes, rows: list[Row[list[str]]]) -> list[tuple[int, list[str] | None]]:
    """(line, cells) of each row, once its byte was compared with its line."""
    starts = [begin for begin, _ in lines(content)]
    assert [row.begin for row in rows] == [starts[row.line - 1] for row in rows]
    return [(row.line, row.cells) for row in rows]


def test_rows_of_a_table_know_their_lines_past_quoted_line_breaks_and_faults() -> None:
    content = b'a,b\n"two\nlines",x\n\n\xe9,y\n"behind"it,z\nlast,row\n"open\nnext,one\n'
    rows = list(table_rows(lines(content), ',"', strict=True))
    assert places(content, rows) == [
        (1, ["a", "b"]),
        (2, ["two\nlines", "x"]),
        (5, ["\udce9", "y"]),
        (6, None),
        (7, ["last", "row"]),
        (8, None),
        (9, ["next", "one"]),
    ]
    assert [row.is_utf8 for row in rows] == [True, True, False, True, True, True, True]
    assert "expected after" in rows[3].fault
    assert rows[5].fault == OPEN_QUOTE
    assert rows[5].size_bytes == len(b'"open\n')
    content = b"\na,b\n\r\nc,d\n\n\n"
    blank = list(table_rows(lines(content), ',"', blank=True))
    assert places(content, blank) == [(1, []), (2, ["a", "b"]), (3, []), (4, ["c", "d"]), (5, []), (6, [])]
    assert [row.cells for row in table_rows(lines(b'"behind"it,z\n'), ',"')] == [["behindit", "z"]], "not strict"


def test_rows_of_as_many_cells_tell_more_than_quotes_that_csv_would_not_write() -> None:
    rows = [["a", "b"], ["x\ty", "z"]]
    assert cells_of(b'a\tb\n"x\ty"\tz\n', True, ["\t", '\t"']) == ('\t"', rows)
    for choices in ([',"', ';"'], [';"', ',"']):
        assert cells_of(b"a;b,c\n1;2,3\n", True, choices)[0] == choices[0], "of equals the first"


def test_long_cells_are_read_and_rows_behind_a_row_that_is_too_long_know_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = "x" * 200_000  # more than Python's csv takes by itself
    assert [row.cells for row in table_rows(lines(f"a\n{cell}\n".encode()), ',"')] == [["a"], [cell]]
    monkeypatch.setattr(tables, "LONGEST_ROW", 20)
    content = b'a,b\n"' + b"x" * 30 + b'\nmore\nand more",y\nc,d\n'
    rows = list(table_rows(lines(content), ',"'))
    assert places(content, rows) == [(1, ["a", "b"]), (2, None), (5, ["c", "d"])]
    assert sum(row.size_bytes for row in rows) == len(content)


@pytest.mark.parametrize("first", [b"sep=;\r\n", b'"sep=;"\n', b"SEP=;\n"])
def test_a_line_that_names_the_separator_is_no_row(first: bytes) -> None:
    content = first + b"a;b\none, two;x\nsep=;\n"
    assert named_separator(content) == ";"
    rows = list(table_rows(lines(content), ';"'))
    assert places(content, rows) == [(2, ["a", "b"]), (3, ["one, two", "x"]), (4, ["sep=", ""])]
    middle_of_a_file = [(begin + 30, line) for begin, line in lines(content)]
    assert len(list(table_rows(middle_of_a_file, ';"'))) == len(rows) + 1
    assert cells_of(codecs.BOM_UTF8 + content, True, [',"', ";", ';"'])[1][0] == ["a", "b"]
    assert cells_of(first + b"text\none, two\n", True, [',"', ';"']) == (';"', [["text"], ["one, two"]])
    assert [named_separator(each) for each in (b"sep=,;\n", b"sep=\n", b"text\nsep=;\n", b"a,b\n")] == [""] * 4
    assert [row.cells for row in table_rows(lines(b"sep=;"), ';"')] == []


REPEATS = b'\n{"a": 1, "b": {"c": 1, "c": 1, "d": 1}}\n{"a": 1, "a": 2, "b": {"c": 1}}'


def test_rows_of_json_lines() -> None:
    content = b'{"a": 1}\n\n[1]\n{"a"\n{"a": "\xe9"}\n' + b"[" * 100_000 + REPEATS
    rows = list(json_rows(lines(content), strict=True))
    assert [(row.line, row.cells, row.fault, row.is_utf8) for row in rows] == [
        (1, {"a": 1}, "", True),
        (3, None, NO_OBJECT, True),
        (4, None, NOT_JSON, True),
        (5, {"a": "\ufffd"}, "", False),
        (6, None, NOT_JSON, True),
        (7, None, REPEATED, True),
        (8, None, REPEATED, True),
    ]
    assert "Expecting" in rows[2].detail
    assert [row.detail for row in rows[5:]] == ["'c'", "'a'"]
    assert list(json_rows(lines(REPEATS)))[1].cells == {"a": 2, "b": {"c": 1}}, "of a corpus the last one counts"
    assert [row.begin for row in rows[:5]] == [0, 10, 14, 19, 30]


def test_sentences_of_columns() -> None:
    content = b"-DOCSTART- O\n\nEU\xef\xbf\xbd B-ORG\nrejects O\n\n\nPeter\tB-PER\nB\xe9\tI-PER\n\na x O\nb O\n"
    first, second, third = conll_rows(lines(content))
    assert (first.line, first.begin, first.cells) == (3, 14, [["EU\ufffd", "B-ORG"], ["rejects", "O"]])
    assert first.is_utf8, "the file itself has that character"
    assert (second.line, second.cells, second.is_utf8) == (7, [["Peter", "B-PER"], ["B\ufffd", "I-PER"]], False)
    assert (third.line, third.cells, third.fault) == (10, [["a", "x", "O"], ["b", "O"]], UNEVEN)
    assert third.raw == b"a x O\nb O\n"


@pytest.mark.parametrize("first", ["", "1 Hello O O\n\n", "# a comment\n"])
def test_sentences_of_several_tokens_tell_whether_tokens_are_numbered(first: str) -> None:
    """Of GermEval's files all are, those of one token too; of CoNLL-2003's none, those of figures neither. So it is
    with other numbers than GermEval's, which begin at 1 in each sentence."""
    one = first + "1 EU B-ORG O\n2 rejects O O\n\n1 Berlin B-LOC O\n\n1 in O O\n2 an\n\n3 out O O\n"
    tokens = [[cells[0] for cells in row.cells or []] for row in conll_rows(lines(one.encode()))]
    assert tokens == [["Hello"]] * ("Hello" in first) + [["EU", "rejects"], ["Berlin"], ["1", "2"], ["out"]]
    alone = conll_rows(lines(b"1 in O O\n\n1 out O O\n"))
    assert [row.cells for row in alone] == [[["in", "O", "O"]], [["out", "O", "O"]]]
    other = first.replace("1 ", "", 1) + "EU NNP B-ORG\nrejects VB O\n\n1 CD B-X\n2 CD I-X\n\n1 CD O\n"
    tokens = [[cells[0] for cells in row.cells or []] for row in conll_rows(lines(other.encode()))]
    assert tokens == [["Hello"]] * ("Hello" in first) + [["EU", "rejects"], ["1", "2"], ["1"]]


@pytest.mark.parametrize(
    "first", ["1-2 im O O\n1 in O O\n2 dem O O\n", "1 im O O\n3 Dom O O\n", "1990 CD O\n1991 CD O\n"]
)
@pytest.mark.parametrize("numbered", [True, False])
def test_a_first_sentence_that_is_unlike_the_others_does_not_tell(first: str, numbered: bool) -> None:
    """As one with a word that is two, or that lacks a number, or of years."""
    one, two, three = ("1 ", "2 ", "3 ") if numbered else ("", "", "")
    rest = f"{one}EU NNP B-ORG\n{two}rejects VB O\n{three}it PR O\n\n{one}Berlin NNP B-LOC\n{two}is VB O\n"
    unlike, *others = conll_rows(lines(f"{first}\n{rest}".encode()))
    assert [[cells[0] for cells in row.cells or []] for row in others] == [["EU", "rejects", "it"], ["Berlin", "is"]]
    assert [row.fault for row in others] == ["", ""]
    assert unlike.fault == (NOT_NUMBERED if numbered and "1990" not in first else "")
    assert numbered or (unlike.cells or [])[0][0] == first.split()[0]


@pytest.mark.parametrize("rest", ["0 in O O\n1 Rome B-LOC O\n", "2 in O O\n3 Rome B-LOC O\n", "7 in O O\n8 Rome O O\n"])
def test_tokens_are_numbered_from_any_number(rest: str) -> None:
    found = conll_rows(lines(f"0 EU B-ORG O\n1 rejects O O\n\n{rest}".encode()))
    assert [([cells[0] for cells in row.cells or []], row.fault) for row in found] == [
        (["EU", "rejects"], ""),
        (["in", "Rome"], ""),
    ]


@pytest.mark.parametrize("rest", ["1-2 im O O\n1 in O O\n2 dem O O\n", "1 im O O\n3 Dom O O\n", "im O O\nDom O O\n"])
def test_a_sentence_that_is_not_numbered_as_others_are_is_at_fault(rest: str) -> None:
    """The number would be taken for the word. Of CoNLL-U a word that is two has a line of its own."""
    found = conll_rows(lines(f"1 EU B-ORG O\n2 rejects O O\n3 it O O\n\n{rest}".encode()))
    assert [row.fault for row in found] == ["", NOT_NUMBERED]


def test_paragraphs_of_squad_and_what_is_wrong_with_them_and_their_questions() -> None:
    question = {"id": "5a", "question": "What runs?", "answers": [{"text": "A river", "answer_start": 0}]}
    unanswered = [
        {"question": "Why?", "plausible_answers": [{}], "is_impossible": True},
        {"question": "When?", "answers": []},
        {"question": "Where?"},
    ]
    good = {"context": "A river runs here.", "qas": [question, *unanswered]}
    wrong = [{"context": 3}, {"context": "c", "qas": None}, {"context": "c", "qas": [{}, 7, unanswered[2]]}]
    value = {"data": [{"title": "Rivers", "paragraphs": [good, *wrong]}, 7]}
    assert is_squad(value)
    faults = []
    first, second = paragraphs(value, lambda *fault: faults.append(fault))
    assert (first.title, first.context) == ("Rivers", "A river runs here.")
    assert [(each.id, each.text, each.answers, each.is_impossible) for each in first.questions] == [
        ("5a", "What runs?", question["answers"], False),
        (None, "Why?", [], True),
        (None, "When?", [], True),
        (None, "Where?", None, False),
    ]
    assert [each.where for each in second.questions] == ["data[0].paragraphs[3].qas[2]"], "the others stay"
    assert faults == [
        ("data[0].paragraphs[1]", "a paragraph that is not as in SQuAD ('context' holds no text)", wrong[0]),
        ("data[0].paragraphs[2]", "a paragraph that is not as in SQuAD ('qas' holds no list)", wrong[1]),
        ("data[0].paragraphs[3].qas[0]", "a question that is not as in SQuAD ('question' holds no text)", {}),
        ("data[0].paragraphs[3].qas[1]", "a question that is not as in SQuAD ('question' holds no text)", 7),
        ("data[1]", "an article without paragraphs", 7),
    ]
    assert not any(map(is_squad, ([], {}, {"data": []}, {"data": ["x"]}, "x")))


@pytest.mark.parametrize(
    ("raw", "place", "what"),
    [
        ('{"é": 1,\n "b": }'.encode(), "x.json:2, byte 16", "not JSON (Expecting value)"),
        ('{"é": "é",\n'.encode() + b'"\xff"}', "x.json:2, byte 14", "not UTF-8"),
        (b"[" * 100_000, "x.json:1, byte 0", "not JSON"),
    ],
)
def test_broken_json_is_named_by_line_and_byte(raw: bytes, place: str, what: str) -> None:
    with pytest.raises(BertsmithError) as caught:
        parse_json(raw, "x.json")
    assert what in caught.value.what
    assert caught.value.where == place
    assert parse_json("\ufeff{}".encode(), "x.json") == json.loads("{}")
    twice = b'[{"a": {"b": 1, "b": 2}}]'
    assert parse_json(twice, "x.json") == [{"a": {"b": 2}}], "of a corpus the last one counts"
    with pytest.raises(BertsmithError, match="the key 'b' twice"):
        parse_json(twice, "x.json", strict=True)


def test_carriage_returns_end_lines_where_the_reader_takes_them() -> None:
    content = b"one\rtwo\r\nthree\n\rfour"
    found = list(split_at_returns([(0, content[:9]), (9, content[9:15]), (15, content[15:])]))
    assert found == [(0, b"one\r"), (4, b"two\r\n"), (9, b"three\n"), (15, b"\r"), (16, b"four")]
    assert list(split_at_returns([(0, b"one\r\r\n")])) == [(0, b"one\r\r\n")]


def test_a_parquet_file_without_columns_has_no_rows(tmp_path: Path) -> None:
    """As pandas writes a table that nothing was put into: a row group of no columns, whose first byte nothing says."""
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").table({}), tmp_path / "empty.parquet")
    assert list(parquet_rows(str(tmp_path / "empty.parquet"))) == []
