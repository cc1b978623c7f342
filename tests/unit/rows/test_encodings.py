"""UTF-16 and UTF-32 by their byte order marks: the same text as in UTF-8, and what is no text placed."""

from __future__ import annotations

import codecs
import gzip
import io
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.formats import read_documents
from bertsmith.rows import encodings
from bertsmith.rows.encodings import TranscodedFile, encoding_of, unmarked_encoding
from bertsmith.tasks.reading.records import read_records

# A zero byte in 34 characters, where each line ends.
CHINESE = "中文是世界上使用人数最多的语言之一，属于汉藏语系。北京是中国的首都。\n" * 3
MARKS = {
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.mark.parametrize("encoding", sorted(MARKS))
@given(text=st.text(min_size=1), block=st.integers(1, 9))
def test_any_text_in_blocks_of_any_size(encoding: str, text: str, block: int) -> None:
    raw = MARKS[encoding] + text.encode(encoding)
    assert encoding_of(raw) == encoding or text[0] == "\0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "_BLOCK", block)
        file = TranscodedFile(io.BytesIO(raw), encoding)
        assert file.read().decode() == text
        assert (file.bad_bytes, file.first_bad) == (0, -1)


@pytest.mark.parametrize("encoding", ["utf-8", *sorted(MARKS)])
@pytest.mark.parametrize(
    "text", ["a", "text", "text,label\n", "текст,метка\nодин два три,да\n", '{"text": "é"}\n', CHINESE]
)
def test_an_encoding_without_a_mark_is_told_by_its_zero_bytes(encoding: str, text: str) -> None:
    assert unmarked_encoding(text.encode(encoding)) == ("" if encoding == "utf-8" else encoding)


@pytest.mark.parametrize("encoding", sorted(MARKS))
@pytest.mark.parametrize("text", ["text,label\n" * 50, CHINESE * 9])
@pytest.mark.parametrize("stray", ["\0", "\x1a", "\x96", "\uf0b7", "\U0001fae9"])
def test_a_stray_character_hides_no_encoding(encoding: str, text: str, stray: str) -> None:
    """As of another conversion, a private font, or a version of Unicode that is newer than Python's."""
    assert unmarked_encoding((text + stray + text).encode(encoding)) == encoding


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0",
        b"text\0more of the text,label\n",
        b"a\0\0b",
        b"text,label\nword1\0\0,a\n",
        b"records\0of even\0lengths\0" * 9,
        b"abc\0" * 9,
        "записи 1\0".encode() * 9,
        random.Random(0).randbytes(1000).replace(b"\0", b"\1") + b"\0",
    ],
)
def test_a_stray_zero_byte_is_no_encoding(text: bytes) -> None:
    assert unmarked_encoding(text) == ""


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_what_is_no_text_is_replaced_counted_and_placed(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "_BLOCK", block)
    raw = MARKS["utf-16-le"] + "ab".encode("utf-16-le") + b"\x00\xd8" + "c\U0001f600".encode("utf-16-le") + b"x"
    file = TranscodedFile(io.BytesIO(raw), "utf-16-le")
    assert file.read().decode() == "ab\ufffdc\U0001f600\ufffd"
    assert (file.bad_bytes, file.first_bad) == (3, 6)


def test_a_file_in_utf16_is_read_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bertsmith")
    path = tmp_path / "a.jsonl"
    path.write_bytes(MARKS["utf-16-be"] + '{"text": "größer"}\n{"text": "zwei"}\n'.encode("utf-16-be"))
    (file,), _ = find_files([path], ReadOptions())
    assert (file.kind, file.encoding) == ("jsonl", "utf-16-be")
    assert "source: JSON lines, field 'text', UTF-16-BE by its byte order mark (1 file" in caplog.text
    assert [document.text for document in read_documents(file.whole(), ReadOptions(), Account())] == ["größer", "zwei"]
    path.write_bytes(path.read_bytes() + b"\xd8\x00\x00\x0a")
    account = Account()
    assert len(list(read_documents(file.whole(), ReadOptions(), account))) == 2
    entry = account.changed["bytes that are not UTF-16-BE, replaced by U+FFFD"]
    assert (entry.count, entry.examples) == (2, ["a.jsonl, byte 74"])
    with pytest.raises(BertsmithError, match=r"not UTF-16-BE text[\s\S]*byte 74"):
        list(read_documents(file.whole(), ReadOptions(strict=True), Account()))


def test_the_mark_of_utf8_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"caf\xe9")
    (file,), _ = find_files([path], ReadOptions())
    account = Account()
    assert [document.text for document in read_documents(file.whole(), ReadOptions(), account)] == ["caf\ufffd"]
    assert account.changed["byte order marks of UTF-8, left out"].count == 1
    assert account.changed["bytes that are not UTF-8, replaced by U+FFFD"].examples == ["a.txt, byte 6"]


def test_the_command_that_mends_rows_without_a_mark_is_for_what_a_compressed_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "text,label\n".encode("utf-16-le")
    plain, packed = tmp_path / "a.csv", tmp_path / "b.csv.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed.read_bytes())))
    fixes = []
    for source in (plain, packed, "-"):
        with pytest.raises(BertsmithError, match="UTF-16LE without a byte order mark") as caught:
            read_records(source)
        fixes.append(caught.value.fix)
    assert fixes[0].endswith("FILE > new-FILE")
    assert fixes[1:] == [f"decompress it, and {fixes[0]}"] * 2
