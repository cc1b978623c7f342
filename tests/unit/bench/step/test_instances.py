"""Both sides take the same instances: written and read back, padded for the peer, padded for the ladder."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.order import Order
from bertsmith.bench.made_corpus import open_or_prepare
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.step.instances import read_batches, real_batches, write_batches
from bertsmith.bench.step.made_batches import PERCENTILES, lengths_of, padded, pretrain_batch
from bertsmith.bench.step.peer import padded_rows
from made_shards import make_source

VOCABULARY = 500


def test_what_is_read_back_is_what_was_written(tmp_path):
    written = [pretrain_batch(lengths_of("ragged", count, 64, seed=count), VOCABULARY, count) for count in (3, 1, 5)]
    write_batches(tmp_path / "set.npz", written)
    found = read_batches(tmp_path / "set.npz")
    assert len(found) == 3
    for one, other in zip(written, found, strict=True):
        assert np.array_equal(one.layout.offsets, other.layout.offsets)
        for name in [each.name for each in fields(one) if each.name != "layout"]:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(4, 40), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_the_peer_sees_every_token_and_label_once(lengths, seed):
    batch = pretrain_batch(np.array(lengths), VOCABULARY, seed)
    rows = {name: each.numpy() for name, each in padded_rows(batch).items()}
    real = rows["attention_mask"] == 1
    assert real.shape == (len(lengths), max(lengths))
    assert real.sum(1).tolist() == lengths
    assert np.array_equal(rows["input_ids"][real], batch.input_ids)
    assert np.array_equal(rows["token_type_ids"][real], batch.token_type_ids)
    labels = rows["labels"][real]
    assert np.array_equal(np.flatnonzero(labels != IGNORED_LABEL), batch.masked_positions)
    assert np.array_equal(labels[batch.masked_positions], batch.masked_labels)
    assert (rows["labels"][~real] == IGNORED_LABEL).all()
    assert np.array_equal(rows["next_sentence_label"], batch.next_sentence_labels)


def test_padding_for_the_ladder_keeps_tokens_and_labels_and_fills_slots():
    batch = pretrain_batch(np.array([7, 20, 13]), VOCABULARY)
    full = padded(batch, 24)
    assert full.layout.lengths.tolist() == [24, 24, 24]
    assert np.array_equal(full.masked_labels, batch.masked_labels)
    assert np.array_equal(full.input_ids[full.masked_positions], batch.input_ids[batch.masked_positions])
    assert np.count_nonzero(full.input_ids) == batch.layout.tokens
    first = full.input_ids[24:48]
    assert np.array_equal(first[:20], batch.input_ids[7:27])
    assert not first[20:].any()


def test_real_batches_are_the_steps_of_a_run(tmp_path):
    source = make_source()
    first, second = real_batches(source, 64, 8, 2, tmp_path)
    assert first.layout.sequences == second.layout.sequences == 8
    assert int(first.layout.lengths.max()) <= 64
    assert not np.array_equal(first.input_ids, second.input_ids)
    again = real_batches(source, 64, 8, 1, tmp_path)[0]
    assert np.array_equal(again.input_ids, first.input_ids)


@pytest.mark.parametrize("kind", ["full", "ragged", "wikipedia"])
def test_lengths_keep_within_bounds(kind):
    lengths = lengths_of(kind, 4000, 128, seed=1)
    assert lengths.max() == 128
    assert lengths.min() >= {"full": 128, "ragged": 40, "wikipedia": PERCENTILES[128][0]}[kind]
    assert np.array_equal(lengths, lengths_of(kind, 4000, 128, seed=1))
    assert lengths.mean() == pytest.approx({"full": 128, "ragged": 84, "wikipedia": 115}[kind], abs=2)


def test_wikipedias_lengths_are_those_of_wikipedia(real_data, tmp_path):
    """Of 6 MB beside the 60 MB that the table is of: the means are as near as so little text allows."""
    wiki = real_data("wiki/enwiki-2015/AA")
    corpus, _ = open_or_prepare(BenchOptions(source=(str(wiki),), workers=1), 6_000_000, tmp_path)
    for length in (128, 512):
        lengths = Order(Epochs(corpus, seed=0, phase=1, sequence_length=length)).epoch(0).lengths
        found = np.rint(np.percentile(lengths, np.arange(0, 101, 2)))
        assert np.mean(found) == pytest.approx(np.mean(PERCENTILES[length]), rel=0.12)
        assert found[-1] == PERCENTILES[length][-1] == length
