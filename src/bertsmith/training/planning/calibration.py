"""The share of the peak that matrix products reach, from runs on one GPU, and how well the rest is predicted.

One number for each GPU, precision and length comes from the row of one GPU, ours where there is one, else NVIDIA's.
NVIDIA's rows of 8 to 256 GPUs are predicted with it and with constants that are the same for all (`cost.py`,
`gpus.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from bertsmith.base.tables import aligned
from bertsmith.training.planning.cost import (
    Exchange,
    RankWork,
    StepSeconds,
    between_products,
    is_half,
    links_of,
    micro_batch_seconds,
    step_seconds,
    update_seconds,
)
from bertsmith.training.planning.gpus import GPUS
from bertsmith.training.planning.model_size import parameters
from bertsmith.training.planning.published import BERT_LARGE, OWN, SQUAD_LENGTH, Own, Row, one_gpu, several_gpus

# The GPU whose rows stand for those of one without any: of the same processor, if there is one.
_LIKE, _SAME_PROCESSOR = "a100", {"h100": "h200"}


@dataclass(frozen=True)
class Share:
    """The share of the peak that products reach, and where it is from."""

    value: float
    source: str


@dataclass(frozen=True)
class Predicted:
    """A row with what the model says of it: sequences a second, and where the time of a step goes."""

    row: Row
    rate: float
    seconds: StepSeconds

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was published."""
        return self.rate / self.row.rate - 1


@cache
def product_share(row: Row) -> float:
    """Of the peak, from the row of one GPU: what remains of its time when all else is taken off."""
    gpu, batch = GPUS[row.gpu], row.sequence
    second = (row.share / row.rate - update_seconds(gpu, BERT_LARGE, row.optimizer)) / row.share
    products = second - between_products(gpu, BERT_LARGE, batch, is_half(row.precision))
    return batch.flop(BERT_LARGE) / (products * gpu.peak(row.precision))


def share_of(name: str, precision: str, length: int, finetuning: bool = False) -> Share:
    """For a GPU by its name in `GPUS`. length: of sequences; pre-training at up to 256 is like at 128, else at 512."""
    wanted = SQUAD_LENGTH if finetuning else 128 if length <= 256 else 512
    rows = {(row.gpu, row.precision): row for row in one_gpu() if row.length == wanted}
    published = "fp16" if is_half(precision) else precision  # which stands for bf16
    own = {(row.gpu, row.precision): row for row in OWN if row.length == wanted}
    row = own.get((name, precision)) or rows.get((name, published))
    if row is not None:
        value = product_share(row)
        return Share(value, f"{_said(row)}: products at {value:.0%} of the peak")
    row = own.get((_SAME_PROCESSOR.get(name, ""), precision)) or rows.get((_LIKE, published)) or rows[(_LIKE, "tf32")]
    value = product_share(row)
    what = f"assumed, not measured on {_a(GPUS[name].name)} in {precision}: products at {value:.0%} of the peak"
    return Share(value, f"{what}, as in {_said(row)}")


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AH' else 'a'} {name}"


def _said(row: Row) -> str:
    what = "fine-tuning on SQuAD" if row.length == SQUAD_LENGTH else "pre-training"
    where = f"BERT-large, {what} at {row.length}, {row.precision}"
    whose = "our run" if isinstance(row, Own) else "NVIDIA's published run"
    return f"{whose} on one {GPUS[row.gpu].name} ({where}, {row.rate:g} sequences/s)"


def predict(row: Row) -> Predicted:
    """A row of several GPUs from that of one."""
    gpu, batch = GPUS[row.gpu], row.sequence.times(row.micro_batch)
    key = attrgetter("gpu", "precision", "length")
    (alone,) = (each for each in one_gpu() if key(each) == key(row))
    second = micro_batch_seconds(gpu, row.precision, product_share(alone), BERT_LARGE, batch)
    work = RankWork(row.share / row.micro_batch, second, update_seconds(gpu, BERT_LARGE, row.optimizer))
    exchange = Exchange(row.gradient_bytes * parameters(BERT_LARGE).total)
    seconds = step_seconds(work, exchange, links_of(gpu), row.hosts, row.ranks)
    return Predicted(row, row.share * row.ranks / seconds.total, seconds)


def predicted() -> list[Predicted]:
    """All rows of several GPUs."""
    return [predict(row) for row in several_gpus()]


def calibration_lines(found: Sequence[Predicted]) -> list[str]:
    """The one-GPU rows with the share that they give, and all others with the error of their prediction."""
    where = ["GPU", "precision", "length"]
    head = [*where, "hosts x GPUs", "published", "predicted", "error", "waiting", "sums", "update"]
    titles = [*where, "sequences/s", "products, of the peak", "all, of the peak"]
    counted = [abs(each.error) for each in found if not each.row.is_excluded]
    mean = sum(counted) / len(counted)
    return [
        "One GPU, as NVIDIA published it, and the share of the peak that products must have had:",
        *aligned([titles, *map(_share_cells, one_gpu())], "lllr"),
        "",
        "One GPU, as `make gpu-check` measured ours:",
        *aligned([titles, *map(_share_cells, OWN)], "lllr"),
        "",
        "Several GPUs, predicted from these. Of a step: ms of waiting, sums and update:",
        *aligned([head, *map(_cells, found)], "llllr"),
        "",
        f"errors: {mean:.1%} in the mean, {max(counted):.1%} at most, without the rows marked *. As published, a step",
        "of these takes 0.37 s more than its share of one GPU's work, on 8, 16 and 32 hosts alike: no others do.",
    ]


def _share_cells(row: Row) -> list[str]:
    where = [GPUS[row.gpu].name, row.precision, str(row.length), f"{row.rate:g}"]
    whole = row.sequence.flop(BERT_LARGE) * row.rate / GPUS[row.gpu].peak(row.precision)
    return [*where, f"{product_share(row):.1%}", f"{whole:.1%}"]


def _cells(each: Predicted) -> list[str]:
    row, seconds = each.row, each.seconds
    ms = (f"{1000 * part:.1f}" for part in (seconds.waiting, seconds.sums, seconds.update))
    mark = "*" if row.is_excluded else ""
    where = [GPUS[row.gpu].name, row.precision, str(row.length), f"{row.hosts} x {row.gpus}"]
    return [*where, f"{row.rate:,.10g}", f"{each.rate:,.0f}", f"{each.error:+.1%}{mark}", *ms]
