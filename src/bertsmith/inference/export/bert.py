"""The graph of a BERT with its head: padded inputs and outputs as `transformers` has them, only real tokens within.

Where the mask is 0 there is no token to compute: the real ones of all rows stand one after another, and are laid out
in rows for attention alone. So any engine skips padding. Legend: B rows, L columns, T real tokens, H hidden width,
C classes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from torch import nn

from bertsmith.inference.export.nodes import Int8, Nodes
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.embedding.pooling import VectorModel
from bertsmith.tasks.kinds.pooled import Classifier
from bertsmith.tasks.kinds.qa import SpanModel
from bertsmith.weights.strict import own_parameters

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_MASKED = -1e4  # added to the score of a column without a token, as BERT does
_ROWS = ("batch", "sequence")
NEXT_SENTENCE = "seq_relationship_logits"
Weights = Mapping[str, NDArray[np.float32]]
Shape = tuple[str | int, ...]
"""A dimension that varies by its name."""


def graph_of(model: nn.Module, int8: Int8 = None, next_sentence: bool = False) -> onnx.ModelProto:
    """The graph of a task's model (`Answering.build`), which says what it gives:

    `logits`, [B, C] of sequences, [B, L, C] of tokens or [B, L, V] of masked words, with `next_sentence` beside
    `seq_relationship_logits`, [B, 2]; `start_logits` and `end_logits`, [B, L]; `last_hidden_state`, [B, L, H], with
    `sentence_embedding`, [B, H]. What stands where the mask is 0 means nothing.
    """
    weights = {name: each.detach().numpy() for name, each in own_parameters(model).items()}
    config = model.config
    assert isinstance(config, BertConfig)
    graph = _Graph(config, weights, Nodes(int8))
    return graph.nodes.model(INPUTS, graph.outputs(model, next_sentence))


def is_per_token(model: nn.Module, output: str) -> bool:
    """Whether an output of a model's graph has a row for each token, not for each sequence."""
    return not isinstance(model, Classifier) and output not in ("sentence_embedding", NEXT_SENTENCE)


@dataclass(frozen=True)
class _Places:
    """Where tokens stand. real: int64[T], those of them in the flattened rows. slots: int64[B, L], which of the T each
    place of a row has; the last one before it where it has none. firsts: int64[B], the first one of each row. mask:
    fp32[B, 1, 1, L], what attention adds."""

    real: str
    slots: str
    firsts: str
    mask: str


