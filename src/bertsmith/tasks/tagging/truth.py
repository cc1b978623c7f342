"""What is true of the words of records, for training and for scores, and what of it cannot be kept, counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bertsmith.base.tally import Tally
from bertsmith.tasks.scoring.entities import Span
from bertsmith.tasks.tagging.align import NO_PIECE, Words, in_characters, on_words, widened
from bertsmith.tasks.tagging.rows import TaggedRecord
from bertsmith.tasks.tagging.schemes import BIO, Scheme, are_in, misfits, scheme_of, tags_of


def true_tags(record: TaggedRecord, words: Words) -> list[str]:
    """The tags of a record's words, in BIO; a span that begins or ends inside a word is widened to the whole word."""
    return tags_of(widened(record.label, words.offsets), len(words.first))


def true_spans(record: TaggedRecord, words: Words) -> list[Span]:
    """The entities of a record in characters, without white space at their ends. One that begins or ends inside a word
    stays as it is: no answer is equal to it."""
    whole, broken = on_words(record.label, words.offsets)
    return in_characters(whole, words.offsets) + broken


def without_pieces(records: Sequence[TaggedRecord], words: Sequence[Words]) -> list[str]:
    """Lines on the words that the normaliser leaves nothing of."""
    notes = Tally()
    for record, each in zip(records, words, strict=True):
        for place in np.flatnonzero(each.first == NO_PIECE):
            start, end = each.offsets[place]
            where = f"{_word(record, int(place))} {record.text[start:end]!r}"
            notes.note("words without a piece, tagged O", example=where)
    return notes.lines()


def misfitting(
    records: Sequence[TaggedRecord], words: Sequence[Words], scheme: Scheme | None, types: Collection[str]
) -> list[str]:
    """Lines on tags that do not fit a scheme, spans that do not fit words, and types that the model does not have.

    scheme: that of the training rows. Rows of another one, such as dev rows, are held to their own, and counted.
    """
    notes = Tally()
    every = [record.tags or () for record in records]
    own = scheme_of(every, scheme or BIO)
    has_scheme = are_in(own, every)
    if scheme is not None and own != scheme and has_scheme:
        what = f"rows with tags in {own.name}, where those of the training rows are in {scheme.name}"
        notes.note(what, len(records), example=records[0].where)
    for record, each in zip(records, words, strict=True):
        tags = record.tags or ()
        for place in misfits(tags, own):
            even = own.name if has_scheme else f"even {own.name}, the nearest scheme (are they of other words?)"
            what = f"tags that do not fit {even}, read as conlleval reads them"
            notes.note(what, example=f"{_word(record, place)} {tags[place]}")
        for span in on_words(record.label, each.offsets)[1]:
            what = "spans that begin or end inside a word, trained as the whole word and missed in the score"
            notes.note(what, example=_span(record, span))
        for span in record.label:
            if span.label not in types:
                what = f"entities of the type '{span.label}', which no training row has, missed in the score"
                notes.note(what, example=_span(record, span))
    return notes.lines()


def _word(record: TaggedRecord, place: int) -> str:
    return f"{record.where}, word {place + 1}"


def _span(record: TaggedRecord, span: Span) -> str:
    return f"{record.where} {record.text[span.start : span.end]!r} ({span.start} to {span.end})"
