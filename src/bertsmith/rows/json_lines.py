"""JSON lines: an object a line, empty lines between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bertsmith.rows.row import Row

NOT_JSON = "rows that are not JSON"
NO_OBJECT = "rows that are not a JSON object"
REPEATED = "rows that have a key twice"


def json_rows(lines: Iterable[tuple[int, bytes]], each_once: bool = False) -> Iterator[Row[dict[str, Any]]]:
    """The rows of lines with the byte that each begins at. Bytes that are not UTF-8 are read as U+FFFD. each_once: a
    row that has a key twice is at fault; without it, the last value counts."""
    outermost: list[tuple[str, Any]] = []

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        outermost[:] = pairs  # of the row in the end, as the objects within it come before it
        return dict(pairs)

    hook = noted if each_once else None
    for number, (begin, raw) in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            text, is_utf8 = raw.decode(), True
        except UnicodeDecodeError:
            text, is_utf8 = raw.decode(errors="replace"), False
        cells, fault, detail = None, "", ""
        try:
            cells = json.loads(text, object_pairs_hook=hook)
        except (ValueError, RecursionError) as error:  # not JSON, a number of thousands of digits, or nested too deeply
            fault, detail = NOT_JSON, getattr(error, "msg", str(error))
        else:
            if not isinstance(cells, dict):
                cells, fault = None, NO_OBJECT
            elif each_once and len(cells) < len(outermost):
                twice, _ = Counter(key for key, _ in outermost).most_common(1)[0]
                cells, fault, detail = None, REPEATED, f"'{twice}'"
        yield Row(begin, number, raw, len(raw), cells, fault, detail, is_utf8)