class _Graph:
    def __init__(self, config: BertConfig, weights: Weights, nodes: Nodes) -> None:
        self._config, self._weights, self.nodes = config, weights, nodes
        self._add = nodes.add

    def outputs(self, model: nn.Module, next_sentence: bool) -> dict[str, Shape]:
        """Adds all of a model. Gives the dimensions of its outputs by their names."""
        places = self._places()
        if isinstance(model, Classifier):
            firsts = self._encoder(places, firsts_only=True)
            return self._of_rows(self._pooled(firsts), "classifier", "logits")
        hidden = self._encoder(places)
        if isinstance(model, VectorModel):
            self._in_rows(hidden, places, "last_hidden_state")
            self._vectors(hidden, places, model)
            width = self._config.hidden_size
            return {"last_hidden_state": (*_ROWS, width), "sentence_embedding": ("batch", model.dimensions)}
        if isinstance(model, SpanModel):
            scores, names = self._linear(hidden, "qa_outputs"), ("start_logits", "end_logits")
            for place, name in enumerate(names):
                self._in_rows(self._add("Gather", scores, self.nodes.scalar(place), axis=1), places, name)
            return dict.fromkeys(names, _ROWS)
        if isinstance(model, PretrainingModel):
            self._in_rows(self._pieces(hidden), places, "logits")
            found: dict[str, Shape] = {"logits": (*_ROWS, self._config.vocab_size)}
            if next_sentence:
                firsts = self._add("Gather", hidden, places.firsts)
                found |= self._of_rows(self._pooled(firsts), "next_sentence", NEXT_SENTENCE)
            return found
        self._in_rows(self._linear(hidden, "classifier"), places, "logits")
        return {"logits": (*_ROWS, len(self._weights["classifier.bias"]))}

    def _in_rows(self, values: str, places: _Places, out: str) -> None:
        """[T, ...] -> [B, L, ...] as an output."""
        self._add("Gather", values, places.slots, out=out)

    def _of_rows(self, x: str, name: str, out: str) -> dict[str, Shape]:
        """A linear map of each row as an output, [B, C]."""
        self._add("Identity", self._linear(x, name), out=out)
        return {out: ("batch", len(self._weights[f"{name}.bias"]))}

    def _places(self) -> _Places:
        add, nodes = self._add, self.nodes
        shape, flat = add("Shape", "attention_mask"), add("Reshape", "attention_mask", nodes.whole(-1))
        real = add("Squeeze", add("NonZero", flat), nodes.whole(0))
        counted = add("Sub", add("CumSum", flat, nodes.scalar(0)), nodes.scalar(1))
        slots = add("Reshape", add("Max", counted, nodes.scalar(0)), shape)
        first_column = add("ArgMax", "attention_mask", axis=1, keepdims=1)
        firsts = add("Squeeze", add("GatherElements", slots, first_column, axis=1), nodes.whole(1))
        absent = add("Sub", nodes.scalar(1.0), add("Cast", "attention_mask", to=TensorProto.FLOAT))
        mask = add("Mul", add("Unsqueeze", absent, nodes.whole(1, 2)), nodes.scalar(_MASKED))
        return _Places(real, slots, firsts, mask)

    def _encoder(self, places: _Places, firsts_only: bool = False) -> str:
        """Hidden states of the last layer, [T, H]; or only those of each row's first token, [B, H]."""
        x = self._embeddings(places)
        for number in range(self._config.num_hidden_layers):
            last = number == self._config.num_hidden_layers - 1
            x = self._layer(x, f"encoder.layers.{number}", places, firsts_only and last)
        return x

    def _embeddings(self, places: _Places) -> str:
        add, nodes = self._add, self.nodes
        columns = add("Gather", add("Shape", "input_ids"), nodes.scalar(1))
        flat = {name: add("Reshape", name, nodes.whole(-1)) for name in INPUTS}
        found = {
            "word": add("Gather", flat["input_ids"], places.real),
            "token_type": add("Gather", flat["token_type_ids"], places.real),
            "position": add("Mod", places.real, columns),
        }
        rows = [self._looked_up(f"encoder.embeddings.{part}.weight", ids) for part, ids in found.items()]
        return self._norm(add("Add", add("Add", rows[0], rows[1]), rows[2]), "encoder.embeddings.norm")

    def _looked_up(self, name: str, ids: str) -> str:
        """Rows of a table, [T, H]. No number is one where any id is outside of it, as in a row that is too long:
        OpenVINO by itself would compute with zeros there, and ONNX Runtime counts ids below 0 from the end."""
        add, nodes, table = self._add, self.nodes, self._weights[name]
        low = add("Less", add("ReduceMin", ids, keepdims=0), nodes.scalar(0))
        high = add("Less", nodes.scalar(len(table) - 1), add("ReduceMax", ids, keepdims=0))
        found = add("Gather", nodes.weight(table, name), ids)
        return add("Where", add("Or", low, high), nodes.scalar(float("nan")), found)

    def _layer(self, x: str, name: str, places: _Places, firsts_only: bool) -> str:
        """[T, H] -> [T, H]; with `firsts_only` -> [B, H]."""
        add = self._add
        attended = self._attention(x, f"{name}.attention", places, firsts_only)
        if firsts_only:
            x = add("Gather", x, places.firsts)
        mapped = self._linear(attended, f"{name}.attention.output")
        x = self._norm(add("Add", mapped, x), f"{name}.attention_norm")
        inner = self._activated(self._linear(x, f"{name}.feed_forward.inner"))
        return self._norm(add("Add", self._linear(inner, f"{name}.feed_forward.outer"), x), f"{name}.feed_forward_norm")

    def _attention(self, x: str, name: str, places: _Places, firsts_only: bool) -> str:
        """Rows are laid out as [B, heads, L, head size]; what comes out has as many rows as is wanted."""
        add, nodes, config = self._add, self.nodes, self._config
        heads = nodes.whole(0, 0, config.num_attention_heads, config.head_size)
        keep = nodes.whole(0, 0, config.hidden_size)
        parts = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            if firsts_only and part == "query":
                asking = self._linear(add("Gather", x, places.firsts), f"{name}.{part}")
                rows = add("Unsqueeze", asking, nodes.whole(1))
            else:
                rows = add("Gather", self._linear(x, f"{name}.{part}"), places.slots)
            parts[part] = add("Transpose", add("Reshape", rows, heads), perm=order)
        scores = add("MatMul", parts["query"], parts["key"])
        scaled = add("Mul", scores, nodes.scalar(1 / math.sqrt(config.head_size)))
        weights = add("Softmax", add("Add", scaled, places.mask), axis=-1)
        mixed = add("Transpose", add("MatMul", weights, parts["value"]), perm=[0, 2, 1, 3])
        if firsts_only:
            return add("Squeeze", add("Reshape", mixed, keep), nodes.whole(1))
        return add("Gather", add("Reshape", mixed, nodes.whole(-1, config.hidden_size)), places.real)

    def _pooled(self, firsts: str) -> str:
        return self._add("Tanh", self._linear(firsts, "encoder.pooler"))

    def _pieces(self, hidden: str) -> str:
        """Scores of every piece for every token, [T, V]: the word embeddings are the decoder."""
        mapped = self._norm(self._activated(self._linear(hidden, "masked_head.transform")), "masked_head.norm")
        words = "encoder.embeddings.word.weight"
        bias = self._weights["masked_head.bias"]
        return self.nodes.linear(mapped, self._weights[words], bias, "masked_head", shared=words)

    def _vectors(self, hidden: str, places: _Places, model: VectorModel) -> None:
        """`VectorModel.pooling` of the tokens of each row, scaled to length 1 where it is `unit`, and cut to its
        `dimensions`."""
        add, nodes = self._add, self.nodes
        mask = add("Unsqueeze", add("Cast", "attention_mask", to=TensorProto.FLOAT), nodes.whole(2))
        if model.pooling == "cls":
            vectors = add("Gather", hidden, places.firsts)
        elif model.pooling == "mean":
            sums = add("ReduceSum", add("Mul", "last_hidden_state", mask), nodes.whole(1), keepdims=0)
            vectors = add("Div", sums, add("ReduceSum", mask, nodes.whole(1), keepdims=0))
        else:
            real = add("Cast", mask, to=TensorProto.BOOL)
            lowest = nodes.scalar(float(np.finfo(np.float32).min))
            vectors = add("ReduceMax", add("Where", real, "last_hidden_state", lowest), nodes.whole(1), keepdims=0)
        if model.unit:
            length = add("ReduceL2", vectors, nodes.whole(1), keepdims=1)
            vectors = add("Div", vectors, add("Max", length, nodes.scalar(1e-12)))
        if model.dimensions < self._config.hidden_size:
            vectors = add("Slice", vectors, nodes.whole(0), nodes.whole(model.dimensions), nodes.whole(1))
        add("Identity", vectors, out="sentence_embedding")

    def _linear(self, x: str, name: str) -> str:
        return self.nodes.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], name)

    def _norm(self, x: str, name: str) -> str:
        weights = (self.nodes.weight(self._weights[full], full) for full in (f"{name}.weight", f"{name}.bias"))
        return self._add("LayerNormalization", x, *weights, axis=-1, epsilon=self._config.layer_norm_eps)

    def _activated(self, x: str) -> str:
        kind = self._config.hidden_act
        if kind == "relu":
            return self._add("Relu", x)
        return self._add("Gelu", x, approximate="none" if kind == "gelu" else "tanh")
