"""Records as token sequences and packed batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import by_length, encode, pack
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CLS, SEP, MASK = 2, 3, 4
text = st.lists(st.sampled_from("abcdefgh"), max_size=20).map(" ".join)


def record(a, b=None):
    return Record(a, b, None, "row 1")


def popped(a, b, room):
    """Google's way: one piece after the other off the end of the longer text, off b where both are equal."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


@given(a=text, b=st.none() | text, max_length=st.integers(8, 40))
@settings(deadline=None)
def test_sequences_are_googles(a, b, max_length):
    sequences = encode([record(a, b)], TOKENIZER, max_length)
    ids_a, ids_b = ([PIECES.index(piece) for piece in each.split()] for each in (a, b or ""))
    kept_a, kept_b = popped(ids_a, ids_b, max_length - (2 if b is None else 3))
    second = [] if b is None else [*kept_b, SEP]
    assert sequences.ids[0].tolist() == [CLS, *kept_a, SEP, *second]
    assert sequences.first_segments.tolist() == [len(kept_a) + 2]
    lost = len(ids_a) + len(ids_b) - len(kept_a) - len(kept_b)
    assert (sequences.truncated.tokens, sequences.truncated.rows) == (lost, int(lost > 0))


@given(a=text, b=st.none() | text, max_length=st.integers(8, 40))
@settings(deadline=None)
def test_keeping_the_end_cuts_as_much_of_each_text_from_its_beginning(a, b, max_length):
    """It is what cutting the end of the reversed texts leaves, reversed."""
    kept = encode([record(a, b)], TOKENIZER, max_length, keep_end=True)
    mirrored = encode([record(a[::-1], b and b[::-1])], TOKENIZER, max_length)
    assert kept.lost_tokens.tolist() == mirrored.lost_tokens.tolist()
    split = int(kept.first_segments[0]) - 1
    parts = [each.ids[0].tolist() for each in (kept, mirrored)]
    firsts, seconds = ([each[1:split] for each in parts], [each[split + 1 : -1] for each in parts])
    assert firsts[0] == firsts[1][::-1]
    assert seconds[0] == seconds[1][::-1]


def test_a_literal_special_is_text_unless_asked_for():
    assert MASK not in encode([record("a [MASK] b")], TOKENIZER, 20).ids[0]
    assert encode([record("a [MASK] b")], TOKENIZER, 20, literal_specials=True).ids[0].tolist() == [2, 5, 4, 6, 3]


def test_a_packed_batch_holds_the_sequences_one_behind_the_other():
    sequences = encode([record("a b c"), record("d"), record("e f", "g h a")], TOKENIZER, 20)
    inputs = pack(sequences, np.array([2, 0]), torch.device("cpu"))
    assert inputs.input_ids.tolist()[:13] == [*sequences.ids[2], *sequences.ids[0]]
    assert inputs.token_type_ids.tolist()[:13] == [0] * 4 + [1] * 4 + [0] * 5
    assert inputs.position_ids.tolist()[:13] == [*range(8), *range(5)]
    assert inputs.asked.lengths.tolist() == [8, 5]
    assert inputs.packed.layout.lengths.tolist() == [8, 5, 3], "filled to 16 slots on a CPU"
    assert {len(each) for each in (inputs.input_ids, inputs.token_type_ids, inputs.position_ids)} == {16}


@given(lengths=st.lists(st.integers(0, 15), min_size=1, max_size=40), budget=st.integers(1, 60))
@settings(deadline=None)
def test_batches_by_length_take_every_row_once_within_the_budget(lengths, budget):
    sequences = encode([record("a " * length) for length in lengths], TOKENIZER, 20)
    batches = list(by_length(sequences, budget))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(len(each) == 1 or sequences.lengths[each].sum() <= budget for each in batches)
    flat = sequences.lengths[np.concatenate(batches)]
    assert np.all(np.diff(flat) <= 0)


def test_truncation_is_told():
    sequences = encode([record("a " * 30), record("b")], TOKENIZER, 20)
    assert sequences.truncation() == "1 of 2 rows truncated, 34.3% of the tokens lost"


@pytest.mark.parametrize("count", [0, 3])
def test_any_number_of_records(count):
    assert len(encode([record("a")] * count, TOKENIZER, 20).ids) == count
