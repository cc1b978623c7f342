"""WordPiece as in BERT: BERT's normaliser, its pre-tokenizer, greedy longest match, 100 characters a word.

Ids come from the `tokenizers` library, so they are those of `transformers`, with one difference that is meant: one of
BERT's five special pieces that stands literally in a text ("[MASK]") is plain text here, and a special id only where a
caller asks. Tokens that somebody added are found in a text, special ones ("[E1]") too.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Engine
from tokenizers.normalizers import Normalizer

from bertsmith.base import files
from bertsmith.tokens.special_ids import SpecialIds, token_dtype
from bertsmith.tokens.tokenizer_files import (
    SPECIAL_PIECES,
    TOKEN_FLAGS,
    config_files,
    engine_from_vocabulary,
    read_engine,
)
from bertsmith.tokens.word_cache import MOST_WORDS, WordMemo


@dataclass(frozen=True)
class EncodedPair:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP]; L pieces.

    ids: int64[L]. type_ids: int64[L], 1 for b and its [SEP]. offsets: int64[L, 2], the characters of a or b that a
    piece stands for; (0, 0) for special pieces. segments: int8[L], 0 in a, 1 in b, -1 for special pieces. truncated:
    the pieces that were cut off to fit.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    segments: NDArray[np.int8]
    truncated: int


class Tokenizer:
    """A vocabulary with its casing. `lowercase` tells whether text is lower-cased and stripped of accents first."""

    def __init__(self, engine: Engine) -> None:
        self._with_specials = engine
        self._state: dict[str, Any] = json.loads(engine.to_str())
        plain = dict(self._state)
        # Special or not, what somebody added is found in a text, as `transformers` does; BERT's own five are not.
        self._added = [token for token in self._state["added_tokens"] if token["content"] not in SPECIAL_PIECES]
        plain["added_tokens"] = self._added
        plain["post_processor"] = None
        self._plain = Engine.from_str(json.dumps(plain))
        self._memos = threading.local()  # a thread's own, so that threads may share a tokenizer
        # Of those whose ids are remembered; to be set before the first text is encoded.
        self.most_words = MOST_WORDS
        # Whether texts that are too long for a model lose their beginning (`truncation_side` of transformers).
        self.keep_end = False

    @classmethod
    def from_vocabulary(cls, pieces: Sequence[str], lowercase: bool) -> Self:
        """A tokenizer of pieces in the order of their ids. Raises BertsmithError when a special one is missing."""
        return cls(engine_from_vocabulary(pieces, lowercase, "the vocabulary"))

    def with_vocabulary(self, pieces: Sequence[str]) -> Self:
        """A tokenizer of other pieces that treats text as this one does. Raises as `from_vocabulary`."""
        engine = engine_from_vocabulary(pieces, self.lowercase, "the vocabulary")
        engine.normalizer = self.normalizer
        engine.model.max_input_chars_per_word = self._state["model"]["max_input_chars_per_word"]
        return type(self)(engine)

    def with_casing(self, lowercase: bool) -> Self:
        """A tokenizer of the same pieces and added tokens that lower-cases text and strips accents, or does neither."""
        casing = {"lowercase": lowercase, "strip_accents": None}
        state = {**self._state, "normalizer": {**self._state["normalizer"], **casing}}
        return type(self)(Engine.from_str(json.dumps(state)))

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Reads a model or tokenizer folder, a `tokenizer.json` or a `vocab.txt`.

        The casing comes from tokenizer.json or tokenizer_config.json; where neither is there it is guessed from the
        pieces, and the guess is logged. Raises BertsmithError when nothing is found or it is not BERT's WordPiece.
        """
        return cls(read_engine(files.as_path(source, "tokenizer")))

    @property
    def lowercase(self) -> bool:
        return bool(self._state["normalizer"]["lowercase"])

    @property
    def size(self) -> int:
        """The rows of the vocabulary, V."""
        return len(self.pieces)

    @cached_property
    def pieces(self) -> list[str]:
        """The piece of every id, added ones included."""
        by_piece = self._with_specials.get_vocab(with_added_tokens=True)
        pieces = [""] * (max(by_piece.values()) + 1)
        for piece, number in by_piece.items():
            pieces[number] = piece
        return pieces

    @cached_property
    def special(self) -> SpecialIds:
        pad, unknown, cls, sep, mask = (self.pieces.index(piece) for piece in SPECIAL_PIECES)
        return SpecialIds(pad, unknown, cls, sep, mask, self.size)

    @cached_property
    def is_alphabetic(self) -> NDArray[np.bool_]:
        """bool[V]: the piece, without its leading ##, is letters only."""
        return np.array([piece.removeprefix("##").isalpha() for piece in self.pieces])

    @cached_property
    def is_continuation(self) -> NDArray[np.bool_]:
        """bool[V]: the piece continues a word (it begins with ##)."""
        return np.array([len(piece) > 2 and piece.startswith("##") for piece in self.pieces])

    @cached_property
    def piece_bytes(self) -> NDArray[np.int64]:
        """int64[V]: the bytes of a piece in UTF-8, without its leading ##."""
        sizes: NDArray[np.int64] = np.array([len(piece.encode()) for piece in self.pieces]) - 2 * self.is_continuation
        return sizes

    @cached_property
    def sha256(self) -> str:
        """A hash of all that decides ids: pieces in order, normaliser, pre-tokenizer, word limit, added tokens."""
        model = self._state["model"]
        added = [
            (token["id"], token["content"], *(name for name, usual in TOKEN_FLAGS.items() if token[name] != usual))
            for token in self._added
        ]
        deciding = {
            "pieces": self.pieces,
            "unknown": model["unk_token"],
            "prefix": model["continuing_subword_prefix"],
            "longest_word": model["max_input_chars_per_word"],
            "normalizer": self._state["normalizer"],
            "pre_tokenizer": self._state["pre_tokenizer"],
            "added": added,
        }
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    def encode_ids(
        self, texts: Sequence[str], literal_specials: bool = False
    ) -> list[NDArray[np.unsignedinteger[Any]]]:
        """The ids of every text, without [CLS] and [SEP]: uint16, or uint32 past 65,535 pieces.

        literal_specials: "[MASK]" and its like in a text become their special ids instead of plain pieces.
        """
        dtype = token_dtype(self.size)
        if literal_specials:
            encodings = self._with_specials.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(encoding.ids, dtype=dtype) for encoding in encodings]
        return [np.frombuffer(ids, dtype=dtype) for ids in self.encode_bytes(texts)]

    def encode_bytes(self, texts: Sequence[str]) -> list[bytes]:
        """As `encode_ids`, the ids of each text as the bytes of its array: what bulk work joins into a shard."""
        if not hasattr(self._memos, "words"):
            splits = not self.has_added_tokens
            self._memos.words = WordMemo(self._plain, token_dtype(self.size), splits, self.most_words)
        found: list[bytes] = self._memos.words.encode(texts)
        return found

    def encode_by_library(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_ids`, by `tokenizers` alone: what every faster way is held to."""
        return [each.ids for each in self._plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_offsets(
        self, texts: Sequence[str], literal_specials: bool = False
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The ids of every text, without [CLS] and [SEP], and the characters that each piece stands for: int64[L],
        int64[L, 2] (its first one, and the one after its last). literal_specials: as of `encode_ids`."""
        engine = self._with_specials if literal_specials else self._plain
        encoded = engine.encode_batch(list(texts), add_special_tokens=False)
        return [
            (np.array(each.ids, dtype=np.int64), np.array(self._places(each, text), dtype=np.int64).reshape(-1, 2))
            for each, text in zip(encoded, texts, strict=True)
        ]

    def _places(self, encoding: Encoding, text: str) -> list[tuple[int, int]]:
        """The characters of each piece. White space that an added token takes from beside it is none of its own: a word
        that began there would be no word of the text."""
        places: list[tuple[int, int]] = encoding.offsets
        if any(token["lstrip"] or token["rstrip"] for token in self._added):
            found = (text[start:end] for start, end in places)
            sizes = [(len(each) - len(each.lstrip()), len(each.rstrip()) or len(each)) for each in found]
            places = [(start + first, start + last) for (start, _), (first, last) in zip(places, sizes, strict=True)]
        return places

    @property
    def has_added_tokens(self) -> bool:
        """Whether there are tokens beside the vocabulary's own, which are found before a text is split into words."""
        return bool(self._added)

    @property
    def normalizer(self) -> Normalizer:
        """What cleans a text, and lower-cases it where the vocabulary is so, before it is split into words."""
        return cast(Normalizer, self._plain.normalizer)

    @property
    def plain_json(self) -> str:
        """A tokenizer.json under which none of BERT's five special pieces is found in a text."""
        return str(self._plain.to_str())

    def encode_pair(self, a: str, b: str | None = None, max_length: int = 512) -> EncodedPair:
        """One sequence as a task model reads it, at most `max_length` pieces.

        What is too long is cut at the end of the longer text, b where both are equal (Google's run_classifier.py).
        """
        texts = (a,) if b is None else (a, b)
        parts = [self._plain.encode(text, add_special_tokens=False) for text in texts]
        lengths = [len(part.ids) for part in parts]
        kept = truncated_lengths(lengths[0], sum(lengths[1:]), max_length - 1 - len(parts))[: len(parts)]
        ids, types, offsets, segments = [self.special.cls], [0], [(0, 0)], [-1]
        for number, (text, part, length) in enumerate(zip(texts, parts, kept, strict=True)):
            ids += [*part.ids[:length], self.special.sep]
            types += [number] * (length + 1)
            offsets += [*self._places(part, text)[:length], (0, 0)]
            segments += [number] * length + [-1]
        return EncodedPair(
            np.array(ids, dtype=np.int64),
            np.array(types, dtype=np.int64),
            np.array(offsets, dtype=np.int64),
            np.array(segments, dtype=np.int8),
            sum(lengths) - sum(kept),
        )

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The pieces as readable text: ## joined to the word before, special pieces shown."""
        return str(self._with_specials.decode([int(number) for number in ids], skip_special_tokens=False))

    def save(self, folder: str | Path) -> None:
        """Writes the folder that transformers reads: tokenizer.json, vocab.txt and two small JSON files.

        Raises BertsmithError when the disk refuses.
        """
        folder = Path(folder)
        files.write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in self.pieces))
        files.write_text(folder / "tokenizer.json", self._with_specials.to_str(pretty=True))
        for name, values in config_files(self._state, self.keep_end).items():
            files.write_json(folder / name, values)


def truncated_lengths(a: int, b: int, room: int) -> tuple[int, int]:
    """How many pieces are kept of texts of `a` and `b` pieces so that both take at most `room`.

    The result of taking one piece after the other from the longer text, from b where both are equal.
    """
    excess = max(a + b - max(room, 0), 0)
    uneven = min(excess, abs(a - b))
    if a > b:
        a -= uneven
    else:
        b -= uneven
    both = excess - uneven
    return a - both // 2, b - (both - both // 2)
