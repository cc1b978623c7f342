"""The order of a phase: every instance once an epoch, epochs without a gap, found at once."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.batches import epoch_index, epochs
from bertsmith.batches.epoch_index import References
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.order import Order
from bertsmith.batches.pairs import PairSettings
from made_shards import MemorySource, make_shard, make_source


def make_order(source: MemorySource | None = None, cache_folder: Path | None = None, **changed: Any) -> Order:
    settings: dict[str, Any] = {"seed": 7, "phase": 1, "sequence_length": 64, **changed}
    return Order(Epochs(source or make_source(), cache_folder=cache_folder, **settings))


def names(references: References) -> list[tuple[int, int, int]]:
    columns = (references.epochs, references.shards, references.instances)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows so small that an epoch of the test's corpus has several, and shards are forgotten and cut again."""
    monkeypatch.setattr(epoch_index, "WINDOW_INSTANCES", 250)
    monkeypatch.setattr(epochs, "WINDOW_INSTANCES", 60)


@pytest.mark.usefixtures("small_windows")
def test_an_epoch_has_every_instance_once_in_shuffled_windows_of_whole_shards() -> None:
    ours = make_order(make_source(shards=8, documents=20))
    index = ours.epoch(0)
    assert len(index.windows) > 2
    assert sorted(np.concatenate(index.windows).tolist()) == list(range(8))
    references = ours.instances(0, index.size)
    assert len(set(names(references))) == index.size
    assert all(len(ours.epochs.drawn(0, shard).instances) == (references.shards == shard).sum() for shard in range(8))
    begin = 0
    for members in index.windows:
        size = sum(len(ours.epochs.drawn(0, shard).instances) for shard in members.tolist())
        assert size <= 250 or len(members) == 1
        assert set(references.shards[begin : begin + size].tolist()) == set(members.tolist())
        assert not (np.diff(references.instances[begin : begin + size]) > 0).all()
        begin += size


@pytest.mark.usefixtures("small_windows")
def test_equal_shards_and_windows_are_neither_cut_nor_shuffled_alike() -> None:
    source = MemorySource({"train": [make_shard([[3] * 20] * 40)] * 12})
    cut = make_order(source).epochs
    assert len({cut.drawn(0, shard).instances.b_start.tobytes() for shard in range(12)}) == 12
    whole = make_order(source, pairs=PairSettings(short_sequences=0.0, single=True))
    windows = [len(members) for members in whole.epoch(0).windows]
    assert len(windows) > 1
    assert len(set(windows)) == 1
    found = whole.instances(0, whole.epoch(0).size).instances
    assert len({part.tobytes() for part in np.split(found, len(windows))}) == len(windows)


def test_lengths_are_those_of_the_instances() -> None:
    ours = make_order()
    references = ours.instances(0, ours.epoch(0).size + 40)
    for epoch, shard, instance, length in zip(*vars(references).values(), strict=True):
        assert ours.epochs.drawn(int(epoch), int(shard)).instances.lengths[instance] == length


@pytest.mark.usefixtures("small_windows")
def test_any_slice_of_the_run_is_the_same_from_anywhere() -> None:
    source = make_source(shards=5)
    whole = names(make_order(source).instances(0, 1500))
    assert {epoch for epoch, _, _ in whole} >= {0, 1}
    for first, count in ((0, 1), (137, 300), (900, 600), (1499, 1)):
        assert names(make_order(source).instances(first, count)) == whole[first : first + count]


def test_epochs_follow_without_a_gap_and_differ() -> None:
    ours = make_order()
    sizes = [ours.epoch(epoch).size for epoch in range(3)]
    assert [ours.epoch_start(epoch) for epoch in range(4)] == [0, *np.cumsum(sizes).tolist()]
    edge = ours.instances(sizes[0] - 2, sizes[1] + 4)
    assert edge.epochs.tolist() == [0, 0, *[1] * sizes[1], 2, 2]
    one, two = (ours.epochs.drawn(epoch, 0).instances for epoch in (0, 1))
    assert not np.array_equal(one.b_start, two.b_start)
    assert names(ours.instances(0, 50)) != [(0, *rest) for _, *rest in names(ours.instances(sizes[0], 50))]


