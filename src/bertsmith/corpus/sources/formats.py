"""The kinds of source: how each is recognised by its content, and how documents are read from it.

A further kind is one more function and one more row of KINDS.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.reading import Reading
from bertsmith.corpus.sources.gutenberg import without_gutenberg
from bertsmith.corpus.sources.row_documents import objects_with_text, read_jsonl, read_parquet, read_table, table_edges
from bertsmith.corpus.sources.wikiextractor import without_remains
from bertsmith.rows.encodings import UTF8_MARK
from bertsmith.rows.lines import LONGEST_LINE, IsStart, Slice, any_line
from bertsmith.rows.parquet import group_edges

# A text file taken as one document is cut into several at the line where it passes this size.
LONGEST_DOCUMENT = 32 << 20
WIKI_FIELDS = {"id", "url", "title", "text"}
# A title may hold quotes of its own, so a value ends at a quote that another attribute or the end of the tag follows.
_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=\s*>|\s+[\w:.-]+=)')
_TAGS = (b"<doc ", b"</doc>")
_TAG_LINE = re.compile(rb"\n<(?:doc |/doc>)")
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_FILLED_LINE = re.compile(rb"[^\n]*[^\s][^\n]*\n?")


@dataclass(frozen=True)
class Kind:
    """A kind of source. is_start: whether a document may start at a line; None where a line does not tell.

    edges: finds the bytes at which a file of such a kind can be cut, about so many bytes apart; a file of a kind with
    neither is always one slice. has_field: whether its text is in a field that the user names. cut_packed: the packings
    in which `edges` can cut it too.
    """

    said: str
    read: Callable[[Reading], Iterator[Document]]
    is_start: IsStart | None
    edges: Callable[[Slice, int], list[int]] | None = None
    has_field: bool = False
    cut_packed: tuple[str, ...] = ()


def read_documents(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of a slice. Rows that are no document are counted as read and dropped; bytes as they stream by."""
    return KINDS[part.kind].read(Reading(part, options, account))


