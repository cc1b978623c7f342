"""The memory of a rank, part by part, from shapes: what is held all the time, and what a micro-batch adds at its peak.

Legend: T token slots, M masked words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from bertsmith.batches.shapes import TILE
from bertsmith.model.config import BertConfig
from bertsmith.training.planning.model_size import Size
from bertsmith.training.planning.work import Batch, Cut

WHOLE, HALF = 4, 2
# Blocks of attention on a CPU hold padding, to some 5% of their columns.
_PADDED = 1.05
# From this mean length on, attention in fp32 without dropout keeps no probabilities on a CPU (`attention/attend.py`).
_LONG = 256
HEAP = 1.7
"""Of a CPU's process: what it takes for a byte that a micro-batch needs at its peak. The process keeps what a step
frees (`model/cpu/allocator.py`), and pieces of many sizes do not fill the holes of others. By runs as those of
docs/plan.md.
"""
CPU_STARTED = 8e7
"""What a process takes more when it trains: threads, compiled kernels, the products' own memory. By runs of bert-tiny
with micro-batches of 512 tokens, of which next to nothing is activations."""
IN_BITS = 1 << 22
"""Places of hidden states from which a compiled step on a GPU keeps dropout's mask in bits (`model/dropout.py`)."""
GPU_BASE = 1.5e9
"""CUDA's context, its libraries' workspaces and NCCL's buffers, which PyTorch does not count as allocated: assumed."""


@dataclass(frozen=True)
class Held:
    """How a rank holds a model. half: whether products have two bytes a number. ranks: that share a step. sharded:
    whether they share weights too. checkpointing: of gradients. half_sums: whether gradients are summed in bf16. base:
    bytes that are there before there is a model. data: of corpus and batches. lamb: whether that is the optimizer.
    compiled: whether steps are."""

    config: BertConfig
    size: Size
    half: bool
    on_cpu: bool
    base: float = 0.0
    data: float = 0.0
    ranks: int = 1
    sharded: bool = False
    checkpointing: bool = False
    half_sums: bool = False
    lamb: bool = True
    compiled: bool = False

    @property
    def narrow(self) -> int:
        """Bytes of a number in products."""
        return HALF if self.half else WHOLE


def kept_bytes(config: BertConfig, tokens: float, half: bool, mask: float = 1.0) -> float:
    """What a layer keeps for its backward pass on a GPU, probabilities not among it: fused attention makes them again.

    Its input, queries, keys and values, what attention gives, the inputs of both norms, of the feed-forward maps, and
    of the activation, and the two masks of dropout. mask: bytes of a place of a mask.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    narrow = HALF if half else WHOLE
    of_hidden = 6 * narrow + 2 * WHOLE + 2 * mask
    return tokens * (of_hidden * hidden + 2 * narrow * inner)


def mask_bytes(held: Held, tokens: float) -> float:
    """Of a place of a mask of dropout on a GPU."""
    config = held.config
    if not config.hidden_dropout_prob:
        return 0.0
    return 1 / 8 if held.compiled and tokens * config.hidden_size >= IN_BITS and config.hidden_size % 8 == 0 else 1.0


def kept_on_cpu(held: Held, batch: Batch) -> float:
    """As `kept_bytes`, with the C++ kernels: dropout is drawn again, and probabilities are kept in padded blocks."""
    config, narrow = held.config, held.narrow
    hidden, inner = config.hidden_size, config.intermediate_size
    vectors = (3 + 3 * _PADDED) * narrow + 2 * WHOLE
    probabilities = narrow * config.num_attention_heads * batch.squares * _PADDED**2
    long = batch.tokens >= _LONG * batch.sequences
    if not held.half and not config.attention_probs_dropout_prob and long:
        probabilities = 0.0
    return batch.tokens * (vectors * hidden + 2 * narrow * inner) + probabilities


def activations(held: Held, batch: Batch) -> float:
    """Of all layers at the peak, with what the first layer of the backward pass works on."""
    config, narrow = held.config, held.narrow
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    if held.on_cpu:
        layer = kept_on_cpu(held, batch)
    else:
        layer = kept_bytes(config, batch.tokens, held.half, mask_bytes(held, batch.tokens))
    embeddings = batch.tokens * hidden * 2 * WHOLE
    working = batch.tokens * (2 * narrow * inner + 2 * WHOLE * hidden) + (narrow + WHOLE) * hidden * inner
    if held.checkpointing:
        inputs = batch.tokens * hidden * (WHOLE + (HALF if held.half else 0))
        return embeddings + layers * inputs + layer + working
    return embeddings + layers * layer + working


def word_head(held: Held, batch: Batch) -> float:
    """Scores and their gradient, and the decoder's gradient before it is added up."""
    if not batch.masked:
        return 0.0
    vocabulary = held.config.vocab_size
    decoder = vocabulary * held.config.hidden_size * (held.narrow + (WHOLE if held.half else 0))
    return 2 * batch.masked * vocabulary * held.narrow + decoder


def memory(held: Held, cut: Cut) -> dict[str, float]:
    """Bytes of a rank by part, at the peak of a step that is cut up so; their sum is what it needs."""
    size, shards = held.size, held.ranks if held.sharded else 1
    whole = WHOLE * size.total
    matrices = size.layers + size.heads + size.words
    copies = HALF * (matrices + size.vectors) if held.half else WHOLE * 0.25 * size.layers
    sums = HALF * size.total if held.half_sums and held.ranks > 1 else 0.0
    kept, head = activations(held, cut.batch), word_head(held, cut.batch)
    # Gradients of the only micro-batch take the place of what it kept; on a CPU its pieces are not of their sizes.
    is_only = cut.micro_batches <= 1 and held.ranks == 1 and not held.on_cpu
    replaced = min(whole, kept + head) if is_only else 0.0
    holes = (HEAP - 1) * (kept + head) if held.on_cpu else 0.0
    # Of weights and moments, by the first rank, from the first save on; a GPU's lies in the host's memory.
    saved = 3 * whole if held.on_cpu else 0.0
    # On a GPU LAMB's kernels keep no direction. On a CPU there are few holes of its size in freed memory.
    directions = whole / shards if held.lamb and held.on_cpu else 0.0
    return {
        "parameters, fp32": whole / shards,
        "copies for products": copies / shards,
        "gradients, fp32": whole,
        "moments of the optimizer": 2 * whole / shards,
        "activations": kept,
        "word head": head,
        "of these, gradients replace": -replaced,
        "gradients as they are summed": sums,
        "update, beyond activations": directions,
        "holes in freed memory": holes,
        "copy for saves, first rank": saved,
        "corpus and batches": held.data,
        "PyTorch" if held.on_cpu else "CUDA and its libraries": held.base + (CPU_STARTED if held.on_cpu else 0.0),
    }


def largest(held: Held, cut_of: Callable[[int], Cut], room: float, most: int) -> int:
    """The most tokens of a micro-batch, a multiple of 128 up to `most`, that fits into `room` bytes; 0 where none."""
    tiles = range(1, most // TILE + 1)

    def needed(count: int) -> float:
        return sum(memory(held, cut_of(count * TILE)).values())

    # Where masks begin to be kept in bits, more tokens need less; below and above that, they need more.
    bits = bisect_left(tiles, IN_BITS, key=lambda count: count * TILE * held.config.hidden_size)
    found = bisect_right(tiles, room, lo=bits, key=needed)
    return TILE * (found if found > bits else bisect_right(tiles, room, hi=bits, key=needed))
