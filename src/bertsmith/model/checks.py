"""What input can be wrong in, said before it becomes an index error, or worse, another answer.

Legend: T token slots, B rows, L columns of a padded batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.model.config import BertConfig

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_ids(config: BertConfig, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> None:
    """Raises BertsmithError for ids [T] that the model has no row for. On a GPU it waits for what was queued."""
    kinds, positions = config.type_vocab_size, config.max_position_embeddings
    for name, ids, rows, fix in (
        ("input id", input_ids, config.vocab_size, "use the tokenizer that belongs to the model"),
        ("token type", token_type_ids, kinds, f"use token types below {kinds}"),
        ("position", position_ids, positions, f"cut sequences to {positions} tokens"),
    ):
        if not ids.numel():
            continue
        least, most = (int(each) for each in ids.aminmax())
        if least < 0 or most >= rows:
            wrong = least if least < 0 else most
            raise BertsmithError(f"{name} {wrong} has no row: this model has {rows}", "the model's input", fix)


def check_labels(labels: Tensor, classes: int) -> None:
    """Raises BertsmithError for labels int64[N] that are no class and not -100. On a GPU it waits for its queue."""
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED_LABEL)]
    if wrong.numel():
        fix = f"give classes from 0 to {classes - 1}, and {IGNORED_LABEL} for what has no label"
        raise BertsmithError(f"label {int(wrong[0])} is none of {classes} classes", "the loss's labels", fix)


def padded_input(
    input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask (all real where None) and token types (all 0 where None) as int64[B, L], bool[B, L], int64[B, L].

    Raises BertsmithError for other shapes and dtypes, and for a mask with anything but 0 and 1: an additive one, 0 for
    what is real, would mean the opposite.
    """
    if input_ids.ndim != 2 or input_ids.dtype not in _WHOLE:
        what = f"input ids are {_said(input_ids)}, and whole numbers of shape [rows, columns] are wanted"
        raise BertsmithError(what, "input_ids", "give token ids, a row for each sequence")
    ids = input_ids.long()
    kinds = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask
    for name, each in (("attention_mask", mask), ("token_type_ids", kinds)):
        if each.shape != ids.shape:
            what = f"this is {_said(each)} beside input ids of shape {list(ids.shape)}"
            raise BertsmithError(what, name, "give it the shape of the input ids")
    if kinds.is_floating_point() or kinds.is_complex():
        raise BertsmithError(f"token types are {_said(kinds)}", "token_type_ids", "give whole numbers")
    real = mask != 0
    if not bool((real == mask).all()):
        raise BertsmithError("this holds numbers other than 0 and 1", "attention_mask", "use 1 for real, 0 for padding")
    return ids, real, kinds.long()


def _said(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {list(tensor.shape)}"
