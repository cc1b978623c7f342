"""Texts that a model will be measured on, read from the files they come in: SQuAD JSON, GLUE's tsv, jsonl, csv, CoNLL's
columns, txt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.rows.compressed import codec_of, peek, suffix_within
from bertsmith.rows.conll import conll_rows, is_conll
from bertsmith.rows.encodings import check_marked, encoding_of
from bertsmith.rows.json_lines import is_json_lines, json_rows
from bertsmith.rows.lines import Lines, Slice, head_of, raise_fault, split_at_returns
from bertsmith.rows.row import Row
from bertsmith.rows.squad import is_squad, paragraphs, parse_json
from bertsmith.rows.tables import QUOTE, cells_of, table_rows

Cells = TypeVar("Cells")

READ = "read are .json (SQuAD's and any other), .jsonl, .tsv, .csv, CoNLL's columns and text, plain or compressed"
_HEAD = 1 << 16


@dataclass(frozen=True)
class EvaluationFile:
    """A file of evaluation text. lines: with the byte that each begins at; what is wrong with them is raised. head:
    what it begins with. read_as: what it was taken for, in words."""

    path: Path
    lines: Lines
    head: bytes
    read_as: str
    reader: Callable[[EvaluationFile], Iterator[str]]

    def texts(self) -> Iterator[str]:
        """Every value that may be a text: fields of rows, strings of JSON, sentences of CoNLL, stretches of plain text
        between blank lines (lines, where there is no blank one).

        Raises BertsmithError for a file that cannot be read.
        """
        try:
            yield from self.reader(self)
        except BertsmithError as error:
            raise BertsmithError(
                f"this file of evaluation text cannot be read: {error.what}", error.where, READ
            ) from error

    def sound(self, rows: Iterable[Row[Cells]]) -> Iterator[Cells]:
        """The cells of rows. Raises BertsmithError for a row with a fault and for bytes that are not UTF-8."""
        for row in rows:
            if row.cells is None or not row.is_utf8:
                what = f"{row.fault} {row.detail}".strip() if row.cells is None else "bytes that are not UTF-8"
                raise BertsmithError(what, f"{self.path}:{row.line}, byte {row.begin:,}")
            yield row.cells


def evaluation_file(path: Path) -> EvaluationFile:
    """Recognises a file: JSON and csv by its name (JSON lines by content where it is .json), CoNLL by its content, then
    tsv by its name; any other is text.

    Raises BertsmithError where there is none, or none that can be read.
    """
    check_file(path)
    codec = codec_of(path)
    encoding = encoding_of(peek(path, codec, 4))
    head = head_of(path, codec, encoding, _HEAD)
    check_marked(head, path, codec)
    whole = Slice(str(path), str(path), "", codec, encoding=encoding)
    file = partial(EvaluationFile, path, Lines(whole, None, raise_fault, cut=False), head)
    suffix = suffix_within(path, codec)
    if suffix == ".json" and is_json_lines(head):
        suffix = ".jsonl"
    if suffix in _NAMED:
        return file(*_NAMED[suffix])
    if is_conll(head.replace(b"\r", b"\n").decode(errors="replace").split("\n")[:-1]):  # the last line may be cut off
        return file("CoNLL's columns, the tokens of a sentence joined by spaces", _conll)
    if suffix == ".tsv":
        return file("tsv", _tsv)
    return file("text", _plain)


def check_file(path: Path) -> None:
    """Raises BertsmithError where there is no file."""
    files.as_path(path, "exclude")
    if not path.exists():
        raise files.nothing_at(path, "there is no such file of evaluation text")
    if path.is_dir():
        raise BertsmithError("this is not a file", path, "name its files, for instance by a glob")
    if not path.is_file():
        fix = "write it to a file, and name that"
        raise BertsmithError("this is a pipe or a device, and evaluation text is read more than once", path, fix)


def content_hash(path: Path) -> str:
    """The SHA-256 of a file of evaluation text. Raises BertsmithError where there is none."""
    check_file(path)
    return files.sha256(path)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _json(file: EvaluationFile) -> Iterator[str]:
    """Of SQuAD's layout, titles, paragraphs and questions: answers are pieces of the paragraph."""
    value = parse_json(b"".join(line for _, line in file.lines), str(file.path))
    if not is_squad(value):
        yield from _strings(value)
        return

    def refuse(where: str, what: str, raw: Any) -> None:
        raise BertsmithError(what, f"{file.path}, {where}")

    title = None
    for each in paragraphs(value, refuse):
        if each.title != title:
            yield (title := each.title)
        yield each.context
        yield from (question.text for question in each.questions)


def _json_lines(file: EvaluationFile) -> Iterator[str]:
    for row in file.sound(json_rows(file.lines)):
        yield from _strings(row)


def _tsv(file: EvaluationFile) -> Iterator[str]:
    """GLUE's: a field is never quoted, a lone quote is text."""
    for row in file.sound(table_rows(split_at_returns(file.lines), "\t")):
        yield from row


def _csv(file: EvaluationFile) -> Iterator[str]:
    cells, _ = cells_of(file.head, len(file.head) < _HEAD, [mark + QUOTE for mark in ",;\t|"])
    for row in file.sound(table_rows(split_at_returns(file.lines), cells or "," + QUOTE, strict=True)):
        yield from row


def _plain(file: EvaluationFile) -> Iterator[str]:
    lines = b"".join(line for _, line in file.lines)
    try:
        texts = lines.decode().splitlines()
    except UnicodeDecodeError as error:
        raise BertsmithError(f"not UTF-8 ({error.reason})", f"{file.path}, byte {error.start:,}") from error
    if all(line.strip() for line in texts):
        yield from texts
        return
    held: list[str] = []
    for line in [*texts, ""]:
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []


def _conll(file: EvaluationFile) -> Iterator[str]:
    for tokens in file.sound(conll_rows(file.lines)):  # with those of a sentence of uneven lines
        yield " ".join(columns[0] for columns in tokens if columns[0])


_NAMED: dict[str, tuple[str, Callable[[EvaluationFile], Iterator[str]]]] = {
    ".json": ("JSON", _json),
    ".jsonl": ("JSON lines", _json_lines),
    ".ndjson": ("JSON lines", _json_lines),
    ".csv": ("csv", _csv),
}
