"""What the kinds of source that have rows share: a row that is no document is counted, and text is made whole."""

from __future__ import annotations

import re

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions

_SURROGATES = re.compile("[\ud800-\udfff]")


def drop_row(fault: str, size_bytes: int, where: str, options: ReadOptions, account: Account) -> None:
    """Counts a row as a document that was read and dropped. Raises BertsmithError under `strict`."""
    if options.strict:
        raise BertsmithError(f"found {fault}", where, "mend the row, or leave --strict away to have such rows counted")
    account.read(size_bytes)
    account.drop(fault, size_bytes, where)


def whole_text(text: str, account: Account, where: str) -> str:
    """The text without halves of a surrogate pair: JSON can spell them, and no encoding can hold them."""
    if text.isascii():
        return text
    text, count = _SURROGATES.subn("\ufffd", text)
    if count:
        account.changed.note("lone surrogates, replaced by U+FFFD", count, example=where)
    return text


def no_such_field(field: str, found: list[str], where: str) -> BertsmithError:
    """What is said where the rows of a source have no such field: the fields found, and which is most like it."""
    listed = ", ".join(f"'{name}'" for name in found) or "none"
    guess = nearest(field, found) if found else ""
    hint = f"; {guess}" if guess.startswith("did you mean") else ""
    fix = f"fields found: {listed}{hint}; name the one with the text by --text-field"
    return BertsmithError(f"its rows have no field '{field}'", where, fix)
