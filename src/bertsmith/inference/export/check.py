"""Whether a graph gives what the model gives that it was made of, at every length that a batch may have.

Legend: T tokens, S sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.backends.engines import Run
from bertsmith.inference.backends.model import padded
from bertsmith.inference.export.bert import NEXT_SENTENCE, is_per_token
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.tasks.embedding.pooling import VectorModel
from bertsmith.tasks.kinds.masked_words import WordModel
from bertsmith.tasks.kinds.qa import SpanModel
from bertsmith.tasks.sequences import Inputs, Sequences, by_length, pack

TOLERANCE = 1e-4
"""How far a number may be from PyTorch's; where an output has numbers above 1, in units of the largest of them."""
_EVERY_LENGTH_TO, _STEP = 32, 16
BATCH_TOKENS = 1024  # of a batch of drawn tokens
_SEED = 0


@dataclass(frozen=True)
class Checked:
    """lengths: of the sequences that were compared. differences: the largest one of each output, in units of the
    tolerance's."""

    lengths: list[int]
    differences: dict[str, float]


def checked_lengths(most: int, few: bool) -> list[int]:
    """The lengths from 1 to `most` that are compared: all; or the first ones, every 16th, and its neighbours at powers
    of two."""
    if not few:
        return list(range(1, most + 1))
    powers = [1 << number for number in range(most.bit_length())]
    around = [power + aside for power in powers for aside in (-1, 0, 1)]
    wanted = {*range(1, _EVERY_LENGTH_TO + 1), *range(_STEP, most + 1, _STEP), *around, most - 1, most}
    return sorted(length for length in wanted if 1 <= length <= most)


def check(run: Run, model: nn.Module, lengths: Sequence[int]) -> Checked:
    """Compares an engine with PyTorch on drawn tokens: each length beside shorter ones, so in a padded batch too.

    Raises BertsmithError that names the output, the length and the difference where one is above the tolerance.
    """
    config = model.config
    assert isinstance(config, BertConfig)
    sequences = drawn(config, lengths)
    differences: dict[str, float] = {}
    for members in by_length(sequences, BATCH_TOKENS):
        inputs = pack(sequences, members, torch.device("cpu"))
        feed = padded(inputs)
        real, found = feed["attention_mask"] > 0, run(feed)
        for name, wanted in numbers_of(model, inputs, found).items():
            per_token = is_per_token(model, name)
            given = found[name][real] if per_token else found[name]
            unit = max(1.0, float(np.abs(wanted).max()))
            apart = np.abs(given - wanted).reshape(len(wanted), -1).max(1) / unit
            if not (apart <= TOLERANCE).all():  # NaN is no difference that can be compared
                worst = int(np.nan_to_num(apart, nan=np.inf).argmax())
                owner = np.repeat(members, inputs.asked.lengths)[worst] if per_token else members[worst]
                length = int(sequences.lengths[owner])
                what = f"at length {length} {name} is {apart[worst]:.2g} from PyTorch's, more than {TOLERANCE:g}"
                raise BertsmithError(what, "export", "nothing was written; another version of the engine may help")
            differences[name] = max(differences.get(name, 0.0), float(apart.max()))
    return Checked(list(lengths), differences)


def drawn(config: BertConfig, lengths: Sequence[int]) -> Sequences:
    """Sequences of drawn tokens. Types are 0 up to a drawn place and 1 behind it, as in pairs of texts."""
    generator = np.random.default_rng(_SEED)
    ids = [generator.integers(0, config.vocab_size, length) for length in lengths]
    drawn = generator.integers(np.array(lengths) + 1)
    firsts = drawn if config.type_vocab_size > 1 else np.array(lengths, dtype=np.int64)
    return Sequences(ids, firsts, np.zeros_like(firsts), np.arange(len(lengths)))


@torch.no_grad()
def numbers_of(model: nn.Module, inputs: Inputs, names: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """PyTorch's numbers by the names of the graph's outputs: of tokens [T, ...], or of sequences [S, ...]."""
    found: dict[str, Tensor] = {}
    if isinstance(model, WordModel):
        slots = torch.arange(inputs.asked.tokens)
        found["logits"] = model.piece_scores(inputs, slots)
        if NEXT_SENTENCE in names:
            found[NEXT_SENTENCE] = model.next_sentence_logits(_hidden(model.encoder, inputs), inputs.packed)
    elif isinstance(model, SpanModel):
        found["start_logits"], found["end_logits"] = model(inputs).T
    elif isinstance(model, VectorModel):
        found = {"last_hidden_state": _hidden(model.encoder, inputs), "sentence_embedding": model(inputs)}
    else:
        found["logits"] = model(inputs)
    # Behind the sequences that were asked for lie some that fill the batch.
    asked = inputs.asked
    ends = {name: asked.tokens if is_per_token(model, name) else asked.sequences for name in found}
    return {name: each[: ends[name]].numpy() for name, each in found.items()}


def _hidden(encoder: Encoder, inputs: Inputs) -> Tensor:
    hidden: Tensor = encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
    return hidden
