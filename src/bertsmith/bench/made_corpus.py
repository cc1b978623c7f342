"""The corpus that a bench reads: a given one, or one prepared first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.base.log import size
from bertsmith.bench.options import BenchOptions

if TYPE_CHECKING:
    from bertsmith.corpus.shards import Corpus


def open_or_prepare(options: BenchOptions, size_bytes: int, folder: Path) -> tuple[Corpus, str]:
    """The given corpus, or one of `size_bytes` of text prepared in `folder`; and its description.

    Raises BertsmithError as `Corpus.open` and `prepare` do.
    """
    # Preparing text needs packages that a machine with a GPU may lack; its bench runs without text.
    from bertsmith.bench.text import cut_texts, default_source, name_sources, vocabulary_for
    from bertsmith.corpus.options import PrepareOptions
    from bertsmith.corpus.prepare import prepare
    from bertsmith.corpus.shards import Corpus

    if options.corpus is not None:
        return Corpus.open(options.corpus), name_sources([str(options.corpus)])
    source = options.source or (default_source(),)
    text = cut_texts(source, [size_bytes], folder)[0]
    tokenizer, _ = vocabulary_for(options.tokenizer, text, folder / "tokenizer")
    how = PrepareOptions(documents="line", workers=options.workers)
    corpus = prepare(text.path, folder / "corpus", tokenizer=tokenizer, options=how)
    return corpus, f"{name_sources(source)}, {size(text.text_bytes)}"
