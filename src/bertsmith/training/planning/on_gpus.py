"""What a run costs on GPUs, by runs on one of them: ours, or those that NVIDIA published."""

from __future__ import annotations

from collections.abc import Sequence

from bertsmith.model.config import BertConfig
from bertsmith.training.planning.calibration import Share, share_of
from bertsmith.training.planning.cost import links_of, micro_batch_seconds, update_seconds
from bertsmith.training.planning.gpus import gpu_named
from bertsmith.training.planning.memory import GPU_BASE
from bertsmith.training.planning.plan import Costs
from bertsmith.training.planning.published import BERT_LARGE
from bertsmith.training.planning.where import Where
from bertsmith.training.planning.work import Batch, Work


def gpu_costs(
    where: Where, precision: str, config: BertConfig, optimizer: str, lengths: Sequence[int], finetuning: bool = False
) -> Costs:
    """Those of a GPU. optimizer: lamb or adamw. lengths: of the sequences of the run's stretches. Raises BertsmithError
    for a precision that the GPU does not have."""
    gpu = gpu_named(where.gpu)
    gpu.peak(precision)
    shares = {length: share_of(where.gpu, precision, length, finetuning) for length in lengths}

    def micro_batch(work: Work, batch: Batch) -> float:
        return micro_batch_seconds(gpu, precision, shares[work.length].value, config, batch, work.pooled)

    update = update_seconds(gpu, config, optimizer)
    links = links_of(gpu, where.gpus)
    return Costs(gpu.name, _notes(shares, config), links, gpu.memory, GPU_BASE, micro_batch, update)


def _notes(shares: dict[int, Share], config: BertConfig) -> list[str]:
    """Where the rates are from, those of lengths that share one together."""
    lengths: dict[str, list[str]] = {}
    for length, share in shares.items():
        lengths.setdefault(share.source, []).append(str(length))
    told = [f"rate at {' and '.join(those)}: {source}" for source, those in lengths.items()]
    if config.hidden_size < BERT_LARGE.hidden_size:
        width = f"this model's width is {config.hidden_size}, that of these runs {BERT_LARGE.hidden_size}"
        told.append(f"{width}: narrower products reach a smaller share of the peak, so it may take longer")
    return told
