"""Extractive question answering: the model, and the spans of a context that answer a question (SQuAD 1.1 and 2.0).

Legend: T token slots, S sequences (windows on contexts).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import soft_sum
from bertsmith.model.encoder import Encoder
from bertsmith.model.linear import Linear
from bertsmith.model.losses import LossSum, cross_entropy_sum
from bertsmith.tasks.answering.best import Best, SpanRules, all_best
from bertsmith.tasks.answering.figures import (
    all_have_answers,
    figures,
    figures_of_each,
    prediction_files,
    scores_of_each,
    thresholds_of_others,
    tuned_threshold,
)
from bertsmith.tasks.answering.rows import IMPOSSIBLE, START, doubts, learnable, question_of
from bertsmith.tasks.answering.windows import Windows, gaps, targets_of, windows_of
from bertsmith.tasks.kinds.pooled import said_of
from bertsmith.tasks.reading.bad_rows import Report, pass_over
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.report.parts import CROSS_FITTED, about_records, groups_of
from bertsmith.tasks.report.report import Answered, report_answers
from bertsmith.tasks.scoring.calibration import log_probabilities
from bertsmith.tasks.scoring.resampling import folds_of
from bertsmith.tasks.scoring.squad import ANSWERED, UNANSWERABLE
from bertsmith.tasks.sequences import Inputs, Sequences, all_of
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task
from bertsmith.tokens.tokenizer import Tokenizer

# Below every score that a model gives, and above what overflows when it is subtracted from one.
_NEVER = -1e30
_WHOLE = ("doc_stride", "max_query_length", "n_best", "max_answer_length")


class SpanModel(nn.Module):
    """An encoder and a linear map of every token to the scores of an answer's start and end, without dropout (Google's
    run_squad.py)."""

    def __init__(self, config: BertConfig, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, compute)
        del self.encoder.pooler  # of [CLS], which no score depends on
        self.qa_outputs = Linear(config.hidden_size, 2)

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores before the softmax over the tokens of a sequence: fp32[T, 2], start and end."""
        hidden = self.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        # In bf16, of which a score of 8 has steps of 1/16, many tokens would have equal scores.
        logits: Tensor = self.qa_outputs(hidden[: inputs.asked.tokens].float())
        return logits


