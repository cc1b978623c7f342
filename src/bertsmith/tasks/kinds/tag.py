"""Entities in text, by a tag for every word: the model, its labels and its answers.

Whatever scheme the rows are tagged in, the model has classes for O and for B- and I- of every type, so that
transformers groups its tags into the same entities. Legend: T token slots, C classes, W words of all records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.base.log import say, warn
from bertsmith.model.config import BertConfig, label_maps
from bertsmith.model.distillation.losses import soft_sum
from bertsmith.model.encoder import Encoder
from bertsmith.model.linear import Linear
from bertsmith.model.losses import LossSum, cross_entropy_sum
from bertsmith.tasks.kinds.pooled import names_of_config
from bertsmith.tasks.reading.labels import warn_of_alike
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.report.tags import Tagged, write_tag_report
from bertsmith.tasks.scoring.calibration import probabilities
from bertsmith.tasks.scoring.entities import Span, agreement_by_type, entity_metrics, table
from bertsmith.tasks.sequences import Inputs, Ragged, Sequences
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.tagging.align import NO_PIECE, Words, align_text, align_words, in_characters
from bertsmith.tasks.tagging.rows import ENTITIES, TaggedRecord, tagged_record, word_offsets
from bertsmith.tasks.tagging.schemes import BIO, OUTSIDE, Scheme, are_in, scheme_of, spans_of, split_tag, tags_of
from bertsmith.tasks.tagging.truth import misfitting, true_spans, true_tags, without_pieces
from bertsmith.tasks.tagging.windows import WordSequences, place
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task
from bertsmith.tokens.tokenizer import Tokenizer


class Tagger(nn.Module):
    """An encoder, dropout on its output, and a linear map of every token to C classes (Devlin et al., section 5.3).

    The dropout is the config's `hidden_dropout_prob`, as in transformers.
    """

    def __init__(self, config: BertConfig, classes: int, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, compute)
        del self.encoder.pooler  # of [CLS], which no tag depends on
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, classes)

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores of the classes before the softmax: fp32[T, C]."""
        hidden = self.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        # In bf16, of which a score of 8 has steps of 1/16, many tags would be level.
        logits: Tensor = self.classifier(self.dropout(hidden[: inputs.asked.tokens].float()))
        return logits


