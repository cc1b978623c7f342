"""What kind of source a file is: recognised by its content, and by its name only where the content leaves it open."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.reading import no_such_field
from bertsmith.corpus.sources.formats import WIKI_FIELDS
from bertsmith.corpus.sources.row_documents import check_parquet
from bertsmith.rows import parquet
from bertsmith.rows.compressed import damage_of, is_archive, open_bytes, packing, peek, suffix_within
from bertsmith.rows.encodings import UTF8_MARK, check_marked, encoding_of, reads_as, unmarked
from bertsmith.rows.lines import LONGEST_LINE, head_of
from bertsmith.rows.tables import QUOTE, cells_of, named_separator

_HEAD = 1 << 16
_TABLE_NAMES = {".csv": ",;\t|", ".tsv": "\t,;|"}
_TABLES_BY_CONTENT = ",\t;|"
_JSON_NAMES = (".json", ".jsonl", ".ndjson")
_LINE_END = re.compile(rb"[\r\n]")
_LOST_AT_MOST = 64
_ROWS_AT_LEAST = 3
_ROWS_LOOKED_AT = 20
READABLE = (
    "readable are text, JSON lines, csv, tsv, parquet, WikiExtractor output and MediaWiki XML dumps, each plain or "
    "compressed as gz, bz2, xz or zst"
)
_MARKUP_NAMES = (".xml", ".sgm", ".sgml", ".tei", ".html", ".htm", ".xhtml")
_MARKUP = (b"<!doctype", b"<html", b"<title>", b"<body", b"<?xml", b"{\\rtf", b"%pdf-")
# XML without a declaration, or SGML: an element that holds others. One that holds text is a mark in text, such as <s>
# around a sentence; and text may begin with elements of HTML, as Markdown does.
_NESTED = re.compile(rb"\s*<([a-z][\w:.-]*)(?:\s(?:[^<>\"']|\"[^\"]*\"|'[^']*')*)?>\s*<[a-z!?]", re.IGNORECASE)
_TAGS_OF_TEXT = frozenset(
    b"a b big blockquote br center code details div dl em font h1 h2 h3 h4 h5 h6 hr i img kbd ol p picture pre s small "
    b"span strong sub sup table u ul".split()
)
_CLOSED_AT_LEAST = 3
# Of objects, or empty: text may begin with a bracket, and rows be arrays, which reading drops and counts.
_JSON_ARRAY = re.compile(rb'\s*\[\s*\{\s*(?:"|\})')


@dataclass(frozen=True)
class Form:
    """How a file is to be read; the fields are those of Slice."""

    kind: str
    codec: str = ""
    encoding: str = ""
    cells: str = ""


@dataclass(frozen=True)
class Unread:
    """Why a file is not read. damaged: it would be if it were whole. fix: what makes it one that is. wrong_field: of a
    single JSON object, a row in which the text has another name, unless it is settings among texts."""

    reason: str
    damaged: bool = False
    fix: str = READABLE
    wrong_field: BertsmithError | None = None

    def __str__(self) -> str:
        return self.reason if self.fix == READABLE else f"{self.reason} ({self.fix})"


_NOT_A_ROW_A_LINE = Unread(
    "JSON, but not one object a line",
    fix="write an object a line, as by: jq -c '.[]' FILE > FILE.jsonl for an array, jq -c . for objects",
)
_RETURNS_ALONE = Unread(
    "its lines end in carriage returns alone, as old programs of the Mac write them",
    fix=r"write line feeds, as by: tr '\r' '\n' < FILE > new-FILE",
)


def form_of(path: Path, options: ReadOptions) -> Form | Unread:
    """A file's compression and kind by its first bytes, or why it is not read.

    Raises BertsmithError when it cannot be opened, for a wrong name of the text field, and where a library is missing.
    """
    raw = peek(path, "", _HEAD + len(UTF8_MARK))
    if codec := packing(raw):
        raw = peek(path, codec, _HEAD + len(UTF8_MARK))
    found = _form_of(path, codec, raw, options)
    if codec and isinstance(found, Unread) and "FILE" in found.fix:
        return replace(found, fix=f"decompress it, and {found.fix}")
    return found


def _form_of(path: Path, codec: str, raw: bytes, options: ReadOptions) -> Form | Unread:
    """raw: the first bytes, decompressed."""
    encoding = encoding_of(raw)
    # Of a plain file, one opening is enough: there may be a million.
    head = head_of(path, codec, encoding, _HEAD) if encoding else unmarked(raw, _HEAD)
    name = suffix_within(path, codec)
    start = head.lstrip()[:200].lower()
    if not head.strip():
        if _damaged_at_once(path, codec):
            return _damaged(f"compressed as {codec} and damaged from the beginning")
        return Unread("empty or white space only")
    if head.startswith(parquet.MAGIC):
        return _parquet_form(path, codec, options)
    if is_archive(head):
        return Unread("an archive or office document", fix="unpack it, or give its plain text")
    if encoding and (b"\x00" in head or _is_binary(raw, encoding)):
        return Unread("not text")
    if b"\x00" in head:
        return _not_text(head, path)
    # A dump, or the pages of one that was cut up.
    if start.startswith((b"<mediawiki", b"<page>")) or (start.startswith(b"<?xml") and b"<mediawiki" in head):
        return Form("mediawiki", codec, encoding)
    if head.lstrip().startswith(b"<doc ") and b" id=" in head.partition(b">")[0]:
        return Form("wikiextractor", codec, encoding)
    if start.startswith(_MARKUP) or _is_nested(head, name):
        return Unread("markup", fix="give its plain text")
    if _JSON_ARRAY.match(head):
        return _NOT_A_ROW_A_LINE
    if start.startswith(b"{") or name in _JSON_NAMES:
        if not any(_objects(head)):
            head = head_of(path, codec, encoding, LONGEST_LINE)
        kind, cells = _json_kind(path, head.lstrip(), name, options), ""
    else:
        cells = _table_cells(path, head, name, options)
        kind = ("tsv" if cells == "\t" else "csv") if cells else options.documents
    if isinstance(kind, Unread):
        return kind
    # A text that is one document needs no lines.
    if kind != "file" and b"\r" in head:
        if not cells and b"\n" not in head:
            head = head_of(path, codec, encoding, LONGEST_LINE)
        if _returns_alone(head, cells):
            return _RETURNS_ALONE
    return Form(kind, codec, encoding, cells)


def _damaged(reason: str) -> Unread:
    return Unread(reason, damaged=True, fix="copy or write it again")


def _is_nested(head: bytes, name: str) -> bool:
    """Whether a file begins with an element that holds others, or by its name may do so, and some elements end."""
    outer = _NESTED.match(head)
    begins = outer is not None and outer[1].lower() not in _TAGS_OF_TEXT
    if name in _MARKUP_NAMES:
        begins = head.lstrip().startswith(b"<")
    return begins and head.count(b"</") >= _CLOSED_AT_LEAST


def _is_binary(raw: bytes, encoding: str) -> bool:
    """Whether so much of what follows a byte order mark is no text that the bytes of the mark are there by chance: of
    random bytes one in 32 would be replaced."""
    lost = len(raw) - len(raw.decode(encoding, "ignore").encode(encoding))
    return lost > max(_LOST_AT_MOST, len(raw) // 100)


def _not_text(head: bytes, path: Path) -> Unread:
    try:
        check_marked(head, path)
    except BertsmithError as error:
        return Unread(error.what, fix=error.fix)
    if reads_as(head.replace(b"\0", b""), "utf-8"):
        return Unread("text with zero bytes in it", fix=r"remove them, as by: tr -d '\0' < FILE > new-FILE")
    return Unread("not text")


def _returns_alone(head: bytes, cells: str) -> bool:
    """Whether the lines that a file begins with end in carriage returns alone. cells: see `_table_cells`.

    A table may have both line ends within its quotes, and its rows may end in several carriage returns and a line feed.
    """
    if len(cells) > 1:
        before = re.escape(cells[0].encode(errors="surrogateescape"))
        head = re.sub(rb'(?:\A|(?<=[\r\n])|(?<=%b))"[^"]*(?:""[^"]*)*"' % before, b"", head)
    line, feed, _ = head.partition(b"\n")
    return b"\r" in line.rstrip(b"\r") and bool(cells or not feed)


def _damaged_at_once(path: Path, codec: str) -> bool:
    with open_bytes(path, codec) as file:
        return not file.read(1) and bool(damage_of(file))


def _parquet_form(path: Path, codec: str, options: ReadOptions) -> Form | Unread:
    if codec:
        return Unread(f"parquet compressed as {codec}", fix="decompress it: parquet compresses its columns itself")
    try:
        check_parquet(str(path), options.text_field)
    except parquet.DamagedError as error:
        return _damaged(f"parquet that is damaged ({str(error.__cause__).splitlines()[0]})")
    return Form("parquet")


def _json_kind(path: Path, head: bytes, name: str, options: ReadOptions) -> str | Unread:
    """By the first row; where that is no object, by the next rows: reading will drop and count it."""
    rows = _objects(head)
    first = next(rows, None)
    if first is None:
        if name in (".jsonl", ".ndjson") and b"\n" not in head and len(head) > _HEAD:
            return "jsonl"
        return _NOT_A_ROW_A_LINE if name in _JSON_NAMES else options.documents
    if first.keys() >= WIKI_FIELDS and options.text_field == "text":
        return "wikiextractor-json"
    if not any(options.text_field in row for row in itertools.chain([first], rows)):
        error = no_such_field(options.text_field, list(first), f"{path}, first rows")
        if b"\n" in head.strip():
            raise error
        return Unread(f"a JSON object without the field '{options.text_field}'", wrong_field=error)
    return "jsonl"


def _objects(head: bytes) -> Iterator[dict[str, Any]]:
    """Those among the first rows, but for empty ones; the first tells most files."""
    for line in head.splitlines()[:_ROWS_LOOKED_AT]:
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if row and isinstance(row, dict):
                yield row


def _table_cells(path: Path, head: bytes, name: str, options: ReadOptions) -> str:
    """What separates and quotes the cells of a table, or "" for a file that is none.

    A file that is not called a table is one where its first row names the field of the text, at least two more rows
    have as many cells, and the user did not say what a document of plain text is. Raises BertsmithError where a file
    that is called a table has no such field, and where a table has two.
    """
    called = name in _TABLE_NAMES
    if not called and options.documents != ReadOptions.documents:
        return ""
    first = _LINE_END.split(head.lstrip(b"\r\n"), 1)[0].decode(errors="surrogateescape")
    names = {name.strip() for mark in _TABLES_BY_CONTENT for name in first.split(mark)}
    if not called and not (options.text_field in names or QUOTE in first or named_separator(head)):
        return ""  # as of most texts, which take long to be read as tables of every kind
    choices = [cells for mark in _TABLE_NAMES.get(name, _TABLES_BY_CONTENT) for cells in (mark, mark + QUOTE)]
    cells, rows = cells_of(head, len(head) < _HEAD, choices)
    fields = [field.strip() for field in rows[0]] if rows else []
    if (named := named_separator(head)) and options.text_field in fields:
        log_choice(f"separator of {path}", repr(named), "its first line names it, and is not a row")
    if called and options.text_field not in fields:
        raise no_such_field(options.text_field, fields, f"{path}, first row, which names the fields")
    alike = options.text_field in fields and all(len(row) == len(fields) for row in rows)
    if not called and not (len(fields) > 1 and alike and len(rows) >= _ROWS_AT_LEAST):
        return ""
    if fields.count(options.text_field) > 1:
        raise parquet.doubled(options.text_field, f"{path}, first row, which names the fields")
    return cells
