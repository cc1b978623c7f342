"""A question and its context as sequences: [CLS] question [SEP] window of the context [SEP]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.answering.gold import fault_of, located, pieces_of
from bertsmith.tasks.answering.passages import Flags, Ints, Passage, read_passages
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Sequences, beginnings
from bertsmith.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Windows(Sequences):
    """S windows on the contexts of N records; every record has one at least.

    first_pieces: int64[S], the first piece of the context in each. passages: [N], the contexts. answers: [N], the first
    and last piece of each record's first gold answer; None where it has none, or none that can be learned. lost_tokens
    counts what questions lost, in the first window of each record.
    """

    first_pieces: Ints
    passages: list[Passage]
    answers: list[tuple[int, int] | None]

    @cached_property
    def counts(self) -> Ints:
        """How many pieces of the context are in each window: int64[S]."""
        return self.lengths - self.first_segments - 1

    def of_record(self, record: int) -> range:
        """The windows of a record."""
        return range(int(self.row_offsets[record]), int(self.row_offsets[record + 1]))


def windows_of(
    records: Sequence[Record], tokenizer: Tokenizer, max_length: int, doc_stride: int, max_query_length: int
) -> Windows:
    """The windows of records whose text is a question and whose second text its context.

    max_length: tokens of a sequence. doc_stride: tokens of the context between the beginnings of two windows.
    max_query_length: tokens of a question; what is longer loses its end. Raises BertsmithError where a question leaves
    no room for its context.
    """
    contexts = [record.text_b or "" for record in records]
    unique = list(dict.fromkeys(contexts))
    passages = dict(zip(unique, read_passages(tokenizer, unique), strict=True))
    special = tokenizer.special
    separator = np.array([special.sep], dtype=np.int64)
    ids, segments, cut, owners, begins = [], [], [], [], []
    for row, asked in enumerate(tokenizer.encode_ids([record.text for record in records])):
        pieces = passages[contexts[row]].ids
        question = np.concatenate(([special.cls], asked[:max_query_length].astype(np.int64), separator))
        room = max_length - len(question) - 1
        if room < 1:
            what = f"this question takes {len(question) - 2} of {max_length} tokens and leaves none to its context"
            raise BertsmithError(what, records[row].where, "use a larger --max-length, or a smaller --max-query-length")
        for begin in beginnings(len(pieces), room, doc_stride):
            ids.append(np.concatenate((question, pieces[begin : begin + room], separator)))
            segments.append(len(question))
            cut.append(0 if begin else max(0, len(asked) - max_query_length))
            owners.append(row)
            begins.append(begin)
    first_segments, lost, rows, firsts = (np.array(each, dtype=np.int64) for each in (segments, cut, owners, begins))
    read = [passages[context] for context in contexts]
    return Windows(ids, first_segments, lost, rows, firsts, read, _answers(records, read, tokenizer))


def _answers(
    records: Sequence[Record], passages: Sequence[Passage], tokenizer: Tokenizer
) -> list[tuple[int, int] | None]:
    """The pieces of each record's first answer."""
    pairs = zip(records, passages, strict=True)
    golds = [located(passage.text, record.label[0])[0] if record.label else None for record, passage in pairs]
    alone = tokenizer.encode_ids(["" if gold is None else gold.text for gold in golds])
    return [
        None if gold is None or fault_of(passage.words, gold) else pieces_of(passage, gold, ids.astype(np.int64))
        for gold, passage, ids in zip(golds, passages, alone, strict=True)
    ]


def has_most_context(begins: Ints, counts: Ints) -> list[Flags]:
    """Which pieces of each window of a context have more context in it than in the context's other windows.

    begins, counts: int64[K], of the windows. Gives bool[count] for each. Context is what stands on the side that has
    less, plus a hundredth of the window's length; the first window wins a tie.
    """
    most = np.full(int((begins + counts).max()), -1.0)
    best = np.zeros(len(most), dtype=np.int64)
    pieces = [slice(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]
    for window, inside in enumerate(pieces):
        left = np.arange(inside.stop - inside.start)
        context = np.minimum(left, left[::-1]) + 0.01 * len(left)
        best[inside][context > most[inside]] = window
        most[inside] = np.maximum(context, most[inside])
    return [best[inside] == window for window, inside in enumerate(pieces)]


def targets_of(windows: Windows) -> Ints:
    """The tokens of each window at which its answer begins and ends: int64[S, 2].

    A window that does not hold all of its record's answer has none, which is [CLS], token 0.
    """
    places = [(-1, -1) if answer is None else answer for answer in windows.answers]
    first, last = np.array(places, dtype=np.int64).reshape(-1, 2)[windows.rows].T
    inside = (first >= windows.first_pieces) & (last < windows.first_pieces + windows.counts)
    shift = windows.first_segments - windows.first_pieces
    return np.where(inside[:, None], np.stack((first + shift, last + shift), axis=1), 0)


def gaps(windows: Windows, doc_stride: int) -> list[str]:
    """Says where windows share no tokens, in words."""
    several = np.diff(windows.row_offsets)[windows.rows] > 1
    most = int(windows.counts[several].max(initial=0))
    if not several.any() or most > doc_stride:
        return []
    fix = "use a larger --max-length (BERT has 384 for SQuAD), or a smaller --doc-stride"
    return [f"windows of {most} tokens do not overlap, and an answer across their edge is not found: {fix}"]
