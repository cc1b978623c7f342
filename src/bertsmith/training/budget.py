"""The preset `budget`: model, batch, learning rate and steps by the hours that there are and the device.

1. A device makes the FLOP/s below, in the hours that are given. They are of tables, not of a stop-watch, so that a busy
   machine gets the same model.
2. The model is the largest of `SIZES` that then sees 20 tokens for each weight of its blocks, which Hoffmann et al.
   (2022) found best for a given compute; for left-to-right models, so it is a rule and not a law here.
3. The batch is the power of two that makes about 20,000 steps of these tokens, from 32 to 4,096 sequences.
4. The learning rate is 0.001 x 768 / width x sqrt(batch / 4,096), the square root being LAMB's and NVIDIA's rule. Of
   BERT-base at 4,096 it is what Geiping and Goldstein (2022) have; of a width of 256 at 128 it is ELECTRA-small's.
5. The run ends by time, so the steps are a first guess only.

What the user gives of the model or the batch goes over it, and the rest follows: batch, rate and steps are those of
that model and that batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import as_details, log_choice
from bertsmith.corpus.shards import Corpus
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import peak_flops, step_flop
from bertsmith.recipes.flags import flag, split_flags
from bertsmith.recipes.loader import BUDGET, load_recipe
from bertsmith.recipes.schema import Recipe

if TYPE_CHECKING:
    # What imports PyTorch is imported by what needs it, so that a plan for GPUs answers at once.
    from bertsmith.base.device import Device
    from bertsmith.base.processor import Processor
    from bertsmith.training.planning.where import Where

TOKENS_PER_WEIGHT = 20
_STEPS = 20_000
_LEAST_BATCH, _MOST_BATCH = 32, 4096
_RATE, _RATE_WIDTH, _RATE_BATCH = 1e-3, 768, 4096
# Of a core, in training, by docs/speed.md.
_AMX, _AVX512_BF16, _AVX512, _OTHER = 5e11, 1.4e11, 7.5e10, 6e10
_BATCH = "phase1.global_batch"
_ASKED = ("model.layers", "model.hidden", "model.heads", "model.intermediate", _BATCH)
# Of the peak of a GPU, and what one makes that is not known.
_GPU_SHARE, _UNKNOWN_GPU = 0.4, 2e13


@dataclass(frozen=True)
class Size:
    """The shape of an encoder: layers, their width, heads and feed-forward width, four times the width by default."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int = 0

    @property
    def intermediate(self) -> int:
        return self.feed_forward or 4 * self.hidden

    @property
    def weights(self) -> int:
        """Of the blocks' matrices."""
        return self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.intermediate)


SIZES = (Size(2, 128, 2), Size(4, 256, 4), Size(4, 512, 8), Size(8, 512, 8), Size(12, 768, 12), Size(24, 1024, 16))
"""BERT-tiny, mini, small, medium, base and large."""


@dataclass(frozen=True)
class Fitted:
    """tokens: that the size sees in the time. batch: in sequences."""

    size: Size
    tokens: float
    batch: int
    steps: int

    @property
    def learning_rate(self) -> float:
        return _RATE * _RATE_WIDTH / self.size.hidden * math.sqrt(self.batch / _RATE_BATCH)


def budget_recipe(corpus: Path, out: Path, overrides: Sequence[str], resume: bool = False) -> Recipe:
    """The recipe of a run by its hours, which must be among the overrides (`--hours=8`).

    corpus: a prepared one. overrides: fields of a recipe as flags; they go over what is chosen. resume: a run in `out`
    keeps what was chosen for it. In each of several processes that torch.distributed has joined, it is for all of them.
    Raises BertsmithError as `load_recipe`.
    """
    import torch

    from bertsmith.base import ranks
    from bertsmith.base.device import choose_device
    from bertsmith.base.processor import this_processor
    from bertsmith.training.records.names import RECIPE_FILE

    known = out / RECIPE_FILE
    if resume and known.is_file():
        return load_recipe(known, overrides)
    given = _given(overrides)
    device = choose_device(given.device, given.precision)
    speed = sum(ranks.gathered(device_flops(device, this_processor(), torch.get_num_threads())))
    return _chosen(given, overrides, speed, corpus)


def planned_recipe(corpus: Path, where: Where, overrides: Sequence[str]) -> Recipe:
    """The recipe that `budget_recipe` would give on the GPUs of one host, or on this machine's CPU. Raises
    BertsmithError as that, and for a precision that the GPU does not have."""
    given = _given(overrides)
    if not where.on_cpu:
        return _chosen(given, overrides, where.gpus * _GPU_SHARE * where.peak(given.precision), corpus)
    from bertsmith.base.device import choose_device, rank_threads
    from bertsmith.base.processor import this_processor

    device = choose_device("cpu", given.precision)
    speed = where.gpus * device_flops(device, this_processor(), rank_threads(where.gpus))
    return _chosen(given, overrides, speed, corpus)


