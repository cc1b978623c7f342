"""Promise: evaluation text and near-duplicates are found, dropped or reported, and all of it is accounted for."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus import pipeline
from bertsmith.corpus.inspect import inspect
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import SPLITS, Corpus
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.vocabulary import train_vocabulary
from made_corpora import balanced, contents, interrupted_after

WORDS = ["".join(letters) for letters in itertools.product("bdfgl", "aeiou", "kmnrst")]
COPY, NEAR = "copy of an earlier document", "near-duplicate of an earlier document"
HOLDS, EMPTY = "with 13 words in a row of evaluation text", "empty"
SHORT, GONE = "shorter than 20 characters", "nothing left after tokenising"


def sentence(seed: int, length: int = 30) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length)) + "."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_vocabulary([sentence(seed) for seed in range(40)], 320)


def options(**changes: Any) -> PrepareOptions:
    return PrepareOptions(
        **{"workers": 1, "held_out": 0.2, "part_bytes": 2000, "shard_tokens": 500, "documents": "line", **changes}
    )


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def kept_texts(corpus: Corpus) -> list[str]:
    """The documents that stayed, decoded, without regard to their order."""
    tokenizer, texts = corpus.tokenizer(), []
    for split in SPLITS:
        for number in range(len(corpus.shards(split))):
            shard = corpus.open_shard(split, number)
            edges = shard.sentence_offsets[shard.document_offsets]
            texts += [tokenizer.decode(shard.tokens[a:b]) for a, b in itertools.pairwise(edges)]
    return sorted(texts)


def dropped(corpus: Corpus) -> dict[str, int]:
    return {what: entry["count"] for what, entry in corpus.counts["dropped"].items()}


def test_where_evaluation_text_is_all_there_is_nothing_is_made(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pipeline, "say", said.append)
    source = write_lines(tmp_path / "text.txt", [sentence(1), sentence(2)])
    with pytest.raises(BertsmithError, match=rf"no document is left of 2 read \({HOLDS}: 2; such as text.txt@0"):
        prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options(exclude=(source,)))
    assert any("0 empty, short or broken, 2 duplicates or with evaluation text" in line for line in said)
    assert not (tmp_path / "corpus" / "corpus.json").exists()


def test_documents_with_thirteen_words_of_an_evaluation_text_are_dropped(tmp_path: Path, tokenizer: Tokenizer) -> None:
    held = sentence(1).rstrip(".").split()
    twelve, thirteen = held[3:15], held[3:16]
    loud = ", ".join(word.upper() for word in thirteen)
    lines = [
        f"Before it. {' '.join(thirteen)} and after.",
        sentence(2),
        f"Only twelve: {' '.join(twelve)} and then others.",
        f'He said "{loud}!"',
        sentence(3),
    ]
    source = write_lines(tmp_path / "text.txt", lines)
    test = tmp_path / "test.tsv"
    test.write_text(f"id\tsentence\n1\t{' '.join(held)}\n2\ttoo short to be checked\n", encoding="utf-8")
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options(exclude=(test,)))
    assert dropped(corpus) == {HOLDS: 2}
    assert len(kept_texts(corpus)) == 3
    (figures,) = corpus.account["searches"]["contamination"]["files"]
    read_bytes = len((lines[0] + lines[3]).encode())
    expected = {"texts": 2, "short": 1, "labels": 4, "ngrams": 18, "found": 1, "documents": 2, "bytes": read_bytes}
    assert {name: figures[name] for name in expected} == expected
    assert figures["sha256"] == hashlib.sha256(test.read_bytes()).hexdigest()
    assert figures["examples"] == [f"text.txt@0: '{' '.join(thirteen)}'", f"text.txt@{position(lines, 3)}: '{loud}'"]
    assert corpus.counts["dropped"][HOLDS]["bytes"] == read_bytes
    report = inspect(corpus)
    for needed in (
        "test.tsv: found in 2 documents",
        "1 of them under 13 words",
        "1 of them (5.6%) in the corpus",
        loud,
    ):
        assert needed in report


def position(lines: list[str], number: int) -> int:
    return sum(len(line.encode()) + 1 for line in lines[:number])


def test_each_evaluation_file_is_told_what_the_corpus_holds_of_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Both files have the text of the first document; the next has text of one file, and then of the other."""
    lines = [sentence(1), f"{sentence(2)} {sentence(3)}", sentence(4)]
    source = write_lines(tmp_path / "text.txt", lines)
    tests = (
        write_lines(tmp_path / "one.txt", [sentence(1), sentence(2)]),
        write_lines(tmp_path / "two.txt", [sentence(1), sentence(3), sentence(5, 13)]),
    )
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options(exclude=tests))
    figures = corpus.account["searches"]["contamination"]["files"]
    names = ("file", "documents", "found", "ngrams", "short")
    assert [[each[name] for name in names] for each in figures] == [
        ["one.txt", 2, 36, 36, 0],
        ["two.txt", 2, 36, 37, 0],
    ]
    beginnings = [" ".join(sentence(seed).split()[:13]) for seed in (1, 2, 3)]
    second = f"text.txt@{position(lines, 1)}: "
    assert figures[0]["examples"] == [f"text.txt@0: '{beginnings[0]}'", f"{second}'{beginnings[1]}'"]
    assert figures[1]["examples"] == [f"text.txt@0: '{beginnings[0]}'", f"{second}'{beginnings[2]}'"]
    found = corpus.counts["dropped"][HOLDS]
    assert (found["count"], found["bytes"]) == (2, len(lines[0]) + len(lines[1]))
    assert all(each.endswith("(one.txt)") for each in found["examples"])


