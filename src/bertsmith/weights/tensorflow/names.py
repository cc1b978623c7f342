"""Google's names of a BERT's variables, and what a training run keeps beside them."""

from __future__ import annotations

import re

# The heads are variables without a layer of their own: [outputs, inputs] already, so never transposed.
_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
# What the optimizers and loss scalers of Google's, NVIDIA's and MLPerf's scripts keep: for each variable, and alone.
_SLOTS = frozenset(("adam_m", "adam_v", "Adam", "Adam_1", "lamb_m", "lamb_v", "LAMB", "LAMB_1", "accum"))
_COUNTERS = frozenset(("global_step", "local_step", "beta1_power", "beta2_power", "batch_finite"))
_LOSS_SCALES = frozenset(("loss_scale", "current_loss_scale", "good_steps", "bad_steps"))
_LAYER = re.compile(r"(?<![^/])layer_(\d+)(?![^/])")
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The variable that only a checkpoint of TensorFlow 2's objects has."""


def is_training_state(variable: str) -> bool:
    """Whether it is a slot of an optimizer or a counter, and no weight."""
    parent, _, leaf = variable.rpartition("/")
    return leaf in _COUNTERS | _LOSS_SCALES or (bool(parent) and leaf in _SLOTS)


def to_huggingface(variable: str) -> tuple[str, bool]:
    """Hugging Face's name, and whether the tensor is to be transposed.

    A variable that is none of a BERT's gets a name that is none either: its own with dots.
    """
    if variable in _HEADS:
        return _HEADS[variable], False
    module, _, leaf = _LAYER.sub(r"layer/\1", variable).rpartition("/")
    if leaf.endswith("_embeddings"):
        module, leaf = f"{module}/{leaf}", "weight"
    transposed = leaf == "kernel"
    name = f"{module}/{'weight' if transposed else leaf}".replace("/", ".")
    return name, transposed
