"""Rows of a table by their numbers, with gradients that come out the same in every run.

A compiler writes these gradients as atomic additions, whose order, and so whose rounding, changes from run to run, and
which wait for each other where many tokens have one row. PyTorch's own kernel sorts the numbers first.

Legend: V rows of a table, T token slots, C columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

# Tables whose `grad` is made whole, which is set up once a table.
_made_whole = WeakIdKeyDictionary()


def look_up(table: Tensor, ids: Tensor, sparse: bool = False) -> Tensor:
    """table [V, C], ids int64[T] in any order and number -> [T, C].

    sparse: on a CPU, only rows that were looked up are added to the gradient. It saves time for tables that get a whole
    gradient from elsewhere too; where one gets no other, as from one of two losses alone, its `grad` is made whole.
    """
    if torch.compiler.is_compiling():
        rows: Tensor = _looked_up(table, ids)
        return rows
    sparse = sparse and table.device.type == "cpu"
    if sparse and table.requires_grad and table.is_leaf and table not in _made_whole:
        _made_whole[table] = table.register_post_accumulate_grad_hook(_make_whole)  # type: ignore[no-untyped-call]
    return functional.embedding(ids, table, sparse=sparse)


def _make_whole(table: Tensor) -> None:
    """Optimizers and norms take no sparse gradient."""
    if table.grad is not None and table.grad.is_sparse:
        table.grad = table.grad.to_dense()


@torch.library.custom_op("bertsmith::look_up", mutates_args=())
def _looked_up(table: Tensor, ids: Tensor) -> Tensor:
    return functional.embedding(ids, table)


@torch.library.custom_op("bertsmith::look_up_backward", mutates_args=())
def _looked_up_backward(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    grad_table: Tensor = torch.ops.aten.embedding_dense_backward(gradient, ids, rows, -1, False)
    return grad_table


@_looked_up.register_fake
def _(table: Tensor, ids: Tensor) -> Tensor:
    return table.new_empty(len(ids), table.shape[1])


@_looked_up_backward.register_fake
def _(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    return gradient.new_empty(rows, gradient.shape[1])


def _keep_ids(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    table, ids = inputs
    ctx.save_for_backward(ids)
    ctx.rows = len(table)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _looked_up_backward(gradient, *ctx.saved_tensors, ctx.rows), None


_looked_up.register_autograd(_backward, setup_context=_keep_ids)
