"""The shape of a BERT, under the names that a Hugging Face `config.json` gives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from bertsmith.base.errors import BertsmithError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")

_FRACTIONS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_ABOVE_ZERO = ("initializer_range", "layer_norm_eps")
# No BERT comes near these, and what is absurd is refused before a model of it is built.
_MOST_LAYERS, _MOST = 1_000, 100_000_000


@dataclass(frozen=True)
class BertConfig:
    """Defaults are BERT-base, uncased. `gelu` is the erf form; `gelu_new` and `gelu_pytorch_tanh` the tanh form."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self._check_number(field.name, getattr(self, field.name))
        if self.hidden_size % self.num_attention_heads:
            raise BertsmithError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}",
                "model config",
                "choose a hidden size that the heads divide evenly",
            )
        if self.hidden_act not in ACTIVATIONS:
            raise BertsmithError(
                f"hidden_act '{self.hidden_act}' is not one that BERT has",
                "model config",
                f"use one of: {', '.join(ACTIVATIONS)}",
            )

    def _check_number(self, name: str, value: Any) -> None:
        """A config comes from a file of the user's, so a value may be of any kind."""
        if name in _FRACTIONS:
            right = isinstance(value, int | float) and 0 <= value < 1
            wanted = "at least 0 and below 1"
        elif name in _ABOVE_ZERO:
            right, wanted = isinstance(value, int | float) and 0 < value <= 1, "a number above 0, at most 1"
        elif name != "hidden_act":
            least = 0 if name == "pad_token_id" else 1
            most = _MOST_LAYERS if name == "num_hidden_layers" else _MOST
            right = isinstance(value, int) and least <= value <= most
            wanted = f"a whole number from {least} to {most:,}"
        else:
            return
        if not right or isinstance(value, bool):
            raise BertsmithError(f"{name} is {value!r:.60}", "model config", f"use {wanted}")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Takes the keys that are ours from a Hugging Face config; the others do not change a BERT encoder.

        values: what the file holds. Raises BertsmithError for something other than keys with values, and for a config
        of another architecture (relative positions, a decoder, another model type).
        """
        if not isinstance(values, dict):
            what = f"this config is a {type(values).__name__}, not keys with values"
            raise BertsmithError(what, "config.json", "use a BERT encoder's folder")
        for key, wanted in (("model_type", "bert"), ("position_embedding_type", "absolute"), ("is_decoder", False)):
            found = values.get(key, wanted)
            if found != wanted and found is not None:
                raise BertsmithError(
                    f"{key} is {found!r}, and Bertsmith reads {wanted!r} only",
                    "config.json",
                    "use a BERT encoder's folder",
                )
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known and value is not None})

    def to_dict(self) -> dict[str, Any]:
        """The keys of a Hugging Face `config.json`, `model_type` included."""
        return {"model_type": "bert", "position_embedding_type": "absolute", **dataclasses.asdict(self)}


def label_maps(names: Sequence[str]) -> dict[str, Any]:
    """How a Hugging Face `config.json` has the names of a head's classes."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
