"""The fields of a pre-training recipe. The string under a field is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bertsmith.base.errors import TypeChecked

Activation = Literal["gelu", "gelu_pytorch_tanh", "relu"]


@dataclass(frozen=True)
class ModelShape(TypeChecked):
    """The encoder. Its vocabulary comes from the corpus."""

    layers: int = 12
    """Transformer blocks."""
    hidden: int = 768
    """Width of the hidden states."""
    heads: int = 12
    """Attention heads; the width must be a multiple of them."""
    intermediate: int = 3072
    """Width of the feed-forward layers, four times the hidden width in BERT."""
    max_positions: int = 512
    """The longest sequence the model can read."""
    activation: Activation = "gelu_pytorch_tanh"
    """gelu is the erf form of Hugging Face's BERT, gelu_pytorch_tanh the tanh form of Google's and NVIDIA's code; relu
    is no BERT's, and some encoders have it."""
    hidden_dropout: float = 0.1
    """Dropout on embeddings and on the output of each sub-layer."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    embedding_deviation: float = 0.02
    """Standard deviation of new embeddings. BERT's is 0.02; with a larger one a short run learns words sooner."""
    fresh_positions: Literal["normal", "neighbours"] = "normal"
    """normal: as in BERT. neighbours: sine waves, heads that start by attending to nearby words, orthogonal value and
    output weights in the last layer."""


@dataclass(frozen=True)
class Phase(TypeChecked):
    """One phase of pre-training: sequences of one length with one learning-rate schedule."""

    sequence_length: int = 128
    """Maximum length of an instance in tokens, with [CLS] and each [SEP]."""
    steps: int = 1000
    """Optimizer steps; 0 omits the phase."""
    global_batch: int = 256
    """Sequences per step, over all ranks and micro-batches."""
    learning_rate: float = 6e-3
    """The highest learning rate, reached at the end of the warm-up."""
    warmup: float = 0.1
    """The share of the steps over which the learning rate rises."""
    decay_power: float = 0.5
    """Of polynomial: the learning rate falls as (1 - progress) to this power, 0.5 in NVIDIA's recipe, 1 in Google's."""
    schedule: Literal["polynomial", "linear", "cosine", "constant", "warmup_stable_decay"] = "polynomial"
    """What follows the warm-up. polynomial is NVIDIA's and Google's: a power of what is left of the whole phase, so
    that the rate drops where the warm-up ends; the others begin at the highest rate. cosine falls to a tenth of it."""
    decay_share: float = 0.1
    """Of warmup_stable_decay: the share of the steps, at the end, over which the learning rate falls."""

    @property
    def tokens(self) -> int:
        """At most, of all steps."""
        return self.steps * self.global_batch * self.sequence_length


@dataclass(frozen=True)
class Masking(TypeChecked):
    """Which pieces are hidden, and what replaces them."""

    rate: float = 0.15
    """The share of an instance's tokens to predict, counting special tokens, as in Google's code."""
    mask_share: float = 0.8
    """Of these, the share replaced by [MASK]."""
    random_share: float = 0.1
    """Of these, the share replaced by a random piece; the rest stays unchanged."""
    whole_words: bool = False
    """Hide all pieces of a word or none; at most one word of an instance is cut, where its share would not be met."""
    final_rate: float = 0.0
    """The rate at the run's last step, to which `rate` moves in a straight line over both phases; 0 keeps `rate`."""


@dataclass(frozen=True)
class Pairs(TypeChecked):
    """How documents are cut into instances of two segments, or of one (objective mlm)."""

    random_next: float = 0.5
    """The probability that the second segment comes from another document."""
    short_sequences: float = 0.1
    """The probability that a document is cut to a random shorter length, drawn once per document, as Google does."""


@dataclass(frozen=True)
class Optimizer(TypeChecked):
    """The optimizer."""

    name: Literal["lamb", "adamw"] = "lamb"
    """lamb is NVIDIA's NVLAMB."""
    beta1: float = 0.9
    """Decay rate of the gradient's running mean."""
    beta2: float = 0.999
    """Decay rate of the gradient's running mean square."""
    epsilon: float = 1e-6
    """Added to the root of the mean square."""
    weight_decay: float = 0.01
    """Applied to weight matrices and embeddings, not to biases and LayerNorm."""
    max_gradient_norm: float = 1.0
    """The gradient of the whole step is clipped to this global norm; 0 disables clipping."""
    bias_correction: bool = True
    """Correct the first running means for having started at zero. Google's BERT does without."""
    trust_ratio: Literal["decayed", "all", "none"] = "decayed"
    """Tensors that LAMB scales by |w|/|update|: those with weight decay (NVIDIA's code), all (the paper) or none."""


