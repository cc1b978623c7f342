"""Texts that a model will be measured on, read from the files they come in: SQuAD JSON, GLUE's tsv, jsonl, csv, CoNLL's
columns, txt."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.rows.compressed import damage_of, open_bytes, packing, peek
from bertsmith.rows.conll import is_conll, sentences_of_conll

READ = "read are .json (SQuAD's and any other), .jsonl, .tsv, .csv, CoNLL's columns and text, plain or packed"
# In SQuAD's layout these are pieces of the paragraph.
_SPANS = ("answers", "plausible_answers")
_LONGEST_FIELD = 1 << 24
_MAGIC = 8
_HEAD = 1 << 16

Texts = Callable[[IO[bytes]], Iterator[str]]


@dataclass(frozen=True)
class EvaluationFile:
    """A file of evaluation text, packed as `codec`. read_as: what it was taken for, in words."""

    path: Path
    codec: str
    read_as: str
    reader: Texts

    def texts(self) -> Iterator[str]:
        """Every value that may be a text: fields of rows, strings of JSON, sentences of CoNLL, stretches of plain text
        between blank lines (lines, where there is no blank one).

        Raises BertsmithError for a file that cannot be read.
        """
        try:
            with open_bytes(self.path, self.codec) as raw:
                yield from self.reader(raw)
                if damage_of(raw):
                    raise ValueError(damage_of(raw))
        except (ValueError, EOFError, OSError, csv.Error, RecursionError) as error:
            raise BertsmithError(f"this file of evaluation text cannot be read ({error})", self.path, READ) from error


def evaluation_file(path: Path) -> EvaluationFile:
    """Recognises a file: JSON and csv by its name, CoNLL by its content, then tsv by its name; any other is text.

    Raises BertsmithError where there is none.
    """
    check_file(path)
    codec = packing(peek(path, "", _MAGIC))
    suffix = Path(path.name.removesuffix(f".{codec}")).suffix.lower() if codec else path.suffix.lower()
    if suffix in _NAMED:
        return EvaluationFile(path, codec, *_NAMED[suffix])
    head = peek(path, codec, _HEAD).decode("utf-8-sig", errors="replace")
    if is_conll(head.split("\n")[:-1]):  # the last line may be cut off
        return EvaluationFile(path, codec, "CoNLL's columns, the tokens of a sentence joined by spaces", _conll)
    if suffix == ".tsv":
        return EvaluationFile(path, codec, "tsv", _tsv)
    return EvaluationFile(path, codec, "text", _plain)


def check_file(path: Path) -> None:
    """Raises BertsmithError where there is no file."""
    if not path.is_file():
        what = "this is no file" if path.exists() else "there is no such file of evaluation text"
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        fix = nearest(path.name, siblings) if 0 < len(siblings) < 50 else "check the path"
        raise BertsmithError(what, path, fix if not path.is_dir() else "name its files, for instance by a glob")


def content_hash(path: Path) -> str:
    """The SHA-256 of a file of evaluation text. Raises BertsmithError where there is none."""
    check_file(path)
    return files.sha256(path)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        spans = _SPANS if "question" in value else ()
        for name, each in value.items():
            if name not in spans:
                yield from _strings(each)


def _json(raw: IO[bytes]) -> Iterator[str]:
    yield from _strings(json.loads(raw.read().decode("utf-8-sig")))


def _json_lines(raw: IO[bytes]) -> Iterator[str]:
    for line in raw:
        if line.strip():
            yield from _strings(json.loads(line.decode("utf-8-sig")))


def _tsv(raw: IO[bytes]) -> Iterator[str]:
    """GLUE's: a field is never quoted, a lone quote is text."""
    for line in raw:
        yield from line.decode("utf-8-sig").rstrip("\r\n").split("\t")


def _csv(raw: IO[bytes]) -> Iterator[str]:
    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        for row in csv.reader((line.decode("utf-8-sig") for line in raw), strict=True):
            yield from row
    finally:
        csv.field_size_limit(limit)


def _plain(raw: IO[bytes]) -> Iterator[str]:
    lines = raw.read().decode("utf-8-sig").splitlines()
    if all(line.strip() for line in lines):
        yield from lines
        return
    held: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []


def _conll(raw: IO[bytes]) -> Iterator[str]:
    return sentences_of_conll(line.decode("utf-8-sig").rstrip("\r\n") for line in raw)


_NAMED: dict[str, tuple[str, Texts]] = {
    ".json": ("JSON", _json),
    ".jsonl": ("JSON lines", _json_lines),
    ".ndjson": ("JSON lines", _json_lines),
    ".csv": ("csv", _csv),
}