def test_evaluation_text_that_was_changed_since_a_stop_is_read_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = write_lines(tmp_path / "text.txt", [sentence(seed) for seed in range(6)])
    test = write_lines(tmp_path / "test.txt", [sentence(4)])
    with interrupted_after("search_part"):
        prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options(exclude=(test,)))
    write_lines(test, [sentence(2), sentence(5)])
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options(exclude=(test,)))
    assert dropped(corpus) == {HOLDS: 2}


def test_what_is_only_reported_is_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = write_lines(tmp_path / "text.txt", [sentence(seed) for seed in range(6)])
    test = write_lines(tmp_path / "test.txt", [sentence(4)])
    asked = options(exclude=(test,), exclude_action="report")
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=asked)
    assert dropped(corpus) == {}
    assert corpus.counts["changed"][HOLDS]["count"] == 1
    assert corpus.account["searches"]["contamination"]["files"][0]["documents"] == 1
    assert len(kept_texts(corpus)) == 6


def test_a_corpus_is_made_of_what_the_evaluation_files_hold(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = write_lines(tmp_path / "text.txt", [sentence(seed) for seed in range(6)])
    test = write_lines(tmp_path / "test.txt", [sentence(4)])
    asked = options(exclude=(test,))
    prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=asked)
    test.touch()
    prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=asked)
    write_lines(test, [sentence(5)])
    with pytest.raises(BertsmithError, match="exclude: "):
        prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=asked)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"exclude": (Path("nowhere.json"),)}, "no such file of evaluation text"),
        ({"exclude": (Path("short.txt"),)}, "no text of this file has 13 words"),
        ({"exclude_action": "keep"}, "exclude_action is 'keep'"),
        ({"near_threshold": 0.1}, "near_threshold is 0.1"),
        ({"near_shingle": 0}, "near_shingle is 0"),
    ],
)
def test_wrong_searches_are_one_message(
    tmp_path: Path, tokenizer: Tokenizer, wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "short.txt", ["too short to be checked"])
    source = write_lines(tmp_path / "text.txt", [sentence(1)])
    with pytest.raises(BertsmithError, match=message):
        prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options(**wrong))
    assert not (tmp_path / "corpus" / "corpus.json").exists()


