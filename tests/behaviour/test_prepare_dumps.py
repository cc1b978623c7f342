"""Promise: a MediaWiki dump gives the same corpus however it is packed, cut, or interrupted, and no markup is left."""

from __future__ import annotations

import bz2
import gzip
import html
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mwparserfromhell
import pytest

from bertsmith.corpus.documents import Document
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus
from bertsmith.corpus.stages import clean
from made_corpora import interrupted_after
from made_dumps import HEAD, TAIL, dump, page

OPTIONS: dict[str, Any] = {"held_out": 0.1, "vocabulary_size": 512, "part_bytes": 60_000, "shard_tokens": 40_000}
DUMP = "wikidump/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def pages() -> list[str]:
    draw = random.Random(7)
    words = ["".join(draw.choices("aeioubcdfglmnrst", k=draw.randint(2, 9))) for _ in range(800)]
    found = []
    for number in range(300):
        sentences = [" ".join(draw.choices(words, k=draw.randint(5, 30))) for _ in range(draw.randint(1, 12))]
        text = ". ".join(f"'''{sentence}''' [[{draw.choice(words)}]]{{{{x}}}}" for sentence in sentences)
        found.append(page(number, text if number % 5 else "#REDIRECT [[x]]"))
    return found


PAGES = pages()
PACKED = {
    "plain": dump(*PAGES),
    "bz2": bz2.compress(dump(*PAGES), 1),
    "multistream": b"".join(
        bz2.compress(part.encode())
        for part in (HEAD, *("".join(PAGES[at : at + 20]) for at in range(0, 300, 20)), TAIL)
    ),
    "gz": gzip.compress(dump(*PAGES)),
    "UTF-16": dump(*PAGES).decode().encode("utf-16"),
    "UTF-16 as bz2": bz2.compress(dump(*PAGES).decode().encode("utf-16"), 1),
}


