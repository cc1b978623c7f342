"""Windows on contexts: what they cover, what they are called best for, and what is learned from them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.answering.gold import Gold
from bertsmith.tasks.answering.windows import (
    gaps,
    has_most_context,
    targets_of,
    windows_of,
)
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import beginnings
from bertsmith.tokens.tokenizer import Tokenizer

WORDS = [f"w{number}" for number in range(60)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "is", *WORDS]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CLS, SEP = 2, 3


def windows(contexts, max_length=20, doc_stride=6, question="who is", golds=None):
    golds = [()] * len(contexts) if golds is None else golds
    records = [
        Record(question, context, label, f"row {number}")
        for number, (context, label) in enumerate(zip(contexts, golds, strict=True))
    ]
    return windows_of(records, TOKENIZER, max_length, doc_stride, max_query_length=8)


def text_of(pieces):
    return " ".join(WORDS[number % 60] for number in range(pieces))


def slow_spans(pieces, room, stride):
    """(begin, length) of each window, one after another, as the rule is told."""
    spans, begin = [], 0
    while begin < pieces:
        length = min(pieces - begin, room)
        spans.append((begin, length))
        if begin + length == pieces:
            break
        begin += min(length, stride)
    return spans


def slow_best(spans, piece):
    """The window that a piece has most context in."""
    scores = [
        (min(piece - begin, begin + length - 1 - piece) + 0.01 * length, -place)
        for place, (begin, length) in enumerate(spans)
        if begin <= piece < begin + length
    ]
    return -max(scores)[1]


@given(pieces=st.integers(1, 150), room=st.integers(1, 50), stride=st.integers(1, 60))
def test_windows_cover_every_piece_by_the_rule(pieces, room, stride):
    spans = slow_spans(pieces, room, stride)
    found = beginnings(pieces, room, stride)
    assert list(found) == [begin for begin, _ in spans]
    assert {piece for begin in found for piece in range(begin, min(begin + room, pieces))} == set(range(pieces))


@given(pieces=st.integers(1, 150), room=st.integers(1, 60), stride=st.integers(1, 70))
@example(pieces=500, room=384, stride=300)  # hundredths of a long window are several pieces
def test_every_piece_has_most_context_in_one_window(pieces, room, stride):
    spans = slow_spans(pieces, room, stride)
    flags = has_most_context(*(np.array(each) for each in zip(*spans, strict=True)))
    for place, ((begin, length), those) in enumerate(zip(spans, flags, strict=True)):
        assert those.tolist() == [slow_best(spans, piece) == place for piece in range(begin, begin + length)]
    assert sum(int(those.sum()) for those in flags) == pieces


@given(counts=st.lists(st.integers(0, 70), min_size=1, max_size=5), stride=st.integers(1, 20))
def test_sequences_hold_question_and_window(counts, stride):
    found = windows([text_of(count) for count in counts], doc_stride=stride)
    for record, count in enumerate(counts):
        members = found.of_record(record)
        assert len(members) == max(1, len(slow_spans(count, 15, stride)))
        context = [PIECES.index(WORDS[number % 60]) for number in range(count)]
        for member in members:
            begin, length = found.first_pieces[member], found.counts[member]
            assert found.ids[member].tolist() == [CLS, 5, 6, SEP, *context[begin : begin + length], SEP]
            assert found.first_segments[member] == 4
            assert found.rows[member] == record
    assert found.rows.tolist() == sorted(found.rows)
    assert not found.lost_tokens.any()


def test_a_context_that_fits_has_one_window():
    found = windows([text_of(15), text_of(16)])
    assert found.rows.tolist() == [0, 1, 1]
    assert found.first_pieces.tolist() == [0, 0, 6]


def test_a_long_question_is_cut_and_counted_once_a_record():
    found = windows([text_of(30), ""], question=" ".join(WORDS[:11]))
    assert found.ids[0][:10].tolist() == [CLS, *(PIECES.index(word) for word in WORDS[:8]), SEP]
    assert found.lost_tokens.tolist() == [3, 0, 0, 0, 0, 3]
    assert (found.truncated.rows, found.truncated.tokens) == (2, 6)


def test_a_question_that_leaves_no_room_is_named():
    with pytest.raises(BertsmithError, match="row 0") as found:
        windows(["w1"], max_length=11, question=" ".join(WORDS[:11]))
    assert "8 of 11 tokens" in found.value.what
    assert len(windows(["w1 w2"], max_length=12, question=" ".join(WORDS[:11])).ids) == 2


def test_an_empty_context_has_a_window_without_it():
    found = windows(["\x01 \n"])
    assert [each.tolist() for each in found.ids] == [[CLS, 5, 6, SEP, SEP]]
    assert [each.tolist() for each in has_most_context(found.first_pieces, found.counts)] == [[]]


def test_equal_contexts_are_read_once():
    found = windows(["w1 w2", "w3", "w1 w2"])
    assert found.passages[0] is found.passages[2]


@given(count=st.integers(1, 70), stride=st.integers(1, 20), data=st.data())
def test_targets_point_at_the_answer_where_all_of_it_is(count, stride, data):
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    text = text_of(count)
    words = text.split()
    start = len(" ".join([*words[:first], ""])) if first else 0
    gold = Gold(" ".join(words[first : last + 1]), start)
    golds = [(), (gold, Gold("another")), (Gold("w0"),), (Gold("w3", 0),), None]
    found = windows([text_of(3), text, text_of(40), text_of(9), text_of(9)], doc_stride=stride, golds=golds)
    assert found.answers == [None, (first, last), (0, 0), None, None]
    targets = targets_of(found)
    assert targets.shape == (len(found.ids), 2)
    held = 0
    for member, (start, end) in enumerate(targets):
        begin = found.first_pieces[member]
        if found.rows[member] == 1:
            inside = begin <= first and last < begin + found.counts[member]
            held += inside
            pieces = found.ids[member][start : end + 1].tolist()
            assert pieces == ([PIECES.index(word) for word in words[first : last + 1]] if inside else [CLS])
        elif found.rows[member] == 2 and begin == 0:
            assert (start, end) == (4, 4)
        else:
            assert (start, end) == (0, 0)
    # Windows of 15 pieces that overlap by as much as the answer is long, less one, cannot all cut it.
    assert held or last - first + 1 > 15 - min(stride, 15) + 1


def test_windows_that_share_no_tokens_are_told():
    assert gaps(windows([text_of(40)], doc_stride=14), 14) == []
    (line,) = gaps(windows([text_of(40)], doc_stride=15), 15)
    assert "windows of 15 tokens" in line
    assert gaps(windows([text_of(15)], doc_stride=15), 15) == [], "no context has several"


@pytest.mark.parametrize(("part", "questions", "expected"), [("v1.1/dev-v1.1.json", 10_570, 10_833)])
def test_the_windows_of_squad_are_as_many_as_the_reference_has(real_data, part, questions, expected):
    """The 10.8 thousand features of the dev questions at 384 tokens and a stride of 128."""
    tokenizer = Tokenizer.load(real_data("vocab/bert-large-uncased/vocab.txt"))
    articles = json.loads(real_data(f"squad/{part}").read_text())["data"]
    asked = [
        (each["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for each in paragraph["qas"]
    ]
    records = [Record(question, context, None, "") for question, context in asked]
    found = windows_of(records, tokenizer, 384, 128, 64)
    assert (len(asked), len(found.ids)) == (questions, expected)
    assert found.lengths.max() == 384
    assert not found.lost_tokens.any(), "no question has more than 64 tokens"
