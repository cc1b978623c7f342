"""What a run costs on GPUs, by runs on one of them: ours, or those that NVIDIA published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bertsmith.model.config import BertConfig
from bertsmith.training.planning.calibration import share_of
from bertsmith.training.planning.cost import USUAL_HOST, Batch, Links, links_of, micro_batch_seconds, update_seconds
from bertsmith.training.planning.gpus import Gpu, gpu_named
from bertsmith.training.planning.memory import GPU_BASE
from bertsmith.training.planning.published import BERT_LARGE
from bertsmith.training.planning.work import Work


@dataclass(frozen=True)
class GpuCosts:
    """`Costs` of a GPU by its name in `GPUS`. optimizer: lamb or adamw. lengths: of the sequences of its stretches.
    of_host: how many GPUs a host has."""

    gpu: str
    precision: str
    config: BertConfig
    optimizer: str
    lengths: Sequence[int]
    finetuning: bool = False
    of_host: int = USUAL_HOST
    base: float = field(default=GPU_BASE)

    def __post_init__(self) -> None:
        self._gpu.peak(self.precision)

    @property
    def _gpu(self) -> Gpu:
        return gpu_named(self.gpu)

    @property
    def name(self) -> str:
        return self._gpu.name

    @property
    def notes(self) -> Sequence[str]:
        found = {length: share_of(self.gpu, self.precision, length, self.finetuning) for length in self.lengths}
        sources = {
            share.source: [str(length) for length, other in found.items() if other == share] for share in found.values()
        }
        told = [f"rate at {' and '.join(lengths)}: {source}" for source, lengths in sources.items()]
        if self.config.hidden_size < BERT_LARGE.hidden_size:
            width = f"this model's width is {self.config.hidden_size}, that of these runs {BERT_LARGE.hidden_size}"
            told.append(f"{width}: narrower products reach a smaller share of the peak, so it may take longer")
        return told

    @property
    def links(self) -> Links:
        return links_of(self._gpu, self.of_host)

    @property
    def capacity(self) -> float:
        return self._gpu.memory

    def micro_batch(self, work: Work, batch: Batch) -> float:
        """Seconds of a micro-batch, forward and backward."""
        share = share_of(self.gpu, self.precision, work.length, self.finetuning).value
        return micro_batch_seconds(self._gpu, self.precision, share, self.config, batch, work.pooled)

    def update(self) -> float:
        """Seconds of an update of all parameters."""
        return update_seconds(self._gpu, self.config, self.optimizer)
