"""What a training step has to compute, whoever computes it, and the peak that a GPU's maker gives for it."""

from __future__ import annotations

from bertsmith.model.config import BertConfig

FORMULA = (
    "6 for every weight of the layers that a token passes (2 forward, 4 backward), 12 x hidden x layers x length^2 for "
    "attention within each sequence, 6 for every weight of the word head that a masked token passes and of the pooler "
    "and the pair head that a sequence passes; no padding, nothing twice, no embedding, no pointwise work"
)

_TFLOPS = {
    "H100 80GB HBM3": {"bf16": 989.5, "fp16": 989.5, "tf32": 494.5, "fp32": 67.0},
    "H100 PCIe": {"bf16": 756.5, "fp16": 756.5, "tf32": 378.0, "fp32": 51.0},
    "H200": {"bf16": 989.5, "fp16": 989.5, "tf32": 494.5, "fp32": 67.0},
    "A100": {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5},
    "V100-SXM2": {"fp16": 125.0, "fp32": 15.7},
    "V100-PCIE": {"fp16": 112.0, "fp32": 14.0},
    "Tesla T4": {"fp16": 65.0, "fp32": 8.1},
}
"""Dense matrix products by NVIDIA's data sheets; the keys are parts of `torch.cuda.get_device_name`."""


def step_flop(
    config: BertConfig,
    tokens: float,
    squared_lengths: float,
    masked: float = 0,
    sequences: float = 0,
    classes: int = 2,
    pooled: bool = False,
) -> float:
    """Floating-point operations of the matrix products of a step, forward and backward, by `FORMULA`.

    tokens: real ones, without padding. squared_lengths: the sum of the squared lengths of all sequences. masked: tokens
    that the word head reads. sequences: those that pooler and classifier read, with `classes` scores each (2 for
    sentence pairs). pooled: these are all that read the last layer, whose weights behind attention only [CLS] passes.
    Linear in all four counts, so counts of several steps give the sum of the steps.
    Left out: embeddings, everything pointwise, softmax, dropout, the optimizer.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    behind_attention = hidden**2 + 2 * hidden * config.intermediate_size
    weights = layers * (3 * hidden**2 + behind_attention)
    word_head = hidden**2 + hidden * config.vocab_size
    classifier = hidden**2 + hidden * classes
    if pooled:
        weights, classifier = weights - behind_attention, classifier + behind_attention
    attention = 12 * hidden * layers * squared_lengths
    return float(6 * (weights * tokens + word_head * masked + classifier * sequences) + attention)


def peak_flops(gpu: str, precision: str) -> float | None:
    """The peak of a GPU in FLOP/s, None if it is not known.

    gpu: its name as `torch.cuda.get_device_name` has it. precision: fp32, tf32, bf16 or fp16.
    """
    for name, tflops in _TFLOPS.items():
        if name in gpu:
            return 1e12 * tflops[precision] if precision in tflops else None
    return None
