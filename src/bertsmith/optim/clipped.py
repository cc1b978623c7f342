"""What all optimizers here share: loss scale, clipping, the guard against non-finite gradients, learning rate.

No tensor is read on the host, so a step on a CUDA device does not stall the device's queue.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bertsmith.optim import fused
from bertsmith.optim.loss_scale import LossScale
from bertsmith.optim.norms import global_norm, local_part

# PyTorch wraps these to hide them from its compiler, which it imports at their first call: seconds of every start.
_add_param_group = unwrap(Optimizer.add_param_group)
_state_dict, _load_state_dict = unwrap(Optimizer.state_dict), unwrap(Optimizer.load_state_dict)


@dataclass(frozen=True)
class Clip:
    """Scalars on the device. divisor: of the gradients. finite: 1 if their norm is finite, else 0."""

    divisor: Tensor
    finite: Tensor


class ClippedOptimizer(Optimizer):
    """Clips by global norm, skips a non-finite update, and leaves the update itself to `_update`.

    The gradients must already be divided by the counts of the whole step, and come from `scaled` losses. `step` divides
    them by the loss scale, and multiplies them by max_gradient_norm / N if their global norm N is larger
    (max_gradient_norm 0: never), in place where PyTorch's fused kernel makes the update. If N is not finite, no
    parameter, moment or step count changes. After a step there are scalar tensors on the device: `gradient_norm` (N,
    without the loss scale, before clipping), `finite` (bool) and `sound` (bool: finite, or skipped because the loss
    scale is being lowered).

    Parameters may be sharded over ranks, as DTensors: each rank updates its part, and norms are those of whole tensors.

    loss_scale: for fp16; None leaves losses as they are. The moments, the step count, the learning rate and the loss
    scale are tensors too, so `state_dict` loads with `weights_only=True`.
    ValueError for parameters in half precision: an optimizer updates the fp32 masters.
    """

    gradient_norm: Tensor
    finite: Tensor
    sound: Tensor

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        max_gradient_norm: float = 1.0,
        bias_correction: bool = True,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.max_gradient_norm = max_gradient_norm
        self.loss_scale = loss_scale
        self.bias_correction = bias_correction
        defaults = {"lr": 0.0, "rate_share": 1.0, "weight_decay": 0.0, "betas": betas, "epsilon": epsilon, "step": 0.0}
        super().__init__(groups, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; its learning rate and step count become tensors on the device of its parameters."""
        _add_param_group(self, param_group)
        group = self.param_groups[-1]
        for parameter in group["params"]:
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise ValueError(f"an optimizer updates fp32 masters, not {parameter.dtype}")
        for name in ("lr", "step"):
            group[name] = torch.tensor(float(group[name]), device=self._device())

    def _device(self) -> torch.device:
        parameter: Tensor = self.param_groups[0]["params"][0]
        return parameter.device

    def set_learning_rate(self, rate: float) -> None:
        """The learning rate of the next updates; a group may have a share of it."""
        for group in self.param_groups:
            group["lr"].fill_(rate * group["rate_share"])

    def reset_step_count(self) -> None:
        """Restarts the bias correction and keeps the moments, as NVIDIA's recipe does between its phases."""
        for group in self.param_groups:
            group["step"].zero_()

    def start_afresh(self) -> None:
        """Forgets all updates: moments, step count and loss scale are those of a new optimizer."""
        self.state.clear()
        self.reset_step_count()
        if self.loss_scale is not None:
            self.loss_scale.reset()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradients; none is kept to be filled with zeros."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def begin_step(self, labels: int) -> None:
        """Drops the gradients of the step before. labels: of the step's rarest loss, over all ranks."""
        self.zero_grad(set_to_none=True)
        if self.loss_scale is not None:
            self.loss_scale.set_labels(labels)

    def scaled(self, loss: Tensor) -> Tensor:
        """The tensor to call `backward` on: the loss, times the loss scale if there is one."""
        return loss if self.loss_scale is None else loss * self.loss_scale.factor

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, plus "loss_scale" if there is one."""
        scale = {} if self.loss_scale is None else {"loss_scale": self.loss_scale.state_dict()}
        return {**_state_dict(self), **scale}

    def make_moments(self) -> None:
        """Creates all moments that updates would create, for a checkpoint to fill."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._moments(parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, onto the device of the parameters. KeyError if the loss scale is missing."""
        _load_state_dict(self, state_dict)
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(state_dict["loss_scale"])
        for group in self.param_groups:
            group["lr"], group["step"] = group["lr"].to(self._device()), group["step"].to(self._device())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # takes no closure
        """One update from the gradients of the parameters; a parameter without a gradient stays as it is."""
        norm = global_norm([p.grad for group in self.param_groups for p in group["params"] if p.grad is not None])
        scale = torch.ones_like(norm) if self.loss_scale is None else self.loss_scale.factor
        finite = torch.isfinite(norm)
        self.gradient_norm, self.finite = norm / scale, finite
        self.sound = finite if self.loss_scale is None else self.loss_scale.update(finite)
        limit = self.max_gradient_norm
        clip = Clip(torch.maximum(norm / limit, scale) if limit > 0 else scale, finite.to(norm.dtype))
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                group["step"].add_(clip.finite)
                self._update(group, parameters, clip)

    @abstractmethod
    def _update(self, group: dict[str, Any], parameters: list[Tensor], clip: Clip) -> None:
        """Updates some parameters of a group from their gradients / clip.divisor, or none if clip.finite is 0."""

    def _moved(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        clip: Clip,
        norms_of: Callable[[Tensor], Tensor] | None = None,
    ) -> bool:
        """Whether `fused.move` could take the update, and has done it."""
        weights = [local_part(each) for each in parameters]
        if not fused.can_take(weights):
            return False
        states = [self._moments(parameter) for parameter in parameters]
        gradients = [local_part(each.grad).contiguous() for each in parameters if each.grad is not None]
        moments = [[local_part(state[name]) for state in states] for name in ("mean", "mean_square")]
        lists = [weights, gradients, *moments]
        if not fused.can_take([each for tensors in lists for each in tensors]):
            return False
        scalars = (group["lr"], self._corrected(group), clip.divisor, clip.finite)
        rule = fused.Rule(*scalars, group["betas"], group["epsilon"], group["weight_decay"])
        fused.move(rule, lists, norms_of)
        # The kernels count no write, from which the model knows that its half-precision copies are stale.
        torch.autograd.graph.increment_version(weights)
        return True

    def _corrected(self, group: dict[str, Any]) -> Tensor:
        """The step count of the bias corrections, 1 - beta ** step; with an infinite one both are exactly 1."""
        step: Tensor = group["step"]
        return step if self.bias_correction else torch.full_like(step, math.inf)

    def _adam(
        self,
        group: dict[str, Any],
        targets: list[Tensor],
        parameters: list[Tensor],
        clip: Clip,
        rate: Tensor,
        decay: float,
    ) -> None:
        """Updates the moments of `parameters`, and `targets` by -rate (m / (sqrt(v) + epsilon) + decay target).

        PyTorch's fused kernel does it in one pass over memory; its gradient scale and its overflow flag, made for loss
        scaling, also serve clipping by a norm on the device and a guard on the device.
        """
        states = [self._moments(parameter) for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        targets, gradients, means, mean_squares = _local_parts(
            targets, gradients, [state["mean"] for state in states], [state["mean_square"] for state in states]
        )
        if not targets:
            return
        torch._fused_adamw_(
            targets,
            gradients,
            means,
            mean_squares,
            [],
            [self._corrected(group)] * len(targets),
            lr=rate,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=decay,
            eps=group["epsilon"],
            amsgrad=False,
            maximize=False,
            grad_scale=clip.divisor,
            found_inf=1 - clip.finite,
        )
        # The kernel does not count its writes, from which the model knows that its half-precision copies are stale.
        torch.autograd.graph.increment_version(targets)

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["mean"], state["mean_square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _local_parts(*lists: list[Tensor]) -> tuple[list[Tensor], ...]:
    """What this rank holds of lists of the same tensors; where it has no row of one, that is left out of each list."""
    local = [[local_part(each) for each in tensors] for tensors in lists]
    return tuple([each for each, first in zip(tensors, local[0], strict=True) if first.numel()] for tensors in local)
