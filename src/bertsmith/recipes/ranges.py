"""Valid ranges of the numbers of a recipe, checked before anything starts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from bertsmith.base.errors import BertsmithError
from bertsmith.recipes.schema import Recipe


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; `below` excludes `high` itself, `above` excludes `low` itself."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is in the range; NaN never is."""
        over = value > self.low if self.above else value >= self.low
        under = value < self.high if self.below else value <= self.high
        return over and under and math.isfinite(value)

    def __str__(self) -> str:
        start = f"above {self.low:g}" if self.above else f"from {self.low:g}"
        if self.high == math.inf:
            return start
        return f"{start} to below {self.high:g}" if self.below else f"{start} to {self.high:g}"


_SHARE = Range(0, 1)
_ONE_UP = Range(1)
_ZERO_UP = Range(0)
_PROBABILITY_BELOW_ONE = Range(0, 1, below=True)
_PHASE = {
    "sequence_length": Range(8, 65_535),  # lengths are stored as uint16
    "steps": _ZERO_UP,
    "global_batch": _ONE_UP,
    "learning_rate": Range(0, 10, above=True),
    "warmup": _SHARE,
    "decay_power": Range(0, 10),
    "decay_share": _SHARE,
}
RANGES: Mapping[str, Range] = {
    "model.layers": _ONE_UP,
    "model.hidden": _ONE_UP,
    "model.heads": _ONE_UP,
    "model.intermediate": _ONE_UP,
    "model.max_positions": Range(8, 65_535),
    "model.hidden_dropout": _PROBABILITY_BELOW_ONE,
    "model.attention_dropout": _PROBABILITY_BELOW_ONE,
    "model.embedding_deviation": Range(0, 10, above=True),
    **{f"phase1.{name}": limits for name, limits in _PHASE.items()},
    **{f"phase2.{name}": limits for name, limits in _PHASE.items()},
    "masking.rate": Range(0, 1, above=True, below=True),
    "masking.final_rate": _PROBABILITY_BELOW_ONE,
    "masking.mask_share": _SHARE,
    "masking.random_share": _SHARE,
    "pairs.random_next": _SHARE,
    "pairs.short_sequences": _SHARE,
    "optimizer.beta1": _PROBABILITY_BELOW_ONE,
    "optimizer.beta2": _PROBABILITY_BELOW_ONE,
    # As far as fp32 goes: an epsilon that is 0 there makes weights of rare pieces 0 / 0.
    "optimizer.epsilon": Range(1e-30, 1),
    "optimizer.weight_decay": Range(0, 1e6),
    "optimizer.max_gradient_norm": _ZERO_UP,
    **{f"distillation.{name}": _ZERO_UP for name in ("labels", "hidden", "attention", "values")},
    "distillation.relation_heads": _ZERO_UP,
    "distillation.teacher_layers": _ZERO_UP,
    "seed": Range(0, 2**63 - 1),
    "hours": Range(0, 1e6),  # more than a century
    "micro_batch_tokens": _ONE_UP,
    "loader_workers": _ZERO_UP,
    "log_every": _ONE_UP,
    "evaluate_every": _ONE_UP,
    "evaluate_instances": _ONE_UP,
    "save_every": _ONE_UP,
    "keep": _ONE_UP,
    "keep_every": _ZERO_UP,
}


def validate(recipe: Recipe, origins: Mapping[str, str] | None = None) -> None:
    """Checks every field of a recipe, and fields against each other.

    origins: where each value came from, by dotted name, for the message. Raises BertsmithError for the first value that
    is out of range.
    """
    for name, what, fix in _faults(recipe):
        raise BertsmithError(what, (origins or {}).get(name, f"recipe, {name}"), fix)


def _faults(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """(field, what is wrong, how to fix it) for ranges, and then for rules that involve several fields."""
    for name, limits in RANGES.items():
        value = attrgetter(name)(recipe)
        if value != "auto" and not limits.holds(value):
            yield name, f"{name} is {value}", f"use a number {limits}"
    model = recipe.model
    if model.hidden % model.heads:
        what = f"model.hidden {model.hidden} is not a multiple of model.heads {model.heads}"
        yield "model.heads", what, "choose a number of heads that divides the width"
    limit, epsilon = recipe.optimizer.max_gradient_norm, recipe.optimizer.epsilon
    if 0 < limit < epsilon:
        below = f"optimizer.max_gradient_norm {limit} is below optimizer.epsilon {epsilon}"
        what = f"{below}, beside which gradients vanish"
        yield "optimizer.max_gradient_norm", what, "raise it, or use 0 for no clipping"
    taught = recipe.distillation
    if not any((taught.labels, taught.hidden, taught.attention, taught.values)):
        yield "distillation.labels", "no loss has a weight above 0", "set one of labels, hidden, attention, values"
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", recipe.device):
        yield "device", f"device '{recipe.device}' is not known", "use auto, cpu, cuda or cuda:N"
    masking = recipe.masking
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        shares = f"masking.mask_share {masking.mask_share} and masking.random_share {masking.random_share}"
        what = f"{shares} sum to more than 1"
        yield "masking.random_share", what, "lower one of the two"
    if recipe.hours and masking.final_rate:
        what = "masking.final_rate moves the rate over the steps, whose number hours leaves open"
        fix = "use 0, with the rate that the whole run is to have as masking.rate; or leave hours out"
        yield "masking.final_rate", what, fix
    if not recipe.phase1.steps + recipe.phase2.steps:
        what = "both phases have 0 steps, so there is nothing to train"
        yield "phase1.steps", what, "set the steps of at least one phase"
    budget = recipe.micro_batch_tokens
    for number, phase in recipe.phases.items():
        name, length, warmup, decay = f"phase{number}", phase.sequence_length, phase.warmup, phase.decay_share
        if phase.schedule == "warmup_stable_decay" and warmup + decay > 1 + 1e-9:
            what = f"{name}.warmup {warmup} and {name}.decay_share {decay} sum to more than 1"
            yield f"{name}.decay_share", what, "lower one of the two"
        if length > model.max_positions:
            what = f"{name}.sequence_length {length} is longer than model.max_positions {model.max_positions}"
            yield f"{name}.sequence_length", what, "shorten the sequences or raise model.max_positions"
        if budget != "auto" and length > budget:
            what = f"{name}.sequence_length {length} is more than micro_batch_tokens {budget}"
            yield "micro_batch_tokens", what, f"use at least {length}"
