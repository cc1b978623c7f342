"""Records as token sequences and packed batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Fit, batch_window_means, by_length, encode, encode_several, pack, window_means
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CLS, SEP, MASK = 2, 3, 4
text = st.lists(st.sampled_from("abcdefgh"), max_size=20).map(" ".join)
document = st.lists(st.sampled_from("abcdefgh"), max_size=90).map(" ".join)


def record(a, b=None):
    return Record(a, b, None, "row 1")


def test_each_text_without_a_known_token_is_found():
    """Of a pair and of several texts each counts; of one that is read in windows, all of these together."""
    a, unknown = "a b", "\U0001f600 \U0001f601"

    def found(records, overlap=None):
        several = isinstance(records[0], list)
        made = (
            encode_several(records, TOKENIZER, 9, overlap) if several else encode(records, TOKENIZER, 9, Fit(overlap))
        )
        return {what.split()[2]: rows.tolist() for what, rows in made.empty_rows(TOKENIZER.special).items()}

    pairs = [(a, None), (unknown, None), (a, unknown), (unknown, a), (a, "\x01"), (unknown, "\x01"), (a, a)]
    assert found([record(*each) for each in pairs]) == {"without": [4, 5], "of": [1, 2, 3]}
    assert found([[record(a), record(unknown)], [record(a)], [record("\x01"), record(a)]]) == {
        "without": [2],
        "of": [0],
    }
    long = f"{unknown} " * 10
    for overlap in (None, 2):
        wanted = {"without": [], "of": [1, 2] if overlap else [0, 1, 2]}
        assert found([record(f"{long} a"), record(long), record(a, long)], overlap) == wanted
    assert found([record(f"{long} a", "b"), record("b", f"a {long}")], 2) == {"without": [], "of": []}


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
    kept = encode([record(a, b)], TOKENIZER, max_length, Fit(keep_end=True))
    mirrored = encode([record(a[::-1], b and b[::-1])], TOKENIZER, max_length)
    assert kept.lost_tokens.tolist() == mirrored.lost_tokens.tolist()
    split = int(kept.first_segments[0]) - 1
    parts = [each.ids[0].tolist() for each in (kept, mirrored)]
    firsts, seconds = ([each[1:split] for each in parts], [each[split + 1 : -1] for each in parts])
    assert firsts[0] == firsts[1][::-1]
    assert seconds[0] == seconds[1][::-1]


@given(a=document, b=document, pair=st.booleans(), max_length=st.integers(8, 40), overlap=st.integers(0, 60))
@settings(deadline=None)
def test_windows_cover_every_token_of_the_longer_text_and_overlap_as_asked(a, b, pair, max_length, overlap):
    sequences = encode([record(a, b) if pair else record(b)], TOKENIZER, max_length, Fit(overlap))
    texts = [[PIECES.index(piece) for piece in each.split()] for each in ([a, b] if pair else [b])]
    room = max_length - 1 - len(texts)
    longer = 0 if len(texts[0]) > len(texts[-1]) else len(texts) - 1
    kept = [each if place == longer else each[: room // 2] for place, each in enumerate(texts)]
    kept = texts if sum(map(len, texts)) <= room else kept
    read: list[list[int]] = []
    for ids, first in zip(sequences.ids, sequences.first_segments, strict=True):
        assert len(ids) <= max_length
        parts = [ids[1 : first - 1], ids[first:-1]][: len(texts)]
        assert [ids[0], ids[first - 1], ids[-1]] == [CLS, SEP, SEP]
        assert all(part.tolist() == kept[place] for place, part in enumerate(parts) if place != longer)
        read.append(parts[longer].tolist())
    first, *others = read
    shared = min(overlap, (room - sum(map(len, kept)) + len(kept[longer])) // 2)
    for window in others:
        assert first[len(first) - shared :] == window[:shared]
        assert len(window) > shared, "a window that has nothing new"
        first += window[shared:]
    assert first == texts[longer]
    lost = sum(map(len, texts)) - sum(map(len, kept))
    assert sequences.lost_tokens.tolist() == [lost] + [0] * len(others)
    assert sequences.rows.tolist() == [0] * len(sequences.ids)


@given(
    documents=st.lists(document, min_size=1, max_size=5),
    a=st.none() | text,
    max_length=st.integers(8, 40),
    overlap=st.integers(0, 60),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None)
def test_a_short_document_is_not_changed_by_windows_nor_by_joining_them(documents, a, max_length, overlap, seed):
    records = [record(each) if a is None else record(a, each) for each in documents]
    windows, cut = (encode(records, TOKENIZER, max_length, Fit(each)) for each in (overlap, None))
    scores = np.random.default_rng(seed).normal(size=(len(windows.ids), 3)).astype(np.float32)
    inputs = pack(windows, np.arange(len(windows.ids)), torch.device("cpu"), windows.rows)
    joined, of_units = window_means(scores, windows), batch_window_means(torch.from_numpy(scores), inputs).numpy()
    for row, members in enumerate(map(range, windows.row_offsets, windows.row_offsets[1:])):
        if len(members) == 1:
            assert joined[row].tolist() == of_units[row].tolist() == scores[members[0]].tolist()
        if not cut.lost_tokens[row]:
            assert [windows.ids[member].tolist() for member in members] == [cut.ids[row].tolist()]
            assert windows.first_segments[members[0]] == cut.first_segments[row]
        np.testing.assert_allclose(joined[row], scores[members].mean(0, dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(of_units[row], joined[row], rtol=1e-5, atol=1e-6)


@given(
    rows=st.lists(st.lists(document, min_size=1, max_size=4), min_size=1, max_size=4),
    overlap=st.none() | st.integers(0, 6),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None)
def test_records_of_several_texts_have_the_windows_of_each_and_a_mean_of_each(rows, overlap, seed):
    several = encode_several([[record(each) for each in row] for row in rows], TOKENIZER, 12, overlap)
    single = [encode([record(each)], TOKENIZER, 12, Fit(overlap)) for row in rows for each in row]
    assert [ids.tolist() for ids in several.ids] == [ids.tolist() for each in single for ids in each.ids]
    assert several.text_offsets.tolist() == [0, *np.cumsum([len(row) for row in rows])]
    windows = [len(each.ids) for each in single]
    assert several.text_starts.tolist() == [0, *np.cumsum(windows)[:-1]]
    scores = np.random.default_rng(seed).normal(size=(len(several.ids), 3)).astype(np.float32)
    means = np.stack([each.mean(0) for each in np.split(scores, np.cumsum(windows)[:-1])])
    np.testing.assert_allclose(window_means(scores, several), means, rtol=1e-5, atol=1e-6)
    taken = np.flatnonzero(several.rows != 0) if len(rows) > 1 else np.arange(len(several.ids))
    unit = several.rows[taken] - several.rows[taken[0]]
    inputs = pack(several, taken, torch.device("cpu"), unit)
    places = [place for row in (rows[1:] or rows) for place in range(len(row))]
    assert inputs.texts.place.tolist() == places
    assert inputs.texts.unit.tolist() == [unit for unit, row in enumerate(rows[1:] or rows) for _ in row]
    of_batch = batch_window_means(torch.from_numpy(scores[taken]), inputs).numpy()
    np.testing.assert_allclose(of_batch, means[-len(places) :], rtol=1e-5, atol=1e-6)


def test_pairs_of_one_record_have_their_windows_in_the_same_text():
    pairs = [("a b c d e f", "a b c d e"), ("a b c d e f", "b c d e f g h")]
    several = encode_several([[record(*pair) for pair in pairs], [record(*pairs[0])]], TOKENIZER, 11, 0)
    read = [" ".join(PIECES[piece] for piece in ids[1:-1]) for ids in several.ids]
    by_choice = ["a b c d [SEP] a b c d", "a b c d [SEP] e", "a b c d [SEP] b c d e", "a b c d [SEP] f g h"]
    assert read == [*by_choice, "a b c d [SEP] a b c d", "e f [SEP] a b c d"]
    assert several.texts.tolist() == [0, 0, 1, 1, 0, 0]
    assert several.lost_tokens.tolist() == [2, 0, 2, 0, 1, 0]


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
