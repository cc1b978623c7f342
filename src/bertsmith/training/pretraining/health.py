"""Warnings by name of a pre-training run that learns nothing, or not what it should: from its records, and from what
its steps are given. `docs/records.md` has the thresholds, and what to do."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

from bertsmith.training.objective import Step

SPIKE, DIVERGING, PLATEAU = "loss spike", "diverging loss", "plateau"
VISIBLE, MEMORISED, REPEATED = "visible labels", "memorised text", "repeated text"

RECENT_LINES, HISTORY, LEAST_HISTORY = 8, 40, 10
"""Lines of metrics, of the present phase and without spikes, that a loss is compared with: for its level; for its noise
at most; and for both at least."""
SPIKE_DEVIATIONS, SPIKE_NATS = 7.0, 0.3
"""How far above the median of the last RECENT_LINES a loss is a spike: in standard deviations of its noise, by the
median absolute difference of neighbouring lines, and at least in nats."""
HIGH_NATS = 1.0
"""How far a loss is too high, whatever its noise, above the lowest such median of the phase, and above the loss of
guessing evenly."""
DIVERGING_LINES = 3
"""Lines in a row with losses that are too high after which the loss diverges."""
PLATEAU_LINES, PLATEAU_STEPS, FEWER_LINES = 30, 500, 18
"""The fewest lines of a phase whose last third may be a plateau; and after how many steps so much fewer are enough, of
which three and three are compared. Before, a model that knows frequencies alone may be about to learn more."""
PLATEAU_NATS, PLATEAU_TIMES = 0.1, 1.25
"""What counts as nothing learned on held-out text: a masked-word loss that is less than this below that of word
frequencies, and an accuracy of less than this times that of always guessing the most frequent piece."""
VISIBLE_SHARE, VISIBLE_ACCURACY = 0.5, 0.9
"""The share of words to predict that stand in the input, and of those predicted right in training, from which on labels
are visible. BERT's masking shows 10%."""
MEMORISED_NATS, MEMORISED_LINES = 1.0, 5
"""How far the masked-word loss in training, over so many lines, may be below that on held-out text; above that of word
frequencies nothing is known by heart."""
REPEATED_SHARE = 0.3
"""The share of tokens in sentences that the corpus has had before, from which on text is repeated."""

SHOWN = 16
"""Instances that the command in a message prints; a line of metrics may have hundreds of thousands."""


_OF_AN_EVALUATION = ("masked_loss", "masked_accuracy", "unigram_loss", "most_frequent_accuracy")
_OF_A_LINE = ("phase", "phase_step", "steps", "loss", "masked_loss", "masked_accuracy", "learning_rate")
_SEEN = {"warning": ("name",), "train": _OF_A_LINE, "evaluation": _OF_AN_EVALUATION}


def lacking(record: Mapping[str, Any]) -> list[str]:
    """What a record that `Health` would see lacks, as one that was changed by hand may: of a line of training, where
    overflow enters no mean, NaN and infinity too."""
    training = record["kind"] == "train"
    if training and "masked_loss" not in record:
        return []
    names = _SEEN.get(record["kind"], ())
    return [name for name in names if name not in record or (training and not math.isfinite(record[name]))]


