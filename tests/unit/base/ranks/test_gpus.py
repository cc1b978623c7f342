"""Which GPU a rank takes, of those that its host shows it."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.gpus import identity, own_gpu


def shown(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("device", "count", "local_rank", "taken"),
    [
        ("auto", 0, 3, None),
        ("cpu", 8, 3, None),
        ("auto", 8, 3, 3),
        ("cuda", 8, 3, 3),
        ("cuda", 1, 3, 0),
        ("cuda:1", 2, 0, 1),
    ],
)
def test_the_gpu_of_a_rank(
    device: str, count: int, local_rank: int, taken: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(monkeypatch, count)
    assert own_gpu(device, local_rank) == (None if taken is None else torch.device("cuda", taken))


@pytest.mark.parametrize(
    ("device", "count", "words"),
    [
        ("cuda", 0, "no GPU was found that PyTorch can use"),
        ("cuda", 2, "process 4 of its host, which has 2 GPUs"),
        ("cuda:2", 2, "device 'cuda:2' does not exist: this host has 2 GPUs"),
        ("cuda:1", 1, "device 'cuda:1' does not exist: this host has 1 GPU\n"),
        ("cuda:x", 2, "device 'cuda:x' is not known"),
    ],
)
def test_a_gpu_that_is_not_there_is_wrong_input(
    device: str, count: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(monkeypatch, count)
    with pytest.raises(BertsmithError, match=words):
        own_gpu(device, 3)


def test_a_cpu_needs_no_identity() -> None:
    assert identity(None) == ""
