"""MediaWiki dumps for tests, as MediaWiki writes them."""

from __future__ import annotations

import time
from pathlib import Path
from xml.sax.saxutils import escape

from bertsmith.corpus.wiki.text import Removed, Spaces, plain_text

BIG = 90
BIG_TEXT = "\n\n".join(f"Row [[a {n}|of {n}]], <b>bold</b> & [http://x.y a site] of river {n}." for n in range(5000))
HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <dbname>dewiki</dbname>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Diskussion</namespace>
      <namespace key="6" case="first-letter">Bildchen</namespace>
      <namespace key="14" case="first-letter">Kategorei</namespace>
    </namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"


def revision(text: str, model: str = "wikitext") -> str:
    """One revision of a page."""
    return (
        "    <revision>\n      <id>7</id>\n      <contributor>\n        <ip>1.2.3.4</ip>\n      </contributor>\n"
        f"      <model>{model}</model>\n      <format>text/x-wiki</format>\n"
        f'      <text bytes="1" xml:space="preserve">{escape(text)}</text>\n    </revision>\n'
    )


def page(number: int, *texts: str, title: str = "", space: int = 0, redirect: str = "", model: str = "wikitext") -> str:
    """A page with a revision for each text."""
    to = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title or f'Page {number}')}</title>\n"
        f"    <ns>{space}</ns>\n    <id>{number}</id>\n"
        f"{to}{''.join(revision(text, model) for text in texts)}  </page>\n"
    )


def dump(*pages: str) -> bytes:
    """A whole dump."""
    return (HEAD + "".join(pages) + TAIL).encode()


def slow_dump(path: Path) -> Path:
    """Small pages, and in their midst one, BIG, that takes a thousand times as long."""
    small = [
        page(number, f"'''Page {number}''' tells of a [[river]] and its {number} bridges.") for number in range(60)
    ]
    path.write_bytes(dump(*small[:30], page(BIG, BIG_TEXT, title="Rows & rows"), *small[30:]))
    return path


def seconds_of_slow_page() -> float:
    """CPU seconds of the big page: the least of three."""

    def seconds() -> float:
        begun = time.thread_time()
        plain_text(BIG_TEXT, "", Spaces(), Removed())
        return time.thread_time() - begun

    return min(seconds() for _ in range(3))
