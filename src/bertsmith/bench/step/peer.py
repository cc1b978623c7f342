"""The peer of a step bench: transformers' `BertForPreTraining`, trained as its users write it.

Padded batches, the loss of both heads, gradients clipped at a norm of 1 as its Trainer does, AdamW in torch's fused
form. The batches are padded beforehand, as loader processes would; moving them to a GPU is part of the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.base import fp32_products
from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.child import CannotHere
from bertsmith.bench.step.ours import RATE, WEIGHT_DECAY, TakeStep
from bertsmith.bench.step.side import StepSide

MAX_GRADIENT_NORM = 1.0


def peer_steps(side: StepSide, *sets: Sequence[PretrainBatch]) -> TakeStep:
    """A fresh model in train mode with its optimizer; the batches of all sets are counted through.

    ModuleNotFoundError if transformers is not installed, CannotHere if oneDNN is asked for and computes in less than
    fp32, or flash attention and its package is not installed."""
    import transformers

    if side.flash and find_spec("flash_attn") is None:
        raise CannotHere("the package flash_attn is not installed")

    # Nothing of the process is set that its user would not have set: it runs as shipped.
    device = torch.device(side.device)
    torch.backends.cuda.matmul.allow_tf32 = side.precision == "tf32"
    if side.onednn:
        fp32_by_onednn()
    torch.manual_seed(0)
    config: Any = transformers.BertConfig(**side.model)
    config._attn_implementation = "flash_attention_2" if side.flash else "sdpa"
    model: Any = transformers.BertForPreTraining(config)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY, fused=True)
    forward: Any = torch.compile(model) if side.compiled else model
    rows = [padded_rows(batch, side.longest if side.compiled else None) for batches in sets for batch in batches]

    def step(number: int) -> None:
        inputs = {name: each.to(device, non_blocking=True) for name, each in rows[number].items()}
        optimizer.zero_grad(set_to_none=True)
        half = torch.autocast(device.type, torch.bfloat16) if side.precision == "bf16" else contextlib.nullcontext()
        with half:
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()

    return step


def fp32_by_onednn() -> None:
    """Lets oneDNN make this process's fp32 products. CannotHere where it would not make them in fp32."""
    if fp32_products.largest_error(fp32_products.ONEDNN) > 1:
        raise CannotHere("oneDNN computes in less than fp32 here")
    fp32_products.use(fp32_products.ONEDNN)


def padded_rows(batch: PretrainBatch, longest: int | None = None) -> dict[str, Tensor]:
    """The batch as transformers takes it: int64[S, L] ids, types, mask and labels; L is `longest`, else the longest of
    the batch. Its pair label 0 means, as ours does, that the second segment follows."""
    layout = batch.layout
    columns = int(layout.lengths.max()) if longest is None else longest
    where = np.repeat(np.arange(layout.sequences), layout.lengths), layout.positions
    labels = np.full(layout.tokens, IGNORED_LABEL)
    labels[batch.masked_positions] = batch.masked_labels
    flat = {
        "input_ids": (batch.input_ids, 0),
        "token_type_ids": (batch.token_type_ids, 0),
        "attention_mask": (np.ones(layout.tokens, dtype=np.int64), 0),
        "labels": (labels, IGNORED_LABEL),
    }
    rows = {}
    for name, (values, padding) in flat.items():
        row = np.full((layout.sequences, columns), padding, dtype=np.int64)
        row[where] = values
        rows[name] = torch.from_numpy(row)
    return {**rows, "next_sentence_label": torch.from_numpy(batch.next_sentence_labels)}
