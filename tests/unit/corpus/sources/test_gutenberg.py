"""Project Gutenberg's header, licence and credits go; every word of the book stays; the count tells what went."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.formats import read_documents
from bertsmith.corpus.sources.gutenberg import without_gutenberg

BOOK = "THE BOOK\n\nby Someone\n\nIt was produced by hand.\n*** stars in it ***\nTHE END"
HEADERS = {
    "modern": "The Project Gutenberg eBook of X, by Y\n\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n",
    "older": "Project Gutenberg's X\n\n***START OF THIS PROJECT GUTENBERG E-TEXT X***\n",
    "long title": "Intro\n*** START OF THE PROJECT GUTENBERG EBOOK A VERY LONG\nTITLE THAT GOES ON ***\n",
    "small print": "***The Project Gutenberg Etext of X***\nblah\n*END*THE SMALL PRINT! FOR ETEXTS*Ver.04.29.93*END*\n",
    "half cut": " X AND Y -- COMPLETE ***\n",
}
FOOTERS = {
    "modern": "*** END OF THE PROJECT GUTENBERG EBOOK X ***\nlicence, section 1",
    "two lines": "End of the Project Gutenberg EBook of X, by Y\n\n*** END OF THIS PROJECT GUTENBERG EBOOK X ***\n1.A",
    "possessive": "End of Project Gutenberg’s X, by Y\n\nlicence",
    "etext": "End of The Project Gutenberg Etext of X",
    "licence alone": "*** START: FULL LICENSE ***\n\nTHE FULL PROJECT GUTENBERG LICENSE\n",
}


def cut(text: str) -> tuple[str, dict[str, int]]:
    account = Account()
    kept = without_gutenberg(text, "a.txt", account)
    counts = {what: entry.count for what, entry in account.changed.items()}
    assert sum(entry.bytes for entry in account.changed.values()) == len(text.encode()) - len(kept.encode())
    return kept, counts


@pytest.mark.parametrize("header", sorted(HEADERS))
@pytest.mark.parametrize("footer", sorted(FOOTERS))
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_every_form_of_header_and_footer_goes(header: str, footer: str, line_end: str) -> None:
    credits_ = "\n\nProduced by A, B and the\nOnline Team\n\n\n" if header != "small print" else "\n"
    text = (HEADERS[header] + credits_ + BOOK + "\n\n" + FOOTERS[footer]).replace("\n", line_end)
    kept, counts = cut(text)
    assert kept.strip() == BOOK.replace("\n", line_end)
    what = "half-cut header lines of Project Gutenberg" if header == "half cut" else "Project Gutenberg headers"
    assert counts[f"{what}, left out"] == 1
    assert counts["Project Gutenberg footers, left out"] == 1
    assert counts.get("Project Gutenberg credits, left out", 0) == (header != "small print")


def test_several_books_in_one_text() -> None:
    one = HEADERS["modern"] + "First book.\n" + FOOTERS["two lines"] + "\n"
    kept, counts = cut(one + one.replace("First", "Second"))
    assert kept == "First book.\nSecond book.\n"
    assert counts["Project Gutenberg footers, left out"] == 2


@pytest.mark.parametrize(
    "text",
    [
        BOOK,
        "A tale told of Project Gutenberg, and of the end of Project Gutenberg as we know it.",
        "See [Project Gutenberg eBook 1258 below].\n\nProduced by nobody.",
        "Not all capitals ***\nText.",
        "*** A TITLE ***\nText.",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cut(text) == (text, {})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("*** START OF THE PROJECT GUTENBERG EBOOK X\n" + ("A paragraph a line. " * 500 + "\n") * 4, 40_004),
        ("ACGT" * 16_384, 65_536),
        ("Project Gutenberg\n" + " " * 250_000, 250_018),
    ],
    ids=["a mark without its end", "capitals alone", "spaces"],
)
def test_long_lines_take_no_longer_than_their_length(text: str, kept: int) -> None:
    """They were gone back to for every letter: the first took hours."""
    assert len(cut(text)[0]) == kept


@given(st.lists(st.sampled_from([*HEADERS.values(), *FOOTERS.values(), "Text.\n", "\n", "TITLE ***\n"]), max_size=6))
def test_what_goes_is_counted_to_the_byte(pieces: list[str]) -> None:
    cut("".join(pieces))


def test_real_books(real_data: Callable[[str], Path]) -> None:
    files, _ = find_files([real_data("books/gutenberg")], ReadOptions())
    account = Account()
    for file in files:
        (document,) = read_documents(file.whole(), ReadOptions(), account)
        text = document.text.strip()
        assert "START OF TH" not in text, file.name
        assert "Literary Archive Foundation" not in text, file.name
        assert not text.splitlines()[0].endswith("***"), file.name
        assert not text.startswith("Produced by"), file.name
        assert len(document.text) > 0.85 * file.size_bytes - 25_000, file.name
    counts = {what: entry.count for what, entry in account.changed.items()}
    assert counts == {
        "byte order marks of UTF-8, left out": 21,
        "Project Gutenberg headers, left out": 30,
        "half-cut header lines of Project Gutenberg, left out": 14,
        "Project Gutenberg credits, left out": 25,
        "Project Gutenberg footers, left out": 31,
    }
