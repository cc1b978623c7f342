"""Laws of pairs that hold whatever is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.pairs import Account, Instances, KeyedDraws, PairSettings, draw_pairs
from bertsmith.corpus.shards import Shard
from made_shards import make_shard, random_documents

DOCUMENTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=10), min_size=1, max_size=8)


def document_of(shard: Shard, token: int) -> int:
    sentence = int(np.searchsorted(shard.sentence_offsets, token, side="right")) - 1
    return int(np.searchsorted(shard.document_offsets, sentence, side="right")) - 1


def shown(instances: Instances) -> int:
    return int(instances.a_length.sum() + instances.b_length.sum())


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.integers(5, 80), st.integers(0, 2**63), st.floats(0, 1), st.floats(0, 1))
def test_visited_is_corpus_less_truncated_and_repeated(
    documents: list[list[int]], length: int, key: int, random_next: float, short: float
) -> None:
    shard = make_shard(documents)
    instances = draw_pairs(shard, key, length, PairSettings(random_next, short))
    account = instances.account
    assert account.corpus == sum(map(sum, documents))
    assert account.visited == shown(instances)
    assert account.visited == account.corpus - account.truncated + account.repeated
    assert account.instances == len(instances)
    assert account.random == instances.next_sentence_label.sum()
    assert min(account.truncated, account.repeated, account.same_document) >= 0


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.integers(5, 80), st.integers(0, 2**63))
def test_every_segment_is_whole_in_one_document_and_fits(documents: list[list[int]], length: int, key: int) -> None:
    shard = make_shard(documents)
    instances = draw_pairs(shard, key, length, PairSettings(0.5, 0.1))
    assert instances.lengths.max() <= length
    assert min(instances.a_length.min(), instances.b_length.min()) >= 1
    for i in range(len(instances)):
        a, b = int(instances.a_start[i]), int(instances.b_start[i])
        a_document, b_document = document_of(shard, a), document_of(shard, b)
        assert document_of(shard, a + int(instances.a_length[i]) - 1) == a_document
        assert document_of(shard, b + int(instances.b_length[i]) - 1) == b_document
        assert instances.next_sentence_label[i] == (a_document != b_document)


def test_label_0_follows_in_the_text_and_label_1_comes_from_elsewhere() -> None:
    # Sentences of one token never overshoot the target, so nothing is truncated and the next token is the next one.
    shard = make_shard([[1] * 50 for _ in range(20)])
    instances = draw_pairs(shard, 3, 20, PairSettings(0.5, 0.1))
    follows = instances.a_start + instances.a_length == instances.b_start
    assert instances.account.truncated == instances.account.same_document == 0
    assert follows[instances.next_sentence_label == 0].all()
    assert not follows[instances.next_sentence_label == 1].any()
    assert 20 < instances.next_sentence_label.sum() < len(instances) - 20


def test_without_truncation_segments_tile_the_corpus() -> None:
    shard = make_shard([[1] * n for n in (1, 2, 30, 17, 90)])
    instances = draw_pairs(shard, 5, 24, PairSettings(0.5, 0.5))
    own = [(int(a), int(n)) for a, n in zip(instances.a_start, instances.a_length, strict=True)]
    next_ones = instances.next_sentence_label == 0
    own += list(zip(instances.b_start[next_ones].tolist(), instances.b_length[next_ones].tolist(), strict=True))
    tokens = np.concatenate([np.arange(start, start + length) for start, length in own])
    assert np.array_equal(np.sort(tokens), np.arange(len(shard.tokens)))


def test_random_next_sets_the_share_of_random_pairs() -> None:
    shard = make_shard([[1] * 3000, [1] * 3000])
    for random_next in (0.0, 0.25, 0.5, 1.0):
        instances = draw_pairs(shard, 7, 23, PairSettings(random_next, 0.0))
        share = instances.next_sentence_label.mean()
        # The last chunk of a document may be one sentence, which always takes a random second.
        assert share == pytest.approx(random_next, abs=0.05)


def test_a_shorter_target_is_drawn_once_a_document() -> None:
    # One-token documents' worth of target: with every document short, the lengths of one document agree.
    shard = make_shard([[1] * 400 for _ in range(30)])
    lengths = draw_pairs(shard, 1, 103, PairSettings(0.0, 1.0))
    first = {}
    for start, length in zip(lengths.a_start.tolist(), lengths.lengths.tolist(), strict=True):
        first.setdefault(start // 400, []).append(length)
    assert all(len(set(each[:-1])) <= 1 for each in first.values())
    assert len({each[0] for each in first.values()}) > 15
    full = draw_pairs(shard, 1, 103, PairSettings(0.0, 0.0)).lengths
    assert (full == 103).mean() > 0.9


def test_a_shard_of_one_document_labels_is_next_and_counts_it() -> None:
    account = draw_pairs(make_shard([[5] * 100]), 1, 64, PairSettings(0.5, 0.1)).account
    assert account.random == 0
    assert account.same_document > 0
    assert f"{account.same_document:,} random second segments are from the same document" in str(account)
    assert "same document" not in str(draw_pairs(make_shard([[5] * 100] * 9), 1, 64, PairSettings(0.5, 0.1)).account)


@pytest.mark.parametrize("documents", [[[1]], [[500]], [[1], [1]], [[1, 700, 1]], [[600], [1], [3, 3]]])
def test_edge_documents(documents: list[list[int]]) -> None:
    instances = draw_pairs(make_shard(documents), 11, 16, PairSettings(0.5, 0.1))
    assert len(instances) >= len(documents)
    assert instances.lengths.max() <= 16
    assert instances.lengths.min() >= 5


def test_an_empty_shard_gives_nothing() -> None:
    instances = draw_pairs(make_shard([]), 1, 128, PairSettings(0.5, 0.1))
    assert len(instances) == 0
    assert instances.account == Account()


def test_truncation_takes_from_both_ends_of_both() -> None:
    # Both segments are single sentences of 40 tokens that must shrink to 13 and 12 of 25.
    shard = make_shard([[40], [40]] * 200)
    instances = draw_pairs(shard, 2, 28, PairSettings(0.5, 0.0))
    assert set(instances.a_length.tolist()) == {13}
    assert set(instances.b_length.tolist()) == {12}
    for start, cut in ((instances.a_start, 27), (instances.b_start, 28)):
        front = start % 40
        assert abs(front.mean() - cut / 2) < 4 * np.sqrt(cut / 4 / len(front))
        assert front.std() == pytest.approx(np.sqrt(cut / 4), rel=0.15)


def test_equal_keys_equal_pairs_other_keys_other_pairs() -> None:
    shard = make_shard(random_documents(0, 50))
    one, same, other = (draw_pairs(shard, key, 64, PairSettings(0.5, 0.1)) for key in (1, 1, 2))
    assert np.array_equal(one.b_start, same.b_start)
    assert not np.array_equal(one.b_start, other.b_start)


def test_keyed_draws_keep_their_promises() -> None:
    draws = KeyedDraws(5)
    uniforms = np.array([draws.uniform() for _ in range(10_000)])
    assert 0 <= uniforms.min() < uniforms.max() < 1
    assert abs(uniforms.mean() - 0.5) < 0.02
    assert {draws.integer(3, 6) for _ in range(200)} == {3, 4, 5, 6}
    # Whole words of 64 tosses, of which the last is a toss like any other.
    long = [draws.tosses(256) for _ in range(400)]
    heads = np.mean([[coins >> place & 1 for place in range(256)] for coins in long], axis=0)
    assert abs(heads.mean() - 0.5) < 0.01
    assert 0.35 < heads.min() < heads.max() < 0.65


@pytest.mark.parametrize("length", [4, 0, 70_000])
def test_an_impossible_length_is_said(length: int) -> None:
    with pytest.raises(BertsmithError, match=f"sequence length {length}"):
        draw_pairs(make_shard([[3]]), 1, length, PairSettings(0.5, 0.1))


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.integers(5, 80), st.integers(0, 2**63), st.floats(0, 1))
def test_single_segments_are_the_text_once_whole_and_in_order(
    documents: list[list[int]], length: int, key: int, short: float
) -> None:
    shard = make_shard(documents)
    instances = draw_pairs(shard, key, length, PairSettings(short_sequences=short, single=True))
    starts, ends = instances.a_start, instances.a_start + instances.a_length
    assert [*starts, len(shard.tokens)] == [0, *ends]
    assert (instances.a_length >= 1).all()
    assert not instances.b_length.any()
    assert (instances.lengths == instances.a_length + 2).all()
    assert instances.lengths.max() <= length
    edges = set(shard.sentence_offsets.tolist())
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        assert document_of(shard, start) == document_of(shard, end - 1)
        # Cut within a sentence only where not even one of its ends fits.
        assert end in edges or (end - start == length - 2 and not edges & set(range(start + 1, end)))
    assert instances.account == Account(len(instances), len(shard.tokens), len(shard.tokens))


def test_single_segments_are_as_long_as_whole_sentences_allow() -> None:
    shard = make_shard([[10] * 7, [3, 50, 4]])
    found = draw_pairs(shard, 1, 32, PairSettings(short_sequences=0.0, single=True))
    assert found.a_length.tolist() == [30, 30, 10, 3, 30, 24]
