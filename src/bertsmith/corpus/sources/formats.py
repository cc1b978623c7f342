"""The kinds of source: how each is recognised by its content, and how documents are read from it.

A further kind is one more function and one more row of KINDS.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.lines import LONGEST_LINE, IsStart, Slice, decode, lines_of
from bertsmith.corpus.sources.gutenberg import without_gutenberg
from bertsmith.corpus.sources.parquet import group_edges, read_parquet
from bertsmith.corpus.sources.rows import drop_row, whole_text
from bertsmith.corpus.sources.tables import any_line, read_table, row_edges
from bertsmith.corpus.sources.wikiextractor import without_remains
from bertsmith.rows.encodings import UTF8_MARK

# A text file taken as one document is cut into several at the line where it passes this size.
LONGEST_DOCUMENT = 32 << 20
WIKI_FIELDS = {"id", "url", "title", "text"}
# A title may hold quotes of its own, so a value ends at a quote that a space or the end of the tag follows.
_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=[ >])')
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
    read: Callable[[Slice, ReadOptions, Account], Iterator[Document]]
    is_start: IsStart | None
    edges: Callable[[Slice, int], list[int]] | None = None
    has_field: bool = False
    cut_packed: tuple[str, ...] = ()


def read_documents(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of a slice. Rows that are no document are counted as read and dropped; bytes as they stream by."""
    return KINDS[part.kind].read(part, options, account)


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


def _lines(part: Slice, options: ReadOptions, account: Account, runs: bool = False) -> Iterator[tuple[int, bytes]]:
    return lines_of(part, KINDS[part.kind].is_start, account, options.strict, runs=runs)


def _long_document_edges(file: Slice, part_bytes: int) -> list[int]:
    """Where a text file is cut that is too long for one document: behind the lines in which it passes that length."""
    edges, end = list[int](), os.path.getsize(file.path)
    with open(file.path, "rb") as text:
        while text.seek((edges[-1] if edges else 0) + LONGEST_DOCUMENT) < end:
            while not text.readline(LONGEST_LINE).endswith(b"\n") and text.tell() < end:
                continue
            edges.append(text.tell())
    return [edge for edge in edges if edge < end]