def edges_of(file: Slice, size_bytes: int, part_bytes: int) -> list[int | None]:
    """Where a file of `size_bytes` is cut into slices of about `part_bytes`: their first bytes, and None at the end."""
    kind = KINDS[file.kind]
    cuts = max(1, round(size_bytes / part_bytes))
    packed = bool(file.codec)
    if (packed and file.codec not in kind.cut_packed) or file.encoding or (cuts == 1 and not packed):
        return [0, None]
    if kind.edges is not None:
        return [0, *kind.edges(file, part_bytes), None]
    if kind.is_start is None:
        return [0, None]
    return [*(size_bytes * cut // cuts for cut in range(cuts)), None]


def _lines(reading: Reading, runs: bool = False) -> Iterator[tuple[int, bytes]]:
    return reading.lines(KINDS[reading.part.kind].is_start, runs=runs)


def _long_document_edges(file: Slice, part_bytes: int) -> list[int]:
    """Where a text file that is too long for one document is cut: after the lines in which it passes that length."""
    edges, end = list[int](), os.path.getsize(file.path)
    with open(file.path, "rb") as text:
        while text.seek((edges[-1] if edges else 0) + LONGEST_DOCUMENT) < end:
            while not text.readline(LONGEST_LINE).endswith(b"\n") and text.tell() < end:
                continue
            edges.append(text.tell())
    return [edge for edge in edges if edge < end]


def _read_file(reading: Reading) -> Iterator[Document]:
    name, account = reading.part.name, reading.account
    for begin, raw in _gather(reading):
        cut = begin > len(UTF8_MARK)
        if cut:
            account.changed.note(f"cuts of text files into documents of {size(LONGEST_DOCUMENT)}", example=name)
        yield Document(f"{name}@{begin}" if cut else name, without_gutenberg(reading.decode(raw, begin), name, account))


def _read_blank_line(reading: Reading) -> Iterator[Document]:
    end = -1
    for begin, raw in _gather(reading, lambda line: not line.strip()):
        if begin == end:
            what = f"cuts of documents longer than {size(LONGEST_DOCUMENT)}"
            reading.account.changed.note(what, example=reading.where(begin))
        end = begin + len(raw)
        yield Document(f"{reading.part.name}@{begin}", reading.decode(raw, begin), "sentence")


def _gather(
    reading: Reading, separates_documents: Callable[[bytes], bool] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Lines joined up to one that separates documents, or to the longest document; empty ones are not given."""
    lines: list[bytes] = []
    first = held = 0
    for start, run in _lines(reading, runs=separates_documents is None):
        begin = start
        # Cut at a line, however many of them came together.
        for line in [run] if held + len(run) <= LONGEST_DOCUMENT else _LINE.findall(run):
            separates = separates_documents is not None and separates_documents(line)
            if lines and (separates or held > LONGEST_DOCUMENT):
                yield first, b"".join(lines)
                lines, held = [], 0
            if not separates:
                if not lines:
                    first = begin
                lines.append(line)
                held += len(line)
            begin += len(line)
    if lines:
        yield first, b"".join(lines)


def _read_lines(reading: Reading) -> Iterator[Document]:
    for begin, line in _lines(reading):
        if line.strip():
            yield Document(f"{reading.part.name}@{begin}", reading.decode(line, begin).rstrip("\r\n"))


def _wiki_document(name: str, text: str, title: str, account: Account) -> Document:
    """An article as WikiExtractor wrote it, without its title and what the tool left of markup."""
    return Document(
        name, without_remains(without_title(text, title, name, account), name, account.changed), "paragraph"
    )


def _read_wiki_json(reading: Reading) -> Iterator[Document]:
    for begin, row, text in objects_with_text(reading, "text"):
        name = f"{reading.part.name}@{row.get('id', begin)}"
        yield _wiki_document(name, text, str(row.get("title") or ""), reading.account)


def _read_wiki_blocks(reading: Reading) -> Iterator[Document]:
    """`<doc id= url= title=>` up to `</doc>`; a block that never ends, ends where the next begins."""
    tag, body, first = b"", list[bytes](), 0
    changed = reading.account.changed

    def document() -> Document:
        attributes = dict(_ATTRIBUTE.findall(tag.decode(errors="replace")))
        name = f"{reading.part.name}@{attributes.get('id', first)}"
        title = html.unescape(attributes.get("title", ""))
        return _wiki_document(name, reading.decode(b"".join(body), first), title, reading.account)

    for begin, line in _stretches(reading):
        if line.startswith(b"<doc "):
            if tag:
                changed.note("<doc> blocks without their end", example=reading.where(first))
                yield document()
            tag, body, first = line, [], begin + len(line)
        elif tag and line.startswith(b"</doc>"):
            yield document()
            tag = b""
        elif tag:
            body.append(line)
        else:
            for found in _FILLED_LINE.finditer(line):
                where = reading.where(begin + found.start())
                changed.note("lines outside <doc> blocks, left out", 1, len(found.group()), where)
    if tag:
        changed.note("<doc> blocks without their end", example=reading.where(first))
        yield document()


def _stretches(reading: Reading) -> Iterator[tuple[int, bytes]]:
    """The lines of a slice: one that begins with a tag by itself, those up to the next such line together."""
    for begin, run in _lines(reading, runs=True):
        start = 0
        while start < len(run):
            if run.startswith(_TAGS, start):
                end = run.find(b"\n", start) + 1 or len(run)
            else:
                tag = _TAG_LINE.search(run, start)
                end = tag.start() + 1 if tag else len(run)
            yield begin + start, run[start:end]
            start = end


def without_title(text: str, title: str, name: str, account: Account) -> str:
    """The text without its first line where that repeats the title; such lines are counted. name: the document's."""
    first, _, rest = text.lstrip().partition("\n")
    if not title or first.strip() != title.strip():
        return text
    account.changed.note("first lines that repeat the title, left out", 1, len(first.encode()), name)
    return rest


def _after_blank(line: bytes, before: bytes) -> bool:
    return bool(line.strip()) and not before.strip()


def _doc_tag(line: bytes, before: bytes) -> bool:
    return line.startswith(b"<doc ")


def _read_dump(reading: Reading) -> Iterator[Document]:
    # Imported for a dump only: with the parser of wikitext it is a tenth of what a worker imports.
    from bertsmith.corpus.wiki.dumps import read_pages

    return read_pages(reading)


def _dump_edges(file: Slice, part_bytes: int) -> list[int]:
    from bertsmith.corpus.wiki.dumps import dump_edges

    return dump_edges(file, part_bytes)


KINDS = {
    "file": Kind("plain text, a file is a document", _read_file, None, _long_document_edges),
    "blank-line": Kind("plain text, a sentence a line, blank lines between documents", _read_blank_line, _after_blank),
    "line": Kind("plain text, a line is a document", _read_lines, any_line),
    "jsonl": Kind("JSON lines", read_jsonl, any_line, has_field=True),
    "csv": Kind("csv", read_table, None, table_edges, has_field=True),
    "tsv": Kind("tsv, quotes taken for text", read_table, any_line, has_field=True),
    "parquet": Kind("parquet", read_parquet, None, group_edges, has_field=True),
    "mediawiki": Kind("MediaWiki XML dump", _read_dump, None, _dump_edges, cut_packed=("bz2",)),
    "wikiextractor": Kind("WikiExtractor <doc> blocks", _read_wiki_blocks, _doc_tag),
    "wikiextractor-json": Kind("WikiExtractor JSON lines", _read_wiki_json, any_line),
}
