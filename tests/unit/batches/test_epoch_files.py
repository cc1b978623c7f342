"""What is kept of an epoch: read as it was written, or not at all."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertsmith.base.locks import alone_in
from bertsmith.batches import epoch_files
from bertsmith.batches.epoch_files import EpochFiles, Use
from bertsmith.batches.pairs import Account, Instances, PairSettings, draw_pairs
from made_shards import make_shard, make_source


def files(folder: Path, fingerprint: str = "one") -> EpochFiles:
    return EpochFiles(folder, fingerprint, shards=3)


def drawn() -> Instances:
    return draw_pairs(make_source().splits["train"][0], key=5, sequence_length=64, settings=PairSettings())


def assert_equal(found: Instances | None, expected: Instances) -> None:
    assert found is not None
    for each in fields(Instances):
        one, other = getattr(found, each.name), getattr(expected, each.name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_instances_are_read_as_they_were_drawn(tmp_path: Path) -> None:
    ours, instances = files(tmp_path), drawn()
    ours.write_shard(4, 1, instances)
    assert_equal(ours.read_shard(4, 1), instances)
    assert ours.shard_path(4, 1).stat().st_size == pytest.approx(13 * len(instances), abs=250)
    assert ours.read_shard(4, 0) is None
    assert ours.read_shard(3, 1) is None
    assert files(tmp_path, "two").read_shard(4, 1) is None


def test_a_shard_without_documents_has_no_instances(tmp_path: Path) -> None:
    empty = draw_pairs(make_shard([]), key=5, sequence_length=64, settings=PairSettings())
    files(tmp_path).write_shard(0, 2, empty)
    assert_equal(files(tmp_path).read_shard(0, 2), empty)


@pytest.mark.parametrize("column", ["a_start", "b_start"])
def test_places_beyond_four_billion_tokens_are_kept(tmp_path: Path, column: str) -> None:
    instances = replace(drawn(), **{column: getattr(drawn(), column) + (1 << 40)})
    files(tmp_path).write_shard(0, 0, instances)
    assert_equal(files(tmp_path).read_shard(0, 0), instances)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_not_read_and_said_once(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = files(tmp_path)
    ours.write_shard(0, 0, drawn())
    path = ours.shard_path(0, 0)
    content = bytearray(path.read_bytes())
    content[-20] ^= 4
    path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-7]), "empty": b"", "other": b"no array"}[damage])
    assert ours.read_shard(0, 0) is None
    assert ours.read_shard(0, 0) is None
    assert caplog.text.count("is damaged") == 1


def test_what_is_there_is_known_and_what_is_past_is_forgotten(tmp_path: Path) -> None:
    ours, other = files(tmp_path), files(tmp_path, "two")
    for epoch in range(3):
        for shard in (0, 2):
            ours.write_shard(epoch, shard, drawn())
    other.write_shard(0, 0, drawn())
    assert ours.shards_there(1) == {0, 2}
    assert not ours.are_whole(1)
    ours.forget_instances(before=2)
    assert [ours.shards_there(epoch) for epoch in range(3)] == [set(), set(), {0, 2}]
    assert other.shards_there(0) == {0}
    assert files(tmp_path / "nothing").shards_there(0) == set()


def test_a_run_that_begins_while_another_removes_what_is_past_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one ends where this one waits for the second time."""
    ours, waits = files(tmp_path), []
    with ExitStack() as other:
        assert other.enter_context(alone_in(ours.lock_folder))

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                other.close()

        monkeypatch.setattr(epoch_files, "time", SimpleNamespace(sleep=sleep))
        use = Use(ours)
        use.begin()
    with alone_in(ours.lock_folder) as alone:
        assert not alone
    assert (len(waits), caplog.text) == (3, "")
    use.end()


def test_an_account_of_another_number_of_fields_would_be_seen() -> None:
    assert len(fields(Account)) == 7, "the header of a shard's file has room for seven numbers"