def _read_file(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, raw in _gather(part, options, account):
        cut = begin > len(UTF8_MARK)
        if cut:
            account.changed.note(f"cuts of text files into documents of {size(LONGEST_DOCUMENT)}", example=part.name)
        name = f"{part.name}@{begin}" if cut else part.name
        text = decode(raw, part.name, begin, account, options.strict)
        yield Document(name, without_gutenberg(text, part.name, account))


def _read_blank_line(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, raw in _gather(part, options, account, lambda line: not line.strip()):
        text = decode(raw, part.name, begin, account, options.strict)
        yield Document(f"{part.name}@{begin}", text, "sentence")


def _gather(
    part: Slice, options: ReadOptions, account: Account, parts_documents: Callable[[bytes], bool] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Lines joined up to one that parts documents, or to the longest document; empty ones are not given."""
    lines: list[bytes] = []
    first = held = 0
    for start, run in _lines(part, options, account, runs=parts_documents is None):
        begin = start
        # Cut at a line, however many of them came together.
        for line in [run] if held + len(run) <= LONGEST_DOCUMENT else _LINE.findall(run):
            parting = parts_documents is not None and parts_documents(line)
            if lines and (parting or held > LONGEST_DOCUMENT):
                yield first, b"".join(lines)
                lines, held = [], 0
            if not parting:
                if not lines:
                    first = begin
                lines.append(line)
                held += len(line)
            begin += len(line)
    if lines:
        yield first, b"".join(lines)


def _read_lines(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, line in _lines(part, options, account):
        if not line.strip():
            continue
        yield Document(f"{part.name}@{begin}", decode(line, part.name, begin, account, options.strict).rstrip("\r\n"))


def _rows(part: Slice, options: ReadOptions, account: Account) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON lines. A row that is none is dropped as a document of its own bytes."""
    for begin, line in _lines(part, options, account):
        if not line.strip():
            continue
        text = decode(line, part.name, begin, account, options.strict)
        try:
            row = json.loads(text)
            fault = "" if isinstance(row, dict) else "rows that are not a JSON object"
        except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, or nested too deep
            row, fault = {}, "rows that are not JSON"
        if fault:
            drop_row(fault, len(text.encode()), f"{part.name}, byte {begin:,}", options, account)
        else:
            yield begin, row


def _read_jsonl(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, row in _rows(part, options, account):
        text = row.get(options.text_field)
        if not isinstance(text, str):
            fault = f"rows without text in the field '{options.text_field}'"
            drop_row(fault, 0, f"{part.name}, byte {begin:,}", options, account)
            continue
        name = row.get("id", begin)
        yield Document(f"{part.name}@{name}", whole_text(text, account, part.name))


def _read_wiki_json(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, row in _rows(part, options, account):
        text, title = row.get("text"), row.get("title")
        if not isinstance(text, str):
            drop_row("rows without text in the field 'text'", 0, f"{part.name}, byte {begin:,}", options, account)
            continue
        name = f"{part.name}@{row.get('id', begin)}"
        body = without_title(whole_text(text, account, part.name), str(title or ""), name, account)
        yield Document(name, without_remains(body, name, account.changed), "paragraph")


def _read_wiki_blocks(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """`<doc id= url= title=>` up to `</doc>`; a block that never ends, ends where the next begins."""
    tag, body, first = b"", list[bytes](), 0

    def document() -> Document:
        attributes = dict(_ATTRIBUTE.findall(tag.decode(errors="replace")))
        text = decode(b"".join(body), part.name, first, account, options.strict)
        name = f"{part.name}@{attributes.get('id', first)}"
        text = without_title(text, html.unescape(attributes.get("title", "")), name, account)
        return Document(name, without_remains(text, name, account.changed), "paragraph")

    for begin, line in _stretches(part, options, account):
        if line.startswith(b"<doc "):
            if tag:
                account.changed.note("<doc> blocks without their end", example=f"{part.name}, byte {first:,}")
                yield document()
            tag, body, first = line, [], begin + len(line)
        elif tag and line.startswith(b"</doc>"):
            yield document()
            tag = b""
        elif tag:
            body.append(line)
        else:
            for found in _FILLED_LINE.finditer(line):
                where = f"{part.name}, byte {begin + found.start():,}"
                account.changed.note("lines outside <doc> blocks, left out", 1, len(found.group()), where)
    if tag:
        account.changed.note("<doc> blocks without their end", example=f"{part.name}, byte {first:,}")
        yield document()


def _stretches(part: Slice, options: ReadOptions, account: Account) -> Iterator[tuple[int, bytes]]:
    """The lines of a slice: one that begins with a tag by itself, those up to the next such line together."""
    for begin, run in _lines(part, options, account, runs=True):
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


def _read_dump(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    # Imported for a dump only: with the parser of wikitext it is a tenth of what a worker imports.
    from bertsmith.corpus.wiki.dumps import read_pages

    return read_pages(part, options, account)


def _dump_edges(file: Slice, part_bytes: int) -> list[int]:
    from bertsmith.corpus.wiki.dumps import dump_edges

    return dump_edges(file, part_bytes)


KINDS = {
    "file": Kind("plain text, a file is a document", _read_file, None, _long_document_edges),
    "blank-line": Kind("plain text, a sentence a line, blank lines between documents", _read_blank_line, _after_blank),
    "line": Kind("plain text, a line is a document", _read_lines, any_line),
    "jsonl": Kind("JSON lines", _read_jsonl, any_line, has_field=True),
    "csv": Kind("csv", read_table, None, row_edges, has_field=True),
    "tsv": Kind("tsv, quotes taken for text", read_table, any_line, has_field=True),
    "parquet": Kind("parquet", read_parquet, None, group_edges, has_field=True),
    "mediawiki": Kind("MediaWiki XML dump", _read_dump, None, _dump_edges, cut_packed=("bz2",)),
    "wikiextractor": Kind("WikiExtractor <doc> blocks", _read_wiki_blocks, _doc_tag),
    "wikiextractor-json": Kind("WikiExtractor JSON lines", _read_wiki_json, any_line),
}
