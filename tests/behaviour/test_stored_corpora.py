"""Promise: text that was prepared once gives the same shards for ever, to the byte, whatever it comes as.

Held to what commit 779adbb made of the sources in tests/fixtures, with the libraries of constraints.txt.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.corpus.shards import verify
from stored_corpora import CASES, EXPECTED, facts_of, prepared

LIBRARIES = {"parquet": "pyarrow", "zst": "zstandard", "without near-duplicates and evaluation text": "datasketch"}
STORED = json.loads(EXPECTED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_source_gives_the_stored_shards(name: str, tmp_path: Path) -> None:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    corpus = prepared(name, tmp_path / "corpus")
    verify(corpus)
    assert json.loads(json.dumps(facts_of(corpus))) == STORED[name]


def test_the_cases_are_what_they_are_called() -> None:
    """Else equal figures would show little: damage is dropped, copies are found, and casing changes the tokens."""
    dropped = {name: len(facts["counts"]["dropped"]) for name, facts in STORED.items()}
    assert STORED.keys() == CASES.keys()
    assert dropped["JSON lines with damage"] == dropped["JSON lines"] + 3
    assert dropped["without near-duplicates and evaluation text"] == dropped["JSON lines"] + 2
    assert STORED["cased"]["sha256"] != STORED["JSON lines"]["sha256"]
    assert all(facts["splits"]["train"]["tokens"] > 100 for facts in STORED.values())
    assert sum(len(facts["splits"]["train"]["shards"]) > 1 for facts in STORED.values()) >= 18
