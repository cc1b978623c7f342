"""Pages of a MediaWiki dump: which are articles, any slice of it, and what damage costs."""

from __future__ import annotations

import bz2
import gzip
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.sources.formats import edges_of, read_documents
from bertsmith.corpus.wiki import dumps as mediawiki
from bertsmith.rows.lines import Slice
from made_dumps import HEAD, TAIL, dump, page

WORDS = ["Straße", "river", "of", "ice", "and", "a", "mountain", "with", "日本", "snow", "on", "it"]
PAGES = [
    page(number, f"'''Page {number}''' tells of a [[{' '.join(random.Random(number).choices(WORDS, k=300))}]].")
    for number in range(40)
]
WHOLE = dump(*PAGES)


def read(path: Path, codec: str = "", strict: bool = False, encoding: str = "") -> tuple[list[Document], Account]:
    account = Account()
    part = Slice(str(path), path.name, "mediawiki", codec, encoding=encoding)
    mediawiki._wiki.cache_clear()
    return list(read_documents(part, ReadOptions(strict=strict), account)), account


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def dropped(account: Account) -> dict[str, int]:
    return {what: entry.count for what, entry in account.dropped.items()}


def test_articles_are_documents_and_other_pages_are_dropped_by_name(tmp_path: Path) -> None:
    pages = [
        page(3, "An '''article''' & more.", title="A < B"),
        page(4, "#REDIRECT [[A]]", redirect="A"),
        page(5, "#redirect [[A]]"),
        page(6, "Talk.", title="Diskussion:A", space=1),
        page(7, ""),
        page(8, "{{only}} [[Kategorei:X]]"),
        page(9, "body {}", model="css"),
        page(10, "[[Bildchen:a.jpg|mini|x]]Second\n\nparagraph.", title="Second"),
    ]
    documents, account = read(written(tmp_path / "d.xml", dump(*pages)))
    assert documents == [
        Document("d.xml@3", "An article & more.", "paragraph"),
        Document("d.xml@10", "paragraph.", "paragraph"),
    ]
    assert dropped(account) == {
        "redirects": 2,
        "pages of other namespaces": 1,
        "pages without wikitext": 1,
        "pages of markup without text": 1,
        "pages that are not wikitext": 1,
    }
    assert account.documents == 6, "the two documents are counted when they are cleaned"
    assert account.bytes == account.dropped.bytes
    assert account.dropped["redirects"].examples[0] == "d.xml@4: Page 4"
    assert account.changed["files and images, left out"].examples == ["d.xml@10"]
    assert account.changed["first lines that repeat the title, left out"].count == 1
    assert account.stream_bytes == (tmp_path / "d.xml").stat().st_size


def test_the_last_of_many_revisions_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mediawiki, "LONGEST_PAGE", 2000)
    history = page(1, *(f"Revision {number} {'x' * 600}" for number in range(9)), "The newest text.")
    documents, account = read(written(tmp_path / "d.xml", dump(history)))
    assert [document.text for document in documents] == ["The newest text."]
    assert account.changed["older revisions of pages, left out"].count == 9


def test_dumps_before_namespaces_had_numbers(tmp_path: Path) -> None:
    old = dump(page(1, "Talk.", title="Diskussion:A"), page(2, "Text.", title="Star: a film")).replace(
        b"<ns>0</ns>", b""
    )
    documents, account = read(written(tmp_path / "d.xml", old))
    assert [document.id for document in documents] == ["d.xml@2"]
    assert dropped(account) == {"pages of other namespaces": 1}


def packings() -> dict[str, bytes]:
    streams = [HEAD.encode(), *("".join(PAGES[at : at + 7]).encode() for at in range(0, 40, 7)), TAIL.encode()]
    anywhere = [WHOLE[at : at + 5003] for at in range(0, len(WHOLE), 5003)]
    return {
        "plain": WHOLE,
        "one stream": bz2.compress(WHOLE, 1),
        "multistream": b"".join(map(bz2.compress, streams)),
        "streams cut anywhere": b"".join(map(bz2.compress, anywhere)),
    }


@pytest.mark.parametrize("packing", packings())
def test_slices_read_what_the_whole_reads(packing: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = packings()[packing]
    path, codec = written(tmp_path_factory.mktemp("dump") / "d", content), "" if packing == "plain" else "bz2"
    whole, books = read(path, codec)
    assert [document.id for document in whole] == [f"d@{number}" for number in range(40)]
    assert books.stream_bytes == len(WHOLE)

    @settings(max_examples=25, deadline=None)
    @given(cuts=st.lists(st.integers(1, len(content)), max_size=4), chunk=st.sampled_from([17, 1000, 1 << 18]))
    def check(cuts: list[int], chunk: int) -> None:
        account, documents = Account(), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mediawiki, "_CHUNK", chunk)
            for begin, end in itertools.pairwise([0, *sorted(set(cuts)), None]):
                part = Slice(str(path), "d", "mediawiki", codec, begin or 0, end)
                documents += read_documents(part, ReadOptions(), account)
        assert documents == whole
        assert account == books

    check()


def test_a_dump_is_cut_into_parts_plain_and_as_bz2_and_not_otherwise(tmp_path: Path) -> None:
    for codec, packed, parts in (("", WHOLE, 10), ("bz2", bz2.compress(WHOLE), 10), ("gz", gzip.compress(WHOLE), 1)):
        path = written(tmp_path / "d", packed)
        part_bytes = len(packed) * (4 if codec == "bz2" else 1) // 10
        assert len(edges_of(Slice(str(path), "d", "mediawiki", codec), len(packed), part_bytes)) == parts + 1


