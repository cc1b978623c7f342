"""Promise: what a user gets wrong gets one message with what, where and how to mend it, and spoils nothing."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.inspect import inspect
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.stages.tokenise import UNKNOWN_WORDS
from bertsmith.tokens.vocabulary import train_vocabulary
from made_corpora import damaged_parquet

TEXT = "A text that is long enough to be kept as a document, whatever it says. " * 5


def options(**changes: Any) -> PrepareOptions:
    return PrepareOptions(**{"workers": 1, "vocabulary_size": 256, **changes})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_missing_and_empty_sources_leave_no_folder(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    for wrong in (tmp_path / "nowhere", tmp_path / "empty.txt"):
        with pytest.raises(BertsmithError) as caught:
            prepare(wrong, tmp_path / "corpus", options=options())
        assert str(wrong) in caught.value.where
        assert caught.value.fix
        assert not (tmp_path / "corpus").exists()


def test_a_closed_standard_input_is_one_without_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BertsmithError, match="standard input is empty"):
        prepare("-", tmp_path / "corpus", options=options())
    assert not (tmp_path / "corpus").exists()


def test_a_source_of_nothing_worth_keeping(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(BertsmithError, match="no document is left of 1 read"):
        prepare(tmp_path / "short.txt", tmp_path / "corpus", options=options())
    (tmp_path / "short.txt").write_text(TEXT)
    assert prepare(tmp_path / "short.txt", tmp_path / "corpus", options=options()).documents("train") == 1


def test_a_missing_tokenizer(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="no tokenizer"):
        prepare(source, tmp_path / "corpus", tokenizer=tmp_path / "nowhere", options=options())


def test_a_folder_that_holds_something_else(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "papers"
    out.mkdir()
    (out / "thesis.txt").write_text("ten years of work")
    with pytest.raises(BertsmithError, match=r"thesis\.txt"):
        prepare(source, out, options=options())
    assert (out / "thesis.txt").read_text() == "ten years of work"
    assert [path.name for path in out.iterdir()] == ["thesis.txt"], "nothing of ours is left there"
    with pytest.raises(BertsmithError, match="a file is in the way"):
        prepare(source, source / "below_a_file", options=options())


def test_what_differs_from_a_finished_corpus_is_told_as_the_user_gave_it(source: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text(
        "A question of thirteen words or more, which no document of the source will have."
    )
    prepare(source, tmp_path / "corpus", options=options(near_duplicates=True, exclude=(tmp_path / "asked.txt",)))
    with pytest.raises(BertsmithError, match="made differently") as caught:
        prepare(source, tmp_path / "corpus", options=options(documents="line"))
    assert "files of the sources changed since, or are read in another way" in caught.value.what
    assert all(name in caught.value.what for name in ("documents: ", "near_duplicates: True", "exclude: "))
    assert "None" not in caught.value.what, "what was not given is not named as requested"
    assert "near_threshold" not in caught.value.what


def test_a_corpus_is_no_text(source: Path, tmp_path: Path) -> None:
    """Where it lies among texts, it is passed over and counted; where it is named, that is said."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text.txt").write_text(TEXT)
    prepare(source, tmp_path / "texts" / "older", options=options())
    counts = prepare(tmp_path / "texts", tmp_path / "corpus", options=options()).counts
    assert counts["read"]["documents"] == 1
    assert counts["changed"]["folders of a prepared corpus, skipped"]["examples"] == ["texts/older"]
    with pytest.raises(BertsmithError, match="holds no file to read") as caught:
        prepare(tmp_path / "corpus", tmp_path / "other", options=options())
    assert "1 folders of a prepared corpus, skipped" in caught.value.fix
    for _ in range(2):  # the second time this corpus too lies among what the glob finds
        corpus = prepare(f"{tmp_path}/texts/**/*.txt", tmp_path / "texts" / "globbed", options=options())
        assert corpus.counts["read"]["documents"] == 1
        assert corpus.counts["changed"]["files and folders in a prepared corpus, skipped"]["examples"] == ["vocab.txt"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"held_out": 1.0},
        {"held_out": -0.1},
        {"min_characters": 0},
        {"part_bytes": 99},
        {"vocabulary_size": 100},
        {"vocabulary_size": 10_000_000},
        {"workers": 0},
        {"shard_tokens": 0},
        {"documents": "page"},
        {"engine": "cloud"},
        {"language": "English"},
        {"language": "pt-BR"},
        {"language": ""},
    ],
)
def test_options_out_of_range_are_named(source: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BertsmithError, match=next(iter(wrong))):
        prepare(source, tmp_path / "corpus", options=options(**wrong))


