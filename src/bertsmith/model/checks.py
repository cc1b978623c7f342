"""What input can be wrong in, said before it becomes an index error, or worse, another answer.

Legend: T token slots, B rows, L columns of a padded batch.
"""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.model.config import BertConfig

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)
_TABLE_FIX = "give a tensor, an array or lists of numbers, a row for each sequence"


def check_ids(config: BertConfig, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> None:
    """Raises BertsmithError for ids [T] that the model has no row for. On a GPU it waits for what was queued."""
    kinds, positions = config.type_vocab_size, config.max_position_embeddings
    for name, ids, rows, fix in (
        ("input id", input_ids, config.vocab_size, "use the tokenizer that belongs to the model"),
        ("token type", token_type_ids, kinds, f"use token types below {kinds}"),
        ("position", position_ids, positions, f"cut sequences to {positions} tokens"),
    ):
        wrong = _out_of_range(ids, rows)
        if wrong is not None:
            raise BertsmithError(f"{name} {wrong} has no row: this model has {rows}", "the model's input", fix)


def check_slots(positions: Tensor, slots: int) -> None:
    """Raises BertsmithError for positions int64[M] that are none of the slots from 0. On a GPU it waits for its
    queue."""
    wrong = _out_of_range(positions, slots)
    if wrong is not None:
        what = f"masked position {wrong} is none of {slots} slots"
        raise BertsmithError(what, "the masked positions", "count slots from 0, over all sequences")


def _out_of_range(numbers: Tensor, end: int) -> int | None:
    """The least or the greatest number, where it is below 0 or not below the end."""
    if not numbers.numel():
        return None
    least, most = (int(each) for each in numbers.aminmax())
    return least if least < 0 else most if most >= end else None


def check_labels(labels: Tensor, classes: int) -> None:
    """Raises BertsmithError for labels int64[N] that are no class and not -100. On a GPU it waits for its queue."""
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED_LABEL)]
    if wrong.numel():
        fix = f"give classes from 0 to {classes - 1}, and {IGNORED_LABEL} for what has no label"
        raise BertsmithError(f"label {int(wrong[0])} is none of {classes} classes", "the loss's labels", fix)


def padded_input(
    input_ids: ArrayLike | Tensor,
    attention_mask: ArrayLike | Tensor | None,
    token_type_ids: ArrayLike | Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask (all real where None) and token types (all 0 where None) as int64[B, L], bool[B, L], int64[B, L], on a
    device.

    Raises BertsmithError for what is no table of numbers, for other shapes and dtypes, and for a mask with anything but
    0 and 1, or of floats that are all 0: an additive one, 0 for what is real, would mean the opposite.
    """
    given = _table(input_ids, "input_ids", device)
    if given.ndim != 2 or given.dtype not in _WHOLE:
        what = f"input ids are {_said(given)}, and whole numbers of shape [rows, columns] are wanted"
        raise BertsmithError(what, "input_ids", "give token ids, a row for each sequence")
    ids = given.long()
    kinds = torch.zeros_like(ids) if token_type_ids is None else _table(token_type_ids, "token_type_ids", device)
    mask = torch.ones_like(ids) if attention_mask is None else _table(attention_mask, "attention_mask", device)
    for name, each in (("attention_mask", mask), ("token_type_ids", kinds)):
        if each.shape != ids.shape:
            what = f"this is {_said(each)} beside input ids of shape {list(ids.shape)}"
            raise BertsmithError(what, name, "give it the shape of the input ids")
    if kinds.is_floating_point() or kinds.is_complex():
        raise BertsmithError(f"token types are {_said(kinds)}", "token_type_ids", "give whole numbers")
    real = mask != 0
    if not bool((real == mask).all()):
        raise BertsmithError("this holds numbers other than 0 and 1", "attention_mask", "use 1 for real, 0 for padding")
    if mask.is_floating_point() and mask.numel() and not bool(real.any()):
        what = "this is 0.0 everywhere, as an additive mask is where nothing is padding"
        raise BertsmithError(what, "attention_mask", "use 1 for real, 0 for padding")
    return ids, real, kinds.long()


def _table(values: ArrayLike | Tensor, name: str, device: torch.device) -> Tensor:
    """As a tensor. Raises BertsmithError for what torch can make none of."""
    try:
        return torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise BertsmithError(f"this is no table of numbers ({reason})", name, _TABLE_FIX) from error


def _said(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {list(tensor.shape)}"