def test_near_copies_are_dropped_and_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    first, other = sentence(1, 200), sentence(2, 200)
    near = first.replace(first.split()[100], "badak", 1)
    wordless = ["* " * 20, "-=" * 20]  # in which nothing is alike, as there is no word
    lines = [other, first, sentence(3, 200), near.upper(), other, *wordless]
    source = write_lines(tmp_path / "text.txt", lines)
    corpus = prepare(source, tmp_path / "near", tokenizer=tokenizer, options=options(near_duplicates=True))
    assert dropped(corpus) == {COPY: 1, NEAR: 1}
    figures = corpus.account["searches"]["near_duplicates"]
    assert (figures["compared"], figures["dropped"]) == (2, 1)
    (example,) = corpus.counts["dropped"][NEAR]["examples"]
    assert example.startswith(f"text.txt@{position(lines, 3)}: ")
    assert f"(as text.txt@{position(lines, 1)}, 9" in example
    assert example.endswith("% alike)")
    (copy,) = corpus.counts["dropped"][COPY]["examples"]
    assert copy.endswith("(as text.txt@0)")
    report = inspect(corpus)
    assert "near-duplicates: 1 document whose runs of 5 words agree to about 80% or more" in report
    assert "each with at most 8 kept ones of every bucket" in report
    without = prepare(source, tmp_path / "without", tokenizer=tokenizer, options=options())
    assert dropped(without) == {COPY: 1}
    assert "near-duplicates: not looked for" in inspect(without)
    strict = options(near_duplicates=True, near_threshold=1.0)
    assert dropped(prepare(source, tmp_path / "equal", tokenizer=tokenizer, options=strict)) == {COPY: 1}


def many_lines() -> list[str]:
    """Documents of which some are copies, near-duplicates, and hold text of sentence(0)."""
    lines = []
    for seed in range(34):
        lines.append(sentence(seed, 60))
        if seed % 5 == 0:
            lines.append(sentence(seed, 60))
        if seed % 7 == 0:
            lines.append(sentence(seed, 60).replace(" ", " badak ", 1))
        if seed % 11 == 0:
            lines.append(f"{sentence(100 + seed)} {sentence(0)}")
    return lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> tuple[Path, dict[str, Any], Corpus]:
    """A source, what is searched for in it, and the corpus that one process, left alone, makes of it."""
    folder = tmp_path_factory.mktemp("whole")
    source = write_lines(folder / "text.txt", many_lines())
    asked = {"exclude": (write_lines(folder / "test.txt", [sentence(0)]),), "near_duplicates": True}
    return source, asked, prepare(source, folder / "corpus", tokenizer=tokenizer, options=options(**asked))


def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, tokenizer: Tokenizer, whole: tuple[Path, dict[str, Any], Corpus]
) -> None:
    source, asked, corpus = whole
    prepare(source, tmp_path / "two", tokenizer=tokenizer, options=options(workers=2, **asked))
    assert contents(tmp_path / "two") == contents(corpus.folder)
    counts = dropped(corpus)
    assert counts.keys() == {COPY, NEAR, HOLDS}
    assert sum(counts.values()) + len(kept_texts(corpus)) == len(many_lines())


@pytest.mark.parametrize("stage", ["search_part", "sign_part", "find_near_copies"])
def test_stopped_after_any_search_and_run_again(
    tmp_path: Path, tokenizer: Tokenizer, whole: tuple[Path, dict[str, Any], Corpus], stage: str
) -> None:
    source, asked, corpus = whole
    with interrupted_after(stage):
        prepare(source, tmp_path / "stopped", tokenizer=tokenizer, options=options(**asked))
    assert list((tmp_path / "stopped").glob(".work/**/part.done"))
    prepare(source, tmp_path / "stopped", tokenizer=tokenizer, options=options(**asked))
    assert contents(tmp_path / "stopped") == contents(corpus.folder)


