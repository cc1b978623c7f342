"""How long the documents of a corpus are: bars for the terminal, and a picture."""

from __future__ import annotations

from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.figures import INSTALL, new_figure, save_figure
from bertsmith.corpus.shards import SPLITS, Corpus

_BAR = 40


def length_bins(corpus: Corpus, split: str) -> list[tuple[int, int, int]]:
    """(fewest tokens, most tokens, documents) of every bin of a split, from the first that is not empty on."""
    counts = corpus.account["splits"][split]["histogram"]
    first = next((place for place, count in enumerate(counts) if count), len(counts))
    return [(1 << (place - 1), (1 << place) - 1, counts[place]) for place in range(first, len(counts))]


def length_bars(corpus: Corpus, split: str) -> list[str]:
    """A line a bin."""
    bins = length_bins(corpus, split)
    most = max(count for _, _, count in bins)
    bars = [f"  {low:>10,} to {high:<10,} {count:>11,} {'#' * -(-count * _BAR // most)}" for low, high, count in bins]
    return [f"{split.replace('_', ' ')}: documents by tokens", *(line.rstrip() for line in bars)]


def draw_lengths(corpus: Corpus, path: Path) -> None:
    """Writes a PNG of documents and tokens by the length of the document, both splits.

    Raises BertsmithError where matplotlib is not installed or the disk refuses.
    """
    splits = [split for split in SPLITS if corpus.documents(split)]
    figure = new_figure(9, 3.2 * len(splits))
    if figure is None:
        raise BertsmithError("drawing lengths needs the package matplotlib", "--png", f"{INSTALL}, or omit --png")
    for axes, split in zip(figure.subplots(len(splits), 1, squeeze=False)[:, 0], splits, strict=True):
        bins = length_bins(corpus, split)
        labels = [f"{low:,}" for low, _, _ in bins]
        axes.bar(labels, [count for _, _, count in bins], width=0.9, color="C0")
        axes.set_ylabel("documents")
        axes.set_title(
            f"{split.replace('_', ' ')}: {corpus.documents(split):,} documents, {corpus.tokens(split):,} tokens"
        )
        axes.tick_params(axis="x", rotation=45)
        axes.grid(axis="y", alpha=0.3)
        axes.set_xlabel("tokens of the document, from")
    save_figure(figure, path)
