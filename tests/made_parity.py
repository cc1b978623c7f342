"""A batch through our model and through transformers' twin of it: every number and gradient under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.weights.names import to_huggingface
from made_models import distance, pad, places

# A key's bias shifts all scores of a query alike, so that the softmax does not see it: its gradient is rounding only.
WITHOUT_GRADIENT = "attention.self.key.bias"


@dataclass
class Results:
    """hidden [T, H], pooled [S, H], masked [M, V], pairs [S, 2] (empty sequences left out), losses of each masked word
    and pair, the sum of their means, and gradients by transformers' names."""

    hidden: Tensor
    pooled: Tensor
    masked: Tensor
    pairs: Tensor
    word_losses: Tensor
    pair_losses: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]

    def outputs(self) -> dict[str, Tensor]:
        """All that is no gradient, without a graph."""
        return {name: each.detach() for name, each in vars(self).items() if isinstance(each, Tensor)}


def ours_on(model: PretrainingModel, batch: PretrainInputs) -> Results:
    """Forward and backward of our model; the loss is its own, from `losses`."""
    model.zero_grad()
    encoder, there = model.encoder, torch.from_numpy(batch.packed.layout.lengths > 0)
    hidden = encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    outputs = (
        encoder.pool(hidden, batch.packed)[there],
        model.masked_logits(hidden, batch.masked_positions),
        model.next_sentence_logits(hidden, batch.packed)[there],
    )
    masked, next_sentence = model.losses(batch)
    loss = masked.loss / masked.count + next_sentence.loss / next_sentence.count
    loss.backward()
    gradients = {to_huggingface(name): each.grad for name, each in model.named_parameters()}
    return Results(hidden, *outputs, *_losses(outputs[1], outputs[2], batch), loss, gradients)


def theirs_on(theirs: Any, batch: PretrainInputs, autocast: bool = False) -> Results:
    """The same of transformers' BertForPreTraining, for the batch padded on the right; by autocast to bf16 if asked."""
    theirs.zero_grad()
    layout = batch.packed.layout
    lengths, there = layout.lengths.tolist(), torch.from_numpy(layout.lengths > 0)
    most = min(max(lengths) + 2, theirs.config.max_position_embeddings)
    rows, columns = places(lengths, most)
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.masked_labels

    def padded(values: Tensor, filler: int = 0) -> Tensor:
        return pad(values, rows, columns, (len(lengths), most), filler)

    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = theirs(
            input_ids=padded(batch.input_ids),
            attention_mask=padded(torch.ones_like(batch.input_ids)),
            token_type_ids=padded(batch.token_type_ids),
            labels=padded(labels, -100),
            next_sentence_label=batch.next_sentence_labels,
            output_hidden_states=True,
        )
        pooled = theirs.bert.pooler(out.hidden_states[-1])[there]
    out.loss.backward()
    masked = out.prediction_logits[rows, columns][batch.masked_positions]
    pairs = out.seq_relationship_logits[there]
    gradients = {name: each.grad for name, each in theirs.named_parameters()}
    hidden = out.hidden_states[-1][rows, columns]
    return Results(hidden, pooled, masked, pairs, *_losses(masked, pairs, batch), out.loss, gradients)


def _losses(masked: Tensor, pairs: Tensor, batch: PretrainInputs) -> tuple[Tensor, Tensor]:
    """The loss of each masked word and of each pair that counts."""
    pair_labels = batch.next_sentence_labels[torch.from_numpy(batch.packed.layout.lengths > 0)]
    each = [(masked, batch.masked_labels), (pairs, pair_labels)]
    dtype = torch.promote_types(masked.dtype, torch.float32)
    words, sentences = (
        cross_entropy(scores[labels != -100].to(dtype), labels[labels != -100], reduction="none")
        for scores, labels in each
    )
    return words, sentences


def check_gradients(found: Results, expected: Results, close: float) -> None:
    """Every parameter's, in units of the norm of its own gradient.

    One that is zero in exact arithmetic is rounding on both sides, and held to the size of the largest.
    """
    size = max(float(each.norm()) for each in expected.gradients.values())
    assert found.gradients.keys() == expected.gradients.keys()
    for name, wanted in expected.gradients.items():
        ours = found.gradients[name]
        assert ours is not None, name
        assert wanted is not None, name
        floor = 1e-3 if name.endswith(WITHOUT_GRADIENT) else 1e-6
        assert float((ours - wanted).norm()) <= close * max(float(wanted.norm()), floor * size), name


def drawn_like_bert(config: BertConfig, seed: int = 0, compute: torch.dtype | None = None) -> PretrainingModel:
    """An fp32 model as wide as BERT's fresh weights, its biases and LayerNorms drawn too, so that they show."""
    model = PretrainingModel(config, compute).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm.weight" in name else 0.0, config.initializer_range)
    return model


def check_outputs(found: Results, expected: Results, close: float) -> None:
    """Relative norm of every output."""
    wanted = expected.outputs()
    for name, ours in found.outputs().items():
        if ours.numel():
            assert distance(ours, wanted[name]) < close, name