@dataclass(frozen=True)
class Tag(Task):
    """names: of the C classes, which are tags, in the order of the model's outputs. overlap: pieces that the windows of
    a long text share. scheme: that of the training rows' tags; None where they are marked spans, or in none. counts:
    entities of each type in the training rows, the most frequent first."""

    kind = "tag"
    architectures = ("BertForTokenClassification",)
    head = "classifier"
    metrics = ("entity_f1", "precision", "recall", "macro_f1", "tag_accuracy")
    per_token = True
    always_in_windows = True
    baseline_name = "no entities"

    names: tuple[str, ...]
    overlap: int = FinetuneSettings.window_overlap
    scheme: Scheme | None = None
    counts: Mapping[str, int] | None = None

    @classmethod
    def wanted(cls, columns: Columns, labelled: bool) -> dict[str, str]:
        """None by itself: rows have words and tags, or a text and spans."""
        return {}

    @classmethod
    def used(cls, columns: Columns) -> tuple[str, ...]:
        return columns.text, columns.tokens, columns.tags, columns.spans, ENTITIES, columns.id, columns.group

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> TaggedRecord:
        return tagged_record(row, columns, labelled, where)

    @classmethod
    def check_labels(cls, records: Sequence[Record], settings: FinetuneSettings) -> None:
        if not any(record.label for record in records):
            what = "no training row has an entity, so there is nothing to learn"
            raise BertsmithError(what, records[0].where, "check --columns.tags or --columns.spans")

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        cls.check_labels(records, settings)
        counts = Counter(span.label for record in records for span in record.label)
        warn_of_alike(counts)
        names = (OUTSIDE, *(f"{letter}-{label}" for label in sorted(counts) for letter in (BIO.first, BIO.middle)))
        tagged = [record.tags for record in map(_tagged, records) if record.tags is not None]
        if len(tagged) > 1 and all(len(tags) == 1 for tags in tagged):  # of a table with a word a row
            what = "each training row has one word, and a tag is learned from the words around its own"
            warn(f"{what}: give a row for each sentence, with its words and their tags", of_all_ranks=True)
        without = sum(record.tags is None and not record.label for record in map(_tagged, records))
        if without:  # an empty cell may mean that nobody has looked at the text yet
            say(f"no entity is marked in {without:,} of {len(records):,} training rows: their words count as outside")
        scheme = scheme_of(tagged)
        known = scheme if tagged and are_in(scheme, tagged) else None
        return cls(names, settings.window_overlap, known, dict(counts.most_common()))

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        names = tuple(names_of_config(facts.config))
        try:
            for name in names:
                split_tag(name)
        except ValueError as error:
            what = f"this model does not tag entities: {error}"
            raise BertsmithError(what, "config.json", "use one that does") from error
        overlap = facts.task.get("window_overlap")
        return cls(names, cls.overlap if overlap is None else overlap)

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Tagger:
        return Tagger(config, len(self.names), compute)

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, max_length: int) -> WordSequences:
        """Whole, in windows where they are long."""
        tagged = list(map(_tagged, records))
        words = _aligned(tagged, tokenizer)
        for line in without_pieces(tagged, words):
            say(line)
        return place(words, max_length - 2, self.overlap, tokenizer.special)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> Ragged:
        """The class of each word at its first piece, IGNORED_LABEL elsewhere."""
        assert isinstance(sequences, WordSequences)
        for line in misfitting(list(map(_tagged, records)), sequences.words, self.scheme, self.types):
            warn(line, of_all_ranks=True)
        classes = {name: number for number, name in enumerate(self.names)}
        ends = np.cumsum(sequences.lengths)[sequences.row_offsets[1:] - 1]
        values = np.full(int(ends[-1]), IGNORED_LABEL, dtype=np.int64)
        for record, words, slots in zip(records, sequences.words, sequences.slots, strict=True):
            tags = [classes.get(tag, IGNORED_LABEL) for tag in true_tags(_tagged(record), words)]
            there = slots != NO_PIECE
            values[slots[there]] = np.array(tags, dtype=np.int64)[there]
        return Ragged(values, np.concatenate(([0], ends)))

    def labels(self, targets: NDArray[Any]) -> int:
        return int(np.count_nonzero(targets != IGNORED_LABEL))

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        return cross_entropy_sum(scores, targets)

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        """Over the words' first pieces, as the loss."""
        first = targets != IGNORED_LABEL
        return soft_sum(scores[first], teacher[first], temperature)

    @property
    def types(self) -> set[str]:
        """Of the entities that the model tells."""
        return {split_tag(name)[1] for name in self.names if name != OUTSIDE}

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        """As `_metrics`, of the tags that are answered."""
        return _metrics(self._tags(scores, examples), examples)

    def baseline(self, metric: str, examples: Examples) -> float:
        """Of the answer that nothing is an entity."""
        return _metrics([[OUTSIDE] * len(each.first) for each in _sequences(examples).words], examples)[metric]

    def description(self) -> list[str]:
        counts = ", ".join(f"{name} {count:,}" for name, count in (self.counts or {}).items())
        lines = [f"train entities by type: {counts}"]
        if self.scheme is not None:
            why = "of all schemes the one that the fewest tags of the training rows do not fit"
            lines.append(f"scheme of the tags: {self.scheme.name} ({why}); the model's tags are in {BIO.name}")
        return lines

    def config(self) -> dict[str, Any]:
        return label_maps(self.names)

    def facts(self) -> dict[str, Any]:
        scheme = None if self.scheme is None else self.scheme.name
        return {"pairs": False, "window_overlap": self.overlap, "scheme": scheme}

    def shown(self, record: Record) -> str:
        return ", ".join(f"{record.text[s:e]} ({label})" for s, e, label in record.label) or "no entity"

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"entities": [{"label", "start", "end", "text", "score"}]} for each row, in characters of its text, or of its
        words with a space between each two; the score is the mean probability of the words' tags. Rows of words also
        have "tags", in BIO."""
        assert isinstance(sequences, WordSequences)
        answers: list[Answer] = []
        tagged = self._sure_tags(scores, sequences)
        for record, words, (tags, sure) in zip(records, sequences.words, tagged, strict=True):
            spans = spans_of(tags)
            entities = [
                {
                    "label": at.label,
                    "start": at.start,
                    "end": at.end,
                    "text": record.text[at.start : at.end],
                    "score": float(sure[span.start : span.end].mean()),
                }
                for span, at in zip(spans, in_characters(spans, words.offsets), strict=True)
            ]
            answers.append({"entities": entities} | ({} if _tagged(record).words is None else {"tags": tags}))
        return answers

    def _sure_tags(self, scores: Floats, sequences: WordSequences) -> list[tuple[list[str], NDArray[np.float64]]]:
        """The tags of each record's words, in BIO, and their probabilities. A word without a piece is outside."""
        slots = np.concatenate(sequences.slots)
        best = np.array(self.names, dtype=object)[scores[slots].argmax(1)]
        tags = np.where(slots == NO_PIECE, OUTSIDE, best)
        ends = np.cumsum([len(each) for each in sequences.slots])[:-1]
        sure = np.split(probabilities(scores[slots]).max(1), ends)
        found = (each.tolist() for each in np.split(tags, ends))
        return [(tags_of(spans_of(each), len(each)), those) for each, those in zip(found, sure, strict=True)]

    def _tags(self, scores: Floats, examples: Examples) -> list[list[str]]:
        return [tags for tags, _ in self._sure_tags(scores, _sequences(examples))]

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        """The report (`tasks/report`), and precision, recall and F1 of each type as a table in the log."""
        tags = self._tags(scores, examples)
        predicted, entities = _spans(tags, examples)
        rows = f"{examples.part} rows".strip()
        for line in (f"entities of the {rows} by type:", *table(agreement_by_type(predicted, entities))):
            say(line)
        sequences = _sequences(examples)
        slots = np.concatenate(sequences.slots)
        records, words = list(map(_tagged, examples.records)), sequences.words
        true = [true_tags(record, those) for record, those in zip(records, words, strict=True)]
        spans = list(zip(predicted, entities, strict=True))
        found = Tagged(self.names, records, words, scores[slots], slots != NO_PIECE, tags, true, spans)
        write_tag_report(folder, examples.part, found)