def test_options_without_effect_are_warned_about(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(out: str, tokenizer: Path | None = None, **changes: Any) -> list[str]:
        caplog.clear()
        prepare(source, tmp_path / out, tokenizer=tokenizer, options=options(held_out=0.0, **changes))
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        return [message.removeprefix("warning: ") for message in warnings]

    assert warned("a") == [] == warned("a", lowercase=True)
    assert warned("b", near_threshold=0.5, exclude_action="report") == [
        "near_threshold 0.5 has no effect: it needs near_duplicates",
        "exclude_action report has no effect: it needs exclude",
    ]
    tokenizer = tmp_path / "a" / "tokenizer"
    assert warned("c", tokenizer, vocabulary_size=30_522) == []
    why = "a tokenizer is given, so no vocabulary is trained"
    assert warned("d", tokenizer, vocabulary_size=30_522, lowercase=False) == [f"lowercase False has no effect: {why}"]
    assert warned("e", documents="line") == []
    assert warned("f", text_field="body", page_seconds=5.0) == [
        "text_field body has no effect: no source has fields",
        "page_seconds 5.0 has no effect: no source is a dump",
    ]
    source.write_text(json.dumps({"body": TEXT}) + "\n")
    assert warned("g", text_field="body", documents="line") == ["documents line has no effect: no source is plain text"]


def test_a_compressed_file_that_is_cut_short_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [json.dumps({"text": f"{number} {TEXT}"}) for number in range(200)]
    packed = gzip.compress("\n".join(lines).encode())
    (tmp_path / "rows.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    corpus = prepare(tmp_path / "rows.jsonl.gz", tmp_path / "corpus", options=options())
    assert 0 < corpus.documents("train") < 200
    what = "compressed files that are damaged, read up to the damage: 1 (rows.jsonl.gz"
    (said,) = [record.message for record in caplog.records if what in record.message]
    assert said.endswith("copy them again")


def test_rows_lost_with_a_damaged_row_group_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.parquet"
    texts = [f"A text with the number {number}, and with {number * number} as well." for number in range(400)]
    damaged_parquet(path, texts)
    corpus = prepare(path, tmp_path / "corpus", options=options())
    assert corpus.counts["kept"]["documents"] == 300
    what = "row groups that are damaged, read up to the damage: 1 (rows.parquet, row group 1, 100 of 100 rows lost ("
    assert what in caplog.text


def test_where_no_row_is_right_the_first_wrong_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n" + '1, "Quotes, behind a space"\n' * 9)
    with pytest.raises(
        BertsmithError, match=r"rows with another number of cells .*: 9; such as a.csv, byte 8"
    ) as raised:
        prepare(tmp_path / "a.csv", tmp_path / "corpus", options=options())
    assert raised.value.fix == "correct what is counted there, or give a source with more text in it"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_two_columns_named_as_the_text_are_refused(tmp_path: Path, name: str) -> None:
    """The first was taken, and nothing said."""
    separator = "\t" if name == "a.tsv" else ","
    rows = [["text", "id", "text"], *([f"Text {number}", "7", f"{number} is text"] for number in range(9))]
    (tmp_path / name).write_text("".join(f"{separator.join(row)}\n" for row in rows))
    with pytest.raises(BertsmithError, match="two columns have one name, 'text'"):
        prepare(tmp_path / name, tmp_path / "corpus", options=options())


@pytest.mark.parametrize("joined", [True, False], ids=["no spaces", "spaces"])
def test_text_without_spaces_that_becomes_unknown_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, joined: bool
) -> None:
    """By [UNK] alone it looked harmless: each stood for thousands of characters."""
    thai = "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน"
    lines = [TEXT, ("" if joined else " ").join([thai] * 100), "中文是世界上使用人数最多的语言" * 50, TEXT[::-1]]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    corpus = prepare(tmp_path / "a.txt", tmp_path / "corpus", options=options(documents="line", vocabulary_size=512))
    assert UNKNOWN_WORDS == "words longer than 100 characters, of which each is one [UNK]"
    assert (UNKNOWN_WORDS in caplog.text) == joined
    assert (UNKNOWN_WORDS in corpus.counts["changed"]) == joined
    if joined:
        assert corpus.counts["changed"][UNKNOWN_WORDS]["bytes"] == 100 * len(thai.encode())
        assert corpus.counts["changed"][UNKNOWN_WORDS]["examples"][0].startswith("a.txt@")


@pytest.mark.parametrize(
    "sentence",
    ["ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน", "한국어는띄어쓰기를하는언어입니다", "にほんごをかなだけでかいたぶんしょう"],
    ids=["Thai", "Korean", "kana"],
)
def test_the_share_of_text_that_is_lost_is_of_the_kept_text_as_it_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sentence: str
) -> None:
    """The normaliser takes Korean apart and drops marks of Thai; that made 222% and 83% of a text all lost."""
    whole, copies = f"{sentence * 20}\n", 9
    (tmp_path / "a.txt").write_text(whole * copies + "Spaces between words, as in this text." * 9)
    tokenizer = train_vocabulary([*sentence, sentence, TEXT], 512)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "corpus", tokenizer=tokenizer, options=options(documents="line"))
    assert corpus.counts["dropped"]["copy of an earlier document"]["count"] == copies - 1
    (said,) = [record.message for record in caplog.records if UNKNOWN_WORDS in record.message]
    lost = len(whole.strip().encode())
    assert said.startswith(f"warning: {lost / corpus.counts['kept']['bytes']:.0%} of the text are")
    assert corpus.counts["changed"][UNKNOWN_WORDS]["bytes"] == lost
    assert "lacks letters" not in caplog.text, "the vocabulary has them all"


