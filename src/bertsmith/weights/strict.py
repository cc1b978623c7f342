"""Fitting the tensors of a file to a model, to the last one: what does not fit is listed, all of it, in one message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.model.encoder import Encoder
from bertsmith.weights.names import ALIASES, HARMLESS, HEADS, POOLER, bare, part_of, to_huggingface, to_ours

# Weights in fp8 need scales, which lie elsewhere.
_READ = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NOT_FINITE = "not finite:"


@dataclass
class Fit:
    """How a file's tensors and a model's parameters meet.

    tensors: by our name, every one that the model takes. fresh: parts of the model that the file lacks whole. unused:
    parts of the file that the model lacks whole. problems: a line for each tensor that does not fit.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    unused: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def own_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model by our full names; a bare encoder's get the `encoder.` of a model with heads."""
    prefix = "encoder." if isinstance(model, Encoder) else ""
    return {prefix + name: parameter for name, parameter in model.named_parameters()}


def fit(model: nn.Module, tensors: Mapping[str, Tensor], may_be_fresh: Collection[str], where: Path) -> Fit:
    """Meets `tensors`, under Hugging Face's names, with the parameters of `model`.

    may_be_fresh: parts (of `names.HEADS`, or the pooler) that the file may lack. `where` is the file, for the message.
    Raises BertsmithError that lists every missing, unexpected and wrongly shaped tensor, and every one that holds NaN
    or infinity.
    """
    result = Fit()
    given: dict[str, Tensor] = {}
    spelled: dict[str, str] = {}
    for name, tensor in tensors.items():
        ours = to_ours(name)
        if bare(name) in ALIASES or bare(name) in HARMLESS:
            continue
        if ours is None:
            result.problems.append(f"unexpected: {name}")
        elif ours in given:
            result.problems.append(f"twice:      {name} and {spelled[ours]}")
        else:
            given[ours], spelled[ours] = tensor, name
    for name, tensor in tensors.items():
        target = ALIASES.get(bare(name))
        if target is not None and target not in given:  # the file holds the tied tensor under its other name only
            given[target], spelled[target] = tensor, name
    parameters = own_parameters(model)
    _missing(result, parameters, given, may_be_fresh)
    _surplus(result, parameters, given, spelled)
    for name in given.keys() & parameters.keys():
        if line := _misfit(spelled[name], given[name], parameters[name]):
            result.problems.append(line)
        result.tensors[name] = given[name]
    _aliases(result, parameters, tensors, given)
    if result.problems:
        raise _refusal(sorted(result.problems), where)
    return result


def _refusal(problems: list[str], where: Path) -> BertsmithError:
    if all(line.startswith(_NOT_FINITE) for line in problems):
        what, fix = "these weights cannot be used", "use an earlier checkpoint, or download the file again"
    else:
        what = "these weights are not those of the model that its config describes"
        fix = "use the weights and the config of one and the same model"
    return BertsmithError("\n    ".join([f"{what}:", *problems]), where, f"{fix}; nothing was loaded")


def _missing(
    result: Fit, parameters: Mapping[str, nn.Parameter], given: Mapping[str, Tensor], may_be_fresh: Collection[str]
) -> None:
    """A part that is lacking whole may be fresh; a tensor that is lacking from a part may not."""
    there = {part_of(name) for name in given}
    for name in parameters.keys() - given.keys():
        part = part_of(name)
        if part in may_be_fresh and part not in there:
            result.fresh.add(part)
        else:
            result.problems.append(f"missing:    {to_huggingface(name)}")


def _surplus(
    result: Fit, parameters: Mapping[str, nn.Parameter], given: Mapping[str, Tensor], spelled: Mapping[str, str]
) -> None:
    """A head that the model does not have is left out whole; any other tensor without a place is an error."""
    wanted = {part_of(name) for name in parameters}
    for name in given.keys() - parameters.keys():
        part = part_of(name)
        if part in (*HEADS, POOLER) and part not in wanted:
            result.unused.add(part)
        else:
            result.problems.append(f"unexpected: {spelled[name]}")


def _misfit(name: str, tensor: Tensor, parameter: nn.Parameter) -> str:
    """Why the tensor cannot be the parameter; "" where it can."""
    if tensor.shape != parameter.shape:
        return f"shape:      {name} is {list(tensor.shape)} in the file and {list(parameter.shape)} by the config"
    if tensor.dtype not in _READ:
        return f"kind:       {name} holds {tensor.dtype}, not numbers of fp16, bf16, fp32 or fp64"
    if tensor.layout != torch.strided or tensor.is_meta:
        return f"kind:       {name} is {tensor.layout} on {tensor.device}, not all its numbers in memory"
    read = tensor.float() if tensor.dtype == torch.float64 else tensor  # a number above fp32's range becomes infinity
    if not is_finite(read):
        wrong = int(read.isfinite().logical_not().sum())
        return f"{_NOT_FINITE} {name} holds NaN or infinity in {wrong:,} of {tensor.numel():,} places"
    return ""


def is_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite: by the least and the largest, which are NaN where any is. PyTorch's
    `isfinite` of all numbers takes ten times as long, most of the time of loading a model."""
    return not tensor.numel() or bool(torch.stack(tensor.aminmax()).isfinite().all())


def _aliases(
    result: Fit, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> None:
    """A second copy of a tied tensor must be equal to the first, where the model has the head that ties the two."""
    if "masked_head.bias" not in parameters:
        return
    for name, tensor in tensors.items():
        target = ALIASES.get(bare(name))
        if target is None or target not in given or tensor is given[target]:
            continue
        if line := _misfit(name, tensor, parameters[target]):
            result.problems.append(line)
        elif not _misfit(target, given[target], parameters[target]) and not torch.equal(tensor, given[target]):
            result.problems.append(f"untied:     {name} differs from {to_huggingface(target)}, and BERT ties the two")
