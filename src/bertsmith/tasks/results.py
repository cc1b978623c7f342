"""What fine-tuning found, as Python values, as JSON and as a line to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import with_nan
from bertsmith.tasks.reading.records import Truncated

# Of a score between measuring and tuning, of which a line tells.
_SHOWN_CHANGE = 5e-5
# The best score in SQuAD's figures; that of others is 1.
_PERCENT = 100.0

MEDIAN, LAST = "median", "last"

CROSS_FITTED_DEV = "dev_cross_fitted"
"""Under which `tuned` has the figures of dev rows by thresholds that were tuned on other dev rows."""

TEST = "test_"
"""What stands before the names of the figures on the test rows in a record of metrics."""


@dataclass(frozen=True)
class EpochResult:
    """A measurement: after how many passes over the rows, the mean training loss since the one before it, NaN where all
    steps overflowed fp16, and every metric on the dev rows and, if given, the test rows."""

    train_loss: float
    dev: dict[str, float]
    test: dict[str, float] | None = None
    epoch: float = 0.0


@dataclass(frozen=True)
class SeedResult:
    """A run from one seed. epochs: its measurements. best_epoch: passes over the rows after which `score`, its metric
    on the dev rows, was the best. ended_early: whether patience ended it before its last step."""

    seed: int
    epochs: list[EpochResult]
    best_epoch: float
    score: float
    ended_early: bool = False  # results of earlier versions do not say

    @property
    def best(self) -> EpochResult:
        """The measurement whose weights are taken."""
        return next(each for each in self.epochs if each.epoch == self.best_epoch)


@dataclass(frozen=True)
class FinetuneResult:
    """The runs of all seeds.

    folder: the run folder, None where none was wanted. keep_seed: whose model is kept: the best seed's, the one's in
    the middle ("median"), or the "last" one's after its last step. folds, shares: every figure after the last step of
    the trainings on folds, and on shares of the training rows, by number and by percentage. tuned: every figure of the
    kept weights on dev and test, with what was tuned on dev after training; and where thresholds were, those of dev
    rows by thresholds that were tuned on others (`CROSS_FITTED_DEV`). baseline: the metric of the best answer
    that does not look at the text, which is `baseline_name`. class_counts: training rows of each label. rows,
    truncated: of train, dev, test and, where rows were made, augmented. seconds: wall time of the call that ended the
    run.
    """

    folder: Path | None
    task: str
    metric: str
    keep_seed: str
    seeds: list[SeedResult]
    folds: dict[str, dict[str, float]]
    shares: dict[str, dict[str, float]]
    tuned: dict[str, dict[str, float]]
    baseline: float
    baseline_name: str
    class_counts: dict[str, int]
    rows: dict[str, int]
    truncated: dict[str, Truncated]
    seconds: float

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """What `to_dict` made of one."""
        missing = [name for name in cls.__dataclass_fields__ if name != "folder" and name not in values]
        if missing:
            fix = "put the file back as it was, or run the training again in another folder"
            raise BertsmithError(f"this file lacks {', '.join(missing)}", folder / "model" / "finetune.json", fix)
        kept = {name: values[name] for name in cls.__dataclass_fields__ if name != "folder"}
        seeds = []
        for each in kept["seeds"]:
            epochs = [EpochResult(**{**one, **with_nan({"train_loss": one["train_loss"]})}) for one in each["epochs"]]
            seeds.append(SeedResult(**{**each, "epochs": epochs}))
        truncated = {name: Truncated(**each) for name, each in kept["truncated"].items()}
        return cls(folder=folder, **{**kept, "seeds": seeds, "truncated": truncated})

    @property
    def model(self) -> Path | None:
        """The folder of the finished model."""
        return None if self.folder is None else self.folder / "model"

    @property
    def scores(self) -> list[float]:
        """The metric of every seed on the dev rows, at its best epoch."""
        return [each.score for each in self.seeds]

    @property
    def mean(self) -> float:
        """Of `scores`."""
        return float(np.mean(self.scores))

    @property
    def standard_deviation(self) -> float:
        """Of `scores`; 0 for a single seed, which says nothing of the spread."""
        return _deviation(self.scores)

    @property
    def last_scores(self) -> list[float]:
        """The metric of every seed on the dev rows after its last epoch, which was not selected."""
        return [each.epochs[-1].dev[self.metric] for each in self.seeds]

    @property
    def test_scores(self) -> list[float]:
        """The metric of every seed on the test rows, at the epoch that is best on dev; [] without test rows."""
        return [each.best.test[self.metric] for each in self.seeds if each.best.test is not None]

    @property
    def best(self) -> SeedResult:
        """The first of the best seeds."""
        return max(self.seeds, key=lambda each: each.score)

    @property
    def kept(self) -> SeedResult:
        """The seed whose model was kept."""
        return self.seeds[kept_seed(self.keep_seed, self.scores)]

    @property
    def kept_epoch(self) -> EpochResult:
        """The measurement of the weights that were kept."""
        return self.kept.epochs[-1] if self.keep_seed == LAST else self.kept.best

    @property
    def tuned_score(self) -> float:
        """The metric of the finished model on the dev rows, with what was tuned on them after training."""
        return self.tuned["dev"].get(self.metric, self.kept_epoch.dev[self.metric])

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, with mean and standard deviation, without the folder."""
        values = asdict(self)
        del values["folder"]
        return {
            **values,
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
            "best_seed": self.best.seed,
            "kept_seed": self.kept.seed,
            "last_epoch_scores": self.last_scores,
            "test_scores": self.test_scores,
            **{f"{part}_rows": count for part, count in self.rows.items()},
            "truncated_rows": self.truncated["train"].rows,
        }

    def line(self) -> str:
        """The outcome in one line. A score that selected the epoch is labelled so, next to the last epoch's."""
        measured = max(len(each.epochs) for each in self.seeds)
        unit = "epoch" if all(each.epoch % 1 == 0 for seed in self.seeds for each in seed.epochs) else "measurement"
        last = f"last {unit} {np.mean(self.last_scores):.4f}"
        selected = f"best of {measured} {unit}s on dev; {last}" if measured > 1 else "dev"
        score, kept = self.kept_epoch.dev[self.metric], self.kept
        middle = "the lower of the two" if len(self.seeds) % 2 == 0 else "the one"
        why = {MEDIAN: f", {middle} in the middle", LAST: ", the last one"}.get(self.keep_seed, "")
        found = [
            f"dev {self.metric} {_spread(self.scores)} ({selected}; {self.baseline_name} {self.baseline:.4f})",
            *([f"test {self.metric} {_spread(self.test_scores)}"] if self.test_scores else []),
            f"kept seed {kept.seed}{why if len(self.seeds) > 1 else ''}, "
            f"epoch {self.kept_epoch.epoch:.4g}: {score:.4f}",
        ]
        if abs(self.tuned_score - score) > _SHOWN_CHANGE:
            why = self._of_tuning() or ", whose kernels round otherwise than those of training"
            found.append(f"{self.tuned_score:.4f} by the finished model{why}")
        if self.baseline >= (_PERCENT if self.task == "qa" else 1.0):
            found.append("the text-blind baseline is right on every dev row, so the score says nothing of the model")
        elif self.tuned_score <= self.baseline:
            what = "no better than the text-blind baseline"
            found.append(f"{what}: try another learning rate, more epochs, or an encoder that was trained for longer")
        if self.folds:
            scores = [each[self.metric] for each in self.folds.values()]
            spread = f"{np.mean(scores):.4f} +- {_deviation(scores):.4f}"
            found.insert(1, f"{len(scores)} folds of the training rows {spread}{self._bracketed('folds')}")
        if self.shares:
            curve = [f"{share}% {figures[self.metric]:.4f}" for share, figures in self.shares.items()]
            whole = f"100% {np.mean(self.last_scores):.4f}{self._bracketed('shares')}"
            found.append(f"after the last step on {', '.join(curve)}, {whole}")
        return "; ".join(found)

    def early_ends(self, others: str) -> str:
        """That patience ended seeds, and none of the other trainings, in words; "" where it ended none. others: "folds"
        or "shares"."""
        ended = [each for each in self.seeds if each.ended_early]
        epochs = ", ".join(dict.fromkeys(f"{each.epochs[-1].epoch:.4g}" for each in ended))
        which = f"{len(ended)} of {len(self.seeds)} seeds" if len(self.seeds) > 1 else "the seed"
        return f"--patience ended {which} after epoch {epochs}, and none of the {others}" if ended else ""

    def _bracketed(self, others: str) -> str:
        return f" ({early})" if (early := self.early_ends(others)) else ""

    def _of_tuning(self) -> str:
        """What a score on the rows that thresholds were tuned on is worth, in words."""
        by_others = self.tuned.get(CROSS_FITTED_DEV, {}).get(self.metric)
        if by_others is None:
            return ""
        return f" on the dev rows that its thresholds were tuned on, {by_others:.4f} with cross-fitted thresholds"


