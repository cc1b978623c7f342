"""A model asked by a person: one row after another from prompts, answered at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.predictor import Predictor


def converse(predictor: Predictor, read: Callable[[str], str] | None = None) -> int:
    """Reads rows and prints their answers as JSON, until the first column of one is empty or the input ends; gives how
    many were answered.

    Another column that is left empty keeps what it had, so that many questions can be asked of one context; but for a
    second text that a row may be without. read: gives the line for a prompt, and raises EOFError after the last; from a
    terminal with its prompt, else from standard input without. A row that cannot be used is named, and the next one is
    read.
    """
    is_person = read is None and sys.stdin.isatty()
    read = read or (input if is_person else _line)
    columns, row, answered = predictor.prompts, dict[str, str](), 0
    optional = predictor.columns.text_b if predictor.pairs is None else None
    if is_person:
        print(f"An empty {columns[0]} ends this.", file=sys.stderr)
    while True:
        try:
            for name in columns:
                kept = name in row and name not in (columns[0], optional)
                line = read(f"{name}{' (empty: the last one)' if kept else ''}: ")
                if not line.strip() and name == columns[0]:
                    return answered
                row[name] = line if line.strip() or not kept else row[name]
        except EOFError:
            return answered
        try:
            (answer,) = predictor([row])
        except BertsmithError as error:
            print(error, file=sys.stderr)
            continue
        print(json.dumps(answer, ensure_ascii=False, indent=2 if is_person else None), flush=True)
        answered += 1


def _line(prompt: str) -> str:
    if not (line := sys.stdin.readline()):
        raise EOFError
    return line.rstrip("\r\n")
