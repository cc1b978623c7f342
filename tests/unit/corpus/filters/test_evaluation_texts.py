"""Evaluation files are read for what is text in them, and what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.filters.evaluation_texts import evaluation_file

SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Rivers",
            "paragraphs": [
                {
                    "context": "A river runs here.",
                    "qas": [
                        {
                            "id": "5a",
                            "question": "What runs?",
                            "answers": [{"text": "A river", "answer_start": 0}],
                            "plausible_answers": [{"text": "here", "answer_start": 13}],
                        }
                    ],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("dev.conll", "EU B-ORG\nrejects O\n\nPeter B-PER\n", ["EU rejects", "Peter"]),
        ("dev.json", json.dumps(SQUAD), ["Rivers", "A river runs here.", "What runs?"]),
        ("other.json", '{"a": ["x y", {"b": "z"}], "data": [3, "w"]}', ["x y", "z", "w"]),
        ("semicolons.csv", 'id;text\n1;"two; words, here"\n', ["id", "text", "1", "two; words, here"]),
        ("mac.tsv", "id\tsentence\r1\tleft\r", ["id", "sentence", "1", "left"]),
        ("a.jsonl", '{"a": "one two", "n": 3, "b": ["x", {"c": "y z"}]}\n\n{"a": "w"}\n', ["one two", "x", "y z", "w"]),
        ("lines.json", '{"a": "one two"}\n{"a": "w"}\n', ["one two", "w"]),
        ("a.tsv", 'id\tsentence\r\n1\tHe said " and left\n', ["id", "sentence", "1", 'He said " and left']),
        ("a.csv", 'id,text\n1,"two, words\nover lines"\n', ["id", "text", "1", "two, words\nover lines"]),
        ("a.txt", "one line\nand its end\n\n \nnext\n", ["one line\nand its end", "next"]),
        ("lines.txt", "\ufeffa question?\nanother one", ["a question?", "another one"]),
        ("no_suffix", "a question?", ["a question?"]),
    ],
)
def test_the_texts_of_a_file(tmp_path: Path, name: str, content: str, texts: list[str]) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert list(evaluation_file(tmp_path / name).texts()) == texts
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    assert list(evaluation_file(tmp_path / f"{name}.gz").texts()) == texts
    (tmp_path / name).write_bytes(content.removeprefix("\ufeff").encode("utf-16"))
    assert list(evaluation_file(tmp_path / name).texts()) == texts


@pytest.mark.parametrize("name", ["dev.json", "a.csv", "a.txt"])
def test_text_of_which_only_a_mark_would_tell_the_encoding_is_refused(tmp_path: Path, name: str) -> None:
    """Of Cyrillic, whose bytes are UTF-8 too, nothing would be found."""
    content = "Мама мыла раму, а папа читал газету.".encode("utf-16-le")
    (tmp_path / name).write_bytes(content)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    fix = "save it as UTF-8, as by: iconv -f UTF-16LE -t UTF-8 FILE > new-FILE"
    for path, wanted in ((tmp_path / name, fix), (tmp_path / f"{name}.gz", f"decompress it, and {fix}")):
        with pytest.raises(BertsmithError, match="this looks like UTF-16LE without a byte order mark") as caught:
            evaluation_file(path)
        assert caught.value.fix == wanted


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.json", b'{"data": ['),
        ("squad.json", b'{"data": [{"paragraphs": [{"context": 3}]}]}'),
        ("bytes.jsonl", b'{"a": "caf\xe9"}'),
        ("a.jsonl", b"{not json}\n"),
        ("latin.txt", "é".encode("latin-1")),
        ("a.csv", b'a,"b'),
        ("cut.txt.gz", gzip.compress(b"some text that was cut off" * 99, mtime=0)[:-9]),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BertsmithError, match="cannot be read") as caught:
        list(evaluation_file(tmp_path / name).texts())
    assert name in caught.value.where


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("{}")
    with pytest.raises(BertsmithError, match="no such file") as caught:
        evaluation_file(tmp_path / "dve.json")
    assert "'dev.json'" in caught.value.fix
    with pytest.raises(BertsmithError, match="is not a file"):
        evaluation_file(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_no_evaluation_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(BertsmithError, match="a pipe or a device"):
        evaluation_file(tmp_path / "pipe.txt")
