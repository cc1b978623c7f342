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


class RepeatedKey(ValueError):
    """An object of JSON has a key twice. Its text is the key."""


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, as `object_pairs_hook` of `json.loads`. Raises RepeatedKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RepeatedKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def is_json_lines(head: bytes) -> bool:
    """Whether an object ends with the first line, and another one follows: of a file whose name may mean other JSON."""
    first, _, rest = (each.strip() for each in head.lstrip().partition(b"\n"))
    return first.startswith(b"{") and first.endswith(b"}") and rest.startswith(b"{")


def json_rows(lines: Iterable[tuple[int, bytes]], strict: bool = False) -> Iterator[Row[dict[str, Any]]]:
    """The rows of lines with the byte that each begins at. Bytes that are not UTF-8 are read as U+FFFD. strict: a row
    that has a key twice in an object is at fault; without it, the last value counts."""
    hook = each_once if strict else None
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
        except RepeatedKey as error:
            fault, detail = REPEATED, f"'{error}'"
        except (ValueError, RecursionError) as error:  # not JSON, a number of thousands of digits, or nested too deeply
            fault, detail = NOT_JSON, getattr(error, "msg", str(error))
        else:
            if not isinstance(cells, dict):
                cells, fault = None, NO_OBJECT
        yield Row(begin, number, raw, len(raw), cells, fault, detail, is_utf8)