@dataclass(frozen=True)
class Distillation(TypeChecked):
    """What a student learns from its teacher (`bertsmith distill`): each loss is a mean times its weight, and one of
    weight 0 is not computed. A run without a teacher has none of it."""

    labels: float = 1.0
    """The weight of masked words and next sentences; with 0 the finished model is an encoder without heads."""
    hidden: float = 1.0
    """The weight of the squared difference of hidden states, between the layers of `layer_map`."""
    attention: float = 1.0
    """The weight of the divergence of query-key relations in the last layer."""
    values: float = 1.0
    """The weight of the divergence of value-value relations in the last layer."""
    layer_map: str = "auto"
    """Which layer of the student learns from which of the teacher, such as 0:0,2:3,4:6, 0 being the embeddings; auto
    takes the embeddings and all layers of the student, evenly spaced over the teacher's."""
    relation_heads: int = 0
    """The heads that relations are compared by, whatever each model attends with; 0 takes the teacher's."""
    teacher_layers: int = 0
    """Begin with so many evenly spaced layers of the teacher, the last one among them; 0 begins as other runs do."""


@dataclass(frozen=True)
class Recipe(TypeChecked):
    """A pre-training run: the model, one or two phases, and everything that changes its result."""

    model: ModelShape = field(default_factory=ModelShape)
    phase1: Phase = field(default_factory=Phase)
    phase2: Phase = field(default_factory=lambda: Phase(sequence_length=512))
    masking: Masking = field(default_factory=Masking)
    pairs: Pairs = field(default_factory=Pairs)
    optimizer: Optimizer = field(default_factory=Optimizer)
    distillation: Distillation = field(default_factory=Distillation)
    objective: Literal["mlm+nsp", "mlm"] = "mlm+nsp"
    """mlm+nsp: masked words and next sentences, as BERT. mlm: masked words alone; instances have one segment of one
    document, and the finished model has neither pooler nor next-sentence head."""
    seed: int = 42
    """Seed of every random stream: order, pairs, masks, weights, dropout."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """The dtype of matrix products; parameters, optimizer and gradient sums are fp32. fp16 scales the loss."""
    gradient_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory, a third more work, a result equal to the bit."""
    compile: Literal["auto", "true", "no-graphs", "false"] = "auto"
    """Compile steps, in micro-batches of one fixed shape per phase. auto: on a GPU, as CUDA graphs where micro-batches
    are small; on a CPU only kernels are compiled. true: wherever the run is, and an error where that cannot be.
    no-graphs: as auto, without CUDA graphs. false: no compiler runs. A resumed run may change it."""
    parallel: Literal["replicate", "shard"] = "replicate"
    """What several ranks hold: replicate, all weights each; shard, a part each, gathered layer by layer (FSDP2), for
    states of the optimizer too large for one device, which must hold the weights. A resumed run may change it."""
    gradient_sums: Literal["fp32", "bf16"] = "fp32"
    """The dtype in which gradients are summed over ranks; bf16 halves the bytes and rounds."""
    micro_batch_tokens: int | Literal["auto"] = 8192
    """Maximum number of tokens in a micro-batch; a step has as many micro-batches as it needs. On a CPU they are
    smaller where one of that size would take many seconds. auto tries how many fit the memory of the device, and keeps
    what it found for the run."""
    loader_workers: int = 0
    """Processes that build batches ahead; 0 builds them in a thread of the main process. The batches are the same."""
    hours: float = 0.0
    """How long training takes from its first step, with evaluations and saves: learning rates follow the time, which
    phases share in proportion to the tokens that their steps would have. 0 takes the steps that the phases say."""
    log_every: int = 10
    """Steps between lines of metrics."""
    evaluate_every: int = 500
    """Steps between evaluations on held-out documents; the end of a phase is always evaluated."""
    evaluate_instances: int = 512
    """Held-out instances per evaluation."""
    save_every: int = 500
    """Steps between checkpoints; the end of a phase is always saved."""
    keep: int = 2
    """How many of the newest step checkpoints are kept."""
    keep_every: int = 0
    """Steps of the run between checkpoints that are written and kept whatever `keep` says; 0 keeps no such
    checkpoints."""

    @property
    def phases(self) -> dict[int, Phase]:
        """The phases that have steps, by their numbers."""
        return {number: phase for number, phase in ((1, self.phase1), (2, self.phase2)) if phase.steps}

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return max(phase.sequence_length for phase in self.phases.values())

    def phase(self, number: int) -> Phase:
        """A phase by its number, 1 or 2, with steps or without."""
        return self.phase1 if number == 1 else self.phase2
