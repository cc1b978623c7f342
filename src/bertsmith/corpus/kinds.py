"""The kinds of source: how each is recognised by its content, and how documents are read from it.

A further kind is one more function and one more row of KINDS.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.account import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.lines import IsStart, Slice, decode, lines_of

# A text file taken as one document is cut into several at the line where it passes this size.
LONGEST_DOCUMENT = 32 << 20
WIKI_FIELDS = {"id", "url", "title", "text"}
# A title may hold quotes of its own, so a value ends at a quote that a space or the end of the tag follows.
_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=[ >])')
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Kind:
    """A kind of source. is_start: whether a document may start at a line; None where a file cannot be sliced."""

    said: str
    read: Callable[[Slice, ReadOptions, Account], Iterator[Document]]
    is_start: IsStart | None


def read_documents(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of a slice. Rows that are no document are counted as read and dropped; bytes as they stream by."""
    return KINDS[part.kind].read(part, options, account)


def _lines(part: Slice, options: ReadOptions, account: Account) -> Iterator[tuple[int, bytes]]:
    return lines_of(part, KINDS[part.kind].is_start, account, options.strict)


def _read_file(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for number, (begin, raw) in enumerate(_gather(part, options, account, lambda line: False)):
        if number:
            account.changed.note(f"cuts of text files into documents of {size(LONGEST_DOCUMENT)}", example=part.name)
        name = f"{part.name}@{begin}" if number else part.name
        yield Document(name, decode(raw, part.name, begin, account, options.strict))


def _read_blank_line(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, raw in _gather(part, options, account, lambda line: not line.strip()):
        text = decode(raw, part.name, begin, account, options.strict)
        yield Document(f"{part.name}@{begin}", text, "sentence")


def _gather(
    part: Slice, options: ReadOptions, account: Account, parts_documents: Callable[[bytes], bool]
) -> Iterator[tuple[int, bytes]]:
    """Lines joined up to one that parts documents, or to the longest document; empty ones are not given."""
    lines: list[bytes] = []
    first = held = 0
    for begin, line in _lines(part, options, account):
        parting = parts_documents(line)
        if lines and (parting or held > LONGEST_DOCUMENT):
            yield first, b"".join(lines)
            lines, held = [], 0
        if not parting:
            if not lines:
                first = begin
            lines.append(line)
            held += len(line)
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
        except (json.JSONDecodeError, RecursionError):
            row, fault = {}, "rows that are not JSON"
        if fault:
            _drop_row(fault, len(text.encode()), f"{part.name}, byte {begin:,}", options, account)
        else:
            yield begin, row


def _drop_row(fault: str, size_bytes: int, where: str, options: ReadOptions, account: Account) -> None:
    if options.strict:
        raise BertsmithError(f"found {fault}", where, "mend the row, or leave --strict away to have such rows counted")
    account.read(size_bytes)
    account.drop(fault, size_bytes, where)


def _read_jsonl(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, row in _rows(part, options, account):
        text = row.get(options.text_field)
        if not isinstance(text, str):
            fault = f"rows without text in the field '{options.text_field}'"
            _drop_row(fault, 0, f"{part.name}, byte {begin:,}", options, account)
            continue
        name = row.get("id", begin)
        yield Document(f"{part.name}@{name}", _whole(text, account, part.name))


def _whole(text: str, account: Account, where: str) -> str:
    """JSON can spell halves of a surrogate pair, which no encoding can hold."""
    if text.isascii():
        return text
    text, count = _SURROGATES.subn("\ufffd", text)
    if count:
        account.changed.note("lone surrogates, replaced by U+FFFD", count, example=where)
    return text


def _read_wiki_json(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    for begin, row in _rows(part, options, account):
        text, title = row.get("text"), row.get("title")
        if not isinstance(text, str):
            _drop_row("rows without text in the field 'text'", 0, f"{part.name}, byte {begin:,}", options, account)
            continue
        body = without_title(_whole(text, account, part.name), str(title or ""), account)
        yield Document(f"{part.name}@{row.get('id', begin)}", body, "paragraph")


def _read_wiki_blocks(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """`<doc id= url= title=>` up to `</doc>`; a block that never ends, ends where the next begins."""
    tag, body, first = b"", list[bytes](), 0

    def document() -> Document:
        attributes = dict(_ATTRIBUTE.findall(tag.decode(errors="replace")))
        text = decode(b"".join(body), part.name, first, account, options.strict)
        text = without_title(text, html.unescape(attributes.get("title", "")), account)
        return Document(f"{part.name}@{attributes.get('id', first)}", text, "paragraph")

    for begin, line in _lines(part, options, account):
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
        elif line.strip():
            where = f"{part.name}, byte {begin:,}"
            account.changed.note("lines outside <doc> blocks, left out", 1, len(line), where)
    if tag:
        account.changed.note("<doc> blocks without their end", example=f"{part.name}, byte {first:,}")
        yield document()


def without_title(text: str, title: str, account: Account) -> str:
    """The text without its first line where that repeats the title; such lines are counted."""
    first, _, rest = text.lstrip().partition("\n")
    if not title or first.strip() != title.strip():
        return text
    account.changed.note("first lines that repeat the title, left out", 1, len(first.encode()))
    return rest


def _any_line(line: bytes, before: bytes) -> bool:
    return True


def _after_blank(line: bytes, before: bytes) -> bool:
    return bool(line.strip()) and not before.strip()


def _doc_tag(line: bytes, before: bytes) -> bool:
    return line.startswith(b"<doc ")


KINDS = {
    "file": Kind("plain text, a file is a document", _read_file, None),
    "blank-line": Kind("plain text, a sentence a line, blank lines between documents", _read_blank_line, _after_blank),
    "line": Kind("plain text, a line is a document", _read_lines, _any_line),
    "jsonl": Kind("JSON lines", _read_jsonl, _any_line),
    "wikiextractor": Kind("WikiExtractor <doc> blocks", _read_wiki_blocks, _doc_tag),
    "wikiextractor-json": Kind("WikiExtractor JSON lines", _read_wiki_json, _any_line),
}