@dataclass(frozen=True)
class Qa(Task):
    """unanswerable: whether a question may have no answer. threshold: by how much the score of no answer must be above
    that of the best span; tuned on the dev rows if `tunes`. doc_stride, max_query_length: of `windows_of`. n_best,
    max_answer_length: of `SpanRules`. top: how many of the best a prediction lists. counts: training questions with and
    without an answer."""

    kind = "qa"
    architectures = ("BertForQuestionAnswering",)
    head = "qa_outputs"
    metrics = ("f1", "exact_match", "best_f1", "best_exact")
    usual_length = 384
    per_token = True
    always_in_windows = True
    unit_is_sequence = True
    pairs = True
    baseline_name = "no answer"

    unanswerable: bool = False
    threshold: float = 0.0
    tunes: bool = False
    doc_stride: int = FinetuneSettings.doc_stride
    max_query_length: int = FinetuneSettings.max_query_length
    n_best: int = FinetuneSettings.n_best
    max_answer_length: int = FinetuneSettings.max_answer_length
    top: int = FolderFacts.top
    counts: Mapping[str, int] | None = None

    @classmethod
    def wanted(cls, columns: Columns, labelled: bool) -> dict[str, str]:
        wanted = {"question": columns.question, "context": columns.context}
        return wanted | ({"answers": columns.answers} if labelled else {})

    @classmethod
    def used(cls, columns: Columns) -> tuple[str, ...]:
        return columns.question, columns.context, columns.answers, columns.id, columns.group, IMPOSSIBLE, START

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        return question_of(row, columns, labelled, where)

    @classmethod
    def unit(cls, record: Record) -> tuple[str | None, ...]:
        """The questions on a context stay together."""
        return (record.text_b,)

    @classmethod
    def stratum(cls, record: Record) -> str:
        return ANSWERED if record.label else UNANSWERABLE

    @classmethod
    def learnable(cls, records: Sequence[Record], report: Report = pass_over) -> Sequence[Record]:
        return learnable(records, report)

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        counts = Counter(ANSWERED if record.label else UNANSWERABLE for record in records)
        unanswerable = UNANSWERABLE in counts if settings.unanswerable is None else settings.unanswerable
        if not counts[ANSWERED]:
            what = "no training row has an answer that can be learned"
            raise BertsmithError(what, records[0].where if records else "train", "check --columns.answers")
        if counts[UNANSWERABLE] and not unanswerable:
            without = f"{counts[UNANSWERABLE]:,} training rows have no answer"
            what = f"{without}, and unanswerable is False, so that all must have one"
            raise BertsmithError(what, "unanswerable", "remove these rows, or set it to True")
        if settings.metric.startswith("best_") and not unanswerable:
            what = f"{settings.metric} is of questions that may have no answer"
            raise BertsmithError(what, "metric", "use f1 or exact_match, or set unanswerable to True")
        if settings.n_best == 1 and unanswerable:
            what = "n_best is 1 and a question may have no answer: where [CLS] scores highest, no span is looked at"
            raise BertsmithError(what, "n_best", "use 2 or more; 20 is usual")
        rules = {name: getattr(settings, name) for name in _WHOLE}
        tunes = unanswerable and settings.null_threshold is None
        return cls(unanswerable, settings.null_threshold or 0.0, tunes, **rules, counts=dict(counts))

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        values = facts.task
        rules = {name: values[name] for name in _WHOLE if name in values}
        threshold = values.get("null_threshold", 0.0)
        wrong = [name for name, value in rules.items() if type(value) is not int or value < 1]
        wrong += [] if type(threshold) in (int, float) and math.isfinite(threshold) else ["null_threshold"]
        if wrong:
            what = f"this file does not describe questions and answers: {wrong[0]} is {values[wrong[0]]!r}"
            raise BertsmithError(what, "task.json", "fine-tune again, or copy the file again from where it came from")
        return cls(said_of(values, "unanswerable"), float(threshold), **rules, top=facts.top)

    def build(self, config: BertConfig, compute: torch.dtype | None) -> SpanModel:
        return SpanModel(config, compute)

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, max_length: int) -> Windows:
        return windows_of(records, tokenizer, max_length, self.doc_stride, self.max_query_length)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> NDArray[np.int64]:
        """The tokens at which the answer begins and ends in each window, [CLS] where it does not hold it."""
        assert isinstance(sequences, Windows)
        for line in (*doubts(records, sequences, self.unanswerable), *gaps(sequences, self.doc_stride)):
            warn(line, of_all_ranks=True)
        return targets_of(sequences)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        """The mean of the cross entropies of start and end over the tokens of each sequence, summed."""
        found = cross_entropy_sum(_padded(scores, inputs), targets.T.reshape(-1))
        return LossSum(found.loss / 2, found.count // 2, found.right / 2)

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        found = soft_sum(_padded(scores, inputs), _padded(teacher, inputs), temperature)
        return LossSum(found.loss / 2, found.count // 2, found.right / 2)

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        """As `figures`, in percent."""
        return figures(self._best(scores, examples.sequences), examples.records, self.threshold)

    def _best(self, scores: Floats, sequences: Sequences) -> list[Best]:
        """The best answers to the question of each record."""
        assert isinstance(sequences, Windows)
        return all_best(sequences, scores, SpanRules(self.n_best, self.max_answer_length, self.unanswerable))

    def tuned(self, scores: Floats, examples: Examples) -> Self:
        """With the threshold of the best F1 on the dev rows, unless the user set one."""
        if not self.tunes:
            return self
        threshold, f1 = tuned_threshold(self._best(scores, examples.sequences), examples.records)
        what = f"no answer is given where its score is {threshold:.4f} above the best span's"
        say(f"{what}: f1 {f1:.2f} on the dev rows that this was tuned on")
        return replace(self, threshold=threshold)

    def cross_fitted(self, scores: Floats, examples: Examples) -> dict[str, float]:
        if not self.tunes:
            return {}
        best, records = self._best(scores, examples.sequences), examples.records
        each = scores_of_each(best, records, thresholds_of_others(best, records, _folds(records)))
        return figures_of_each(each, _answerable(records)).values(len(records))

    def baseline(self, metric: str, examples: Examples) -> float:
        """That of answering no question, in percent: the share of those that have no answer."""
        return 100.0 * sum(not record.label for record in examples.records) / len(examples.records)

    def description(self) -> list[str]:
        counts = self.counts or {}
        lines = ["train questions: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())]
        if self.unanswerable:
            tuned = "tuned on the dev rows after training, 0 until then" if self.tunes else "as set"
            lines.append(f"a question may have no answer; the threshold for that is {tuned}")
        return lines

    def facts(self) -> dict[str, Any]:
        rules = {name: getattr(self, name) for name in _WHOLE}
        return {"pairs": True, **rules, "unanswerable": self.unanswerable, "null_threshold": self.threshold}

    def shown(self, record: Record) -> str:
        return record.label[0].text if record.label else "no answer"

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"answer", "score", "start", "end", "nbest"} for each row: a text of the context and where it is there, ""
        and None where there is no answer; its probability among the best, and the first `top` of these."""
        answers: list[Answer] = []
        for best in self._best(scores, sequences):
            chosen = best.chosen(self.threshold)
            place = {"start": chosen.start, "end": chosen.end}
            listed = [dict(vars(each)) for each in best.guesses[: self.top]]
            answers.append({"answer": chosen.text, "score": chosen.probability, **place, "nbest": listed})
        return answers

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        """The files of run_squad.py: the answers, the best answers of each question and, where one may have none, by
        how much the score of none is above that of the best span; and the report (`tasks/report`)."""
        best, records = self._best(scores, examples.sequences), examples.records
        for name, value in prediction_files(best, records, self.threshold).items():
            files.write_json(folder / name, value)
        thresholds, note = np.full(len(best), self.threshold), ""
        if examples.part == "dev" and self.tunes:
            thresholds, note = thresholds_of_others(best, records, _folds(records)), CROSS_FITTED
        chosen = [each.chosen(threshold) for each, threshold in zip(best, thresholds, strict=True)]
        each = scores_of_each(best, records, thresholds)
        answerable = None if all_have_answers(best, records) else _answerable(records)
        of = Answered(
            given=[" | ".join(dict.fromkeys(gold.text for gold in record.label)) for record in records],
            found=[guess.text for guess in chosen],
            probabilities=np.array([guess.probability for guess in chosen]),
            exact=each[:, 0] > 0,
            losses=_losses(scores, examples),
            answerable=answerable,
        )
        report_answers(folder, about_records(examples.part, records), of, figures_of_each(each, answerable), note)


def _answerable(records: Sequence[Record]) -> NDArray[np.bool_]:
    return np.array([bool(record.label) for record in records])


def _folds(records: Sequence[Record]) -> NDArray[np.int64]:
    return folds_of(len(records), groups_of(records))


def _losses(scores: Floats, examples: Examples) -> NDArray[np.float64]:
    """The loss of each question, the mean over its windows: float64[N]."""
    sequences = examples.sequences
    windows = np.split(scores, np.cumsum(sequences.lengths)[:-1])
    pairs = zip(windows, all_of(examples.targets), strict=True)
    each = [-log_probabilities(window.T)[[0, 1], places].mean() for window, places in pairs]
    sums = np.add.reduceat(np.array(each), sequences.row_offsets[:-1])
    return np.asarray(sums / np.diff(sequences.row_offsets))


def _padded(scores: Tensor, inputs: Inputs) -> Tensor:
    """The scores of all tokens [T, 2] as rows of the longest sequence, first those of starts, then those of ends:
    [2 S, L]; behind the end of a sequence what no token has."""
    layout = inputs.asked
    slots = np.repeat(np.arange(layout.sequences) * layout.longest, layout.lengths) + layout.positions
    padded = scores.new_full((2, layout.sequences * layout.longest), _NEVER)
    padded[:, torch.from_numpy(slots).to(scores.device)] = scores.T
    return padded.reshape(-1, layout.longest)
