"""Promise: the memory of a worker is a few times the text of its part."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.tokens.vocabulary import train_vocabulary

OPTIONS = PrepareOptions(documents="line", workers=1, part_bytes=1 << 30)
COPIES = 34


def test_a_part_takes_memory_of_a_few_times_its_text(source: Path, tmp_path: Path) -> None:
    """With a vocabulary so small that a token is two bytes of text: what is kept a token weighs most."""
    lines = source.read_text().split("\n")
    tokenizer = train_vocabulary(lines[:300], 320)
    prepare(source, tmp_path / "first", tokenizer=tokenizer, options=OPTIONS)  # what is imported and kept once
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{copy} {line}" for copy in range(COPIES) for line in lines))
    tracemalloc.start()
    try:
        prepare(text, tmp_path / "corpus", tokenizer=tokenizer, options=OPTIONS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5.5 * text.stat().st_size
