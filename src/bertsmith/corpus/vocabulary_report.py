"""What vocabularies make of a text, side by side: pieces a word, [UNK], tokens a MB, so that a user can choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertsmith.base.log import warn
from bertsmith.base.tables import aligned
from bertsmith.tokens.bulk_ids import bulk_encoder, choose_library
from bertsmith.tokens.tokenizer import Tokenizer

_BATCH = 100_000
# Below this many more tokens than another vocabulary's, keeping a trained model's own is worth more.
_LITTLE = 0.05
_MANY_WITHOUT_ROWS = _MANY_UNKNOWN = 0.01


@dataclass(frozen=True)
class Figures:
    """What a vocabulary makes of a text of `bytes`. words: its words and marks. unknown: the pieces that are [UNK]."""

    bytes: int
    tokens: int
    words: int
    unknown: int

    @property
    def pieces_per_word(self) -> float:
        return self.tokens / max(self.words, 1)

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    @property
    def tokens_per_mb(self) -> float:
        return self.tokens / max(self.bytes / 1e6, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "pieces_per_word": self.pieces_per_word,
            "unknown_share": self.unknown_share,
            "tokens_per_mb": self.tokens_per_mb,
        }


# bert-base-uncased, which is not shipped with us, on text it was made for, measured by `bertsmith vocab --reuse`: 200
# files of English Wikipedia of 2015, and 45 novels of Project Gutenberg.
KNOWN = {
    "bert-base-uncased on English Wikipedia": Figures(203_916_084, 43_419_788, 39_542_568, 7_742),
    "bert-base-uncased on English novels": Figures(36_891_582, 8_714_241, 8_136_713, 1),
}


def measure(tokenizer: Tokenizer, stretches: Mapping[str, int], text_bytes: int) -> Figures:
    """The figures of a text whose stretches without spaces are counted; no id depends on what is beyond a space."""
    encoder = bulk_encoder(tokenizer, choose_library(tokenizer))
    starts_word, unknown = ~tokenizer.is_continuation, tokenizer.special.unknown
    texts, totals = list(stretches), np.zeros(3, np.int64)
    for start in range(0, len(texts), _BATCH):
        some = texts[start : start + _BATCH]
        ids, lengths = encoder.encode(some)
        times = np.repeat(np.array([stretches[text] for text in some]), lengths)
        totals += [times.sum(), times[starts_word[ids]].sum(), times[ids == unknown].sum()]
    tokens, words, unknowns = totals.tolist()
    return Figures(text_bytes, tokens, words, unknowns)


def table(rows: Mapping[str, Figures]) -> list[str]:
    """The figures as lines of text, a vocabulary each."""
    lines = [("", "pieces a word", "[UNK]", "tokens a MB")]
    for name, each in rows.items():
        lines.append((name, f"{each.pieces_per_word:.3f}", f"{each.unknown_share:.3%}", f"{each.tokens_per_mb:,.0f}"))
    return aligned(lines)


def advice(ours: Figures, other: Figures, name: str, is_new: bool) -> str:
    """What the difference between two vocabularies on the same text means for the choice between them.

    is_new: whether ours has rows that no model was trained with.
    """
    more = other.tokens / max(ours.tokens, 1) - 1
    counted = f"{name} makes {abs(more):.1%} {'more' if more >= 0 else 'fewer'} tokens of this text"
    if other.unknown_share - ours.unknown_share > _MANY_UNKNOWN:
        return (
            f"{counted}, and {other.unknown_share:.1%} of them are [UNK]: it lacks letters of this text, and a model "
            "that was trained with it cannot tell the words that hold them"
        )
    if more < _LITTLE:
        return f"{counted}: keeping it, and starting from a model that was trained with it, costs little"
    but = ", but its new rows must be trained" if is_new else ""
    return f"{counted}: with this vocabulary as many steps read that much more text{but}"


def warn_of_letters(share: float, flag: str) -> None:
    """Warns where a vocabulary is too small for the letters of the text that it was just trained on.

    share: see `share_without_rows`. flag: what gives it more pieces.
    """
    if share > _MANY_WITHOUT_ROWS:
        what = f"{share:.1%} of the text's words are [UNK] to the vocabulary that was trained on it"
        warn(f"{what}, which is too small for its letters: give it more pieces with {flag}")


def warn_of_unknown(unknown: int, tokens: int) -> None:
    """Warns where a vocabulary that was given lacks letters of the text. unknown: the words that are [UNK], but those
    that are too long, which are so by any vocabulary."""
    if unknown > _MANY_UNKNOWN * tokens:
        share = f"{unknown / tokens:.1%} of the tokens are [UNK]"
        why = "because the vocabulary that was given lacks letters of this text"
        warn(f"{share} {why}; take another, or extend it as by: bertsmith vocab --extend")


def examples(words: Sequence[Any], most: int = 8) -> str:
    """The first new words with what the old vocabulary makes of them and how often they occur."""
    return ", ".join(f"{each.word} ({' '.join(each.pieces)}; {each.count:,} times)" for each in words[:most])
