"""What is done to a text before it is split, and which texts are not worth keeping; all of it counted.

Unicode is brought to NFC, under which texts that look the same become the same; NFKC would change what is written
(fractions, superscripts, full-width forms). Line ends become line feeds, other control characters go, as BERT's own
normaliser has it. Case, accents, quotes and dashes stay: the tokenizer decides about them.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from bertsmith.corpus.account import Tally
from bertsmith.corpus.tokenizer_files import SPECIAL_PIECES

_BREAKS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_SPECIALS = re.compile("|".join(re.escape(piece) for piece in SPECIAL_PIECES))

HASH_BYTES = 16


def clean_text(text: str, name: str, changed: Tally) -> str:
    """The text in NFC with line feeds and without control characters, stripped at both ends. name: for the examples."""
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
        changed.note("documents brought to Unicode NFC", example=name)
    if _ODD.search(text):
        text = _BREAKS.sub("\n", text)
        text, controls = _CONTROLS.subn("", text)
        if controls:
            changed.note("control characters, left out", controls, controls, name)
    if "[" in text:
        specials = len(_SPECIALS.findall(text))
        if specials:
            changed.note("special tokens written in a text, read as plain text", specials, example=name)
    return text.strip()


def text_hash(text: str) -> bytes:
    """16 bytes of a text, the same for texts that differ in white space only."""
    return hashlib.blake2b(b" ".join(text.encode().split()), digest_size=HASH_BYTES).digest()


def is_held_out(digest: bytes, share: float) -> bool:
    """Whether the document of this hash is never trained on: decided by itself, so it stays when the corpus grows."""
    return int.from_bytes(digest[8:], "little") < share * 2.0**64