@pytest.mark.parametrize(("language", "known"), [("en", True), ("de", True), ("xx", False), ("eng", False)])
def test_a_language_without_rules_is_warned_about(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, language: str, known: bool
) -> None:
    prepare(source, tmp_path / "corpus", options=options(held_out=0.0, language=language))
    assert caplog.text.count(f"no rules for language '{language}', so English ones are used") == (not known)


def test_letters_lost_to_another_encoding_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "Schöne größere Straßen, “breite” … " * 3
    (tmp_path / "old.txt").write_bytes(text.encode("cp1252"))
    prepare(tmp_path / "old.txt", tmp_path / "corpus", options=options())
    assert "21 bytes not UTF-8 and lost (old.txt, byte 3)" in caplog.text
    (encoding,) = re.findall(r"iconv -f (\S+) -t UTF-8", caplog.text)
    assert "but none that is UTF-8 elsewhere, which would spoil it" in caplog.text, "its letters would become two each"
    assert (tmp_path / "old.txt").read_text(encoding=encoding) == text, "the quotes of Windows are not lost either"


def test_more_held_out_than_trained_on_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"A text of its own with the number {number}." for number in range(50)]
    (tmp_path / "a.txt").write_text("\n".join([*texts, "Book 6 is longer still, " * 500]))
    corpus = prepare(tmp_path / "a.txt", tmp_path / "corpus", options=options(documents="line", held_out=0.3))
    assert corpus.tokens("held_out") > corpus.tokens("train")
    assert "more text is held out than left to train on" in caplog.text


def test_too_few_held_out_documents_are_warned_about(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = prepare(source, tmp_path / "corpus", options=options())
    documents = corpus.documents("train") + corpus.documents("held_out")
    assert f"too few documents are held out to evaluate on (0 of {documents})" in caplog.text
    assert ("--documents blank-line or line" in caplog.text) == (documents < 20)
    caplog.clear()
    whole = tmp_path / "whole.txt"
    whole.write_text("\n\n".join(f"A text of its own with the number {number}." for number in range(50)))
    prepare(whole, tmp_path / "one", options=options())
    assert "too few documents are held out to evaluate on (0 of 1)" in caplog.text
    assert "--documents blank-line or line" in caplog.text
    caplog.clear()
    prepare(whole, tmp_path / "lines", options=options(documents="line", held_out=0.001))
    assert "too few documents are held out to evaluate on (0 of 50)" in caplog.text
    assert "--documents" not in caplog.text


@pytest.mark.parametrize("rule", ["file", "line"])
def test_a_split_that_leaves_nothing_to_train_on_says_so(
    rule: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n".join(f"A text of its own with the number {number}." for number in range(20)))
    wanted = options(documents=rule, held_out=1 - 1e-9)
    what, fix = f"all documents ({1 if rule == 'file' else 20}) are held out", "a lower --held-out"
    with pytest.raises(BertsmithError, match=re.escape(what)) as raised:
        prepare(text, tmp_path / "untrained", options=wanted)
    corpus = prepare(text, tmp_path / "corpus", tokenizer=train_vocabulary([TEXT], 256), options=wanted)
    assert "the longest document is" not in inspect(corpus)
    for said in (raised.value.fix, caplog.text):
        assert fix in said
        assert ("--documents blank-line or line" in said) == (rule == "file")
    assert f"warning: {what}, and none is left to train on" in caplog.text
    assert "a larger --held-out" not in caplog.text
