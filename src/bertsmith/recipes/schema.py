"""What a pre-training recipe says. The string under a field is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tyro.conf import FlagConversionOff


@dataclass(frozen=True)
class ModelShape:
    """The encoder. Its vocabulary comes from the corpus."""

    layers: int = 12
    """Transformer blocks."""
    hidden: int = 768
    """Width of the hidden states."""
    heads: int = 12
    """Attention heads; they divide the width."""
    intermediate: int = 3072
    """Width inside the feed-forward part, four times the hidden width in BERT."""
    max_positions: int = 512
    """The longest sequence the model can read."""
    activation: Literal["gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    """gelu is the erf form of Hugging Face's BERT, gelu_pytorch_tanh the tanh form of Google's and NVIDIA's code."""
    hidden_dropout: float = 0.1
    """Dropout on embeddings and on what each sub-layer adds."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    embedding_deviation: float = 0.02
    """Standard deviation of fresh embeddings. BERT's is 0.02; a short run learns words sooner from a larger one."""
    fresh_positions: Literal["normal", "neighbours"] = "normal"
    """As BERT's; or sine waves, heads that begin at nearby words, the last layer's value and output maps orthogonal."""


@dataclass(frozen=True)
class Phase:
    """One phase of pre-training: sequences of one length under one learning-rate curve."""

    sequence_length: int = 128
    """The most tokens of an instance, [CLS] and both [SEP] included."""
    steps: int = 1000
    """Optimizer steps; 0 leaves the phase out."""
    global_batch: int = 256
    """Sequences of one step, over all ranks and micro-batches."""
    learning_rate: float = 6e-3
    """The highest learning rate, reached at the end of the warm-up."""
    warmup: float = 0.1
    """The share of the steps that the learning rate rises over."""
    decay_power: float = 0.5
    """The learning rate falls as (1 - progress) to this power; 1 is linear."""


@dataclass(frozen=True)
class Masking:
    """Which pieces are hidden, and what stands in their place."""

    rate: float = 0.15
    """The share of an instance's tokens to predict, special ones counted as Google does."""
    mask_share: float = 0.8
    """Of these, the share replaced by [MASK]."""
    random_share: float = 0.1
    """Of these, the share replaced by a random piece; the rest stays as it is."""


@dataclass(frozen=True)
class Pairs:
    """How a document becomes instances of two segments."""

    random_next: float = 0.5
    """The chance that the second segment comes from another document."""
    short_sequences: float = 0.1
    """The chance that a document is cut to a random shorter target length; drawn once a document, as Google does."""


@dataclass(frozen=True)
class Optimizer:
    """The update."""

    name: Literal["lamb", "adamw"] = "lamb"
    """lamb is NVIDIA's NVLAMB."""
    beta1: float = 0.9
    """Decay of the gradient's mean."""
    beta2: float = 0.999
    """Decay of the gradient's mean square."""
    epsilon: float = 1e-6
    """Added to the root of the mean square."""
    weight_decay: float = 0.01
    """On weight matrices and embeddings, not on biases and LayerNorm."""
    max_gradient_norm: float = 1.0
    """The gradient of the whole step is scaled down to this global norm; 0 never."""
    trust_ratio: Literal["decayed", "all", "none"] = "decayed"
    """What LAMB scales by |w|/|update|: what has weight decay, as NVIDIA's code does; all, as its paper says; none."""


@dataclass(frozen=True)
class Recipe:
    """A pre-training run: the model, one or two phases, and everything that changes its result."""

    model: ModelShape = field(default_factory=ModelShape)
    phase1: Phase = field(default_factory=Phase)
    phase2: Phase = field(default_factory=lambda: Phase(sequence_length=512))
    masking: Masking = field(default_factory=Masking)
    pairs: Pairs = field(default_factory=Pairs)
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 42
    """Seed of every random stream: order, pairs, masks, weights, dropout."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """The dtype of matrix products; parameters, optimizer and gradient sums are fp32. fp16 scales the loss."""
    gradient_checkpointing: FlagConversionOff[bool] = False
    """Compute each block again in the backward pass: less memory, a third more work, the same result to the bit."""
    compile: Literal["auto", "true", "false"] = "auto"
    """Compile steps, in micro-batches of one fixed shape a phase; auto does so on a card, and on a CPU in bf16 compiles
    kernels alone; false runs no compiler."""
    micro_batch_tokens: int = 8192
    """The most tokens that go through the model at once; a step takes as many micro-batches as it needs."""
    loader_workers: int = 0
    """Processes that build batches ahead; 0 builds them in a thread of the run. The batches are the same."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    evaluate_every: int = 500
    """Steps between two evaluations on held-out documents; the end of a phase is always evaluated."""
    evaluate_instances: int = 512
    """Held-out instances of an evaluation."""
    save_every: int = 500
    """Steps between two checkpoints; the end of a phase is always saved."""
    keep: int = 2
    """Step checkpoints that are kept, the newest ones."""
