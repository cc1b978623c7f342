"""A question and its context as sequences: [CLS] question [SEP] window of the context [SEP]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.answering.gold import Place
from bertsmith.tasks.answering.passages import Flags, Ints, Passage, read_passages
from bertsmith.tasks.sequences import Sequences
from bertsmith.tokens.tokenizer import Tokenizer

_SPECIALS = 3  # [CLS], [SEP] and [SEP]


@dataclass(frozen=True)
class WindowRules:
    """max_length: tokens of a sequence. doc_stride: tokens of the context between the beginnings of two windows.
    max_query_length: tokens of a question; what is longer loses its end."""

    max_length: int
    doc_stride: int
    max_query_length: int


@dataclass(frozen=True)
class Windows(Sequences):
    """S windows on the contexts of R records; every record has one at least, and its windows follow one another.

    rows: int64[S], the record of each window. first_pieces: int64[S], the first piece of the context in it. passages:
    the context of each of the R records. lost_tokens counts what questions lost, in the first window of each record.
    """

    rows: Ints
    first_pieces: Ints
    passages: list[Passage]

    @property
    def counts(self) -> Ints:
        """How many pieces of the context are in each window: int64[S]."""
        return self.lengths - self.first_segments - 1

    def of_record(self, record: int) -> range:
        """The windows of a record."""
        return range(*(int(place) for place in np.searchsorted(self.rows, (record, record + 1))))


def windows_of(
    questions: Sequence[str], contexts: Sequence[str], wheres: Sequence[str], tokenizer: Tokenizer, rules: WindowRules
) -> Windows:
    """The windows of questions and their contexts. wheres: of the records, for messages.

    Raises BertsmithError where a question leaves no room for its context.
    """
    unique = list(dict.fromkeys(contexts))
    passages = dict(zip(unique, read_passages(tokenizer, unique), strict=True))
    special = tokenizer.special
    separator = np.array([special.sep], dtype=np.int64)
    ids, segments, cut, owners, begins = [], [], [], [], []
    for row, asked in enumerate(tokenizer.encode_ids(list(questions))):
        pieces = passages[contexts[row]].ids
        question = np.concatenate(([special.cls], asked[: rules.max_query_length].astype(np.int64), separator))
        room = rules.max_length - len(question) - 1
        if room < 1:
            what = (
                f"this question takes {len(question) - 2} of {rules.max_length} tokens and leaves none for the context"
            )
            raise BertsmithError(what, wheres[row], "use a larger --max-length, or a smaller --max-query-length")
        for begin in beginnings(len(pieces), room, rules.doc_stride):
            ids.append(np.concatenate((question, pieces[begin : begin + room], separator)))
            segments.append(len(question))
            cut.append(0 if begin else max(0, len(asked) - rules.max_query_length))
            owners.append(row)
            begins.append(begin)
    first_segments, lost, rows, firsts = (np.array(each, dtype=np.int64) for each in (segments, cut, owners, begins))
    return Windows(ids, first_segments, lost, rows, firsts, [passages[context] for context in contexts])


def beginnings(pieces: int, room: int, doc_stride: int) -> range:
    """The first pieces of windows of at most `room` pieces that cover all of a context; 0 alone for an empty one."""
    step = min(room, doc_stride)
    further = max(0, -(-(pieces - room) // step))
    return range(0, further * step + 1, step)


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


def targets_of(windows: Windows, places: Sequence[Place | None]) -> Ints:
    """The tokens of each window at which its answer begins and ends: int64[S, 2].

    places: for each record, its answer; None for a question without one. A window that does not hold all of the answer
    has none, which is [CLS], token 0.
    """
    answers = [Place() if place is None else place for place in places]
    first, last = (
        np.array(each)[windows.rows] for each in zip(*((one.first, one.last) for one in answers), strict=True)
    )
    inside = (first >= windows.first_pieces) & (last < windows.first_pieces + windows.counts) & (first >= 0)
    shift = windows.first_segments - windows.first_pieces
    return np.where(inside[:, None], np.stack((first + shift, last + shift), axis=1), 0)
