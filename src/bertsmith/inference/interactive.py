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
    terminal with its prompt, else from standard input without. What a row lacks, or why it cannot be used, is reported,
    and the next one is read.
    """
    is_person = read is None and sys.stdin.isatty()
    read = read or (input if is_person else _line)
    columns, row, answered = predictor.prompts, dict[str, str](), 0
    optional = predictor.columns.text_b if predictor.pairs is None else None
    if is_person:
        print(f"An empty {columns[0]} ends this.", file=sys.stderr)
    while True:
        name = columns[0]
        try:
            for name in columns:
                kept = bool(row.get(name, "").strip()) and name not in (columns[0], optional)
                line = read(f"{name}{' (empty: the last one)' if kept else ''}: ")
                if not line.strip() and name == columns[0]:
                    return answered
                row[name] = row[name] if kept and not line.strip() else line
        except EOFError:
            if name != columns[0]:
                print(f"the input ends before the {name} of the last row, which is not answered", file=sys.stderr)
            return answered
        if lacking := [name for name in columns if not row[name].strip() and name != optional]:
            empty = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} empty"
            needs = f"each row of this model needs {' and '.join(columns)}"
            print(f"not answered, because {empty}: {needs}; give the row again", file=sys.stderr)
            continue
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
