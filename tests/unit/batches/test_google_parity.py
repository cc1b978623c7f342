"""Given Google's draws in Google's order, pairs and masks are Google's, token for token."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from google_reference import GoogleReference, Replay
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import Layout
from bertsmith.batches.masking import MaskingSettings, choose_slots, replacements
from bertsmith.batches.packing import Part, pack
from bertsmith.batches.pairs import Instances, PairSettings, draw_pairs
from bertsmith.corpus.shards import Shard
from made_shards import SPECIAL, Documents, make_shard, random_documents


def as_lists(shard: Shard) -> list[list[list[int]]]:
    tokens = shard.tokens.tolist()
    sentences = [tokens[a:b] for a, b in pairwise(shard.sentence_offsets)]
    return [sentences[a:b] for a, b in pairwise(shard.document_offsets)]


def both(
    documents: Documents, length: int, seed: int, random_next: float = 0.5, short: float = 0.1
) -> tuple[Shard, GoogleReference, list, Instances]:
    shard = make_shard(documents)
    reference = GoogleReference(as_lists(shard), length, SPECIAL, random.Random(seed), random_next, short)
    expected = reference.instances()
    replay = Replay(reference.drawn)
    ours = draw_pairs(shard, 0, length, PairSettings(random_next, short), replay)
    assert replay.next == len(reference.drawn), "Google drew more than we did"
    return shard, reference, expected, ours


def unmasked(shard: Shard, instances: Instances, i: int) -> list[int]:
    a, b = int(instances.a_start[i]), int(instances.b_start[i])
    first = shard.tokens[a : a + instances.a_length[i]].tolist()
    second = shard.tokens[b : b + instances.b_length[i]].tolist()
    return [SPECIAL.cls, *first, SPECIAL.sep, *second, SPECIAL.sep]


@pytest.mark.parametrize("length", [64, 128, 512])
def test_pairs_equal_google_token_for_token(length: int) -> None:
    documents = random_documents(1, 200, sentences=40, longest=60)
    shard, _, expected, ours = both(documents, length, 12345)
    assert len(ours) == len(expected) > 200
    assert ours.next_sentence_label.tolist() == [each.label for each in expected]
    for i, each in enumerate(expected):
        assert unmasked(shard, ours, i) == each.original


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=1, max_size=6),
    length=st.integers(5, 60),
    seed=st.integers(0, 2**32),
    random_next=st.sampled_from([0.0, 0.5, 1.0]),
    short=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_pairs_equal_google_for_any_documents(
    documents: list[list[int]], length: int, seed: int, random_next: float, short: float
) -> None:
    shard, _, expected, ours = both(documents, length, seed, random_next, short)
    assert [unmasked(shard, ours, i) for i in range(len(ours))] == [each.original for each in expected]
    assert ours.next_sentence_label.tolist() == [each.label for each in expected]


def test_masks_equal_google_token_for_token() -> None:
    _, _, expected, _ = both(random_documents(2, 60, sentences=30), 128, 12345)
    layout = Layout.from_lengths([len(each.original) for each in expected])
    rows, places, priorities = [], [], []
    for row, each in enumerate(expected):
        rank = {place: number for number, place in enumerate(each.candidate_order)}
        rows += [row] * len(rank)
        places += sorted(rank)
        priorities += [rank[place] for place in sorted(rank)]
    masking = MaskingSettings()
    counts = masking.predictions(layout.lengths)
    slots = choose_slots(layout, np.array(rows), np.array(places), np.array(priorities, dtype=np.uint64), counts)
    wanted = [
        (first + place, token)
        for first, each in zip(layout.first_slots, expected, strict=True)
        for place, token in each.hidden.items()
    ]
    assert slots.tolist() == [slot for slot, _ in wanted]

    draws = [each.actions[place] for each in expected for place in each.hidden]
    actions, pieces = np.array([action for action, _ in draws]), np.array([piece for _, piece in draws])
    seen = replacements(np.array([token for _, token in wanted]), actions, pieces, masking, SPECIAL)
    assert seen.tolist() == [each.tokens[place] for each in expected for place in each.hidden]


def test_packed_segments_and_labels_equal_google() -> None:
    shard, _, expected, ours = both(random_documents(3, 40), 64, 12345)
    everything = np.arange(len(ours))
    batch = pack([Part(shard.tokens, ours, everything, everything, 0)], SPECIAL, MaskingSettings())
    unhidden = batch.input_ids.copy()
    unhidden[batch.masked_positions] = batch.masked_labels
    assert unhidden.tolist() == [token for each in expected for token in each.original]
    assert batch.token_type_ids.tolist() == [segment for each in expected for segment in each.segments]
    assert batch.next_sentence_labels.tolist() == [each.label for each in expected]
