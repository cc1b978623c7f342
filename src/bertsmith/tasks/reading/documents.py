"""Rows of files that are no tables: CoNLL's columns, SQuAD's JSON, and lists of JSON objects; recognised by content."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of, log_choice
from bertsmith.rows.conll import NOT_NUMBERED, conll_rows, is_conll
from bertsmith.rows.json_lines import is_json_lines
from bertsmith.rows.lines import Lines, Slice, head_of, raise_fault
from bertsmith.rows.squad import is_squad, paragraphs, parse_json
from bertsmith.tasks.reading.bad_rows import NOT_UTF8, Report, to_utf8

_HEAD = 1 << 16
JSON, CONLL = "json", "conll"
_CONLL_NAMES = (CONLL, "iob", "iob2", "bio")
_LONE_RETURN = re.compile(rb"\r(?!\r?\n)")
_parsed: ContextVar[dict[str, Any] | None] = ContextVar("parsed", default=None)
DocumentRow = tuple[str, dict[str, Any]]


def document_kind(part: Slice) -> str:
    """JSON for a file of that name which is not of a JSON object a line, CONLL for one with tags behind words or a name
    that says so, "" for any other. part: the file; its kind is the ending of its name. Raises BertsmithError where it
    cannot be opened."""
    suffix = part.kind
    if suffix in ("csv", "jsonl", "ndjson", "parquet"):
        return ""
    if suffix in _CONLL_NAMES:  # so that a line without a tag in it is named, and not the file refused
        return CONLL
    head = head_of(part.path, part.codec, part.encoding, _HEAD)
    if suffix == "json":
        return "" if is_json_lines(head) else JSON
    lines = head.replace(b"\r", b"\n").decode(errors="replace").split("\n")
    return CONLL if is_conll(lines if len(head) < _HEAD else lines[:-1]) else ""


def document_rows(part: Slice, kind: str, report: Report) -> Iterator[DocumentRow]:
    """(where, row) for every sentence of CoNLL's columns, question of SQuAD, or object of a list.

    A sentence is {"tokens", "tags"}, the lists of its first and last columns, and those between by their numbers from
    1; one of a single column has no tags. A question is {"id", "title", "question", "context",
    "answers": [{"text", "answer_start"}], "is_impossible"}.
    report: is given what is wrong with a row. Raises BertsmithError for a file that is damaged or neither.
    """
    lines = Lines(part, None, raise_fault, cut=False)
    return _sentences(lines, part, report) if kind == CONLL else _objects(lines, part.name, report)


def _sentences(lines: Iterable[tuple[int, bytes]], part: Slice, report: Report) -> Iterator[DocumentRow]:
    utf8_fix = cache(to_utf8)
    for row in conll_rows(lines):
        where = f"{part.name}:{row.line}"
        if not row.is_utf8:
            report(BertsmithError(f"this sentence is {NOT_UTF8}", where, utf8_fix(part.path)), row.raw)
        elif row.fault or row.cells is None:
            counts = sorted({len(columns) for columns in row.cells or []})
            what = f"the lines of this sentence have {' and '.join(map(str, counts))} columns"
            fix = "give every line a word, a tag, and as many columns"
            if _LONE_RETURN.search(row.raw):
                fix += "; a carriage return ends a line too, so remove any that stands within one"
            if row.fault == NOT_NUMBERED:
                what = "the first column numbers the words of other sentences, and not of this one"
                fix = "number its words one after the other, or leave the column out of the file"
            report(BertsmithError(what, where, fix), row.raw)
        else:
            columns = [list(each) for each in zip(*row.cells, strict=True)]
            between = {str(number): each for number, each in enumerate(columns[1:-1], start=2)}
            tags = {"tags": columns[-1]} if len(columns) > 1 else {}
            yield where, {"tokens": columns[0], **tags, **between}


@contextmanager
def parsed_once() -> Iterator[None]:
    """Within it, a file of JSON, which is parsed to its end for its first row, is read once, and kept for those who ask
    for its rows again. Tables and lines, of which a first row costs little, are read again."""
    before = _parsed.set({})
    try:
        yield
    finally:
        _parsed.reset(before)


def _objects(lines: Iterable[tuple[int, bytes]], name: str, report: Report) -> Iterator[DocumentRow]:
    parsed = _parsed.get()
    value = parsed.get(name) if parsed else None
    if value is None:
        value = parse_json(b"".join(line for _, line in lines), name, strict=True)
        if parsed is not None:
            parsed[name] = value
    if is_squad(value):
        yield from _questions(value, name, report)
        return
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        if others := [key for key, held in value.items() if key != "data" and isinstance(held, list) and held]:
            log_choice(f"rows of {name}", "its list 'data'", f"not read: {first_of(map(repr, others))}")
        value = value["data"]
    elif isinstance(value, dict) and not all(isinstance(each, dict) for each in value.values()):
        value = [value]
    if not isinstance(value, list):
        what = "this JSON is neither SQuAD's nor a list of objects"
        fix = 'write an object a line into a .jsonl file, with pandas by to_json(..., orient="records", lines=True)'
        raise BertsmithError(what, name, fix)
    for number, each in enumerate(value, start=1):
        where = f"{name}, row {number}"
        if isinstance(each, dict):
            yield where, each
        else:
            report(BertsmithError("this is not a JSON object", where, 'write {"text": ..., "label": ...}'), each)


def _questions(value: Any, name: str, report: Report) -> Iterator[DocumentRow]:
    def leave_out(where: str, what: str, raw: Any) -> None:
        report(BertsmithError(f"this is {what}", f"{name}, {where}", "correct it, or copy the file again"), raw)

    for paragraph in paragraphs(value, leave_out):
        for question in paragraph.questions:
            row = {"id": question.id, "title": paragraph.title, "question": question.text, "context": paragraph.context}
            yield (
                f"{name}, {question.where}",
                row | {"answers": question.answers, "is_impossible": question.is_impossible},
            )
