"""Checksums of what a rank holds and of the code that it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.training import agreement
from bertsmith.training.agreement import checksum, code_facts, held
from bertsmith.training.checkpoints import Position
from made_pretraining import fresh_model

KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)


def drawn(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


@given(kind=st.sampled_from(KINDS[:-1]), data=st.data())
def test_every_bit_counts(kind: torch.dtype, data: st.DataObject) -> None:
    values, other = drawn(kind), drawn(kind)
    raw = other.view(-1).view(torch.uint8)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum({"a": values}) == checksum({"a": drawn(kind)}) != checksum({"a": other})


def test_names_dtypes_shapes_and_numbers_count() -> None:
    one = torch.tensor(1.0)
    same = {"a": torch.zeros(2, 3), "b": one}
    found = {
        checksum(each)
        for each in (
            same,
            {"a": torch.zeros(2, 3), "c": one},
            {"a": torch.zeros(3, 2), "b": one},
            {"a": torch.zeros(2, 3, dtype=torch.int32), "b": one},
            {"a": torch.zeros(2, 3)},
            {"a": -torch.zeros(2, 3), "b": one},
            {},
        )
    }
    assert len(found) == 7
    assert checksum(dict(reversed(same.items()))) == checksum(same), "their order does not"


@pytest.mark.parametrize("dtype", KINDS)
def test_bytes_count_and_not_how_they_lie_in_memory(dtype: torch.dtype) -> None:
    values = drawn(dtype)
    assert checksum({"a": values.T.contiguous().T}) == checksum({"a": values})
    assert checksum({"a": values[:, ::2]}) == checksum({"a": values[:, ::2].clone()})


def test_what_is_held_is_position_weights_and_moments(tmp_path: Path) -> None:
    model = fresh_model(vocab_size=30, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    optimizer = AdamW(parameter_groups(model, 0.01))
    first = held(Position(), model, optimizer, tmp_path)
    assert first["position.step"] == 0
    assert held(Position(step=3), model, optimizer, tmp_path) == {**first, "position.step": 3}
    optimizer.make_moments()
    with_moments = held(Position(), model, optimizer, tmp_path)
    assert with_moments["weights"] != first["weights"]
    next(iter(optimizer.state.values()))["mean"].view(-1)[0] += 1e-30
    assert held(Position(), model, optimizer, tmp_path)["weights"] != with_moments["weights"]


def test_code_is_its_text_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = code_facts()
    assert here == code_facts()
    shutil.copytree(agreement._PACKAGE, tmp_path / "copy")
    monkeypatch.setattr(agreement, "_PACKAGE", tmp_path / "copy")
    assert code_facts() == here
    for name in ("optim/lamb.py", "model/cpu/kernels.cpp", "recipes/presets/new.yaml"):
        path = tmp_path / "copy" / name
        path.parent.mkdir(exist_ok=True)
        before, text = code_facts(), path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(f"{text}\n", encoding="utf-8")
        assert code_facts()["code"] != before["code"]
        assert code_facts()["torch"] == before["torch"]