def device_flops(device: Device, processor: Processor, threads: int) -> float:
    """What a rank makes in training, about, in FLOP/s."""
    if not device.is_cpu:
        import torch

        peak = peak_flops(torch.cuda.get_device_name(device.torch_device), device.precision)
        return _GPU_SHARE * peak if peak else _UNKNOWN_GPU
    if device.precision != "fp32":
        return threads * (_AMX if processor.has("amx_bf16") else _AVX512_BF16)
    return threads * (_AVX512 if processor.has("avx512") else _OTHER)


def _given(overrides: Sequence[str]) -> Recipe:
    """What the user gives. Raises BertsmithError where that has no hours."""
    given = load_recipe(BUDGET, overrides, budget=True)
    if not given.hours:
        raise BertsmithError("the preset budget needs the hours that training may take", "hours", "such as --hours 8")
    flags = split_flags(overrides, Recipe)[0]
    of_phase2 = ("phase2.global_batch", "phase2.learning_rate")
    for asked, needed, what in (
        (given.phase2.steps, of_phase2, "chooses batch and rate of phase 1 alone"),
        (given.optimizer.name == "lamb", ("phase1.learning_rate",), "chooses the learning rate of AdamW"),
    ):
        missing = [flag(name) for name in needed if name not in flags]
        if asked and missing:
            raise BertsmithError(f"the preset budget {what}", BUDGET, f"give {' and '.join(missing)} too")
    return given


def _chosen(given: Recipe, overrides: Sequence[str], speed: float, corpus: Path) -> Recipe:
    """speed: of all ranks together, in FLOP/s."""
    length, pieces = given.phase1.sequence_length, Corpus.open(corpus).special.vocabulary_size
    asked = {name: int(value) for name, value in split_flags(overrides, Recipe)[0].items() if name in _ASKED}
    counts = speed * 3600 * given.hours, length, pieces, given.masking.rate
    found = fitted(*counts)
    if asked:
        found = fitted(*counts, [_with(found.size, asked)], asked.get(_BATCH))
    why = f"{given.hours:g} hours at {speed / 1e12:,.2f} TFLOP/s are {found.tokens / 1e6:,.1f} million tokens of it"
    log_choice("model", f"{found.size.layers} layers of {found.size.hidden}", why)
    with as_details():  # which of the flags of the user have no effect was logged before
        recipe = load_recipe(BUDGET, [*_flags(found), *overrides], budget=True)
    shown = f"{recipe.phase1.global_batch} sequences a step, learning rate {recipe.phase1.learning_rate:.2g}"
    log_choice("batch", shown, f"some {found.steps:,} steps")
    return recipe


def _with(size: Size, asked: Mapping[str, int]) -> Size:
    """A size with what the user gives of it. Where the width is given alone, heads are 64 wide, or as little wider as
    divides it."""
    hidden = asked.get("model.hidden", size.hidden)
    by_width = next(heads for heads in range(max(1, hidden // 64), 0, -1) if hidden % heads == 0)
    heads = asked.get("model.heads", by_width if "model.hidden" in asked else size.heads)
    return Size(asked.get("model.layers", size.layers), hidden, heads, asked.get("model.intermediate", 0))


def fitted(
    flop: float,
    length: int,
    pieces: int,
    masked_share: float,
    sizes: Sequence[Size] = (),
    batch: int | None = None,
) -> Fitted:
    """What so many FLOP are best spent on. length: tokens of a sequence. pieces: of the vocabulary. sizes: to choose
    from, `SIZES` by default. batch: in sequences, where it is given."""
    each = [(size, flop / _token_flop(size, length, pieces, masked_share)) for size in sizes or SIZES]
    size, tokens = next(
        ((size, tokens) for size, tokens in reversed(each) if tokens >= TOKENS_PER_WEIGHT * size.weights), each[0]
    )
    sequences = tokens / length
    if batch is None:
        power: int = 2 ** round(math.log2(max(sequences / _STEPS, 1.0)))
        batch = min(max(power, _LEAST_BATCH), _MOST_BATCH)
    return Fitted(size, tokens, batch, max(1, round(sequences / batch)))


def _token_flop(size: Size, length: int, pieces: int, masked_share: float) -> float:
    config = BertConfig(
        vocab_size=pieces,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate,
    )
    return step_flop(config, length, length**2, masked_share * length) / length


def _flags(found: Fitted) -> list[str]:
    model = {name: getattr(found.size, name) for name in ("layers", "hidden", "heads", "intermediate")}
    phase = {"steps": found.steps, "global_batch": found.batch, "learning_rate": found.learning_rate}
    named = {f"model.{name}": value for name, value in model.items()} | {f"phase1.{n}": v for n, v in phase.items()}
    return [f"--{name}={value}" for name, value in named.items()]
