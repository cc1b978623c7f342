"""The names of a BERT's tensors, Hugging Face's and ours, and those of files beside them.

Ours are those of a model with heads: the encoder's begin with `encoder.`.
"""

from __future__ import annotations

import re

CONFIG_FILE, FINETUNE_FILE, RUN_FILE = "config.json", "finetune.json", "run.json"

# Module names, Hugging Face's without `bert.` and ours; * stands for the number of a layer.
_MODULES = (
    ("embeddings.word_embeddings", "encoder.embeddings.word"),
    ("embeddings.position_embeddings", "encoder.embeddings.position"),
    ("embeddings.token_type_embeddings", "encoder.embeddings.token_type"),
    ("embeddings.LayerNorm", "encoder.embeddings.norm"),
    ("encoder.layer.*.attention.self.query", "encoder.layers.*.attention.query"),
    ("encoder.layer.*.attention.self.key", "encoder.layers.*.attention.key"),
    ("encoder.layer.*.attention.self.value", "encoder.layers.*.attention.value"),
    ("encoder.layer.*.attention.output.dense", "encoder.layers.*.attention.output"),
    ("encoder.layer.*.attention.output.LayerNorm", "encoder.layers.*.attention_norm"),
    ("encoder.layer.*.intermediate.dense", "encoder.layers.*.feed_forward.inner"),
    ("encoder.layer.*.output.dense", "encoder.layers.*.feed_forward.outer"),
    ("encoder.layer.*.output.LayerNorm", "encoder.layers.*.feed_forward_norm"),
    ("pooler.dense", "encoder.pooler"),
    ("cls.predictions.transform.dense", "masked_head.transform"),
    ("cls.predictions.transform.LayerNorm", "masked_head.norm"),
    ("cls.predictions", "masked_head"),
    ("cls.seq_relationship", "next_sentence"),
    ("classifier", "classifier"),
    ("qa_outputs", "qa_outputs"),
)
_TO_OURS = dict(_MODULES)
_TO_THEIRS = {ours: theirs for theirs, ours in _MODULES}
_OLD_LEAVES = {"gamma": "weight", "beta": "bias"}
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")

# What else a folder may hold: copies of tied tensors, and a buffer that counts positions.
ALIASES = {
    "cls.predictions.decoder.weight": "encoder.embeddings.word.weight",
    "cls.predictions.decoder.bias": "masked_head.bias",
}
HARMLESS = frozenset({"embeddings.position_ids"})

# Parts that a model may have or lack; every other tensor belongs to the encoder proper.
HEADS = ("masked_head", "next_sentence", "classifier", "qa_outputs")
POOLER = "encoder.pooler"


def bare(name: str) -> str:
    """Hugging Face's name without the `bert.` that models with heads put before the encoder's."""
    return name.removeprefix("bert.")


def to_ours(name: str) -> str | None:
    """Our name for a tensor of a Hugging Face BERT, old `gamma` and `beta` included; None for one that is none."""
    module, _, leaf = bare(name).rpartition(".")
    ours = _renamed(module, _TO_OURS)
    if module.endswith("LayerNorm"):
        leaf = _OLD_LEAVES.get(leaf, leaf)
    return f"{ours}.{leaf}" if ours is not None and leaf in ("weight", "bias") else None


def to_huggingface(name: str, prefix: str = "bert.") -> str:
    """Hugging Face's name for a tensor of ours. prefix: before the encoder's, empty for a bare BertModel."""
    module, _, leaf = name.rpartition(".")
    theirs = _renamed(module, _TO_THEIRS)
    if theirs is None:
        raise ValueError(f"no Hugging Face name for '{name}'")
    return f"{prefix if part_of(name) not in HEADS else ''}{theirs}.{leaf}"


def part_of(name: str) -> str:
    """The part that our `name` belongs to: a head, the pooler, or the encoder."""
    head = name.partition(".")[0]
    if head in HEADS:
        return head
    return POOLER if name.startswith(f"{POOLER}.") else "encoder"


def _renamed(module: str, table: dict[str, str]) -> str | None:
    """The module's name in the other language, its layer's number carried over."""
    layer = _LAYER.search(module)
    found = table.get(_LAYER.sub("*", module))
    return found.replace("*", layer.group()) if found is not None and layer is not None else found
