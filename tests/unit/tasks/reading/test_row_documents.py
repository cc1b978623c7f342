"""CoNLL's columns, SQuAD's JSON and lists of objects are read as rows, whatever their names and packing."""

from __future__ import annotations

import gzip
import json

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.bad_rows import raise_at_once
from bertsmith.tasks.reading.files import Form, rows_of


def read(path):
    return list(rows_of(path, Form(), raise_at_once))


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read_all(path):
    """(rows, faults) of a file."""
    bad = []
    return list(rows_of(path, Form(), lambda error, row: bad.append((error.where, error.what, row)))), bad


CONLL = "-DOCSTART- -X- O O\n\nAnn NNP B-NP B-PER\nsleeps VBZ B-VP O\n\nRome NNP B-NP B-LOC\n"
SENTENCES = [
    {"tokens": ["Ann", "sleeps"], "tags": ["B-PER", "O"], "2": ["NNP", "VBZ"], "3": ["B-NP", "B-VP"]},
    {"tokens": ["Rome"], "tags": ["B-LOC"], "2": ["NNP"], "3": ["B-NP"]},
]


@pytest.mark.parametrize("name", ["train.conll", "train.txt", "train.annotated", "train", "train.tsv", "train.bio"])
@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_words_with_tags(tmp_path, name, suffix, pack, ends):
    path = write(tmp_path / f"{name}{suffix}", pack(CONLL.replace("\n", ends).encode()))
    assert read(path) == [(f"{path}:3", SENTENCES[0]), (f"{path}:6", SENTENCES[1])]


def test_white_space_within_a_word_parts_no_columns(tmp_path):
    path = write(tmp_path / "a.conll", "10\u00a0000  B-SUM\neuros I-SUM \n")
    assert [row for _, row in read(path)] == [{"tokens": ["10\u00a0000", "euros"], "tags": ["B-SUM", "I-SUM"]}]


def test_words_alone_have_no_tags(tmp_path):
    """They are to be predicted: as tags, the words would stand in the rows of the answers."""
    path = write(tmp_path / "new.conll", "Ann\nsleeps\n\nRome\n")
    assert [row for _, row in read(path)] == [{"tokens": ["Ann", "sleeps"]}, {"tokens": ["Rome"]}]


def test_a_sentence_that_is_not_numbered_as_others_are_is_named(tmp_path):
    path = write(tmp_path / "a.conll", "1\tAnn\tB-PER\n2\tsleeps\tO\n\n1-2\tim\tO\n1\tin\tO\n2\tdem\tO\n")
    rows, bad = read_all(path)
    assert rows == [(f"{path}:1", {"tokens": ["Ann", "sleeps"], "tags": ["B-PER", "O"]})]
    assert [each[:2] for each in bad] == [
        (f"{path}:4", "the first column numbers the words of other sentences, and not of this one")
    ]


def test_a_word_behind_a_hash_that_lacks_its_tag_is_no_comment(tmp_path):
    path = write(tmp_path / "a.conll", "# sent 1\nin O\n#Rome\nnow O\n\n# sent 2\n#Rome B-LOC\n# O\n# the end\n")
    rows, bad = read_all(path)
    assert rows == [(f"{path}:7", {"tokens": ["#Rome", "#"], "tags": ["B-LOC", "O"]})]
    assert [each[:2] for each in bad] == [(f"{path}:2", "the lines of this sentence have 1 and 2 columns")]


def test_words_with_tags_in_another_encoding(tmp_path):
    path = write(tmp_path / "train.conll", ("\ufeff" + CONLL).encode("utf-16-le"))
    assert [row for _, row in read(path)] == SENTENCES
    path = write(tmp_path / "marked.conll", ("\ufeff" + CONLL).encode())
    assert [row for _, row in read(path)] == SENTENCES


def test_a_table_of_sentences_is_no_file_of_words(tmp_path):
    path = write(tmp_path / "rows.tsv", "text\tlabel\nsome words\tO\nmore words\tO\n")
    assert read(path) == [
        (f"{path}:2", {"text": "some words", "label": "O"}),
        (f"{path}:3", {"text": "more words", "label": "O"}),
    ]
    with pytest.raises(BertsmithError, match="not a kind of file"):
        read(write(tmp_path / "notes.txt", "Just a text.\nOf two lines.\n"))


def test_sentences_that_cannot_be_read_are_named_by_line(tmp_path):
    path = write(tmp_path / "bad.conll", b"Ann B-PER\nsleeps here O\n\nM\xfcller B-PER\n\nRome B-LOC\nis O\n")
    rows, bad = read_all(path)
    assert [row["tokens"] for _, row in rows] == [["Rome", "is"]]
    assert bad == [
        (f"{path}:1", "the lines of this sentence have 2 and 3 columns", b"Ann B-PER\nsleeps here O\n"),
        (f"{path}:4", "this sentence is not UTF-8", b"M\xfcller B-PER\n"),
    ]
    with pytest.raises(BertsmithError, match="2 and 3 columns") as caught:
        read(path)
    assert "carriage return" not in caught.value.fix
    with pytest.raises(BertsmithError, match="1 and 2 columns") as caught:
        read(write(path, b"Ann B-PER\r\nslee\rps O\r\r\n"))
    assert "a carriage return ends a line too" in caught.value.fix


