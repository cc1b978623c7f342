"""TensorFlow's checkpoints: one that TensorFlow wrote, and made ones of every style; damage is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.weights.tensorflow.bundle import Bundle
from fixtures.make_tensorflow_checkpoint import FOLDER, shapes, values
from made_bundle import BFLOAT16, MAGIC, Style, write_bundle

RANDOM = np.random.default_rng(5)
TENSORS = {
    f"bert/encoder/layer_{layer}/{part}": RANDOM.normal(size=shape).astype(np.float32)
    for layer in range(9)
    for part, shape in (("output/dense/kernel", (4, 3)), ("output/dense/bias", (3,)), ("LayerNorm/gamma", (2,)))
}
STYLES = {
    "as TensorFlow": Style(),
    "many blocks": Style(block_bytes=60, restart_interval=3),
    "every key whole": Style(restart_interval=1),
    "packed": Style(block_bytes=500, snappy=True),
    "several files": Style(shards=3, block_bytes=200),
}


def read_all(prefix: Path) -> dict[str, torch.Tensor]:
    bundle = Bundle.open(prefix)
    return {name: bundle.read(name) for name in bundle.entries}


def test_what_tensorflow_wrote():
    found = read_all(FOLDER / "bert_model.ckpt")
    assert int(found.pop("global_step")) == 0
    wanted = {name + slot: shape for name, shape in shapes().items() for slot in ("", "/adam_m", "/adam_v")}
    assert found.keys() == wanted.keys()
    for name, shape in wanted.items():
        assert np.array_equal(found[name].numpy(), values(name, shape)), name


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_every_style(style, tmp_path):
    write_bundle(tmp_path / "x.ckpt", TENSORS, style)
    found = read_all(tmp_path / "x.ckpt")
    assert found.keys() == TENSORS.keys()
    assert all(np.array_equal(found[name].numpy(), wanted) for name, wanted in TENSORS.items())


def test_every_type(tmp_path):
    numbers = np.array([1.5, -2.0, 0.0078125, 3e38], np.float32)
    tensors = {
        "float": numbers,
        "double": numbers.astype(np.float64),
        "half": numbers[:3].astype(np.float16),
        "brain": (numbers.view(np.uint32) >> 16).astype(np.uint16),
        "long": np.array(2**40, np.int64),
        "int": np.array([[7]], np.int32),
        "empty": np.zeros((0, 4), np.float32),
    }
    write_bundle(tmp_path / "x", tensors, Style(dtypes={"brain": BFLOAT16}))
    found = read_all(tmp_path / "x")
    assert found["float"].tolist() == numbers.tolist()
    assert (found["double"].dtype, found["half"].dtype) == (torch.float64, torch.float16)
    assert found["half"].tolist() == [1.5, -2.0, 0.0078125]
    assert found["brain"].dtype == torch.bfloat16
    cut = (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert found["brain"].tolist() == cut.tolist()
    assert int(found["long"]) == 2**40
    assert found["int"].tolist() == [[7]]
    assert found["empty"].shape == (0, 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Two checkpoints of few bytes, one of them packed and in two files."""
    folder = tmp_path_factory.mktemp("made")
    few = dict(list(TENSORS.items())[:4])
    write_bundle(folder / "plain", few, Style(block_bytes=90))
    write_bundle(folder / "packed", few, Style(shards=2, snappy=True))
    return folder


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_flipped_bit_is_an_error(made, tmp_path, draw):
    source = draw.draw(st.sampled_from(sorted(made.iterdir())))
    content = bytearray(source.read_bytes())
    content[draw.draw(st.integers(0, len(content) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / source.name).write_bytes(content)
    with pytest.raises(BertsmithError):
        read_all(tmp_path / source.name.split(".")[0])


def test_a_flipped_bit_behind_the_handles_is_an_error(made, tmp_path):
    """The footer has no checksum: its last number may go on with the zeros behind it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    for source in sorted(made.glob("*.index")):
        content = bytearray(source.read_bytes())
        last = max(place for place in range(len(content) - len(MAGIC)) if content[place])
        content[last] |= 0x80
        (tmp_path / source.name).write_bytes(content)
        with pytest.raises(BertsmithError, match="longer than need be"):
            read_all(tmp_path / source.stem)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_cut_off_file_is_an_error(made, tmp_path, draw):
    source = draw.draw(st.sampled_from(sorted(made.iterdir())))
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / source.name).write_bytes(source.read_bytes()[: draw.draw(st.integers(0, source.stat().st_size - 1))])
    with pytest.raises(BertsmithError):
        read_all(tmp_path / source.name.split(".")[0])


def test_damage_names_tensor_and_file(tmp_path):
    write_bundle(tmp_path / "x", TENSORS)
    data = tmp_path / "x.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    last = sorted(TENSORS)[-1]
    content[-1] ^= 1
    data.write_bytes(content)
    bundle = Bundle.open(tmp_path / "x")
    with pytest.raises(BertsmithError, match="not what its checksum says") as caught:
        bundle.read(last)
    assert caught.value.where == f"{last} in {data}"
    data.write_bytes(content[:-1])
    with pytest.raises(BertsmithError, match="is cut off: it needs bytes"):
        bundle.read(last)
    data.unlink()
    with pytest.raises(BertsmithError, match="is missing") as caught:
        bundle.read(last)
    assert caught.value.where == str(data)


@pytest.mark.parametrize(
    ("style", "reason"),
    [
        (Style(header=b"\x10\x01"), "big-endian"),
        (Style(header=b"\x1a\x02\x10\x07"), "a reader of version 7"),
        (Style(header=b"\x18\x07"), "its version is no message"),
        (Style(header=b"\x0f"), "a field of kind 7"),
        (Style(header=b"\x1a\x7f"), "a field is cut off"),
        (Style(magic=b"leveldb!"), "does not end as a table does"),
    ],
)
def test_other_formats_are_refused(style, reason, tmp_path):
    write_bundle(tmp_path / "x", TENSORS, style)
    with pytest.raises(BertsmithError, match=reason) as caught:
        Bundle.open(tmp_path / "x")
    assert caught.value.where == str(tmp_path / "x.index")


def test_a_type_that_holds_no_weights_is_refused_when_it_is_read(tmp_path):
    write_bundle(tmp_path / "x", {"words": np.zeros(3, np.float32)}, Style(dtypes={"words": 7}))
    with pytest.raises(BertsmithError, match="TensorFlow's type 7"):
        Bundle.open(tmp_path / "x").read("words")
