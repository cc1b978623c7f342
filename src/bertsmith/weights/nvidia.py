"""NVIDIA's checkpoints of BERT for PyTorch, under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of
from bertsmith.weights.foreign import Foreign
from bertsmith.weights.stored import load_torch_file

# Where the weights lie in the dictionary that was saved, the first that is there.
_HOLDERS = ("model", "model_state_dict", "state_dict")
_WRAPPER = "module."


def read_nvidia(path: Path) -> Foreign:
    """Reads a `.pt` file: {"model": weights, "optimizer": ...} as run_pretraining.py saves it, or the weights alone.

    Nothing is run that the file holds. Raises BertsmithError where it holds other objects than tensors and plain
    values, or no weights.
    """
    saved = load_torch_file(path)
    if not isinstance(saved, dict):
        raise _no_weights(path, f"a {type(saved).__name__}")
    held = next((name for name in _HOLDERS if isinstance(saved.get(name), Mapping)), None)
    weights: Mapping[Any, Any] = saved if held is None else saved[held]
    if not weights or not all(isinstance(each, Tensor) for each in weights.values()):
        raise _no_weights(path, f"a dictionary of {first_of(map(str, saved))}")
    left_out = () if held is None else tuple(f"'{key}'" for key in saved if key != held)
    return Foreign(path, _renamed(weights, path), left_out)


def _renamed(weights: Mapping[Any, Tensor], path: Path) -> dict[str, Tensor]:
    """Without the wrappers of parallel training, and with `dense` for NVIDIA's `dense_act`."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        name = str(key)
        while name.startswith(_WRAPPER):
            name = name.removeprefix(_WRAPPER)
        name = name.replace(".dense_act.", ".dense.")
        if name in tensors:
            raise BertsmithError(f"two tensors are both {name}", path, "save the model again, once")
        tensors[name] = tensor
    return tensors


def _no_weights(path: Path, found: str) -> BertsmithError:
    fix = f"save the weights as torch.save({{'{_HOLDERS[0]}': model.state_dict()}}, path)"
    return BertsmithError(f"this file holds {found}, and not a model's tensors by name", path, fix)