def made(folder: Path, packing: str, workers: int = 1) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files and the books of a corpus made of the dump in a packing."""
    folder.mkdir(exist_ok=True)
    source = folder / "wiki"
    if not source.exists():
        source.write_bytes(PACKED[packing])
    corpus = prepare(source, folder / "corpus", options=PrepareOptions(**OPTIONS, workers=workers))
    shards = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in corpus.folder.glob("*/*.npy")}
    return shards, corpus.counts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, Any]]:
    return made(tmp_path_factory.mktemp("undisturbed"), "plain")


@pytest.mark.parametrize(
    ("packing", "workers"),
    [("plain", 2), ("bz2", 2), ("multistream", 1), ("gz", 2), ("UTF-16", 1), ("UTF-16 as bz2", 1)],
)
def test_the_same_corpus_for_any_packing_and_workers(
    tmp_path: Path,
    undisturbed: tuple[dict[str, bytes], dict[str, Any]],
    packing: str,
    workers: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    assert made(tmp_path, packing, workers) == undisturbed
    assert "of text), 60 redirects, 0 duplicates" in caplog.text
    assert undisturbed[1]["dropped"]["redirects"]["count"] == 60
    assert undisturbed[1]["read"]["documents"] == 300


@pytest.mark.parametrize(("stage", "parts"), [("unpack", None), ("clean_part", 3)])
def test_interrupted_while_it_unpacks_or_reads(
    tmp_path: Path, undisturbed: tuple[dict[str, bytes], dict[str, Any]], stage: str, parts: int | None
) -> None:
    """Stopped behind the first stage, then behind the first parts of the second; what was made is not made again."""
    with interrupted_after(stage, parts):
        made(tmp_path, "gz")
    marks = {path: path.stat().st_mtime_ns for path in tmp_path.glob("corpus/.work/**/part.done")}
    assert len(marks) == (1 if stage == "unpack" else 4)
    assert made(tmp_path, "gz") == undisturbed


def test_a_plain_dump_that_is_cut_short_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As of a copy that was stopped: what is missing behind the cut is in no count."""
    (tmp_path / "wiki").write_bytes(PACKED["plain"][: len(PACKED["plain"]) // 2])
    made(tmp_path, "plain")
    said = [record.message for record in caplog.records if "pages cut short by the end of the file" in record.message]
    assert len(said) == 1
    assert said[0].endswith("and what followed is missing; copy it again")
    caplog.clear()
    made(tmp_path / "whole", "plain")
    assert "cut short" not in caplog.text


def test_a_damaged_gz_is_read_up_to_the_damage(tmp_path: Path) -> None:
    (tmp_path / "wiki").write_bytes(PACKED["gz"][: len(PACKED["gz"]) // 2])
    _, counts = made(tmp_path, "gz")
    assert counts["dropped"]["pages cut short by the end of the file"]["count"] == 1
    assert 100 < counts["read"]["documents"] < 200
    assert sum("damaged" in what for what in counts["changed"]) == 1


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, real_data: Callable[[str], Path]) -> tuple[Corpus, list[Document]]:
    """The corpus of a real dump, and the documents as they were read for it, in order."""
    found: dict[str, Document] = {}
    read = clean.read_documents

    def noted(*given: Any) -> Iterator[Document]:
        for document in read(*given):
            found[document.id] = document  # after the sample for the estimate of the disk, which may be cut off
            yield document

    options = PrepareOptions(workers=1, part_bytes=1_000_000)
    vocabulary = real_data("vocab/bert-base-uncased/vocab.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean, "read_documents", noted)
        out = tmp_path_factory.mktemp("real") / "corpus"
        corpus = prepare(real_data(DUMP), out, tokenizer=vocabulary, options=options)
    return corpus, list(found.values())


def test_the_books_of_a_real_dump(real: tuple[Corpus, list[Document]], real_data: Callable[[str], Path]) -> None:
    corpus, documents = real
    counts = corpus.counts
    assert len(documents) == counts["kept"]["documents"]
    assert counts["source_bytes"] == len(bz2.decompress(real_data(DUMP).read_bytes()))
    assert counts["read"]["documents"] == 206
    assert {what: entry["count"] for what, entry in counts["dropped"].items()} == {
        "redirects": 99,
        "pages of other namespaces": 1,
    }
    changed = counts["changed"]
    assert changed["references, left out"]["count"] > 8000
    assert changed["tables, left out"]["count"] > 80
    assert "paragraphs too entangled to parse, left out" not in changed
    splits = corpus.account["splits"]
    assert sum(split["unknown"] for split in splits.values()) < 0.001 * sum(
        split["tokens"] for split in splits.values()
    )


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def runs_of_five(words: list[str]) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + 5]) for at in range(len(words) - 4)]


def test_the_text_of_a_real_dump_against_mwparserfromhell(
    real: tuple[Corpus, list[Document]], real_data: Callable[[str], Path]
) -> None:
    """Nearly every run of five words of ours is one that its own `strip_code` gives, and no markup is among them."""
    _, documents = real
    text = "\n".join(document.text for document in documents)
    for markup in (
        r"\[\[|\]\]|\{\{|\}\}",
        r"thumb\|",
        r"&[a-z]+;",
        r"\( *\)",
        r"\(\s*[,;]",
        r"</?ref",
        "''",
        "  ",
        "\x01",
    ):
        assert len(re.findall(markup, text)) <= 1, markup
    ours, raw = Counter[bool](), bz2.decompress(real_data(DUMP).read_bytes()).decode()
    for document in documents[::12]:
        begin = raw.index(f"\n    <id>{document.id.partition('@')[2]}</id>\n")
        source = raw[raw.index("<text", begin) : raw.index("</text>", begin)]
        theirs = words(mwparserfromhell.parse(html.unescape(source)).strip_code())
        runs = set(runs_of_five(theirs))
        ours.update(run in runs for run in runs_of_five(words(document.text)))
    assert ours[True] > 0.95 * ours.total() > 10_000, json.dumps({str(key): value for key, value in ours.items()})
