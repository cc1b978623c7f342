"""MediaWiki XML dumps: the articles of a dump, or of a slice of one, as documents.

A page is found by its tags and parsed by itself, so memory holds one page, a broken page costs that page alone, and
there is no document type that could define entities to expand. A dump can be cut at any byte, packed as bz2 too; a page
belongs to the slice that its tag begins in. Of a page with many revisions the last is read.
"""

from __future__ import annotations

import html
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.reading import Reading
from bertsmith.corpus.wiki.page_time import TookTooLongError, within
from bertsmith.corpus.wiki.text import Removed, Spaces, plain_text
from bertsmith.rows.bz2_blocks import blocks_from
from bertsmith.rows.compressed import UNPACKED, damage_of, open_bytes
from bertsmith.rows.lines import Fault, Slice, open_text, report_bad_text

# MediaWiki itself takes no text above 2 MiB unless it is configured to. A longer page is left out.
LONGEST_PAGE = 16 << 20
_CHUNK = 1 << 18
_TAG = re.compile(rb"<(?:/?page|revision)>")
_LONGEST_TAG = len(b"<revision>")
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>]*?(?:/>|>([^<]*)<)')
_LANGUAGE = re.compile(r'<mediawiki\b[^>]*\bxml:lang="([\w-]+)"')
_OF_SEVERAL_SCRIPTS = {"ban", "crh", "gan", "iu", "kk", "ku", "sh", "shi", "sr", "tg", "uz", "wuu", "zh"}
_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
_ID = re.compile(rb"<id>\s*(\d+)")
SLOW = "pages given up because they took too long"
CUT_SHORT = "pages cut short by the end of the file"
DAMAGED = "compressed files that are damaged, read as far as they decompress"
_FILE, _CATEGORY = 6, 14

# (whether the bytes lie in the slice, the bytes or None where the file is damaged, where they begin)
_Chunks = Generator[tuple[bool, bytes | None, int]]


def dump_edges(file: Slice, part_bytes: int) -> list[int]:
    """Bytes to cut a dump at: any will do, since a slice finds the pages that begin in it."""
    size_bytes = os.path.getsize(file.path)
    cuts = max(1, round(size_bytes * (UNPACKED if file.codec else 1) / part_bytes))
    return [size_bytes * cut // cuts for cut in range(1, cuts)]


def read_pages(reading: Reading) -> Iterator[Document]:
    """The articles of a slice as plain text, named file@page-id; every other page is dropped for a named reason."""
    part, account = reading.part, reading.account
    names, language = _wiki(replace(part, begin=0, end=None))
    spaces = Spaces(names.get(_FILE, ""), names.get(_CATEGORY, ""), language in _OF_SEVERAL_SCRIPTS)
    with closing(_chunks(reading)) as chunks:
        for raw in _raw_pages(chunks, _is_by_block(part)):
            found = _ID.search(raw.data)
            where = f"{part.name}@{found[1].decode() if found else '?'}"
            if raw.older_bytes:
                account.changed.note("older revisions of pages, left out", raw.older, raw.older_bytes, where)
            fault, page = raw.fault, None
            if not fault:
                page = _parsed(reading.decode(raw.data, 0, where))
                fault = "" if page is not None else "pages of broken XML"
            if page is None:
                reading.drop(fault, raw.size, where)
                continue
            title, source = page.findtext("title") or "", page.findtext("revision/text") or ""
            text, example, reason = "", f"{where}: {title}", _no_article(page, source, names)
            if not reason:
                removed = Removed()
                try:
                    text = within(reading.options.page_seconds, partial(plain_text, source, title, spaces, removed))
                    reason = "" if text else "pages of markup without text"
                    _note(removed, where, account)
                except TookTooLongError:
                    reason, example = SLOW, f"{example}, {_place(part, raw.begin)}"
                    account.slow.append(example)
            if reason:
                size_bytes = len(source.encode())
                account.read(size_bytes)
                account.drop(reason, size_bytes, example)
            else:
                yield Document(where, text, "paragraph")


def _note(removed: Removed, where: str, account: Account) -> None:
    """Puts what was removed from a page into the account."""
    for what, (count, removed_bytes) in removed.items():
        said = what if "kept" in what or "left out" in what else f"{what}, left out"
        account.changed.note(said, count, removed_bytes, where)


def _place(part: Slice, byte: int) -> str:
    """Where a page begins, as a user can find it."""
    return f"in the block at byte {byte:,}" if _is_by_block(part) else f"byte {byte:,}"


def _is_by_block(part: Slice) -> bool:
    """Whether the blocks of a dump are read each by itself; one that is not in UTF-8 is a stream."""
    return part.codec == "bz2" and not part.encoding


def _parsed(text: str) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None


def _no_article(page: ElementTree.Element, source: str, names: dict[int, str]) -> str:
    """Why a page is not read as an article, or ""."""
    space = page.findtext("ns")
    if space is None:  # dumps before 2011 tell it by the title alone
        before, colon, _ = (page.findtext("title") or "").partition(":")
        space = "other" if colon and before in names.values() else "0"
    if space != "0":
        return "pages of other namespaces"
    if page.find("redirect") is not None or _REDIRECT.match(source):
        return "redirects"
    if page.findtext("revision/model", "wikitext") != "wikitext":
        return "pages that are not wikitext"
    return "" if source.strip() else "pages without wikitext"


@dataclass
class _RawPage:
    """The XML of a page, or why it is not whole.

    begin: its first byte, or that of its block. older: revisions that are not in it. size: bytes of what is.
    """

    data: bytes
    begin: int
    fault: str = ""
    older: int = 0
    older_bytes: int = 0
    size: int = 0


@dataclass
class _Open:
    """A page whose end is still to come: what stands before its first revision, and the newest revision so far."""

    begin: int
    head: list[bytes] = field(default_factory=list)
    revision: list[bytes] = field(default_factory=list)
    revisions: int = 0
    older_bytes: int = 0
    held: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, data: bytes) -> None:
        """Takes what stands in the page, up to the limit; what is past it is only counted."""
        place = 1 if self.revisions else 0
        self.held[place] += len(data)
        if sum(self.held) <= LONGEST_PAGE:
            (self.revision if place else self.head).append(data)

    def next_revision(self) -> None:
        self.older_bytes += self.held[1]
        self.revision, self.held[1] = [], 0
        self.revisions += 1

    def closed(self, fault: str = "") -> _RawPage:
        if sum(self.held) > LONGEST_PAGE:
            fault = fault or f"pages longer than {size(LONGEST_PAGE)}"
        data = b"".join([*self.head, *self.revision])
        return _RawPage(data, self.begin, fault, max(0, self.revisions - 1), self.older_bytes, sum(self.held))


