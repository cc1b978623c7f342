"""What NVIDIA published of BERT-large with its "BERT for PyTorch" (container 21.11), and what `make gpu-check` measured
of ours: sequences a second.

DGX A100 (8 x A100 80 GB) and DGX-1 (8 x V100 32 GB). The global batch of pre-training is 65,536 sequences of 128 or
32,768 of 512 on whole hosts, so a GPU's share of an update shrinks as hosts are added; one GPU alone takes an eighth.
Fine-tuning is of SQuAD 1.1 at 384 with 32 sequences a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.model.config import BertConfig
from bertsmith.training.planning.work import Batch

BERT_LARGE = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
GPUS_OF_A_HOST = 8
SQUAD_LENGTH = 384
_GLOBAL_BATCH = {128: 65_536, 512: 32_768}
_SQUAD_BATCH = 32
# By whether products are in half precision, and length.
_MICRO_BATCH = {(True, 128): 256, (True, 512): 32, (False, 128): 128, (False, 512): 16}
# Rows of 128 and 384 are padded; those of 512 are binned by 64 and have some 254 tokens in the mean. How far their
# lengths are spread was not published: the mean square is to the mean as on our Wikipedia.
_SLOTS = {128: (128.0, 128.0**2), 384: (384.0, 384.0**2), 512: (254.0, 1.19 * 254.0**2)}
_MASKED = {128: 20.0, 384: 0.0, 512: 38.0}


@dataclass(frozen=True)
class Row:
    """A published figure. gpu: of `GPUS`. length: of sequences in slots. rate: sequences a second, of all GPUs."""

    gpu: str
    precision: str
    length: int
    hosts: int
    gpus: int
    rate: float

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus

    @property
    def share(self) -> float:
        """Sequences of an update and GPU."""
        if self.length == SQUAD_LENGTH:
            return _SQUAD_BATCH
        return _GLOBAL_BATCH[self.length] / max(self.ranks, GPUS_OF_A_HOST)

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch on an A100; those of the V100 were not published, and are taken to be as many."""
        if self.length == SQUAD_LENGTH:
            return _SQUAD_BATCH
        return _MICRO_BATCH[self.precision == "fp16", self.length]

    @property
    def sequence(self) -> Batch:
        """One in the mean, as far as it is computed with."""
        return Batch(*_SLOTS[self.length], _MASKED[self.length], 1)

    @property
    def optimizer(self) -> str:
        return "lamb"

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a number of the gradient as it is summed."""
        return 2 if self.precision == "fp16" else 4

    @property
    def is_excluded(self) -> bool:
        """tf32 at 512 on 16 and 32 hosts: its time above the ideal is ten times that of other rows, and as large as on
        8, so that no overhead of a GPU or a link describes both."""
        return (self.gpu, self.precision, self.length) == ("a100", "tf32", 512) and self.hosts >= 16


@dataclass(frozen=True)
class Own(Row):
    """A figure of `make gpu-check`: steps of one micro-batch with attention dropout, each with an update by AdamW.

    sequences: of a micro-batch. mean: one of them, of lengths as Wikipedia's."""

    sequences: int
    mean: Batch

    @property
    def share(self) -> float:
        return self.sequences

    @property
    def micro_batch(self) -> int:
        return self.sequences

    @property
    def sequence(self) -> Batch:
        return self.mean

    @property
    def optimizer(self) -> str:
        return "adamw"


OWN = (
    Own("h200", "bf16", 128, 1, 1, 1975.6, 256, Batch(116.05, 14_149, 17.25, 1)),
    Own("h200", "bf16", 512, 1, 1, 488.9, 64, Batch(397.06, 187_262, 59.66, 1)),
)
"""`benchmarks/results/nvidia-h200.json`."""
_HOSTS = (1, 2, 4, 8, 16, 32)
_ONE_HOST = {
    ("a100", "tf32", 128): (317, 2505),
    ("a100", "fp16", 128): (580, 4591),
    ("a100", "tf32", 512): (110, 860),
    ("a100", "fp16", 512): (210, 1657),
    ("v100", "fp32", 128): (50, 387),
    ("v100", "fp16", 128): (224, 1746),
    ("v100", "fp32", 512): (19, 149.6),
    ("v100", "fp16", 512): (75, 586),
    ("a100", "tf32", 384): (61.5, 469.8),
    ("a100", "fp16", 384): (110.5, 846.7),
    ("v100", "fp32", 384): (12, 85.5),
    ("v100", "fp16", 384): (52, 382),
}
_MANY_HOSTS = {
    ("a100", "tf32", 128): (2486, 4979, 9859, 19815, 38866, 75706),
    ("a100", "fp16", 128): (4553, 9191, 18119, 35774, 70555, 138294),
    ("a100", "tf32", 512): (854, 1684, 3293, 6515, 12131, 21298),
    ("a100", "fp16", 512): (1648, 3291, 6464, 13005, 25570, 49663),
}


def one_gpu() -> list[Row]:
    """The rows that calibrate."""
    return [Row(*key, 1, 1, rates[0]) for key, rates in _ONE_HOST.items()]


def several_gpus() -> list[Row]:
    """The rows to predict; 8 GPUs of an A100's host stand in two tables."""
    rows = []
    for key, (_, eight) in _ONE_HOST.items():
        rows.append(Row(*key, 1, GPUS_OF_A_HOST, eight))
        many = zip(_HOSTS, _MANY_HOSTS[key], strict=True) if key in _MANY_HOSTS else ()
        rows += [Row(*key, hosts, GPUS_OF_A_HOST, rate) for hosts, rate in many]
    return rows