def _spans(tags: Sequence[Sequence[str]], examples: Examples) -> tuple[list[list[Span]], list[list[Span]]]:
    """The entities that these tags of each record's words stand for and the true ones, in characters."""
    words = _sequences(examples).words
    predicted = [in_characters(spans_of(each), those.offsets) for each, those in zip(tags, words, strict=True)]
    true = [true_spans(_tagged(record), those) for record, those in zip(examples.records, words, strict=True)]
    return predicted, true


def _metrics(tags: Sequence[Sequence[str]], examples: Examples) -> dict[str, float]:
    """Those of entities, and the share of words whose tag is right, as conlleval's accuracy."""
    pairs = zip(examples.records, _sequences(examples).words, strict=True)
    true = [tag for record, words in pairs for tag in true_tags(_tagged(record), words)]
    right = sum(ours == theirs for ours, theirs in zip(chain.from_iterable(tags), true, strict=True))
    return {**entity_metrics(agreement_by_type(*_spans(tags, examples))), "tag_accuracy": right / max(1, len(true))}


def _sequences(examples: Examples) -> WordSequences:
    assert isinstance(examples.sequences, WordSequences)
    return examples.sequences


def _tagged(record: Record) -> TaggedRecord:
    assert isinstance(record, TaggedRecord)
    return record


def _aligned(records: Sequence[TaggedRecord], tokenizer: Tokenizer) -> list[Words]:
    """The words of records, given or found in the text."""
    given = [(record.words, word_offsets(record.words)) for record in records if record.words is not None]
    aligned = iter(align_words(given, tokenizer))
    return [align_text(each.text, tokenizer) if each.words is None else next(aligned) for each in records]
