"""What a step bench measures on a CPU and on a GPU: sides, batches, matches and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.side import TRANSFORMERS, StepSide

SHAPES: dict[str, dict[str, Any]] = {
    "bert-tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "bert-mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
VOCABULARY = 30_522
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Match:
    """Ours over some sets of batches, against a peer or alone. model: a key of `SHAPES`."""

    model: str
    ours: StepSide
    peer: StepSide | None
    sets: tuple[str, ...]

    def case(self, name: str) -> str:
        """What a row of this match is called."""
        against = f" against transformers, {self.peer.label}" if self.peer else ""
        return f"{self.model}, {name}: {self.ours.label}{against}"

    def peer_case(self, name: str) -> str:
        """What a row of the peer by itself is called."""
        assert self.peer is not None
        return f"{self.model}, {name}: transformers, {self.peer.label}"


@dataclass(frozen=True)
class Rung:
    """A step of the ladder: `what` is what it adds to the one before."""

    what: str
    side: StepSide
    set: str


@dataclass(frozen=True)
class Plan:
    """sets: batches by name. matches: those with the same `ours` are adjacent. ladder: of `model`. profiled: the side
    whose time is broken down. passes: over a set in a turn. seconds: of the rounds of a match on a set. loaded_steps:
    of ours in each match, with batches that a loader makes meanwhile; 0 for none."""

    sets: Mapping[str, Sequence[PretrainBatch]]
    matches: tuple[Match, ...]
    model: str
    ladder: tuple[Rung, ...]
    profiled: StepSide
    passes: int
    seconds: float
    about: tuple[str, ...]
    loaded_steps: int = 0

    def alone(self) -> Plan:
        """Without peers: each of our sides over all the sets that it has in some match."""
        sets: list[tuple[Match, list[str]]] = []
        for match in self.matches:
            known = next((names for other, names in sets if other.ours == match.ours), None)
            if known is None:
                sets.append((replace(match, peer=None), list(match.sets)))
            else:
                known += [name for name in match.sets if name not in known]
        return replace(self, matches=tuple(replace(match, sets=tuple(names)) for match, names in sets))


def shape(model: str, vocabulary: int = VOCABULARY, **changes: float | str) -> dict[str, Any]:
    """The fields of a `BertConfig`; dropout is 0.1 unless `changes` says otherwise."""
    return {**SHAPES[model], "vocab_size": vocabulary, **changes}


def gpu_shape(model: str, vocabulary: int = VOCABULARY, **changes: float | str) -> dict[str, Any]:
    """The same with GELU by tanh, as Google's and NVIDIA's code and all recipes for GPUs have it."""
    return shape(model, vocabulary, hidden_act="gelu_pytorch_tanh", **changes)


@dataclass(frozen=True)
class CpuSizes:
    """The sizes for a CPU. sequences: of an update. seconds: of the rounds of a match on a set."""

    model: str = "base"
    sequences: int = 16
    seconds: float = 40.0


def cpu_plan(sizes: CpuSizes, real: Mapping[int, Sequence[PretrainBatch]], vocabulary: int) -> Plan:
    """real: batches of real pairs by length. The headline is the first set, of 40 to 128 tokens drawn evenly."""
    model, count = sizes.model, sizes.sequences
    even, more = f"{count} of 40-128", f"{4 * count} of 40-128"
    real_sets = {f"{count} real at {length}": batches for length, batches in real.items()}
    sets = {
        even: [pretrain_batch(lengths_of("ragged", count, 128, seed), vocabulary, seed) for seed in range(2)],
        **real_sets,
        more: [pretrain_batch(lengths_of("ragged", 4 * count, 128), vocabulary)],
    }
    dims = shape(model, vocabulary)
    bf16, fp32 = StepSide(model=dims), StepSide(model=dims, precision="fp32")
    theirs = StepSide(TRANSFORMERS, dims, precision="fp32")
    autocast, by_onednn = replace(theirs, precision="bf16"), replace(theirs, onednn=True)
    matches = (
        Match(model, bf16, theirs, (even, *real_sets)),
        Match(model, bf16, autocast, (even, *real_sets)),
        Match(model, fp32, theirs, (even,)),
        Match(model, fp32, by_onednn, (even,)),
        Match(model, fp32, None, tuple(real_sets)),
        Match(model, replace(bf16, optimizer="lamb"), None, (even,)),
        Match(model, replace(bf16, model=dims | _NO_DROPOUT), None, (even,)),
    )
    ladder = (
        Rung("fp32, padded", replace(fp32, padded=True, longest=128), even),
        Rung("bf16", replace(bf16, padded=True, longest=128), even),
        Rung("no padding", bf16, even),
        Rung("4 times the sequences", bf16, more),
    )
    about = (f"one update for every {count} sequences, but for the ladder's last rung",)
    return Plan(sets, matches, model, ladder, bf16, passes=1, seconds=sizes.seconds, about=about)


@dataclass(frozen=True)
class GpuSizes:
    """The sizes for a GPU. tokens: slots of an update if all its sequences were full; of twice as many BERT-large would
    keep 63 GB for its backward pass. passes, seconds: of `Plan`. compiled: both sides, by torch.compile. vocabulary:
    pieces of the models and of made-up batches. loaded_steps: of `Plan`. small: models with the slots of their recipes'
    micro-batches, of which launches take longer than the kernels."""

    device: str = "cuda"
    models: tuple[str, ...] = ("large", "base")
    lengths: tuple[int, ...] = (128, 512)
    tokens: int = 32_768
    passes: int = 8
    seconds: float = 8.0
    compiled: bool = True
    vocabulary: int = VOCABULARY
    loaded_steps: int = 8
    small: tuple[tuple[str, int], ...] = (("bert-tiny", 4096), ("bert-mini", 8192))


def graph_matches(sizes: GpuSizes, plan: Plan) -> tuple[dict[str, Sequence[PretrainBatch]], tuple[Match, ...]]:
    """Batches by name, and what runs as CUDA graphs over them. First the plan's first side over its first set, where
    training takes none: whether the GPU waits for the host there. Then models of which the host takes longer than the
    GPU, without graphs and with them."""
    first = plan.matches[0]
    sets: dict[str, Sequence[PretrainBatch]] = {}
    matches = [Match(first.model, replace(first.ours, graphs="true"), None, first.sets[:1])]
    for model, slots in sizes.small:
        length = sizes.lengths[0]
        name = f"{slots // length:,} with Wikipedia's lengths at {length}, small models"
        sets[name] = [pretrain_batch(lengths_of("wikipedia", slots // length, length), sizes.vocabulary)]
        ours, _ = _gpu_sides(sizes, model, length, 0.1)
        matches += [Match(model, replace(ours, graphs=graphs), None, (name,)) for graphs in ("false", "true")]
    return sets, tuple(matches)


def gpu_plan(sizes: GpuSizes, real: Mapping[int, Sequence[PretrainBatch]]) -> Plan:
    """real: batches of real pairs by length; without any, pairs with Wikipedia's lengths are made up.

    Attention dropout is off on both sides, as in the fast recipes, except in the rows of the first model over ragged
    sets that have both; hidden dropout is 0.1 everywhere. The first model comes first at every length, over ragged sets
    beside transformers with flash attention too.
    """
    sets: dict[str, Sequence[PretrainBatch]] = {}
    dense: dict[int, str] = {}
    ragged: dict[int, str] = {}

    def drawn(count: int, length: int, seed: int = 0) -> PretrainBatch:
        return pretrain_batch(lengths_of("wikipedia", count, length, seed), sizes.vocabulary, seed)

    for length in sizes.lengths:
        count = max(1, sizes.tokens // length)
        dense[length], ragged[length] = f"{count:,} full at {length}", f"{count:,} with Wikipedia's lengths at {length}"
        sets[dense[length]] = [pretrain_batch(lengths_of("full", count, length), sizes.vocabulary)]
        sets[ragged[length]] = real.get(length) or [drawn(count, length, seed) for seed in range(2)]
    first, length = sizes.models[0], sizes.lengths[0]

    def match(model: str, length: int, attention_dropout: float, *names: str) -> Match:
        return Match(model, *_gpu_sides(sizes, model, length, attention_dropout), names)

    matches = []
    for each in sizes.lengths:
        found = match(first, each, 0.0, dense[each], ragged[each])
        assert found.peer is not None
        # Uncompiled: what it leaves padding out by has shapes that only the tensors tell.
        matches += [found, replace(found, peer=replace(found.peer, compiled=False, flash=True), sets=(ragged[each],))]
    matches += [match(first, each, 0.1, ragged[each]) for each in sizes.lengths]
    others = [(model, each) for each in sizes.lengths for model in sizes.models[1:]]
    matches += [match(model, each, 0.0, dense[each], ragged[each]) for model, each in others]
    count = max(1, sizes.tokens // length // 8)
    fewer = f"{count:,} with Wikipedia's lengths at {length}"
    sets[fewer] = [drawn(count, length)]
    about = (
        f"updates of {sizes.tokens:,} slots, in one micro-batch; attention dropout is 0 on both sides unless a row "
        "says otherwise, hidden dropout 0.1",
    )
    ladder = _gpu_ladder(sizes, first, fewer, ragged[length])
    # The kernels of a compiled graph do not show which part of the model they belong to.
    profiled = replace(matches[0].ours, compiled=False)
    counts = sizes.passes, sizes.seconds
    return Plan(sets, tuple(matches), first, ladder, profiled, *counts, about, sizes.loaded_steps)


def _gpu_sides(sizes: GpuSizes, model: str, length: int, attention_dropout: float) -> tuple[StepSide, StepSide]:
    dims = gpu_shape(model, sizes.vocabulary, attention_probs_dropout_prob=attention_dropout)
    ours = StepSide(model=dims, device=sizes.device, compiled=sizes.compiled, longest=length)
    return ours, replace(ours, side=TRANSFORMERS)


def _gpu_ladder(sizes: GpuSizes, model: str, fewer: str, all_of_them: str) -> tuple[Rung, ...]:
    """From what every setup can do to the fastest here, one change a rung."""
    bf16 = StepSide(model=gpu_shape(model, sizes.vocabulary, attention_probs_dropout_prob=0.0), device=sizes.device)
    padded = replace(bf16, padded=True, longest=sizes.lengths[0])
    compiled = replace(bf16, compiled=sizes.compiled, longest=sizes.lengths[0])
    return (
        Rung("fp32, padded", replace(padded, precision="fp32"), fewer),
        Rung("tf32", replace(padded, precision="tf32"), fewer),
        Rung("bf16", padded, fewer),
        Rung("no padding", bf16, fewer),
        Rung("compiler", compiled, fewer),
        Rung("8 times the sequences", compiled, all_of_them),
    )