def squad(version):
    paragraphs = [
        {
            "context": "Ann lives in Rome.",
            "qas": [
                {"id": "1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 13}]},
                {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
            ],
        }
    ]
    return {"version": version, "data": [{"title": "Ann", "paragraphs": paragraphs}]}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_questions_of_squad(tmp_path, indent, suffix, pack):
    path = write(tmp_path / f"dev-v2.0.json{suffix}", pack(json.dumps(squad("v2.0"), indent=indent).encode()))
    shared = {"title": "Ann", "context": "Ann lives in Rome."}
    first = {"id": "1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 13}], "is_impossible": False}
    second = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    where = f"{path}, data[0].paragraphs[0]"
    assert read(path) == [(f"{where}.qas[0]", shared | first), (f"{where}.qas[1]", shared | second)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("false", [False, False]),
        ("No", [False, False]),
        (0, [False, False]),
        ("true", [True, True]),
        (None, [False, True]),
    ],
)
def test_whether_a_question_has_no_answer_may_be_written_as_text(tmp_path, said, expected):
    value = squad("v2.0")
    questions = value["data"][0]["paragraphs"][0]["qas"]
    for question in questions:
        question["is_impossible"] = said
    path = write(tmp_path / "dev.json", json.dumps(value))
    assert [row["is_impossible"] for _, row in read(path)] == expected
    del questions[0]["answers"]
    path.write_text(json.dumps(value))
    assert read(path)[0][1]["answers"] == ([] if expected[0] else None)
    questions[0]["is_impossible"] = "perhaps"
    path.write_text(json.dumps(value))
    with pytest.raises(BertsmithError, match="'is_impossible' holds 'perhaps'; give true or false"):
        read(path)


def test_paragraphs_and_questions_that_are_not_as_in_squad_are_named_and_cost_no_others(tmp_path):
    value = squad("v1.1")
    value["data"][0]["paragraphs"].append({"context": 3, "qas": []})
    value["data"][0]["paragraphs"][0]["qas"].insert(1, {"id": "3"})
    path = write(tmp_path / "dev.json", json.dumps(value))
    rows, bad = read_all(path)
    assert [row["id"] for _, row in rows] == ["1", "2"]
    where = f"{path}, data[0].paragraphs"
    assert [(where, row) for where, _, row in bad] == [
        (f"{where}[0].qas[1]", {"id": "3"}),
        (f"{where}[1]", {"context": 3, "qas": []}),
    ]
    with pytest.raises(BertsmithError, match="not as in SQuAD"):
        read(path)


OBJECTS = [{"text": "a", "label": 1}, {"text": "b", "label": 2}]


@pytest.mark.parametrize(
    ("name", "text", "first"),
    [
        ("rows.json", json.dumps(OBJECTS), ", row 1"),
        ("rows.json", json.dumps({"data": OBJECTS}, indent=2), ", row 1"),
        ("rows.json", "".join(json.dumps(each) + "\n" for each in OBJECTS), ":1"),
        ("rows.ndjson", "".join(json.dumps(each) + "\n" for each in OBJECTS), ":1"),
        ("rows.json", "\ufeff" + json.dumps(OBJECTS), ", row 1"),
    ],
)
def test_objects_of_json(tmp_path, name, text, first):
    path = write(tmp_path / name, text)
    rows = read(path)
    assert [row for _, row in rows] == OBJECTS
    assert rows[0][0] == f"{path}{first}"


def test_lists_that_stand_beside_the_rows_are_told_of(tmp_path, said):
    write(tmp_path / "rows.json", json.dumps({"schema": {}, "data": OBJECTS, "test": OBJECTS, "more": []}))
    assert [row for _, row in read(tmp_path / "rows.json")] == OBJECTS
    assert "its list 'data' (not read: 'test')" in said.text


def test_json_that_holds_no_rows(tmp_path):
    with pytest.raises(BertsmithError, match="neither SQuAD's nor a list"):
        read(write(tmp_path / "rows.json", '"text"'))
    with pytest.raises(BertsmithError, match="neither SQuAD's nor a list") as caught:
        read(write(tmp_path / "rows.json", '{"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}'))
    assert 'with pandas by to_json(..., orient="records", lines=True)' in caught.value.fix
    with pytest.raises(BertsmithError, match="not JSON") as caught:
        read(write(tmp_path / "rows.json", '[{"text":\n oops}]'))
    assert caught.value.where.startswith(f"{tmp_path / 'rows.json'}:2")
    rows, bad = read_all(write(tmp_path / "rows.json", '[{"text": "a"}, 3]'))
    assert len(rows) == 1
    assert bad == [(f"{tmp_path / 'rows.json'}, row 2", "this is not a JSON object", 3)]


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("ner/wnut17/wnut17train.conll", 3394),
        ("ner/wnut17/emerging.dev.conll", 1009),
        ("ner/wnut17/emerging.test.annotated", 1287),
        ("squad/v1.1/dev-v1.1.json", 10570),
        ("squad/v2.0/dev-v2.0.json", 11873),
    ],
)
def test_real_files_have_as_many_rows_as_published(real_data, part, count):
    rows = [row for _, row in read(real_data(part))]
    assert len(rows) == count
    if "v2.0" in part:
        assert sum(row["is_impossible"] for row in rows) == 5945
        assert all(row["is_impossible"] == (not row["answers"]) for row in rows)
