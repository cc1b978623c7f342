"""Pieces for the [MASK]s of rows of text, from a pre-trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.records import Record
from bertsmith.tasks.sequences import Sequences, by_length, pack
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import load_model
from bertsmith.weights.names import POOLER

MASK = "[MASK]"


class MaskModel:
    """A pre-trained model and its vocabulary. top: how many guesses a mask gets."""

    literal_specials = True

    def __init__(self, folder: Path, device: Device, tokenizer: Tokenizer, top: int) -> None:
        self._device, self._tokenizer, self._top = device.torch_device, tokenizer, min(top, tokenizer.size)
        fresh = (POOLER, "next_sentence")  # neither has a part in guessing words
        model = load_model(lambda shape: PretrainingModel(shape, device.compute), folder, may_be_fresh=fresh)
        self._model = model.to(self._device)

    def predict(self, records: list[Record], sequences: Sequences, budget_tokens: int) -> list[dict[str, Any]]:
        """{"guesses"} for each row: for each of its masks, in order, the likeliest pieces with their probabilities.

        Raises BertsmithError at a row without a mask, and at one whose mask was truncated away.
        """
        self._check(records, sequences)
        guesses: list[list[list[dict[str, Any]]]] = [[] for _ in records]
        for members in by_length(sequences, budget_tokens):
            rows, probabilities, pieces = self._guess(sequences, members)
            for row, those_probabilities, those_pieces in zip(rows, probabilities, pieces, strict=True):
                guesses[row].append(
                    [
                        {"piece": self._tokenizer.pieces[piece], "probability": float(probability)}
                        for piece, probability in zip(those_pieces, those_probabilities, strict=True)
                    ]
                )
        return [{"guesses": each} for each in guesses]

    @torch.no_grad()
    def _guess(self, sequences: Sequences, members: np.ndarray[Any, Any]) -> tuple[Any, Any, Any]:
        """Row, probabilities and pieces of every mask of a batch: int64[M], float32[M, top], int64[M, top]."""
        inputs = pack(sequences, members, self._device)
        slots = (inputs.input_ids[: inputs.asked.tokens] == self._tokenizer.special.mask).nonzero()[:, 0]
        hidden = self._model.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        logits = self._model.masked_logits(hidden, slots)[:, : self._tokenizer.size]
        top = logits.float().softmax(-1).topk(self._top)
        rows = np.repeat(members, inputs.asked.lengths)[slots.cpu().numpy()]
        return rows, top.values.cpu().numpy(), top.indices.cpu().numpy()

    def _check(self, records: list[Record], sequences: Sequences) -> None:
        for record, ids in zip(records, sequences.ids, strict=True):
            wanted = f"{record.text} {record.text_b or ''}".count(MASK)
            if not wanted:
                raise BertsmithError(f"there is no {MASK} in this row", record.where, f"put {MASK} for a word")
            if int(np.sum(ids == self._tokenizer.special.mask)) < wanted:
                raise BertsmithError(
                    f"a {MASK} of this row lies past the tokens that the model reads", record.where, "shorten the text"
                )

    def cells(self, prediction: dict[str, Any]) -> dict[str, str]:
        """A prediction as cells of a table: the best guess of every mask."""
        return {"predicted_pieces": " ".join(guesses[0]["piece"] for guesses in prediction["guesses"])}
