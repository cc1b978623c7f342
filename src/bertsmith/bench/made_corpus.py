"""The corpus that a bench reads: the one given, or one prepared first from whatever text is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.base.log import size

if TYPE_CHECKING:
    from bertsmith.corpus.shards import Corpus


@dataclass(frozen=True)
class CorpusChoice:
    """corpus: a prepared one; else one is prepared from `size_bytes` of the source, with `tokenizer`."""

    corpus: Path | None = None
    source: tuple[str, ...] = ()
    size_bytes: int = 160_000_000
    tokenizer: Path | None = None
    workers: int | None = None


def open_or_prepare(asked: CorpusChoice, folder: Path) -> tuple[Corpus, str]:
    """The corpus, and what it is. Raises BertsmithError as `Corpus.open` and `prepare` do."""
    # What prepares text needs packages that a machine with a card may lack, and it can be measured without text.
    from bertsmith.bench.text import cut_texts, default_source, said_sources, vocabulary_for
    from bertsmith.corpus.options import PrepareOptions
    from bertsmith.corpus.prepare import prepare
    from bertsmith.corpus.shards import Corpus

    if asked.corpus is not None:
        return Corpus.open(asked.corpus), said_sources([str(asked.corpus)])
    source = asked.source or (default_source(),)
    text = cut_texts(source, [asked.size_bytes], folder)[0]
    tokenizer, _ = vocabulary_for(asked.tokenizer, text, folder / "tokenizer")
    options = PrepareOptions(documents="line", workers=asked.workers)
    corpus = prepare(text.path, folder / "corpus", tokenizer=tokenizer, options=options)
    return corpus, f"{said_sources(source)}, {size(text.text_bytes)}"
