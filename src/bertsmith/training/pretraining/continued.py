"""A run that continues from a trained model: what its loss is and should be, and what it forgets of older text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.base.tables import aligned
from bertsmith.batches.packing import PretrainBatch
from bertsmith.corpus.shards import Corpus
from bertsmith.model.losses import Forward
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tokens.extension import new_rows
from bertsmith.training.checkpoints import Position
from bertsmith.training.objective import nothing
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.weights.huggingface import PRETRAINING_FILE

BEFORE, OLD = "before", "old_"
"""The kind of the records that `tell_forgetting` compares with; how the names of figures of old text begin."""
# A loss this near to that of frequencies shows nothing but them, in nats.
_NO_BETTER = 0.1
_LENGTH = "sequence_length"
_HEAD = ("masked words", "tokens", "loss before", "after", "change", "right before", "after")
_COMPARED = {"masked_loss", "unigram_loss", "masked_bits_per_byte"}
_OF_A_RECORD = ("kind", "step", "phase", "phase_step", _LENGTH)

Figures = Mapping[str, float]
Records = Sequence[Mapping[str, Any]]


def facts_of(records: Records, position: Position) -> dict[str, Any]:
    """What the finished model's folder says of its training: steps, tokens, and held-out figures by sequence length.

    records: of `metrics.jsonl`. Figures that a full disk kept out of the metrics are missing here as well.
    """
    held_out = {
        str(record[_LENGTH]): {
            name: value for name, value in record.items() if name not in _OF_A_RECORD and not name.startswith(OLD)
        }
        for record in _of_kind(records, "final")
    }
    return {"steps": position.step, "tokens": position.tokens, "held_out": held_out}


def _of_kind(records: Records, kind: str) -> list[Mapping[str, Any]]:
    return [each for each in records if each["kind"] == kind]


def own_figures(folder: Path) -> dict[int, Figures]:
    """What a model folder says of its model on held-out text of its own training, by sequence length; {} where it says
    nothing. Raises BertsmithError where the file is damaged."""
    path = folder / PRETRAINING_FILE
    if not path.is_file():
        return {}
    facts = files.read_json(path)
    try:
        every = {int(length): figures.items() for length, figures in facts["held_out"].items()}
        # Null stands for a figure that was not finite.
        return {length: {name: float(each) for name, each in own if each is not None} for length, own in every.items()}
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise BertsmithError("this file does not say what a model was trained on", path, "remove it") from error


def tell_trained(found: Figures, own: Mapping[int, Figures], length: int, pieces: int) -> None:
    """Says the loss of a trained model before its first update, and what it should be.

    found: of `Pretraining.record`. own: of `own_figures`. length: tokens of a sequence. pieces: of the vocabulary.
    """
    measured = [each for each in own if own[each].keys() >= _COMPARED]
    nearest = min(measured, key=lambda each: abs(each - length)) if measured else 0
    is_low, by_frequency = _is_low(found), f"the {found['unigram_loss']:.3f} of frequencies alone, as it should be"
    said = f"loss before training: {_loss(found)} on masked words, {'' if is_low else 'not '}well below {by_frequency}"
    if "next_sentence_loss" in found:
        said += f"; next sentence {found['next_sentence_loss']:.3f} (guessing: {np.log(2):.3f})"
    if is_low:
        say(said)
    elif measured and _is_low(own[nearest]):
        warn(f"{said}; this text is far from that of its own training", of_all_ranks=True)
    else:
        if found["masked_loss"] > np.log(pieces) - _NO_BETTER:
            said += "; guessing among all pieces would be as good"
        may = "has it a trained masked-word head? did it learn from enough text, in this language and casing?"
        warn(f"{said}; {may}", of_all_ranks=True)
    if measured:
        more = found["masked_bits_per_byte"] - own[nearest]["masked_bits_per_byte"]
        own_said = f"on held-out text of its own training, at {nearest} tokens, the model had {_loss(own[nearest])}"
        say(f"{own_said}; on this text that is {more:+.3f} bits per byte")
    else:
        say("the model's folder does not say which loss it had on text of its own training")


def _is_low(figures: Figures) -> bool:
    return figures["masked_loss"] < figures["unigram_loss"] - _NO_BETTER


def _loss(figures: Figures) -> str:
    return f"{figures['masked_loss']:.3f} ({figures['masked_bits_per_byte']:.3f} bits per byte)"


def check_old(corpus: Corpus, old: Corpus, predicts: bool) -> None:
    """Raises BertsmithError for a corpus that a run on `corpus` cannot be measured on as well: both must have held-out
    documents, in the same vocabulary or one that this one extends, whose ids then mean the same pieces. predicts:
    whether the run trains heads that predict words."""
    if not predicts:
        what = "this run trains no head that predicts words, so nothing can be compared"
        raise BertsmithError(what, "also_evaluate", "omit it, or give distillation.labels a weight")
    for each in (corpus, old):
        if not each.tokens("held_out"):
            what = "this corpus has no held-out documents, so there is nothing to compare"
            raise BertsmithError(what, each.folder, "prepare it with a larger --held-out share")
    same = old.tokenizer_sha256 == corpus.tokenizer_sha256
    if not same and new_rows(old.tokenizer(), corpus.tokenizer()) is None:
        raise BertsmithError(
            "these corpora have different vocabularies, and that of the one trained on does not extend the other's",
            f"{corpus.folder} and {old.folder}",
            f"prepare {old.folder} again with --tokenizer {corpus.folder / 'tokenizer'}",
        )


@dataclass(frozen=True)
class TwoTexts:
    """Held-out batches of the corpus that is trained on, and of an older one."""

    new: Sequence[PretrainBatch]
    old: Sequence[PretrainBatch]

    def __bool__(self) -> bool:
        return bool(self.new)


@dataclass(frozen=True)
class SideBySide:
    """An `Objective` that is measured on `TwoTexts`. old: the same as `new`, with the older corpus's frequencies."""

    new: Pretraining
    old: Pretraining

    @classmethod
    def of(cls, new: Pretraining, old: Corpus) -> SideBySide:
        """Pieces by which a vocabulary was extended do not occur in old text."""
        unigrams = old.unigrams()
        rest = np.zeros(len(new.unigrams) - len(unigrams), np.int64)
        return cls(new, replace(new, unigrams=np.concatenate([unigrams, rest])))

    @property
    def model(self) -> PretrainingModel:
        return self.new.model

    @property
    def names(self) -> tuple[str, ...]:
        return self.new.names

    def forward(self, batch: PretrainBatch, device: torch.device) -> Forward:
        """That of the new text."""
        return self.new.forward(batch, device)

    def evaluate(self, held_out: TwoTexts, between: Callable[[], None] = nothing) -> dict[str, float]:
        """The figures of the new text, and those of the old text under names that begin with `OLD`."""
        old = self.old.evaluate(held_out.old, between)
        return {**self.new.evaluate(held_out.new, between), **{f"{OLD}{name}": each for name, each in old.items()}}

    def training_line(self, record: Mapping[str, float]) -> str:
        """That of the new text."""
        return self.new.training_line(record)

    def evaluation_line(self, when: str, figures: Mapping[str, float]) -> str:
        """Both texts in one line."""
        right, loss = figures[f"{OLD}masked_accuracy"], figures[f"{OLD}masked_loss"]
        return f"{self.new.evaluation_line(when, figures)}; old text: masked words {right:.1%} right, loss {loss:.3f}"


def tell_forgetting(records: Records) -> None:
    """Says, as a table, what a finished run with these records did to the model on new and on old held-out text."""
    before = {record[_LENGTH]: record for record in _of_kind(records, BEFORE)}
    rows = [
        _row(text, prefix, before[after[_LENGTH]], after)
        for after in _of_kind(records, "final")
        if after[_LENGTH] in before
        for text, prefix in (("new text", ""), ("old text", OLD))
    ]
    if rows:
        say("\n".join(aligned([_HEAD, *rows])))
    else:
        say("the old text was not measured before training, so what was forgotten cannot be computed")


def _row(text: str, prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    losses = [each[f"{prefix}masked_loss"] for each in (before, after)]
    shares = [f"{each[f'{prefix}masked_accuracy']:.1%}" for each in (before, after)]
    shown = [f"{losses[0]:.3f}", f"{losses[1]:.3f}", f"{losses[1] - losses[0]:+.3f}"]
    return (text, str(after[_LENGTH]), *shown, *shares)
