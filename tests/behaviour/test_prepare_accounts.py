"""Promise: every document and byte that was read is kept or dropped for a reason; every token counted is in a shard."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.inspect import inspect
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import SPLITS, Corpus, verify
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary
from made_corpora import balanced

ARTICLES = [
    "The fox jumps over the dog. It is quick, and it is brown.\nA second paragraph follows here.",
    "Vocabulary of 1,234 words (and more). Nothing is lost!\n\nNot even the last line.",
    "tiny",
    "",
    "The fox jumps over the dog. It is quick,  and it is brown.\nA second paragraph follows here. ",
    "Another article that tells of oceans, rivers and lakes, at some length, and of [MASK] too.",
    "\u200b\u200c\u200d\u2060 " * 5 + "\u200b",
    "\u0301 " * 25,
]
OPTIONS = PrepareOptions(held_out=0.3, vocabulary_size=256, workers=1, shard_tokens=100, part_bytes=200)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_vocabulary(ARTICLES, 320)


def with_options(**changes: Any) -> PrepareOptions:
    return PrepareOptions(**{**vars(OPTIONS), **changes})


def check_books(corpus: Corpus) -> dict[str, Any]:
    """The laws that hold for any corpus; returns its counts."""
    counts = balanced(corpus)
    tokenizer = corpus.tokenizer()
    unigrams = np.zeros(tokenizer.size, np.int64)
    for split in SPLITS:
        tokens, sentences, documents = 0, 0, 0
        longest, unknown, words = 0, 0, 0
        for number in range(len(corpus.shards(split))):
            shard = corpus.open_shard(split, number)
            assert (np.diff(shard.sentence_offsets) > 0).all()
            assert (np.diff(shard.document_offsets) > 0).all()
            tokens += len(shard.tokens)
            sentences += len(shard.sentence_offsets) - 1
            documents += len(shard.document_offsets) - 1
            longest = max(longest, int(np.diff(shard.sentence_offsets[shard.document_offsets]).max(initial=0)))
            unknown += int((shard.tokens == tokenizer.special.unknown).sum())
            words += int((~tokenizer.is_continuation[shard.tokens]).sum())
            assert not np.isin(
                shard.tokens, [tokenizer.special.mask, tokenizer.special.cls, tokenizer.special.sep]
            ).any()
            if split == "train":
                unigrams += np.bincount(shard.tokens, minlength=tokenizer.size)
        account = corpus.account["splits"][split]
        assert (account["tokens"], account["sentences"], account["documents"]) == (tokens, sentences, documents)
        assert (account["longest"][0], account["unknown"], account["words"]) == (longest, unknown, words)
        assert sum(account["histogram"]) == documents
    assert np.array_equal(unigrams, corpus.unigrams())
    assert corpus.documents("train") + corpus.documents("held_out") == counts["kept"]["documents"]
    verify(corpus)
    return counts


def as_rows(fields: Callable[[int, str], dict[str, Any]]) -> bytes:
    return "".join(json.dumps(fields(n, text)) + "\n" for n, text in enumerate(ARTICLES)).encode()


JSONL = as_rows(lambda number, text: {"id": number, "text": text})
SOURCES: dict[str, bytes] = {
    "a.jsonl": JSONL,
    "a.jsonl.gz": gzip.compress(JSONL),
    "a.jsonl.bz2": bz2.compress(JSONL),
    "a.jsonl.xz": lzma.compress(JSONL),
    "wiki_00": "".join(
        f'<doc id="{n}" url="u" title="T{n}">\nT{n}\n\n{text}\n</doc>\n' for n, text in enumerate(ARTICLES)
    ).encode(),
    "wiki_json": as_rows(lambda n, text: {"id": str(n), "url": "u", "title": f"T{n}", "text": f"T{n}\n\n{text}"}),
}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_kind_of_source_gives_the_same_documents(
    name: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.corpus.stages.tokenise._COUNTED_AT_ONCE", 7)
    (tmp_path / name).write_bytes(SOURCES[name])
    corpus = prepare(tmp_path / name, tmp_path / "corpus", tokenizer=tokenizer, options=OPTIONS)
    counts = check_books(corpus)
    assert {what: each["count"] for what, each in counts["dropped"].items()} == {
        "copy of an earlier document": 1,
        "empty": 2,
        "nothing left after tokenising": 1,
        "shorter than 20 characters": 1,
    }
    assert counts["read"]["documents"] == len(ARTICLES)
    assert counts["changed"]["special tokens written in a text, read as plain text"]["count"] == 1
    assert counts["changed"]["sentences of characters that the tokenizer drops, left out"]["count"] == 1
    plain = Tokenizer.load(corpus.folder / "tokenizer")
    kept = [ARTICLES[n] for n in (0, 1, 5)]
    assert corpus.tokens("train") + corpus.tokens("held_out") == sum(map(len, plain.encode_ids(kept)))


def test_plain_text_by_its_three_rules(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(ARTICLES):
        (folder / f"{number}.txt").write_text(text)
    corpus = prepare(folder, tmp_path / "files", tokenizer=tokenizer, options=OPTIONS)
    assert check_books(corpus)["read"]["documents"] == len(ARTICLES) - 1, "the empty file is passed over"
    assert corpus.counts["changed"]["files skipped: empty or white space only"]["count"] == 1
    assert corpus.counts["source_bytes"] == sum(path.stat().st_size for path in folder.iterdir())

    lines = tmp_path / "lines.txt"
    lines.write_text("First of all the lines here.\nSecond of all the lines. Not split.\n\nThird line is alone here.\n")
    corpus = prepare(lines, tmp_path / "blank", tokenizer=tokenizer, options=with_options(documents="blank-line"))
    check_books(corpus)
    assert sum(corpus.account["splits"][split]["sentences"] for split in SPLITS) == 3
    assert corpus.counts["kept"]["documents"] == 2
    corpus = prepare(lines, tmp_path / "line", tokenizer=tokenizer, options=with_options(documents="line"))
    check_books(corpus)
    assert corpus.counts["kept"]["documents"] == 3


def test_a_document_of_the_fewest_characters_is_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = tmp_path / "lines.txt"
    source.write_text("a fox is so very new\na fox is very brown\n")
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=with_options(documents="line"))
    counts = check_books(corpus)
    assert counts["kept"] == {"documents": 1, "bytes": 20}
    assert counts["dropped"]["shorter than 20 characters"]["examples"] == ["lines.txt@21: a fox is very brown"]


def test_bad_encoding_is_counted_and_strict_refuses(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = tmp_path / "latin.txt"
    source.write_bytes("Voilà une phrase écrite en français.".encode("latin-1"))
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=OPTIONS)
    changed = check_books(corpus)["changed"]["bytes that are not UTF-8, replaced by U+FFFD"]
    assert changed["count"] == 3
    assert changed["examples"] == ["latin.txt, byte 4"]
    assert "hold 36 bytes decompressed, 0 of them around the texts" in inspect(corpus)
    with pytest.raises(BertsmithError, match=r"latin\.txt, byte 4"):
        prepare(source, tmp_path / "strict", tokenizer=tokenizer, options=with_options(strict=True))


def test_the_report_says_what_the_books_hold(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSONL)
    corpus = prepare(tmp_path / "a.jsonl", tmp_path / "corpus", tokenizer=tokenizer, options=OPTIONS)
    report = inspect(corpus)
    for needed in (
        f"{corpus.tokens('train'):,}",
        "dropped: copy of an earlier document",
        "such as a.jsonl@4: The fox jumps",
        "share of [UNK]",
        "pieces a word",
        "documents by tokens",
        "bytes a token",
    ):
        assert needed in report
    samples = report.partition("sample documents")[2]
    assert "the fox jumps over the dog ." in samples or "vocabulary of 1 , 234 words" in samples or "oceans" in samples


def test_an_example_that_has_lines_is_shown_on_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """As of code and logs, in which no sentence ends for pages."""
    (tmp_path / "a.txt").write_text("first of all\nand second\n" * 1000)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "corpus", tokenizer=tokenizer, options=OPTIONS)
    assert "sentences cut at 10,000 characters\n      such as first of all and second first" in inspect(corpus)


def test_a_vocabulary_is_trained_where_none_is_given(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSONL)
    options = with_options(vocabulary_size=300, lowercase=False, held_out=0.0)
    corpus = prepare(tmp_path / "a.jsonl", tmp_path / "corpus", options=options)
    check_books(corpus)
    tokenizer = corpus.tokenizer()
    assert (tokenizer.size, tokenizer.lowercase, tokenizer.special.pad) == (320, False, 0)
    assert corpus.account["splits"]["train"]["unknown"] == 0
    assert len(corpus.shards("held_out")) == 0


def test_words_that_the_vocabulary_does_not_count_are_in_the_books(tmp_path: Path) -> None:
    """They stand in several parts, of which each names its own."""
    rows = [{"text": f"{text} {'x' * (101 + number)}."} for number, text in enumerate(ARTICLES[:2] + ARTICLES[5:6])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = prepare(tmp_path / "a.jsonl", tmp_path / "corpus", options=with_options(held_out=0.0))
    what = "words longer than 100 characters, [UNK] to BERT, not counted for the vocabulary"
    examples = [f"{'x' * 40}... ({101 + number} characters)" for number in range(3)]
    assert check_books(corpus)["changed"][what] == {"count": 3, "bytes": 306, "examples": examples}
    assert what in inspect(corpus)
    assert corpus.account["splits"]["train"]["unknown"] == 3


def test_real_wikipedia(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    source = real_data("wiki/enwiki-2015/AA/wiki_35")
    tokenizer = real_data("vocab/bert-base-uncased/vocab.txt")
    options = PrepareOptions(workers=1, held_out=0.1, part_bytes=300_000, shard_tokens=60_000)
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options)
    counts = check_books(corpus)
    assert counts["source_bytes"] == source.stat().st_size
    assert counts["read"]["documents"] == source.read_text().count("<doc ")
    assert corpus.account["splits"]["train"]["unknown"] < 0.002 * corpus.tokens("train")
    stored = sum(path.stat().st_size for path in (corpus.folder / "train").iterdir())
    assert stored < 2.15 * corpus.tokens("train")
