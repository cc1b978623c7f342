"""What is done to a text before it is split, and which texts are not worth keeping; all of it counted.

Unicode is brought to NFC, under which texts that look the same become the same; NFKC would change what is written
(fractions, superscripts, full-width forms). Line ends become line feeds and every other space a plain one; control
characters, invisible ones and U+FFFD go, as BERT's own normaliser has it, so that texts which give the same ids also
count as copies of each other. Case, accents, quotes and dashes stay: the tokenizer decides about them.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

from bertsmith.base.tally import Tally

_BREAKS = frozenset("\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
_INVISIBLE = "invisible characters, left out"
# By Unicode's category: controls, format characters, private use and halves of surrogate pairs.
_LEFT_OUT = {"Cc": "control characters, left out", "Cf": _INVISIBLE, "Co": _INVISIBLE, "Cs": _INVISIBLE}
_REPLACEMENT = "\ufffd"
_LOST = "characters that were lost before (U+FFFD), left out"
# The pieces of a BERT vocabulary that are no text.
SPECIALS = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]")
SPECIALS_READ_AS_TEXT = "special tokens written in a text, read as plain text"

HASH_BYTES = 16
_SPACES = b" \t\n\r\x0b\x0c"


def clean_text(text: str, name: str, changed: Tally) -> str:
    """The text in NFC with line feeds, plain spaces and nothing invisible, stripped at both ends. name: for examples.

    Literal special tokens stay as they are written and are counted: the tokenizer never gives their ids for them.
    """
    # The one wide space that is common; the others are looked for where something is not printable, as they are not.
    text = text.replace("\xa0", " ")
    if not text.replace("\n", " ").isprintable() or _REPLACEMENT in text:
        text = _without_unprintable(text.replace("\r\n", "\n"), name, changed)
    # After the removal, which may have brought a letter and its accent together.
    if not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
        changed.note("documents brought to Unicode NFC", example=name)
    if "[" in text:
        specials = len(SPECIALS.findall(text))
        if specials:
            changed.note(SPECIALS_READ_AS_TEXT, specials, example=name)
    return text.strip()


def _without_unprintable(text: str, name: str, changed: Tally) -> str:
    """Of what is not printable, spaces become plain, line ends line feeds, and the rest goes, counted by kind."""
    found = {char for char in set(text) if char == _REPLACEMENT or not (char.isprintable() or char in "\n\t")}
    left_out: dict[str, list[str]] = {}
    for char in sorted(found):
        category = unicodedata.category(char)
        if char in _BREAKS:
            text = text.replace(char, "\n")
        elif category == "Zs":
            text = text.replace(char, " ")
        elif what := _LEFT_OUT.get(category) or (_LOST if char == _REPLACEMENT else ""):
            left_out.setdefault(what, []).append(char)
    for what, chars in left_out.items():
        counts = {char: text.count(char) for char in chars}
        size_bytes = sum(count * len(char.encode(errors="surrogatepass")) for char, count in counts.items())
        changed.note(what, sum(counts.values()), size_bytes, name)
        for char in chars:
            text = text.replace(char, "")
    return text


def text_hash(text: bytes) -> bytes:
    """16 bytes of a text in UTF-8, the same for texts that differ in white space only: none of it is hashed."""
    return hashlib.blake2b(text.translate(None, _SPACES), digest_size=HASH_BYTES).digest()