def kept_seed(keep_seed: str, scores: Sequence[float]) -> int:
    """The place of the seed whose model is kept, of equals the first; the lower one of two in the middle."""
    if keep_seed == LAST:
        return len(scores) - 1
    rising = sorted(scores)
    return scores.index(rising[(len(scores) - 1) // 2 if keep_seed == MEDIAN else -1])


def results_of(
    path: Path,
    records: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    metric: str,
    epoch_steps: int,
    due: Sequence[int],
    patience: int,
) -> list[SeedResult]:
    """The figures of these seeds, from the records of `metrics.jsonl`, which is at `path`.

    epoch_steps: steps of an epoch. due: the steps of a seed after which it is measured. patience: as in the settings.
    Raises BertsmithError where records are missing.
    """
    found = []
    for seed in seeds:
        of_seed = [each for each in records if each.get("seed") == seed and "seed_step" in each]
        measured: dict[int, EpochResult] = {}
        for record in (each for each in of_seed if each["kind"] == "evaluation"):
            figures = _figures(record, metric)
            test = {name.removeprefix(TEST): value for name, value in figures.items() if name.startswith(TEST)}
            dev = {name: value for name, value in figures.items() if not name.startswith(TEST)}
            step = record["seed_step"]
            loss = _mean_loss(of_seed, max(measured, default=0), step)
            if loss is None or metric not in dev:
                raise _lost_records(path, "seed", seed)
            measured[step] = EpochResult(loss, dev, test or None, step / epoch_steps)
        scores = [each.dev[metric] for each in measured.values()]
        best = scores.index(max(scores)) if scores else 0
        ended = len(scores) == len(due) or 0 < patience == len(scores) - 1 - best
        if list(measured) != list(due[: len(scores)]) or not ended:
            raise _lost_records(path, "seed", seed)
        epochs = list(measured.values())
        found.append(SeedResult(seed, epochs, epochs[best].epoch, scores[best], len(scores) < len(due)))
    return found


def last_figures(
    path: Path, records: Sequence[Mapping[str, Any]], kind: str, labels: Sequence[int], metric: str
) -> dict[str, dict[str, float]]:
    """Every figure on the rows held out from these stages of a kind, after their last steps, by the stage's label.
    Raises BertsmithError where one's record, or its score by the metric, is missing. path: of the records."""
    found = {each[kind]: _figures(each, metric) for each in records if each["kind"] == "evaluation" and kind in each}
    for label in labels:
        if metric not in found.get(label, {}):
            raise _lost_records(path, kind, label)
    return {str(label): found[label] for label in labels}


def _figures(record: Mapping[str, Any], metric: str) -> dict[str, float]:
    """The figures of an evaluation, which are floats; in a file changed by hand the score may be 1, not 1.0."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, float) or name.removeprefix(TEST) == metric
    }


def _lost_records(path: Path, kind: str, label: int) -> BertsmithError:
    what = f"records of {kind} {label} are missing, so the figures of this run cannot be told"
    return BertsmithError(what, path, "put the file back as it was, or run the training again in another folder")


def _mean_loss(records: Sequence[Mapping[str, Any]], begin: int, end: int) -> float | None:
    """The mean loss of a label over the steps of a seed behind `begin` and up to `end`; None without records of them
    that say of how many, NaN where no label counted. records: of the seed."""
    inside = [each for each in records if each["kind"] == "train" and begin < each["seed_step"] <= end]
    if not inside or any("count" not in each and "steps" not in each for each in inside):
        return None
    known = [each for each in inside if "loss" in each]
    labels = sum(map(_weight, known))
    total = sum(each["loss"] * _weight(each) for each in known)
    return float(total / labels) if labels else math.nan


def _weight(record: Mapping[str, Any]) -> float:
    """Of the mean loss of some steps: its labels, or where it is a sum of several losses its steps."""
    return float(record["count"] if "count" in record else record["steps"])


def _deviation(scores: Sequence[float]) -> float:
    """With K - 1 below."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0


def _spread(scores: Sequence[float]) -> str:
    spread = f" +- {_deviation(scores):.4f} over {len(scores)} seeds" if len(scores) > 1 else ""
    return f"{np.mean(scores):.4f}{spread}"