def _raw_pages(chunks: _Chunks, by_block: bool) -> Iterator[_RawPage]:
    """The pages whose tag begins in the slice, to their end. by_block: places are known by chunk only."""
    page: _Open | None = None
    for mine, tag, data, begin in _tags(chunks, by_block):
        if page is not None and (tag in (b"<page>", b"damage", b"")):
            within = f"pages cut short by {'damage in the file' if tag == b'damage' else 'another page'}"
            yield page.closed(within if tag else CUT_SHORT)
            page = None
        match tag:
            case b"<page>":
                if not mine:
                    return
                page = _Open(begin)
                page.add(tag)
            case b"<revision>" if page is not None:
                page.next_revision()
                page.add(tag)
            case b"</page>" if page is not None:
                page.add(tag)
                yield page.closed()
                page = None
            case b"text" if page is not None:
                page.add(data)
            case b"text" if not mine:
                return


def _tags(chunks: _Chunks, by_block: bool) -> Iterator[tuple[bool, bytes, bytes, int]]:
    """(whether it begins in the slice, what, bytes, where): a tag, "text" between tags, "damage", or "" at the end."""
    rest, rest_mine = b"", True
    for mine, chunk, byte in chunks:
        if chunk is None:
            rest = b""
            yield mine, b"damage", b"", byte
            continue
        window, start = rest + chunk, 0
        border = len(rest)
        for found in _TAG.finditer(window):
            if found.start() > start:
                yield (rest_mine if start < border else mine), b"text", window[start : found.start()], byte
            where = byte if by_block else byte + found.start() - border
            yield (rest_mine if found.start() < border else mine), found[0], b"", where
            start = found.end()
        # A tag may go on in the next chunk.
        cut = window.rfind(b"<", max(start, len(window) - _LONGEST_TAG + 1))
        cut = len(window) if cut < 0 else cut
        if cut > start:
            yield (rest_mine if start < border else mine), b"text", window[start:cut], byte
        rest_mine = rest_mine if cut < border else mine
        rest = window[cut:]
    if rest:
        yield rest_mine, b"text", rest, 0
    yield True, b"", b"", 0


def _chunks(reading: Reading) -> _Chunks:
    """The unpacked bytes from the slice's begin on, past its end too; those of the slice itself are counted."""
    part = reading.part
    for mine, chunk, byte in _bz2_chunks(part) if _is_by_block(part) else _read_chunks(reading):
        if chunk is None and mine:
            what, where = "this file is damaged and cannot be decompressed", reading.where(byte)
            error = BertsmithError(what, where, "copy or download it again")
            reading.report(Fault(DAMAGED, 1, 0, where, error))
        elif chunk is not None and mine:
            reading.account.stream_bytes += len(chunk)
        yield mine, chunk, byte


def _bz2_chunks(part: Slice) -> Iterator[tuple[bool, bytes | None, int]]:
    with open_bytes(part.path, "") as file:
        for block in blocks_from(file, part.begin):
            yield part.end is None or block.byte < part.end, block.data, block.byte


def _read_chunks(reading: Reading) -> Iterator[tuple[bool, bytes | None, int]]:
    part, position = reading.part, reading.part.begin
    with closing(open_text(part.path, part.codec, part.encoding)) as file:
        if position:
            file.seek(position)
        while True:
            mine = part.end is None or position < part.end
            most = min(_CHUNK, part.end - position) if part.end is not None and mine else _CHUNK
            chunk = file.read(most)
            if not chunk:
                break
            yield mine, chunk, position
            position += len(chunk)
        report_bad_text(file, part, reading.report)
        if damage_of(file):
            yield True, None, position


@lru_cache(maxsize=64)
def _wiki(dump: Slice) -> tuple[dict[int, str], str]:
    """The names of a wiki's namespaces by their numbers, and its language, as far as the head of its dump tells."""
    chunks = _chunks(Reading(dump, ReadOptions(), Account()))
    _, head, _ = next(chunks, (True, None, 0))
    text = (head or b"").decode(errors="replace")
    names = {int(key): html.unescape(name) for key, name in _NAMESPACE.findall(text) if name}
    language = _LANGUAGE.search(text)
    return names, language[1] if language else ""