@pytest.mark.parametrize("changed", [{"seed": 8}, {"phase": 2}, {"phase": "1"}])
def test_another_seed_or_phase_is_another_order(changed: dict[str, object]) -> None:
    assert names(make_order().instances(0, 50)) != names(make_order(**changed).instances(0, 50))


def test_the_account_of_an_epoch_is_the_sum_of_its_shards() -> None:
    source = make_source()
    ours = make_order(source)
    account = ours.epoch(0).account
    assert account.corpus == sum(info.tokens for info in source.shards("train"))
    assert account.instances == ours.epoch(0).size
    assert account.visited == account.corpus - account.truncated + account.repeated
    assert int(ours.epoch(0).lengths.sum()) == account.visited + 3 * account.instances


def test_shards_without_documents_are_passed_over_and_a_split_without_any_is_an_error() -> None:
    full, empty = make_shard([[3, 4], [5]]), make_shard([])
    ours = make_order(MemorySource({"train": [empty, full, empty]}))
    assert set(ours.instances(0, ours.epoch(0).size).shards.tolist()) == {1}
    with pytest.raises(BertsmithError, match="no train documents"):
        make_order(MemorySource({"train": [empty]}))


def test_memory_is_bounded_by_forgetting_shards(small_windows: None) -> None:
    source = make_source(shards=6)
    ours = make_order(source)
    first = ours.epochs.drawn(0, 0).instances
    for shard in range(1, 6):
        ours.epochs.drawn(0, shard)
    assert len(ours.epochs._drawn) < 6
    assert np.array_equal(ours.epochs.drawn(0, 0).instances.b_start, first.b_start)
    assert source.opened.count(("train", 0)) == 2


def test_a_cached_index_needs_no_shard_and_gives_the_same_order(tmp_path: Path) -> None:
    built = make_order(cache_folder=tmp_path)
    whole = names(built.instances(0, built.epoch(0).size + 10))
    assert len(list(tmp_path.iterdir())) == 2
    source = make_source()
    again = make_order(source, cache_folder=tmp_path)
    assert names(again.instances(0, len(whole))) == whole
    assert again.epoch(1).account == built.epoch(1).account
    assert source.opened == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_index_is_built_again_and_said(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    whole = names(make_order(cache_folder=tmp_path).instances(0, 100))
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-20] ^= 4
    damaged = {"flip": bytes(content), "cut": bytes(content[:-7]), "empty": b"", "other": b"not an array" * 20}
    file.write_bytes(damaged[damage])
    assert names(make_order(cache_folder=tmp_path).instances(0, 100)) == whole
    assert "is damaged and will be rebuilt" in caplog.text
    source = make_source()
    make_order(source, cache_folder=tmp_path).instances(0, 100)
    assert source.opened == []


@pytest.mark.parametrize(
    "changed", [{"seed": 8}, {"phase": 2}, {"sequence_length": 63}, {"pairs": PairSettings(short_sequences=0.2)}]
)
def test_the_index_of_other_settings_is_not_taken(tmp_path: Path, changed: dict[str, object]) -> None:
    make_order(cache_folder=tmp_path).epoch(0)
    source = make_source()
    make_order(source, cache_folder=tmp_path, **changed).epoch(0)
    assert len(source.opened) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_the_index_of_another_corpus_is_not_taken(tmp_path: Path) -> None:
    make_order(cache_folder=tmp_path).epoch(0)
    source = make_source(seed=1)
    assert names(make_order(source, cache_folder=tmp_path).instances(0, 50)) == names(
        make_order(source).instances(0, 50)
    )
    assert source.opened


def test_the_index_of_a_corpus_of_as_many_tokens_is_not_taken(tmp_path: Path) -> None:
    for sha256 in ("one", "other"):
        source = make_source()
        listed = [replace(each, sha256={"00000.tokens.npy": sha256}) for each in source.shards("train")]
        source.shards = lambda split, listed=listed: listed
        make_order(source, cache_folder=tmp_path).epoch(0)
        assert source.opened


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ETIMEDOUT])
def test_where_the_index_cannot_be_kept_the_run_goes_on_and_says_so(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refused)
    assert make_order(cache_folder=tmp_path / "deep").instances(0, 10)
    assert "epoch index was not saved" in caplog.text
    assert os.strerror(number) in caplog.text
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
