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
    """A key that an object of JSON has twice, of which only one value could be kept."""


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `json.loads`. Raises RepeatedKey."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise RepeatedKey(f"key '{twice}' comes twice")
    return found


def json_rows(lines: Iterable[tuple[int, bytes]]) -> Iterator[Row[dict[str, Any]]]:
    """The rows of lines with the byte that each begins at. Bytes that are not UTF-8 are read as U+FFFD."""
    for number, (begin, raw) in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            text, is_utf8 = raw.decode(), True
        except UnicodeDecodeError:
            text, is_utf8 = raw.decode(errors="replace"), False
        cells, fault, detail = None, "", ""
        try:
            cells = json.loads(text, object_pairs_hook=object_of)
        except RepeatedKey as error:
            fault, detail = REPEATED, str(error)
        except (ValueError, RecursionError) as error:  # not JSON, a number of thousands of digits, or nested too deeply
            fault, detail = NOT_JSON, getattr(error, "msg", str(error))
        else:
            if not isinstance(cells, dict):
                cells, fault = None, NO_OBJECT
        yield Row(begin, number, raw, len(raw), cells, fault, detail, is_utf8)
