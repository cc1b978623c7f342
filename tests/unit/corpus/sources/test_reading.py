"""Documents from bytes: every kind, whole or cut into slices, packed or plain, sound or damaged."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.sources import formats as kinds
from bertsmith.corpus.sources.formats import read_documents
from bertsmith.rows import compressed as codecs
from bertsmith.rows import lines
from bertsmith.rows.lines import Slice

OPTIONS = ReadOptions()
ROWS_PACKED = 15_000


def read(path: Path, kind: str, options: ReadOptions = OPTIONS, codec: str = "") -> tuple[list[Document], Account]:
    account = Account()
    return list(read_documents(Slice(str(path), path.name, kind, codec), options, account)), account


def texts(path: Path, kind: str) -> list[str]:
    return [document.text for document in read(path, kind)[0]]


def test_a_file_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\n\ntwo".encode())
    documents, account = read(path, "file")
    assert documents == [Document("a.txt", "one\n\ntwo")]
    assert account.stream_bytes == path.stat().st_size


def test_blank_lines_part_documents_and_lines_are_sentences(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\none.\ntwo.\n \nthree.\n\n")
    documents, _ = read(path, "blank-line")
    assert documents == [Document("a.txt@2", "one.\ntwo.\n", "sentence"), Document("a.txt@14", "three.\n", "sentence")]


def test_a_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\r\n")
    assert texts(path, "line") == ["one", "two"]


def test_json_lines_and_their_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "id": 7}\n{"text": 3}\n[1]\nnot json\n\n{"text": "\\ud800 two"}\n')
    documents, account = read(path, "jsonl")
    assert [document.id for document in documents] == ["a.jsonl@7", f"a.jsonl@{path.read_bytes().rindex(b'{')}"]
    assert documents[1].text == "\ufffd two"
    assert {what: entry.count for what, entry in account.dropped.items()} == {
        "rows without text in the field 'text'": 1,
        "rows that are not a JSON object": 1,
        "rows that are not JSON": 1,
    }
    assert account.documents == 3, "dropped rows count as read"
    with pytest.raises(BertsmithError, match="field 'text'"):
        read(path, "jsonl", ReadOptions(strict=True))


def test_wikiextractor_blocks(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(
        '<doc id="12" url="http://x?curid=12" title="A &amp; B">\nA & B\n\nBody one.\nLine two.\n</doc>\n'
        'stray\n<doc id="13" url="u" title=""Heroes"">\nOther first line.\n<doc id="14" url="u" title="C">\nC\n</doc>\n'
    )
    documents, account = read(path, "wikiextractor")
    assert [(document.id, document.text, document.line_breaks) for document in documents] == [
        ("wiki_00@12", "\nBody one.\nLine two.\n", "paragraph"),
        ("wiki_00@13", "Other first line.\n", "paragraph"),
        ("wiki_00@14", "", "paragraph"),
    ]
    counts = {what: entry.count for what, entry in account.changed.items()}
    assert counts == {
        "first lines that repeat the title, left out": 2,
        "lines outside <doc> blocks, left out": 1,
        "<doc> blocks without their end": 1,
    }
    assert account.changed["first lines that repeat the title, left out"].examples == ["wiki_00@12", "wiki_00@14"]


def test_the_title_of_a_block_may_hold_quotes_and_its_bytes_are_placed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    content = b'<doc id="12" url="u" title="The "Heroes" of it">\n The "Heroes" of it \nText.\n</doc>\n'
    content += b'<doc url="u" title="B">\ncaf\xe9\n</doc>\nstray \xff\n'
    content += b'<doc id="15"  data-x="1" title="C" lang=en >\nC\nLast.\n'  # as other programs may write it
    path.write_bytes(content)
    documents, account = read(path, "wikiextractor")
    begin = content.index(b"caf")
    assert [(document.id, document.text) for document in documents] == [
        ("wiki_00@12", "Text.\n"),
        (f"wiki_00@{begin}", "caf\ufffd\n"),
        ("wiki_00@15", "Last.\n"),
    ]
    assert account.changed["<doc> blocks without their end"].count == 1
    assert account.changed["bytes that are not UTF-8, replaced by U+FFFD"].examples == [f"wiki_00, byte {begin + 3}"]
    outside = account.changed["lines outside <doc> blocks, left out"]
    assert (outside.bytes, outside.examples) == (8, [f"wiki_00, byte {content.index(b'stray')}"])


def test_wikiextractor_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(json.dumps({"id": "12", "url": "u", "title": "Tree", "text": "Tree\n\nA plant."}) + "\n")
    documents, account = read(path, "wikiextractor-json")
    assert documents == [Document("wiki_00@12", "\nA plant.", "paragraph")]
    assert account.changed["first lines that repeat the title, left out"].examples == ["wiki_00@12"]


# The quickest settings; bz2's blocks are of 100 kB then, so that a file of some hundred kB has several.
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": partial(gzip.compress, compresslevel=1),
    "bz2": partial(bz2.compress, compresslevel=1),
    "xz": partial(lzma.compress, preset=0),
}


@pytest.mark.parametrize("codec", PACKED)
def test_packed_files_and_what_is_left_of_damaged_ones(tmp_path: Path, codec: str) -> None:
    rows = b"".join(b'{"text": "row %d of some text, %d"}\n' % (n, n * 7919 % 10007) for n in range(ROWS_PACKED))
    path = tmp_path / "a"
    path.write_bytes(PACKED[codec](rows))
    documents, account = read(path, "jsonl", codec=codec)
    assert len(documents) == ROWS_PACKED
    assert account.stream_bytes == len(rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert codecs.peek(path, codec, 100).startswith(b'{"text": "row 0')
    documents, account = read(path, "jsonl", codec=codec)
    assert ROWS_PACKED / 3 < len(documents) < ROWS_PACKED
    assert account.changed["compressed files that are damaged, read up to the damage"].count == 1
    with pytest.raises(BertsmithError, match="cannot be read to its end"):
        read(path, "jsonl", ReadOptions(strict=True), codec=codec)


def test_bytes_that_are_not_utf8_are_counted_and_placed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("good é \ufffd ".encode() + b"caf\xe9 and \xff, \xe2\x82")
    documents, account = read(path, "file")
    assert documents[0].text == "good é \ufffd caf\ufffd and \ufffd, \ufffd"
    entry = account.changed["bytes that are not UTF-8, replaced by U+FFFD"]
    assert (entry.count, entry.bytes, entry.examples) == (3, 4, ["a.txt, byte 15"])
    with pytest.raises(BertsmithError, match=r"not UTF-8[\s\S]*byte 15"):
        read(path, "file", ReadOptions(strict=True))


def test_lines_and_files_too_long_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 50)
    monkeypatch.setattr(kinds, "LONGEST_DOCUMENT", 30)
    path = tmp_path / "a.txt"
    path.write_text("x" * 120 + "\nshort\n")
    documents, account = read(path, "line")
    assert [document.text for document in documents] == ["x" * 50, "short"]
    cut = next(entry for what, entry in account.changed.items() if "cut off" in what)
    assert (cut.count, cut.bytes) == (1, 71)
    assert account.stream_bytes == path.stat().st_size
    path.write_text("x" * 49 + "\n" + "y" * 49 + "é and more\n" + "z" * 50)
    documents, account = read(path, "line", ReadOptions(strict=True))
    assert [document.text for document in documents] == ["x" * 49, "y" * 49, "z" * 50], "no character is cut through"
    assert [entry.count for _, entry in account.changed.items()] == [1], "the others have just the longest length"
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    documents, account = read(path, "file")
    assert "".join(document.text for document in documents) == path.read_text()
    assert [document.id for document in documents] == ["a.txt", "a.txt@35"]
    path.write_text(path.read_text() + "\nanother\n")
    documents, account = read(path, "blank-line")
    assert [document.id for document in documents] == ["a.txt@0", "a.txt@35", "a.txt@71"]
    assert account.changed["cuts of documents longer than 30 B"].examples == ["a.txt, byte 35"]


def test_a_text_too_long_for_one_document_is_cut_alike_by_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "LONGEST_DOCUMENT", 30)
    path = tmp_path / "a.txt"
    for text in ("".join(f"line {number}\n" * (number % 3) for number in range(40)), "x" * 70, "x\n" * 31, ""):
        path.write_text(text)
        whole = Slice(str(path), "a.txt", "file")
        account, documents = Account(), []
        for begin, end in itertools.pairwise(kinds.edges_of(whole, len(text), 20)):
            documents += read_documents(replace(whole, begin=begin or 0, end=end), OPTIONS, account)
        assert (documents, account) == read(path, "file")
        assert "".join(document.text for document in documents) == text
        assert len(documents) > 8 or len(text) < 100


ROWS = {
    "line": st.lists(st.sampled_from(["a b", "", "c", "longer line here"]), max_size=12).map("\n".join),
    "blank-line": st.lists(st.sampled_from(["a b", "", " ", "c", "longer line"]), max_size=14).map("\n".join),
    "jsonl": st.lists(st.sampled_from(['{"text": "a"}', "", '{"text": "b c"}', "bad"]), max_size=8).map("\n".join),
    "wikiextractor": st.lists(
        st.sampled_from(['<doc id="1" url="u" title="T">', "T", "text", "", "</doc>"]), max_size=14
    ).map("\n".join),
}


@pytest.mark.parametrize("kind", sorted(ROWS))
def test_slices_read_what_the_whole_reads(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("slices") / "a"

    @settings(max_examples=150, deadline=None)
    @given(text=ROWS[kind], cuts=st.lists(st.integers(1, 60), max_size=4))
    def check(text: str, cuts: list[int]) -> None:
        path.write_text(text)
        edges = [0, *sorted({cut for cut in cuts if cut < len(text)}), None]
        account, documents = Account(), []
        for begin, end in itertools.pairwise(edges):
            assert begin is not None
            documents += read_documents(Slice(str(path), path.name, kind, "", begin, end), OPTIONS, account)
        whole, books = read(path, kind)
        assert documents == whole
        assert account.stream_bytes == books.stream_bytes == len(text.encode())
        assert account.dropped.count == books.dropped.count

    check()