@dataclass
class Health:
    """A `Watch`. guessing: the loss of guessing evenly, masked words and next sentences added, with what the spread of
    fresh scores adds to it."""

    guessing: float
    _said: set[str] = field(default_factory=set)
    _phase: int = 0
    _lines: list[Mapping[str, Any]] = field(default_factory=list)
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _lowest: float = math.inf
    _above: list[Mapping[str, Any]] = field(default_factory=list)
    _labels: int = 0
    _shown: int = 0

    def count(self, step: Step) -> None:
        """Counts the labels of this rank's part of a step, and those of them that stand in the input."""
        for batch in step.micro_batches:
            there = batch.masked_labels >= 0  # what fills a compiled batch up has no label
            shown = batch.input_ids[batch.masked_positions] == batch.masked_labels
            self._labels += int(there.sum())
            self._shown += int((shown & there).sum())

    def see(self, record: Mapping[str, Any]) -> dict[str, str]:
        """As of `Watch`."""
        found: dict[str, str] = {}
        if record["kind"] == "warning":
            self._said.add(record["name"])
        elif record["kind"] == "train" and "masked_loss" in record:  # without it all steps overflowed fp16
            self._enter(record)
            found = {**self._high(record), **self._once(VISIBLE, self._visible(record))}
        elif record["kind"] == "evaluation" and self._lines and not self._above:
            found = {
                **self._once(PLATEAU, self._plateau(record)),
                **self._once(MEMORISED, self._memorised(record) if VISIBLE not in self._said else ""),
            }
        return found

    def _enter(self, record: Mapping[str, Any]) -> None:
        """Adds a line; another phase has sequences of another length, so its losses are not compared."""
        if record["phase"] != self._phase:
            self._phase, self._above, self._lowest = record["phase"], [], math.inf
            self._lines.clear()
            self._usual.clear()
        self._lines.append(record)

    def _once(self, name: str, message: str) -> dict[str, str]:
        if not message or name in self._said:
            return {}
        self._said.add(name)
        return {name: message}

    def _high(self, record: Mapping[str, Any]) -> dict[str, str]:
        """A spike where a loss is too high, divergence where it stays so."""
        limit, usual = self._limit()
        if record["loss"] <= limit:
            self._above = []
            self._usual.append(record["loss"])
            return {}
        self._above.append(record)
        high = f"the mean loss of {where(record)} is {record['loss']:.3f}, above {limit:.3f} ({usual})"
        if len(self._above) == 1:
            return {SPIKE: f"{high}{shown_by(record)}"}
        if len(self._above) == DIVERGING_LINES:
            since = int(self._above[0]["step"] - self._above[0]["steps"]) + 1
            return {DIVERGING: f"{high}, as all since step {since:,}; most often the learning rate is too high"}
        return {}

    def _limit(self) -> tuple[float, str]:
        """The highest loss that is not too high, and what it is measured by."""
        limits = [(self.guessing + HIGH_NATS, f"guessing evenly gives {self.guessing:.3f}")]
        if len(self._usual) >= LEAST_HISTORY:
            level = median(list(self._usual)[-RECENT_LINES:])
            changes = [after - before for before, after in itertools.pairwise(self._usual)]
            middle = median(changes)
            # 1.4826: of a normal distribution; and a difference has the noise of two lines.
            noise = 1.4826 * median(abs(each - middle) for each in changes) / 2**0.5
            self._lowest = min(self._lowest, level)
            limits += [
                (level + max(SPIKE_DEVIATIONS * noise, SPIKE_NATS), f"it was {level:.3f} +- {noise:.3f} before"),
                (self._lowest + HIGH_NATS, f"it was {self._lowest:.3f} once"),
            ]
        return min(limits)

    def _visible(self, record: Mapping[str, Any]) -> str:
        shown, labels, self._shown, self._labels = self._shown, self._labels, 0, 0
        if shown > VISIBLE_SHARE * labels:
            return (
                f"{shown / labels:.0%} of the words to predict in {where(record)} stand in the input as they are (in "
                "BERT 10%), so the model learns to copy: see masking.mask_share and masking.random_share"
            )
        if record["masked_accuracy"] >= VISIBLE_ACCURACY:
            return (
                f"{record['masked_accuracy']:.1%} of the masked words of {where(record)} are predicted right, more "
                "than text allows: labels can be seen in the input, or the model has memorised its text"
            )
        return ""

    def _plateau(self, record: Mapping[str, Any]) -> str:
        lines = self._lines[-(len(self._lines) // 3) :]
        steps = sum(line["steps"] for line in self._lines)
        enough = FEWER_LINES if steps >= PLATEAU_STEPS else PLATEAU_LINES
        if len(self._lines) < enough or lines[-1]["learning_rate"] > lines[0]["learning_rate"]:
            return ""  # too early, or while it warms up
        losses = [line["masked_loss"] for line in lines]
        half = len(losses) // 2
        # Differences of neighbours hold the noise, and next to nothing of a trend.
        noise = stdev(after - before for before, after in itertools.pairwise(losses)) / 2**0.5
        error = noise * (1 / half + 1 / (len(losses) - half)) ** 0.5
        fell = fmean(losses[:half]) - fmean(losses[half:])
        by_frequency, frequent = record["unigram_loss"], record["most_frequent_accuracy"]
        knows = record["masked_loss"] < by_frequency - PLATEAU_NATS
        knows |= record["masked_accuracy"] > PLATEAU_TIMES * frequent
        if knows or fell > 2 * error:
            return ""
        first = int(lines[0]["step"] - lines[0]["steps"]) + 1
        return (
            f"from step {first:,} to {record['step']:,} the masked-word loss fell by {fell:.3f} +- {error:.3f}, and on "
            f"held-out text it is {record['masked_loss']:.3f}, where word frequencies alone give {by_frequency:.3f}: "
            "nothing is learned; another learning rate, more steps of warm-up or larger embeddings may help"
        )

    def _memorised(self, record: Mapping[str, Any]) -> str:
        lines = self._lines[-MEMORISED_LINES:]
        loss = fmean(line["masked_loss"] for line in lines)
        if loss >= min(record["masked_loss"] - MEMORISED_NATS, record["unigram_loss"]):
            return ""
        return (
            f"up to step {record['step']:,} the masked-word loss is {loss:.3f} in training and "
            f"{record['masked_loss']:.3f} on held-out text: the model has memorised its text (few texts, or the same "
            "again and again), or labels can be seen in training"
        )


def where(record: Mapping[str, Any]) -> str:
    """The steps of a record, and their instances."""
    steps = int(record["steps"])
    first = record["step"] - steps + 1
    named = f"step {first:,}" if steps == 1 else f"steps {first:,} to {record['step']:,}"
    found = instances(record)
    return f"{named} (instances {found[0]:,} to {found[-1]:,} of phase {record['phase']})" if found else named


def instances(record: Mapping[str, Any]) -> range:
    """Those of the steps of a record, by their numbers in its phase."""
    steps = int(record["steps"])
    each = int(record.get("sequences", 0)) // max(steps, 1)
    last = record["phase_step"] * each
    return range(last - steps * each, last)


def shown_by(record: Mapping[str, Any]) -> str:
    """The command that prints instances of a record, for the end of a message."""
    found = instances(record)
    if not found:
        return ""
    flags = f"--phase {record['phase']} --first-instance {found[0]} --samples {min(len(found), SHOWN)}"
    what = f"the first {SHOWN} of these instances" if len(found) > SHOWN else "these instances"
    return f"; `bertsmith inspect CORPUS --run RUN {flags}` prints {what}"
