"""Vocabularies trained, extended and kept: old ids stay, new words are the costly ones, reports are of the text."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from bertsmith.base.errors import BertsmithError
from bertsmith.base.tally import Tally
from bertsmith.cli import main
from bertsmith.corpus import text_sample
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.text_sample import sample_text
from bertsmith.corpus.vocabularies import VocabularyOptions, make_vocabulary
from bertsmith.corpus.vocabulary_report import measure
from bertsmith.tokens.extension import costly_words, extend, new_rows
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import count_stretches, count_words, share_without_rows, train_vocabulary

GENERAL = ["the quick brown fox jumps over the lazy dog, again and again. " * 4]
MEDICAL = ["the carcinoma of the dog was benign; a carcinoma, again. " * 6, "thrombosis, thrombosis and the fox. " * 3]


@cache
def old() -> Tokenizer:
    return train_vocabulary(GENERAL, 256)


def words(texts: list[str] = MEDICAL) -> dict[str, int]:
    return count_words(texts, lowercase=True, left_out=Tally())


def test_the_words_that_cost_most_come_first() -> None:
    found = costly_words(old(), words())
    assert found[0].word == "carcinoma"
    assert found[0].count == 12
    assert "".join(piece.removeprefix("##") for piece in found[0].pieces) == "carcinoma"
    assert all(a.saved >= b.saved for a, b in itertools.pairwise(found))
    assert not {each.word for each in found} & set(old().pieces)
    once = costly_words(old(), {"carcinoma": 1, "москва": 2})
    assert [(each.word, each.pieces, each.saved) for each in once] == [("москва", ("[UNK]",), 2)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.booleans(), st.sets(st.text("abcxyz", min_size=4, max_size=9), max_size=30))
def test_every_old_piece_keeps_its_id(more: int, use_unused: bool, fresh: set[str]) -> None:
    found = costly_words(old(), dict.fromkeys(fresh, 2) | words())
    tokenizer, taken = extend(old(), found, old().size + more, use_unused)
    unused = sum(piece.startswith("[unused") for piece in old().pieces)
    changed = [number for number, piece in enumerate(old().pieces) if tokenizer.pieces[number] != piece]
    assert tokenizer.size == -(-(old().size + more) // 64) * 64
    assert all(old().pieces[number].startswith("[unused") for number in changed)
    assert len(changed) == (min(len(taken), unused) if use_unused else 0)
    assert taken == found[: tokenizer.size - old().size + (unused if use_unused else 0)]
    assert tokenizer.special.mask == old().special.mask
    for new in taken:
        ids = tokenizer.encode_ids([new.word])[0].tolist()
        assert ids == [tokenizer.pieces.index(new.word)]
    rows = new_rows(old(), tokenizer)
    assert rows is not None
    assert sorted(rows) == [*changed, *range(old().size, tokenizer.size)]
    for new in taken:
        assert [old().pieces[part] for part in rows[tokenizer.pieces.index(new.word)]] == list(new.pieces)
    free = [number for number in range(old().size, tokenizer.size) if tokenizer.pieces[number].startswith("[unused")]
    assert {tuple(old().pieces[part][:7] for part in rows[number]) for number in free} <= {("[unused",) * unused}


@pytest.mark.parametrize("extending", [False, True])
def test_words_too_long_for_bert_are_counted_and_said(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, extending: bool
) -> None:
    with (source / "text.txt").open("a") as file:
        file.write("\n" + f"The {'ab' * 60}, {'c' * 100}! " * 3)
    old().save(tmp_path / "old")
    chosen = {"extend": tmp_path / "old", "size": 320} if extending else {"size": 300}
    with caplog.at_level("INFO", "bertsmith"):
        make_vocabulary([source], tmp_path / "out", VocabularyOptions(documents="line", workers=1, **chosen))
    assert (
        f"words longer than 100 characters, [UNK] to BERT, not counted for the vocabulary: 3; such as {'ab' * 20}... "
        "(120 characters)"
    ) in caplog.text


def test_another_vocabulary_treats_text_as_before() -> None:
    state = json.loads(old().plain_json)
    state["model"]["max_input_chars_per_word"] = 30
    state["normalizer"] |= {"clean_text": False, "strip_accents": False, "handle_chinese_chars": False}
    for tokenizer in (old(), Tokenizer(Engine.from_str(json.dumps(state)))):
        assert tokenizer.with_vocabulary(tokenizer.pieces).sha256 == tokenizer.sha256


def test_what_extends_nothing() -> None:
    assert new_rows(old(), old()) == {}
    assert new_rows(old(), train_vocabulary(MEDICAL, 320)) is None, "other pieces"
    larger, _ = extend(old(), costly_words(old(), words()), 512)
    assert new_rows(larger, old()) is None, "fewer pieces"
    cased = Tokenizer.from_vocabulary(larger.pieces, lowercase=False)
    assert new_rows(old(), cased) is None, "other casing"
    for size in (old().size, old().size - 64):
        with pytest.raises(BertsmithError, match=f"a vocabulary of {size} pieces has no room"):
            extend(old(), costly_words(old(), words()), size)


def test_figures_are_those_of_the_whole_text() -> None:
    texts = [*GENERAL, *MEDICAL, "Москва, (fox)\nfox's 東京"]
    for tokenizer in (old(), train_vocabulary(texts, 512, lowercase=False)):
        figures = measure(tokenizer, count_stretches(texts), 1000)
        ids = [number for each in tokenizer.encode_ids(texts) for number in each.tolist()]
        assert figures.tokens == len(ids)
        assert figures.unknown == ids.count(tokenizer.special.unknown)
        assert figures.words == sum(not tokenizer.is_continuation[number] for number in ids)
        assert figures.tokens_per_mb == pytest.approx(len(ids) * 1000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "texts" / "text.txt"
    path.parent.mkdir()
    path.write_text("\n".join((GENERAL + MEDICAL) * 2 + [f"line {number} of the text" for number in range(300)]))
    return path.parent


def test_the_sample_is_even_and_the_same_in_any_parts(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample_text([source], ReadOptions("line"), 10**9, workers=1)
    assert whole.stretches == count_stretches((source / "text.txt").read_text().split("\n"))
    assert whole.share == 1.0
    assert whole.bytes == sum(len(line.strip()) for line in (source / "text.txt").read_text().split("\n"))
    half = sample_text([source], ReadOptions("line"), whole.bytes // 2, workers=1)
    assert 0 < half.bytes < whole.bytes
    assert 90 < half.stretches["line"] < 210
    monkeypatch.setattr(text_sample, "_PART_BYTES", 500)
    assert sample_text([source], ReadOptions("line"), whole.bytes // 2, workers=2) == half


def test_the_sample_of_parquet_is_as_large_as_that_of_plain_text(tmp_path: Path) -> None:
    """Text that packs ten to one, as a file of few bytes."""
    arrow, parquet = (pytest.importorskip(name, reason="no pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    rows = [f"{number} " + "the same words again and again " * 40 for number in range(2000)]
    table = arrow.table({"text": rows})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False, row_group_size=100)
    (tmp_path / "a.txt").write_text("\n".join(rows))
    most = (tmp_path / "a.txt").stat().st_size // 5
    assert (tmp_path / "a.parquet").stat().st_size < most / 2
    plain, packed = (sample_text([tmp_path / f"a.{kind}"], ReadOptions("line"), most, 1) for kind in ("txt", "parquet"))
    assert packed.bytes == pytest.approx(plain.bytes, rel=0.05)
    assert packed.bytes < 1.2 * most


def test_train_extend_and_keep_from_the_command_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BERTSMITH_DATA", raising=False)
    for name in ("HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    common = ["--documents", "line", "--workers", "1"]
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    assert main(["vocab", str(source), "--out", first, "--size", "300", "--cased", *common]) == 0
    trained = Tokenizer.load(first)
    assert (trained.size, trained.lowercase, trained.special.pad) == (320, False, 0)
    old().save(tmp_path / "old")
    extending = ["--extend", str(tmp_path / "old"), "--size", "320"]
    assert main(["vocab", str(source), "--out", second, *extending, *common]) == 0
    said = capsys.readouterr()
    assert said.err.count("duplicates in the sample were not removed") == 2
    assert "carcinoma (c ##a" in said.err
    assert "fewer tokens" in said.err or "more tokens" in said.err
    assert said.out.split() == [first, second]
    assert Tokenizer.load(second).pieces[:256] == old().pieces
    report = json.loads((tmp_path / "second" / "vocabulary.json").read_text())
    assert {"word": "carcinoma", "count": 24}.items() <= report["first_added"][3].items()
    assert report["vocabularies"]["second"]["tokens"] < report["vocabularies"]["old"]["tokens"]
    assert main(["vocab", str(source), "--out", third, "--reuse", str(tmp_path / "old" / "vocab.txt"), *common]) == 0
    assert Tokenizer.load(third).sha256 == old().sha256
    assert "bert-base-uncased on English Wikipedia" in capsys.readouterr().err
    old().save(tmp_path / "HOME" / ".cache" / "bertsmith-data" / "vocab" / "bert-base-uncased")
    fourth = str(tmp_path / "fourth")
    assert main(["vocab", str(source), "--out", fourth, "--size", "300", *common]) == 0
    assert re.search(r"bert-base-uncased  +\d\.\d{3} ", capsys.readouterr().err), "it is found, and reads the text"


def test_what_new_words_save_is_the_difference_of_the_figures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "text").write_text(f"{MEDICAL[0]} carcinomas carcinomatous москва москва москва", encoding="utf-8")
    old().save(tmp_path / "old")
    with caplog.at_level("INFO"):
        options = VocabularyOptions(extend=tmp_path / "old", size=320, workers=1)
        make_vocabulary(tmp_path / "text", tmp_path / "new", options)
    figures = json.loads((tmp_path / "new" / "vocabulary.json").read_bytes())["vocabularies"]
    saved = figures["old"]["tokens"] - figures["new"]["tokens"]
    assert (saved > 0, figures["old"]["unknown"], figures["new"]["unknown"]) == (True, 3, 0)
    assert f"the new words save {saved:,} pieces of" in caplog.text


def test_vocabularies_in_folders_of_the_same_name_have_a_row_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text").write_text(MEDICAL[0])
    a, b, c, out = (tmp_path / name / "bert" for name in "abcd")
    old().save(a)
    train_vocabulary(MEDICAL, 320).save(b)
    train_vocabulary(["the dog of the dog, again. " * 4], 320).save(c)
    with caplog.at_level("INFO"):
        options = VocabularyOptions(extend=a, size=320, compare_with=(b / "vocab.txt", c), workers=1)
        make_vocabulary([tmp_path / "text"], out, options)
    figures = json.loads((out / "vocabulary.json").read_bytes())["vocabularies"]
    paths = [str(path) for path in (out, a, b / "vocab.txt", c)]
    assert [name for name in figures if "bert-base" not in name] == paths
    tokens = [figures[path]["tokens"] for path in paths]
    assert tokens[1:] == [measure(Tokenizer.load(path), count_stretches([MEDICAL[0]]), 1).tokens for path in (a, b, c)]
    assert len(set(tokens[1:])) == 3, "the vocabularies can be told apart by their figures"
    assert f"the new words save {tokens[1] - tokens[0]:,} pieces of" in caplog.text


def test_a_vocabulary_too_small_for_the_letters_of_its_text_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "signs.txt"
    text.write_text("".join(chr(0x4E00 + number) for number in range(400)), encoding="utf-8")
    what = "of the text's words are [UNK] to the vocabulary that was trained on it"
    for size, warned in ((256, True), (640, False)):
        caplog.clear()
        make_vocabulary([text], tmp_path / f"v{size}", VocabularyOptions(size=size, workers=1))
        assert (what in caplog.text, "more pieces with --size" in caplog.text) == (warned, warned)
        caplog.clear()
        options = PrepareOptions(vocabulary_size=size, held_out=0.0, workers=1)
        prepare(text, tmp_path / f"c{size}", options=options)
        assert (what in caplog.text, "with --vocabulary-size" in caplog.text) == (warned, warned)


def test_words_too_long_for_bert_are_no_want_of_rows_for_letters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = tmp_path / "text"
    text.write_text(MEDICAL[0] + ("ab" * 60 + " ") * 30)
    make_vocabulary([text], tmp_path / "vocabulary", VocabularyOptions(size=640, workers=1))
    figures = json.loads((tmp_path / "vocabulary" / "vocabulary.json").read_bytes())["vocabularies"]["vocabulary"]
    prepare(text, tmp_path / "corpus", options=PrepareOptions(vocabulary_size=640, held_out=0.0, workers=1))
    assert (figures["unknown"], figures["unknown_share"] > 0.01) == (30, True)
    assert "more pieces with" not in caplog.text


@pytest.mark.parametrize("size", [256, 384, 640])
def test_words_with_letters_that_have_no_row_are_those_that_are_unknown(size: int) -> None:
    signs = "".join(chr(0x4E00 + number) for number in range(300))
    counts = count_words([f"{signs} москва юг юга юга ёж", *MEDICAL], lowercase=True, left_out=Tally())
    tokenizer = train_vocabulary([f"{signs} москва юг юга юга ёж", *MEDICAL], size)
    unknown = sum(
        count for word, count in counts.items() if tokenizer.special.unknown in tokenizer.encode_ids([word])[0]
    )
    assert share_without_rows(counts, tokenizer) == unknown / sum(counts.values())


def test_the_reference_is_not_compared_with_itself_nor_asked_for(
    source: Path, real_data: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, kept in enumerate((real_data("vocab/bert-base-uncased/vocab.txt"), tmp_path / "0")):
        options = ["--documents", "line", "--workers", "1", "--reuse", str(kept)]
        assert main(["vocab", str(source), "--out", str(tmp_path / str(place)), *options]) == 0
        said = capsys.readouterr().err
        assert "comparing with" not in said
        assert "--compare-with" not in said


def test_what_is_said_is_true_of_a_vocabulary_that_is_kept_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    caplog.set_level("INFO")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "text").write_text(MEDICAL[0])
    (tmp_path / "texts" / "page.html").write_text("<!DOCTYPE html><p>Marks.</p>")
    train_vocabulary(MEDICAL, 320).save(tmp_path / "good")
    old().save(tmp_path / "old")
    for is_new, options in enumerate(({"reuse": tmp_path / "good"}, {"size": 320})):
        caplog.clear()
        kept = VocabularyOptions(**options, compare_with=(tmp_path / "old",), workers=1)
        make_vocabulary([tmp_path / "texts"], tmp_path / str(is_new), kept)
        assert caplog.text.count("files skipped: markup") == 1
        assert "as many steps read that much more text" in caplog.text
        assert caplog.text.count("its new rows must be trained") == is_new


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extend": Path("a"), "reuse": Path("b")}, "either extended or kept"),
        ({"reuse": Path("b"), "size": 300}, "has its own size"),
        ({"use_unused": True}, "applies only to extending"),
        ({"extend": Path("a")}, "size of the extended vocabulary is missing"),
        ({"workers": 0}, "workers is 0"),
        ({"extend": Path("a"), "size": 40_000, "cased": True}, "--cased applies only to training"),
        ({"reuse": Path("a"), "cased": True}, "--cased applies only to training"),
        ({"reuse": Path("nowhere")}, "no tokenizer here"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match=message):
        make_vocabulary([source], tmp_path / "out", VocabularyOptions(**options))
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_lacks_the_letters_of_a_text_is_not_recommended_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes as few tokens of it as one that has them, of which most are [UNK]."""
    caplog.set_level("INFO")
    folders = {name: tmp_path / name for name in ("latin", "greek")}
    texts = {"latin": "the old man and the sea and the boat ", "greek": "ο γέρος και η θάλασσα και η βάρκα "}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text * 40)
        train_vocabulary([text] * 9, 256).save(folders[name])
    options = VocabularyOptions(reuse=folders["greek"], compare_with=(folders["latin"],), workers=1)
    make_vocabulary([tmp_path / "greek.txt"], tmp_path / "out", options)
    said = [record.message for record in caplog.records if record.message.startswith("latin makes ")]
    assert len(said) == 1
    assert "% of them are [UNK]: it lacks letters of this text" in said[0]
    caplog.clear()
    prepared = PrepareOptions(held_out=0.0, workers=1)
    for name, warned in (("latin", 0), ("greek", 1)):
        corpus = tmp_path / f"{name}.corpus"
        prepare(tmp_path / f"{name}.txt", corpus, tokenizer=folders["latin"], options=prepared)
        assert caplog.text.count("because the vocabulary that was given lacks letters of this text") == warned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 100}, "a vocabulary of 100 pieces is too small"),
        ({"size": 10_000_000}, "a vocabulary of 10,000,000 pieces is too large"),
        ({"size": 10_000_000, "extend": Path("old")}, "a vocabulary of 10,000,000 pieces is too large"),
        ({"size": 200, "extend": Path("old")}, "a vocabulary of 256 pieces has no room for a new one"),
    ],
)
def test_a_size_that_does_not_do_is_refused_before_any_text_is_read(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old().save("old")
    with pytest.raises(BertsmithError, match=message):
        make_vocabulary("nowhere", "out", VocabularyOptions(**options))


def test_a_place_where_nothing_can_be_made_is_refused_before_any_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BertsmithError, match="a file is in the way of this folder"):
        make_vocabulary([tmp_path / "nowhere"], tmp_path / "file" / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_empty_folder_in_one_that_is_read_only_is_refused_before_any_text_is_read(tmp_path: Path) -> None:
    (tmp_path / "closed" / "out").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o555)
    with pytest.raises(BertsmithError, match="Permission denied"):
        make_vocabulary([tmp_path / "nowhere"], tmp_path / "closed" / "out")


def test_a_disk_that_is_full_leaves_no_half_of_a_tokenizer(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options = VocabularyOptions(size=300, documents="line")
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.corpus.vocabularies.files.write_json", full)
        with pytest.raises(BertsmithError, match="No space left"):
            make_vocabulary([source], tmp_path / "out", options)
    assert not list(tmp_path.glob("*out*"))
    make_vocabulary([source], tmp_path / "out", options)
    assert Tokenizer.load(tmp_path / "out").pieces


def test_nothing_else_is_overwritten(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("my thesis")
    old().save(tmp_path / "corpus" / "tokenizer")
    for out in (tmp_path / "out", tmp_path / "out" / "thesis.txt", tmp_path / "corpus" / "tokenizer"):
        with pytest.raises(BertsmithError, match="this is there already"):
            make_vocabulary([source], out, VocabularyOptions(size=300))
    assert Tokenizer.load(tmp_path / "corpus" / "tokenizer").sha256 == old().sha256
    (tmp_path / "empty").mkdir()
    make_vocabulary([source], tmp_path / "empty", VocabularyOptions(size=300, documents="line"))
