"""Texts that a model will be measured on, read from the files they come in: SQuAD JSON, GLUE's tsv, jsonl, csv, txt."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.corpus.codecs import damage_of, open_bytes, packing, peek

READ = "read are .json (SQuAD's and any other), .jsonl, .tsv, .csv and text, plain or packed"
# In SQuAD's layout these are pieces of the paragraph.
_SPANS = ("answers", "plausible_answers")
_LONGEST_FIELD = 1 << 24
_MAGIC = 8


def evaluation_texts(path: Path) -> Iterator[str]:
    """Every value of the file that may be a text: fields of rows, strings of JSON, stretches of plain text between
    blank lines (lines, where there is no blank one).

    Raises BertsmithError for a file that is missing or cannot be read.
    """
    check_file(path)
    codec = packing(peek(path, "", _MAGIC))
    kind = Path(path.name.removesuffix(f".{codec}")).suffix.lower() if codec else path.suffix.lower()
    try:
        with open_bytes(path, codec) as raw:
            yield from _TEXTS.get(kind, _plain)(raw)
            if damage_of(raw):
                raise ValueError(damage_of(raw))
    except (ValueError, EOFError, OSError, csv.Error, RecursionError) as error:
        raise BertsmithError(f"this file of evaluation text cannot be read ({error})", path, READ) from error


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


_TEXTS = {".json": _json, ".jsonl": _json_lines, ".ndjson": _json_lines, ".tsv": _tsv, ".csv": _csv}
