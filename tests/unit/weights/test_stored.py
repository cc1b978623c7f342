"""Weights in shards: index and shards must say the same; archives of torch are compared with their checksums."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.weights.stored import load_torch_file, read_tensors, stored_files

TENSORS = {name: torch.randn(3, number + 1) for number, name in enumerate("abcde")}
PLACES = {"a": 1, "b": 1, "c": 2, "d": 3, "e": 3}


def shard(number: int) -> str:
    return f"model-0000{number}-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path):
    for number in (1, 2, 3):
        part = {name: TENSORS[name] for name, place in PLACES.items() if place == number}
        safetensors.torch.save_file(part, tmp_path / shard(number))
    write_index(tmp_path, {name: shard(place) for name, place in PLACES.items()})
    return tmp_path


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_weights_that_may_not_be_read_are_not_called_missing(folder, monkeypatch):
    """safetensors itself says so."""
    closed = str(folder / shard(2))

    def opened(path, *how, **more):
        if str(path) == closed:
            raise PermissionError(13, "Permission denied", closed)
        return open(path, *how, **more)

    monkeypatch.setattr("bertsmith.weights.stored.open", opened, raising=False)
    with pytest.raises(BertsmithError, match=r"cannot be read .Permission denied.") as raised:
        read_tensors(folder)
    assert raised.value.where == closed


def test_shards_are_joined(folder):
    path, tensors = read_tensors(folder)
    assert path.name == "model.safetensors.index.json"
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], wanted) for name, wanted in TENSORS.items())
    assert [each.name for each in stored_files(folder)] == [path.name, shard(1), shard(2), shard(3)]


def test_a_whole_file_comes_before_shards(folder):
    safetensors.torch.save_file({"x": torch.ones(1)}, folder / "model.safetensors")
    assert list(read_tensors(folder)[1]) == ["x"]
    assert [each.name for each in stored_files(folder)] == ["model.safetensors"]


def test_every_difference_is_listed(folder):
    wrong = {"a": shard(1), "c": shard(1), "d": shard(3), "f": shard(2), "e": shard(3)}
    write_index(folder, wrong)
    with pytest.raises(BertsmithError, match="index and shards differ") as caught:
        read_tensors(folder)
    for line in (
        f"c is not in {shard(1)}",
        f"b is in {shard(1)}, and the index does not say so",
        f"f is not in {shard(2)}",
        f"c is in {shard(2)}, and the index does not say so",
    ):
        assert line in caught.value.what
    assert "\n    d " not in caught.value.what


def test_a_missing_shard_is_named(folder):
    (folder / shard(2)).unlink()
    with pytest.raises(BertsmithError, match=f"{shard(2)}, which this index names, is missing"):
        read_tensors(folder)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("[]", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": 1}}', "the shard of a is 1"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "not a file of this folder"),
        ("{", "not JSON"),
    ],
)
def test_a_broken_index_is_an_error(index, reason, folder):
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BertsmithError, match=reason):
        read_tensors(folder)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "x.pt"
    torch.save({"model": TENSORS, "epoch": 3}, path)
    return path


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_flipped_bit_in_an_archive_never_changes_weights(archive, tmp_path, draw):
    content = bytearray(archive.read_bytes())
    content[draw.draw(st.integers(0, len(content) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    (tmp_path / "x.pt").write_bytes(content)
    try:
        loaded = load_torch_file(tmp_path / "x.pt")["model"]
    except BertsmithError:
        return
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], wanted) for name, wanted in TENSORS.items())


def test_a_damaged_tensor_in_an_archive_is_named(archive, tmp_path):
    content = archive.read_bytes()
    raw = TENSORS["e"].numpy().tobytes()
    assert content.count(raw) == 1
    (tmp_path / "x.pt").write_bytes(content.replace(raw, bytes(len(raw))))
    with pytest.raises(BertsmithError, match=r"x/data/4 in this file is not what its checksum says"):
        load_torch_file(tmp_path / "x.pt")


def test_the_format_before_archives_is_read(tmp_path):
    torch.save(TENSORS, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    loaded = load_torch_file(tmp_path / "x.pt")
    assert all(torch.equal(loaded[name], wanted) for name, wanted in TENSORS.items())


class Planted:
    """Would make a file if it were unpickled freely."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_nothing_in_a_file_is_run(tmp_path):
    torch.save({"model": TENSORS, "trap": Planted(tmp_path / "trap")}, tmp_path / "x.pt")
    with pytest.raises(BertsmithError, match="holds more than tensors and plain values") as caught:
        load_torch_file(tmp_path / "x.pt")
    assert "where you trust it" in caught.value.fix
    assert not (tmp_path / "trap").exists()
    assert "(Unsupported global: GLOBAL " in caught.value.what
    assert "\x1b" not in str(caught.value), "torch's message comes with a terminal's codes"
    assert "can still be loaded" not in str(caught.value)
