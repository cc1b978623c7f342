"""Small models with visible weights, ragged batches, and transformers' twin of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.weights.names import to_huggingface


def small_config(**changes: Any) -> BertConfig:
    """Two layers of 16, without dropout."""
    shape = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 24,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertConfig(**{**shape, **changes})


def drawn_model(
    config: BertConfig,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    compute: torch.dtype | None = None,
    deviation: float = 0.3,
) -> PretrainingModel:
    """A model whose every parameter is random and large enough that a mistake in any of them shows."""
    model = PretrainingModel(config, compute).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * deviation)
    return model


def drawn_inputs(config: BertConfig, lengths: list[int], seed: int = 0, masked_share: float = 0.35) -> PretrainInputs:
    """A packed batch of sequences of these lengths, a share of slots masked; an empty sequence has no label.

    No slot shows id 0: transformers gives that row no gradient, and Google, NVIDIA and we do.
    """
    generator = torch.Generator().manual_seed(seed)
    layout = Layout.from_lengths(lengths)

    def draw(high: int, shape: int, low: int = 0) -> Tensor:
        return torch.randint(low, high, (shape,), generator=generator)

    masked = (torch.rand(layout.tokens, generator=generator) < masked_share).nonzero()[:, 0]
    labels = draw(config.vocab_size, len(masked))
    labels[::5] = -100
    return PretrainInputs(
        input_ids=draw(config.vocab_size, layout.tokens, low=1),
        token_type_ids=draw(config.type_vocab_size, layout.tokens),
        position_ids=torch.from_numpy(layout.positions),
        packed=Packed(layout),
        masked_positions=masked,
        masked_labels=labels,
        next_sentence_labels=torch.where(torch.tensor(lengths) > 0, draw(2, len(lengths)), -100),
    )


def pad(packed_values: Tensor, rows: Tensor, columns: Tensor, shape: tuple[int, int], filler: int = 0) -> Tensor:
    """[T] -> [B, L]."""
    padded = torch.full(shape, filler, dtype=packed_values.dtype)
    padded[rows, columns] = packed_values
    return padded


def places(lengths: list[int], columns: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Row and column of every slot in a batch padded to `columns`, on the right or on the left."""
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    starts = [columns - length if left else 0 for length in lengths]
    return rows, torch.cat(
        [torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        or [torch.zeros(0, dtype=torch.int64)]
    )


def twin(model: PretrainingModel, attention: str = "eager") -> Any:
    """transformers' BertForPreTraining with the same weights, in the same dtype."""
    import transformers

    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # before version 5
        from transformers.modeling_utils import no_init_weights

    values = {**model.config.to_dict(), "attn_implementation": attention}
    with no_init_weights():
        theirs = transformers.BertForPreTraining(transformers.BertConfig(**values))
    theirs.tie_weights()
    theirs.to(next(model.parameters()).dtype)
    weights = {to_huggingface(name): parameter.detach() for name, parameter in model.named_parameters()}
    report = theirs.load_state_dict(weights, strict=False)
    assert not report.unexpected_keys
    assert {name for name in report.missing_keys if "position_ids" not in name} <= {
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    }
    return theirs


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The norm of the difference in units of the norm of `theirs`."""
    return float((ours.detach() - theirs.detach()).norm() / theirs.detach().norm().clamp(min=1e-300))
