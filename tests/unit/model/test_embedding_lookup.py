"""Rows of a table by their numbers: any table may be read with sparse gradients, and its `grad` is whole."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding

from bertsmith.model.embedding_lookup import look_up

IDS = torch.tensor([4, 0, 4, 2])


def table() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_are_whole_and_those_of_pytorch(sparse: bool) -> None:
    ours, theirs = table(), table()
    for _ in range(2):
        rows = look_up(ours, IDS, sparse)
        assert torch.equal(rows, embedding(IDS, theirs))
        rows.square().sum().backward()
        embedding(IDS, theirs).square().sum().backward()
    assert ours.grad is not None
    assert not ours.grad.is_sparse
    assert torch.equal(ours.grad, theirs.grad)


def test_a_table_that_is_read_often_is_set_up_once() -> None:
    ours, seen = table(), []
    for _ in range(3):
        look_up(ours, IDS, sparse=True)
    ours.register_post_accumulate_grad_hook(seen.append)
    assert len(ours._post_accumulate_grad_hooks) == 2


def test_frozen_tables_and_those_that_are_computed_are_read_too() -> None:
    frozen, whole = table().requires_grad_(False), table()
    assert torch.equal(look_up(frozen, IDS, sparse=True), embedding(IDS, frozen))
    look_up(whole * 2, IDS, sparse=True).sum().backward()
    assert torch.equal(whole.grad.to_dense().sum(dim=1), torch.tensor([6.0, 0, 6, 0, 12, 0]))
