"""The corpus that a bench reads: a given one, or one prepared first."""

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


def open_or_prepare(settings: CorpusChoice, folder: Path) -> tuple[Corpus, str]:
    """The corpus and its description. Raises BertsmithError as `Corpus.open` and `prepare` do."""
    # Preparing text needs packages that a machine with a GPU may lack; its bench runs without text.
    from bertsmith.bench.text import cut_texts, default_source, name_sources, vocabulary_for
    from bertsmith.corpus.options import PrepareOptions
    from bertsmith.corpus.prepare import prepare
    from bertsmith.corpus.shards import Corpus

    if settings.corpus is not None:
        return Corpus.open(settings.corpus), name_sources([str(settings.corpus)])
    source = settings.source or (default_source(),)
    text = cut_texts(source, [settings.size_bytes], folder)[0]
    tokenizer, _ = vocabulary_for(settings.tokenizer, text, folder / "tokenizer")
    options = PrepareOptions(documents="line", workers=settings.workers)
    corpus = prepare(text.path, folder / "corpus", tokenizer=tokenizer, options=options)
    return corpus, f"{name_sources(source)}, {size(text.text_bytes)}"