@pytest.mark.parametrize("codec", ["", "gz", "bz2"])
def test_a_dump_in_utf16_is_read_as_in_utf8(tmp_path: Path, codec: str) -> None:
    pack = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress}[codec]
    raw = dump(page(1, "[[Bildchen:a.jpg|mini|x]]The river and its bridge.")).decode().encode("utf-16-le")
    path = written(tmp_path / "d", pack(b"\xff\xfe" + raw + b"\x00\xd8"))
    documents, account = read(path, codec, encoding="utf-16-le")
    assert [document.text for document in documents] == ["The river and its bridge."]
    assert account.changed["bytes that are not UTF-16-LE, replaced by U+FFFD"].count == 2


def test_damage_to_a_dump_in_utf16_is_counted(tmp_path: Path) -> None:
    whole = gzip.compress(WHOLE.decode().encode("utf-16"))
    documents, account = read(written(tmp_path / "d", whole[: len(whole) // 2]), "gz", encoding="utf-16-le")
    assert 5 < len(documents) < 35
    assert account.changed["compressed files that are damaged, read as far as they decompress"].count == 1


def test_one_line_of_xml_is_a_dump_too(tmp_path: Path) -> None:
    documents, _ = read(written(tmp_path / "d.xml", WHOLE.replace(b">\n", b">").replace(b"  <", b"<")))
    assert len(documents) == 40


def test_a_broken_page_costs_that_page(tmp_path: Path) -> None:
    broken = [
        PAGES[0].replace("</title>", "</titel>"),
        PAGES[1].replace("<text", "<!DOCTYPE x [<!ENTITY a 'b'>]><text"),
        PAGES[2].replace("tells", "&expand;"),
        PAGES[3].replace("  </page>\n", ""),
        PAGES[4].replace("tells", "te\x07lls"),
        PAGES[5],
    ]
    path = written(tmp_path / "d.xml", dump(*broken))
    documents, account = read(path)
    assert [document.id for document in documents] == ["d.xml@5"]
    assert dropped(account) == {"pages of broken XML": 4, "pages cut short by another page": 1}
    assert account.documents == 5
    with pytest.raises(BertsmithError, match=r"broken XML[\s\S]*d\.xml@0"):
        read(path, strict=True)


def test_entities_are_never_expanded(tmp_path: Path) -> None:
    """The "billion laughs": a document type before the pages is not read, so its entities are unknown."""
    laughs = b'<!DOCTYPE mediawiki [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>\n'
    path = written(tmp_path / "d.xml", laughs + dump(PAGES[0], page(90, "x &b; y").replace("&amp;", "&")))
    documents, account = read(path)
    assert len(documents) == 1
    assert dropped(account) == {"pages of broken XML": 1}


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = written(tmp_path / "d.xml", dump(page(1, "caf@ au lait")).replace(b"@", b"\xe9"))
    documents, account = read(path)
    assert documents[0].text == "caf\ufffd au lait"
    entry = account.changed["bytes that are not UTF-8, replaced by U+FFFD"]
    assert entry.count == 1
    assert entry.examples[0].startswith("d.xml@1")


def test_a_page_of_50_megabytes_is_left_out_and_never_held(tmp_path: Path) -> None:
    path = written(tmp_path / "d.xml", dump(PAGES[0], page(90, "{{" * 25_000_000), PAGES[1]))
    documents, account = read(path)
    assert [document.id for document in documents] == ["d.xml@0", "d.xml@1"]
    assert dropped(account) == {"pages longer than 16.8 MB": 1}
    assert account.bytes > 50_000_000


def test_a_dump_that_was_cut_short(tmp_path: Path) -> None:
    path = written(tmp_path / "d.xml", WHOLE[: len(WHOLE) // 2])
    documents, account = read(path)
    assert 15 <= len(documents) <= 20
    assert dropped(account) == {"pages cut short by the end of the file": 1}
    with pytest.raises(BertsmithError, match="cut short"):
        read(path, strict=True)


@pytest.mark.parametrize("codec", ["bz2", "gz"])
def test_a_packed_dump_that_was_cut_short(tmp_path: Path, codec: str) -> None:
    pages = [page(number, f"Text {random.Random(number).randbytes(3000).hex()}.") for number in range(100)]
    packed = bz2.compress(dump(*pages), 1) if codec == "bz2" else gzip.compress(dump(*pages))
    path = written(tmp_path / "d", packed[: len(packed) * 2 // 3])
    documents, account = read(path, codec)
    assert 20 < len(documents) < 80
    assert dropped(account) == {"pages cut short by damage in the file": 1}
    assert account.changed["compressed files that are damaged, read as far as they decompress"].count == 1
    with pytest.raises(BertsmithError, match="damaged"):
        read(path, codec, strict=True)


def test_a_damaged_block_in_the_middle_costs_its_pages(tmp_path: Path) -> None:
    pages = [page(number, f"Text {random.Random(number).randbytes(3000).hex()}.") for number in range(100)]
    packed = bytearray(bz2.compress(dump(*pages), 1))
    packed[len(packed) // 2] ^= 1
    documents, account = read(written(tmp_path / "d", bytes(packed)), "bz2")
    read_ids = [int(document.id.partition("@")[2]) for document in documents]
    lost = sorted(set(range(100)) - set(read_ids))
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert 10 < len(lost) < 25
    assert dropped(account) == {"pages cut short by damage in the file": 1}