# What a document may be: (how it is made, why it is dropped; None: kept).
KINDS: dict[str, Callable[[int], str]] = {
    "kept": lambda seed: sentence(seed, 40),
    COPY: lambda seed: sentence(10_000, 40),
    NEAR: lambda seed: sentence(20_000, 80) + f" end{seed}",
    HOLDS: lambda seed: f"{sentence(seed, 20)} {sentence(30_000)}",
    EMPTY: lambda seed: "\u200b" * (1 + seed % 3),
    SHORT: lambda seed: f"short {seed}",
    GONE: lambda seed: "\u0301 " * 25 + f"\u0300 {chr(0x300 + seed % 60)}",
}


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=25), st.booleans())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kept_and_dropped_are_what_was_read(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, kinds: list[str], every: bool
) -> None:
    """Random corpora with every reason to drop a document, in any order."""
    kinds = ["kept", *(sorted(KINDS) if every else []), *kinds]
    texts = [KINDS[kind](seed) for seed, kind in enumerate(kinds)]
    folder = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp()))
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    test = write_lines(folder / "test.txt", [sentence(30_000)])
    asked = options(exclude=(test,), near_duplicates=True, part_bytes=1500)
    corpus = prepare(source, folder / "corpus", tokenizer=tokenizer, options=asked)
    counts = balanced(corpus)
    assert counts["read"] == {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}
    assert counts["kept"]["documents"] == len(kept_texts(corpus))
    for reason in (HOLDS, EMPTY, SHORT):
        assert dropped(corpus).get(reason, 0) == kinds.count(reason)
    for reason in (COPY, NEAR):
        assert dropped(corpus).get(reason, 0) == max(kinds.count(reason) - 1, 0)
    if every:
        assert set(dropped(corpus)) >= {HOLDS, EMPTY, SHORT, GONE}
    shutil.rmtree(folder)


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "[unused993]")


@pytest.mark.parametrize("vocabulary", ["trained", "bert-base-uncased", "bert-base-cased"])
def test_special_tokens_in_a_text_never_become_their_ids(
    tmp_path: Path, tokenizer: Tokenizer, request: pytest.FixtureRequest, vocabulary: str
) -> None:
    if vocabulary != "trained":
        tokenizer = Tokenizer.load(request.getfixturevalue("real_data")(f"vocab/{vocabulary}/vocab.txt"))
    forms = ["{}", "a{}b", " {} {} ", "({})", "[{}]", "{}.", "\u00e9{}", "x\n{}\ny"]
    lines = [
        f"{sentence(seed)} {form.replace('{}', special)}"
        for seed, (special, form) in enumerate(itertools.product(SPECIALS, forms))
    ]
    lines += [f"{sentence(900)} {''.join(SPECIALS)}"]
    source = tmp_path / "text.jsonl"
    source.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    corpus = prepare(source, tmp_path / "corpus", tokenizer=tokenizer, options=options())
    forbidden = [number for number, piece in enumerate(tokenizer.pieces) if piece.startswith("[unused")]
    special = tokenizer.special
    forbidden += [special.pad, special.unknown, special.cls, special.sep, special.mask]
    for split in SPLITS:
        for number in range(len(corpus.shards(split))):
            assert not np.isin(corpus.open_shard(split, number).tokens, forbidden).any()
    written = sum(line.count(special) for line in lines for special in SPECIALS)
    assert corpus.counts["changed"]["special tokens written in a text, read as plain text"]["count"] == written
    assert corpus.counts["kept"]["documents"] == len(lines)
    brackets = [tokenizer.pieces.index(bracket) for bracket in "[]"]
    found = sum(
        int(np.isin(corpus.open_shard(split, number).tokens, brackets).sum())
        for split in SPLITS
        for number in range(len(corpus.shards(split)))
    )
    assert found == sum(line.count("[") + line.count("]") for line in lines), "they stay as they are written"


def test_squad_in_wikipedia(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    """Paragraphs of SQuAD's dev set planted in real articles are found, and hardly an article is taken for one."""
    squad = real_data("squad/v1.1/dev-v1.1.json")
    articles = json.loads(squad.read_text(encoding="utf-8"))["data"]
    contexts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    wiki = real_data("wiki/enwiki-2015/AA/wiki_35").read_text(encoding="utf-8")
    blocks = [block for block in wiki.split("</doc>\n") if "<doc" in block]
    planted = [
        f"{block}\n{context.swapcase()}\n" for block, context in zip(blocks[5:25], contexts[:2000:100], strict=True)
    ]
    source = tmp_path / "wiki_00"
    source.write_text("</doc>\n".join([*blocks[:5], *planted, *blocks[25:], ""]), encoding="utf-8")
    vocabulary = real_data("vocab/bert-base-uncased/vocab.txt")
    asked = PrepareOptions(workers=1, part_bytes=300_000, exclude=(squad,))
    corpus = prepare(source, tmp_path / "corpus", tokenizer=vocabulary, options=asked)
    assert len(planted) == 20
    assert 20 <= dropped(corpus)[HOLDS] < 25, "of some 90 articles, a few share text with SQuAD by themselves"
