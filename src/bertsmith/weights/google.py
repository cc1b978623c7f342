"""Google's BERT, and what NVIDIA's and MLPerf's TensorFlow scripts trained, under Hugging Face's names."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of, size
from bertsmith.weights.foreign import Foreign
from bertsmith.weights.names import part_of, to_ours
from bertsmith.weights.tensorflow.bundle import Bundle, index_of
from bertsmith.weights.tensorflow.names import OBJECT_GRAPH, is_training_state, to_huggingface

_SHOWN = 4


def read_tensorflow(prefix: Path) -> Foreign:
    """Reads a checkpoint of the V2 format, every tensor of the model compared with its checksum.

    prefix: the path before `.index`. The optimizer's slots are not read, and counted. Raises BertsmithError that names
    file and tensor.
    """
    bundle = Bundle.open(prefix)
    weights = [name for name in bundle.entries if not is_training_state(name)]
    _check_names(weights, index_of(prefix))
    tensors: dict[str, Tensor] = {}
    for variable in weights:
        name, transposed = to_huggingface(variable)
        if to_ours(name) is None:  # listed as unexpected, under the name that it has in the file
            name, transposed = variable, False
        tensor = bundle.read(variable)
        # Copied here, so that a tensor is never held twice for long.
        tensors[name] = tensor.T.contiguous() if transposed and tensor.dim() == 2 else tensor
    slots = [entry for name, entry in bundle.entries.items() if is_training_state(name)]
    left_out = (f"{len(slots):,} slots and counters of the optimizer ({size(sum(each.size for each in slots))})",)
    return Foreign(index_of(prefix), tensors, left_out if slots else ())


def _check_names(variables: list[str], where: Path) -> None:
    """Raises BertsmithError where these are not the variables of Google's BERT at all."""
    named = [to_ours(to_huggingface(variable)[0]) for variable in variables]
    if any(name is not None and part_of(name) == "encoder" for name in named):
        return
    what = f"none of its variables is one of a BERT encoder: {first_of(sorted(variables), _SHOWN)}"
    if OBJECT_GRAPH in variables:
        what = "this is a checkpoint of TensorFlow 2's objects (Keras), which names variables by Python attributes"
    raise BertsmithError(what, where, "name a checkpoint whose variables begin with bert/, as Google's scripts save it")
