"""What kind of source a file is recognised as, and what is said of one that is not read."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources.find import SourceFile, Unread, find_files, recognise
from bertsmith.corpus.sources.formats import read_documents
from bertsmith.corpus.sources.recognise import READABLE
from bertsmith.rows.lines import Slice

OPTIONS = ReadOptions()
PLAIN = "Some text that is long enough to be a document.\n"


def kind_of(path: Path, content: bytes, options: ReadOptions = OPTIONS) -> str:
    path.write_bytes(content)
    found = recognise(path, options)
    return found.kind if isinstance(found, SourceFile) else found.reason


@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_lines_that_end_in_carriage_returns_are_refused_with_the_way_out(tmp_path: Path, documents: Any) -> None:
    path, options = tmp_path / "a.txt", ReadOptions(documents=documents)
    assert kind_of(path, b"One.\rTwo.\r") == "file", "one document needs no lines"
    with pytest.raises(BertsmithError, match="carriage returns alone") as raised:
        find_files([path], options)
    assert r"tr '\r' '\n'" in raised.value.fix
    for whole in (b"One.\r", b"One.\r\nTwo.\r\n", b"One.\rstill.\nTwo.\n"):
        assert kind_of(path, whole, options) == documents


@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_a_carriage_return_within_a_long_first_line_ends_no_line(tmp_path: Path, documents: Any) -> None:
    path, options = tmp_path / "a.txt", ReadOptions(documents=documents)
    long = b"One word after the other. " * 4000
    assert kind_of(path, long + b"Here\rand there.\nTwo.\n" + long, options) == documents
    assert kind_of(path, b"Here\rand there. " + long + b"\nTwo.\n", options) == documents
    assert "carriage returns alone" in kind_of(path, b"Here.\r" + long + b"\rTwo.\r", options)


@pytest.mark.parametrize(
    "content",
    [
        b"id,text\r\r\n1,one\r\r\n2,two\r\r\n",
        b'"id","the\rlabel",text\n1,a,one\n2,b,two\n',
        b'id,"the ""true""\rlabel",text\r\n1,a,one\r\n2,b,two\r\n',
        b'sep=\xa6\n"i\rd"\xa6text\n1\xa6one\n2\xa6two\n',
    ],
)
def test_carriage_returns_of_a_table_that_end_no_row_are_no_reason_to_refuse_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    found = recognise(tmp_path / "a.csv", OPTIONS)
    assert isinstance(found, SourceFile)
    part = Slice(found.path, found.name, found.kind, cells=found.cells)
    assert [document.text for document in read_documents(part, OPTIONS, Account())] == ["one", "two"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["rows", "rows.gz"])
def test_a_table_is_told_by_a_part_of_it_that_may_end_within_a_row(tmp_path: Path, name: str, mark: bytes) -> None:
    content = mark + b"text,id\n" + b"a text that is long enough to be cut off,17\n" * 5_000
    assert kind_of(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content) == "csv"


def test_kinds_are_told_by_content(tmp_path: Path) -> None:
    row = {"id": "1", "url": "u", "title": "T", "text": "T\n\nx"}
    assert kind_of(tmp_path / "any.name", PLAIN.encode()) == "file"
    assert kind_of(tmp_path / "a.txt", PLAIN.encode(), ReadOptions("blank-line")) == "blank-line"
    assert kind_of(tmp_path / "b.txt", b'{"text": "x"}\n') == "jsonl"
    assert kind_of(tmp_path / "wiki_00", json.dumps(row).encode()) == "wikiextractor-json"
    for before in (b"", b"\n"):
        block = before + b'<doc id="1" url="u" title="T">\nT\n</doc>\n'
        assert kind_of(tmp_path / "wiki_01", block) == "wikiextractor"
    for name, first in (("null", b"null"), ("text", b'"x"'), ("cut", b'x"}'), ("long", b'{"text": "' + b"x" * 70_000)):
        content = first + b'\n{"text": "x"}\n'
        assert kind_of(tmp_path / f"{name}.jsonl", content) == "jsonl", "what is no object is counted when it is read"
    for name in ("jsonl", "ndjson"):
        assert kind_of(tmp_path / f"line.{name}", b'{"text": "' + b"x" * 70_000) == "jsonl", "and a line too long"
    assert kind_of(tmp_path / "odd.txt", b"{curly} begins this text\n") == "file"
    assert kind_of(tmp_path / "odder.txt", b"[{braces} in brackets] begin this text\n") == "file"
    packed = recognise(_packed(tmp_path / "c.jsonl.gz", b'{"text": "x"}\n'), OPTIONS)
    assert isinstance(packed, SourceFile)
    assert (packed.kind, packed.codec) == ("jsonl", "gz")


def _packed(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


@pytest.mark.parametrize(
    "begin",
    [
        "<ann> hello",
        "<ann@b.org> wrote:",
        "<h1>A</h1><p>b</p><p>c</p>",
        "<3 </3 </3 </3",
        "<strong>A</strong> <em>b</em> <kbd>c</kbd>",
        '<p align="center">\n<a href="x"><img src="y"/></a>\n</p>\n</div></div>',
        "<ul><li>a</li><li>b</li><li>c</li></ul>",
        "<font color=red>A</font> <u>b</u> <var>c</var>",
        "<s> A sentence . </s>\n<s> <unk> and another . </s>\n<s> A third . </s>",
        "<s><unk> is a sentence . </s>\n<s> A second . </s>\n<s> A third . </s>",
        "<user>Hello.</user>\n<assistant>Good day.</assistant>\n<user>And good-bye.</user>",
        "<think>\nI wonder.</think> Yes.\n<think></think> No.\n<think>Well.</think>",
        "<ann> see </b> and </b> and </b>",
        "The archives of old are ".ljust(257, ".") + "ustar is one.",
        "The archives of old are ".ljust(257, ".") + "ustar  has two spaces.",
    ],
)
def test_text_that_begins_like_markup_is_text(tmp_path: Path, begin: str) -> None:
    (tmp_path / "a.txt").write_text(f"{begin}\nSome text.\n")
    assert not isinstance(recognise(tmp_path / "a.txt", OPTIONS), Unread)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"", "empty"),
        ("a.txt", b" \n\t", "empty"),
        ("a.txt", PLAIN.encode("utf-16-le"), "looks like UTF-16LE without a byte order mark"),
        ("a.jsonl", '{"text": "é"}\n'.encode("utf-32-be"), "looks like UTF-32BE without a byte order mark"),
        ("a.txt", b"a record\0" * 99, "text with zero bytes in it"),
        ("a.png", b"\x89PNG\x00\x00", "not text"),
        ("a.img", bytes(999), "not text"),
        ("a.bin", b"\xff\xfe" + random.Random(0).randbytes(50_000).replace(b"\0", b"\1"), "not text"),
        ("a.bin", b"\xff\xfe\0\0" + random.Random(0).randbytes(50_000).replace(b"\0", b"\1"), "not text"),
        ("a.tar.gz", gzip.compress(b"a.txt".ljust(257, b"\0") + b"ustar\0" + b"0" * 249, mtime=0), "an archive"),
        ("a.tar", b"a.txt".ljust(257, b"\0") + b"ustar  \0" + b"0" * 249, "an archive"),
        ("a.docx", b"PK\x03\x04\x14\x00\x06\x00", "office document"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "office document"),
        ("a.rtf", rb"{\rtf1\ansi A text.}", "markup"),
        ("a.pdf", b"%PDF-1.4\n1 0 obj\n", "markup"),
        ("a.gz", b"\x1f\x8b\x08\x00\x00\x00", "damaged from the beginning"),
        ("a.parquet", b"PAR1 and no more", "damaged"),
        ("a.html", b"<!DOCTYPE html>", "markup"),
        ("a.xml", b'<?xml version="1.0"?><TEI><p>Some text.</p></TEI>', "markup"),
        ("a.tei", b"<TEI xml:id='a'><text><p>Some text.</p></text></TEI>", "markup"),
        ("a.svg", b"<svg xmlns='x'\n width='9'>\n<!-- A circle. --><g></g><g></g><g></g></svg>", "markup"),
        ("a.vrt", b"<text id='1'>\n<s>\nWe\tPRON\n</s>\n<s>\nsee\tVERB\n</s>\n</text>\n", "markup"),
        ("a.sgm", b"<DOC id='A-1' type='story'>\n<TEXT>\n<P>\nSome text.\n</P>\n</TEXT>\n</DOC>\n", "markup"),
        ("a.xml", b"<article>\nSome text.<p>a</p><p>b</p><p>c</p></article>", "markup"),
        ("a.html", b"<p>Some <b>text</b>.</p><p>b</p>", "markup"),
        ("a", b"<corpus name='a>b'>\n<p>a</p><p>b</p><p>c</p></corpus>", "markup"),
        ("a.sgm", b"<DOC>\n<DOCNO>A-1</DOCNO>\n<TEXT>\nSome text.\n</TEXT>\n</DOC>\n", "markup"),
        ("a.json", b'{\n "text": "x"}', "not one object a line"),
        ("a.jsonl", b'"a text alone"\n"another text"\n', "not one object a line"),
        ("a.ndjson", b'["a", "b"]\n["c", "d"]\n', "not one object a line"),
        ("a.json", b'\n[{"text": "x"}, {"text": "y"}]', "not one object a line"),
        ("a.txt", b'[\n  {\n    "text": "x"', "not one object a line"),
        ("a.csv", b'id,text\r1,"one\nline"\r2,two\r', "carriage returns"),
        ("a.csv", b'id,"te\rxt",text\r1,2,"one\nline"\r2,3,two\r', "carriage returns"),
        ("a.csv", b'id,5",text\r1,6","one\nline"\r2,3,two\r', "carriage returns"),
        ("a.csv", b'sep=;\rid;text\r1;"one\nline"\r2;two\r', "carriage returns"),
        ("a.jsonl", b'{"text": "x"}\r{"text": "y"}\r', "carriage returns"),
    ],
)
def test_what_is_not_read_is_named_and_never_taken_for_text(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = recognise(path, OPTIONS)
    assert isinstance(found, Unread)
    assert reason in found.reason
    for named in (path, f"{tmp_path}/./{name}"):
        with pytest.raises(BertsmithError, match="cannot be read as a source") as raised:
            find_files([named], OPTIONS)
        assert raised.value.where == str(named)
    (tmp_path / "good").write_text(PLAIN)
    files, passed = find_files([tmp_path], OPTIONS)
    assert [file.name for file in files] == [f"{tmp_path.name}/good"]
    assert passed.count == 1
    (what,) = passed
    assert reason in what
    assert found.fix == READABLE or found.fix in what, "what mends it is said of a file in a folder too"


@pytest.mark.parametrize(
    ("content", "command"),
    [
        (b"a record\0" * 99, r"tr -d '\0' < FILE"),
        (PLAIN.encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8 FILE"),
        (b'[{"text": "x"},\n{"text": "y"}]', "jq -c '.[]' FILE"),
    ],
)
def test_a_command_that_mends_a_file_is_for_what_a_compressed_one_holds(
    tmp_path: Path, content: bytes, command: str
) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    found = [recognise(path, OPTIONS) for path in (plain, packed)]
    assert all(isinstance(each, Unread) for each in found)
    assert command in found[0].fix
    assert found[1].fix == f"decompress it, and {found[0].fix}"


def test_a_wrong_text_field_lists_the_fields_found(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "x", "title": "y"}\n')
    with pytest.raises(BertsmithError) as caught:
        find_files([path], OPTIONS)
    assert "'body', 'title'" in caught.value.fix
    assert "--text-field of `bertsmith prepare`, or leave the file out" in caught.value.fix, (
        "quickstart, which calls it, has no such flag"
    )
    assert find_files([path], ReadOptions(text_field="body"))[0][0].kind == "jsonl"


def test_a_single_object_among_texts_is_no_row_of_a_wrong_field(tmp_path: Path) -> None:
    """As of code or of a downloaded data set, which were refused; where most files are so, the field is wrong."""
    for name, content in {"a.md": PLAIN, "b.py": PLAIN, "package.json": '{"name": "a"}\n', "c.jsonl": "{}"}.items():
        (tmp_path / name).write_text(content)
    for value in ("x", "long " * 20_000):
        (tmp_path / "package.json").write_text(json.dumps({"name": value}) + "\n")
        files, passed = find_files([tmp_path], OPTIONS)
        assert [Path(file.path).name for file in files] == ["a.md", "b.py"]
        assert passed["files skipped: a JSON object without the field 'text'"].examples[0].endswith("package.json")
        with pytest.raises(BertsmithError, match="its rows have no field 'text'"):
            find_files([tmp_path / "package.json"], OPTIONS)
    (tmp_path / "rows.jsonl").write_text('{"name": "a"}\n{"name": "b"}\n')
    with pytest.raises(BertsmithError, match="its rows have no field 'text'") as caught:
        find_files([tmp_path], OPTIONS)
    assert caught.value.where.startswith(f"{tmp_path / 'rows.jsonl'}")
    (tmp_path / "rows.jsonl").unlink()
    (tmp_path / "texts").mkdir()
    for number in range(9):
        (tmp_path / "texts" / f"{number}.txt").write_text(PLAIN)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "0.json").write_text('{"body": "x"}')
    (tmp_path / "rows" / "1.json").write_text('{"body": "y"}')
    for sources in ("rows", "texts"), ("texts", "rows"):  # of most files of one source, whatever the other holds
        with pytest.raises(BertsmithError, match="its rows have no field 'text'"):
            find_files([tmp_path / each for each in sources], OPTIONS)
    shutil.rmtree(tmp_path / "texts")
    for number in range(2):
        (tmp_path / f"{number}.json").write_text('{"body": "x"}')
    with pytest.raises(BertsmithError, match="its rows have no field 'text'") as caught:
        find_files([tmp_path], OPTIONS)
    assert "'body'" in caught.value.fix
