"""How many parameters a BERT has, and of which kind."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.model.config import BertConfig


@dataclass(frozen=True)
class Size:
    """Numbers of parameters. embeddings: words, positions and types. layers: the matrices of all layers. heads: those
    of pooler and heads, the decoder being the word embeddings. vectors: biases and LayerNorms."""

    words: int
    embeddings: int
    layers: int
    heads: int
    vectors: int

    @property
    def total(self) -> int:
        return self.embeddings + self.layers + self.heads + self.vectors


def parameters(config: BertConfig, classes: int | None = None, pairs: bool = True) -> Size:
    """Of the model of pre-training, which without pairs has no pooler and no head for them; of one with a classifier on
    the pooler, where `classes` is given."""
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    matrices = layers * (4 * hidden * hidden + 2 * hidden * inner)
    vectors = 2 * hidden + layers * (9 * hidden + inner) + hidden
    if not pairs:
        heads = hidden * hidden
        vectors += 2 * hidden + config.vocab_size
    elif classes is None:
        heads = 2 * hidden * hidden + 2 * hidden
        vectors += 3 * hidden + config.vocab_size + 2
    else:
        heads = hidden * hidden + classes * hidden
        vectors += classes
    return Size(config.vocab_size * hidden, rows * hidden, matrices, heads, vectors)
