"""Vectors of texts, so that like texts have like vectors: learned from pairs, with the other rows for unlike texts.

A row has a text, one that is like it, and perhaps one that is not; each is a sequence of its own, or with windows
several. Rows to measure on may have a score for each pair instead. Legend: N records, G texts of all, S sequences, K
texts of a row, H width of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice, say
from bertsmith.model.config import BertConfig
from bertsmith.model.losses import LossSum
from bertsmith.tasks.embedding.folders import PROMPTS_FILE, SentenceRules, folder_files, read_rules
from bertsmith.tasks.embedding.pooling import POOLINGS, Pooling, VectorModel, batch_text_vectors, text_vectors
from bertsmith.tasks.embedding.ranking import NO_TEXT, ranking_losses, ranks_of_like, rows_with_shared_texts
from bertsmith.tasks.embedding.rows import PairRecord, are_scored, check_alike, pair_of, text_numbers
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.report.parts import about_records, write_doubts, write_intervals
from bertsmith.tasks.scoring.numbers import number_figures
from bertsmith.tasks.scoring.resampling import Figures, mean_figures
from bertsmith.tasks.sequences import Inputs, Ints, Sequences, all_of, encode_several
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task
from bertsmith.tokens.tokenizer import Tokenizer

SCORED, RANKED = ("spearman", "pearson"), ("mrr", "accuracy")
_BY_RANK = "how late text_b comes among the texts of all rows; 'rank' is its place, from 1"
_BY_ORDER = "the largest differences; 'suggested' is the score at the place of the cosine, both in ascending order"


@dataclass(frozen=True)
class Embed(Task):
    """pooling: of `VectorModel`. scored: whether the rows to measure on have scores. rows: to learn from. triplets: of
    these with an unlike text. shared: of these with a text that another one has, too. last_alone: whether the last step
    of an epoch has one row."""

    kind = "embed"
    architectures = ("BertModel",)
    head = ""
    metrics = (*SCORED, *RANKED)
    baseline_name = "vectors at random"

    pooling: Pooling = "mean"
    scored: bool = False
    rows: int = 0
    triplets: int = 0
    shared: int = 0
    last_alone: bool = False
    overlap: int | None = None

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("task") == cls.kind

    @classmethod
    def wanted(cls, columns: Columns, labelled: bool) -> dict[str, str]:
        if not labelled:
            return {"text": columns.text}
        negative = {"negative": columns.negative} if columns.negative != Columns.negative else {}
        return {"text": columns.text, "text_b": columns.text_b, **negative}

    @classmethod
    def used(cls, columns: Columns) -> tuple[str, ...]:
        return *super().used(columns), columns.negative

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> PairRecord:
        if labelled:
            return pair_of(row, columns, where)
        plain = super().record(row, columns, False, where)
        return PairRecord(plain.text, plain.text_b, None, where, plain.id)

    @classmethod
    def texts(cls, record: Record) -> tuple[str | None, ...]:
        assert isinstance(record, PairRecord)
        return record.every_text

    @classmethod
    def unit(cls, record: Record) -> tuple[str | None, ...]:
        """Rows with the same first text stay on one side."""
        return (record.text,)

    @classmethod
    def alone(cls, record: Record) -> tuple[str | None, ...]:
        return record.text, record.text_b

    @classmethod
    def check(cls, settings: FinetuneSettings) -> None:
        super().check(settings)
        if settings.batch < 2:
            what = "in a step of 1 row there is no text of another row to tell it from"
            raise BertsmithError(what, "batch", "use at least 2; more are better")

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        check_alike(records)
        texts = text_numbers(records)
        for place, name in ((0, "text"), (1, "text_b")):
            if texts.shape[1] == 2 and len(np.unique(texts[:, place])) == 1:
                what = f"all training rows have the same {name}, so there is nothing to tell it from"
                raise BertsmithError(what, records[0].where, f"give rows with different texts, or name {name} anew")
        triplets = int(np.count_nonzero(texts[:, 2:] != NO_TEXT))
        shared, last_alone = rows_with_shared_texts(texts), len(records) % settings.batch == 1
        return cls(rows=len(records), triplets=triplets, shared=shared, last_alone=last_alone, overlap=settings.overlap)

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        pooling = facts.task.get("pooling", "mean")
        if pooling not in POOLINGS:
            raise BertsmithError(f"its pooling is {pooling!r}", "task.json", f"use one of {', '.join(POOLINGS)}")
        if facts.sentence.get("truncate_dim") is not None:
            what = "it cuts vectors (truncate_dim), which is not done where they are answers, measured or exported"
            raise BertsmithError(what, PROMPTS_FILE, "use `bertsmith embed` or `serve`, or remove truncate_dim")
        return cls(pooling=pooling, overlap=facts.task.get("window_overlap"))

    def settled(self, folder: Path, parts: Mapping[str, Sequence[Record]], settings: FinetuneSettings) -> Self:
        """With the pooling that the folder says, and the figures that the rows to measure on give."""
        rules = read_rules(folder)
        if rules is not None and rules.pooling != self.pooling:
            log_choice("pooling", rules.pooling, f"{folder} says so")
        if rules is not None and rules.dimensions is not None:
            log_choice("vectors", "not cut", f"truncate_dim of {folder} is not for training, nor for its result")
        scored = {part: are_scored(rows) for part, rows in parts.items() if part != "train"}
        if len(set(scored.values())) > 1:
            named = [next(part for part, found in scored.items() if found is wanted) for wanted in (True, False)]
            what = f"the {named[0]} rows have scores and the {named[1]} rows have none"
            raise BertsmithError(what, settings.columns.label, "give both scores, or neither")
        if not scored["dev"] and settings.columns.label != Columns.label:
            what = f"no dev row has a score in column '{settings.columns.label}'"
            raise BertsmithError(what, "columns.label", "name the column of the scores, or leave it out")
        if scored["dev"] and settings.folds:
            what = "the dev rows have scores and the training rows have none, so folds of these measure something else"
            raise BertsmithError(what, "folds", "leave out --folds, or give dev rows without scores")
        found = replace(self, pooling=self.pooling if rules is None else rules.pooling, scored=scored["dev"])
        how = "by their scores" if found.scored else "without scores: does each text find its own pair among all?"
        say(f"dev rows are measured {how} ({', '.join(found._measures)}; {found.selecting(settings)} selects)")
        return found

    @property
    def _measures(self) -> tuple[str, ...]:
        return SCORED if self.scored else RANKED

    def selecting(self, settings: FinetuneSettings) -> str:
        metric = self._measures[0] if settings.metric == "auto" else settings.metric
        if metric not in self._measures:
            what = f"metric '{metric}' is for rows {'without' if self.scored else 'with'} scores"
            raise BertsmithError(what, "metric", f"these dev rows give {' and '.join(self._measures)}")
        return metric

    def build(self, config: BertConfig, compute: torch.dtype | None) -> VectorModel:
        return VectorModel(config, self.pooling, compute)

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, max_length: int) -> Sequences:
        singles = [
            [Record(text, None, None, record.where) for text in self.texts(record) if text is not None]
            for record in records
        ]
        return encode_several(singles, tokenizer, max_length, self.overlap)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> Ints:
        """A number for each text of a record, int64[N, K]: equal where texts are, but for case and white space."""
        are_scored(records)
        return text_numbers(records)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        """Of a batch that is a whole step (`tasks/contrastive.py` has it for others)."""
        losses, right = ranking_losses(by_row(scores, inputs, targets), targets)
        return LossSum(losses.sum(), torch.zeros_like(right.sum()) + len(losses), right.sum())

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        return self._figures(scores, examples).values(len(examples.records))

    def _figures(self, scores: Floats, examples: Examples) -> Figures:
        if not are_scored(examples.records):
            ranks = _ranks(scores, examples)
            return mean_figures(RANKED, np.stack([1 / ranks, ranks == 1], 1))
        return number_figures(_cosines(scores, examples.sequences), _scores(examples.records)).only(SCORED)

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        """The figures with their intervals, and rows that may be wrong."""
        about = about_records(examples.part, examples.records)
        write_intervals(folder, about, self._figures(scores, examples))
        if are_scored(examples.records):
            doubts = _far_off(_cosines(scores, examples.sequences), _scores(examples.records))
            write_doubts(folder, about, doubts, _BY_ORDER)
            return
        ranks = _ranks(scores, examples)
        worst = np.argsort(-ranks, kind="stable")[: np.count_nonzero(ranks > 1)]
        write_doubts(folder, about, [{"row": int(row), "rank": int(ranks[row])} for row in worst], _BY_RANK)

    def baseline(self, metric: str, examples: Examples) -> float:
        """What is expected of cosines at random."""
        if metric in SCORED:
            return 0.0
        candidates = int(np.count_nonzero(all_of(examples.targets)[:, 1:] != NO_TEXT))
        return float((1 / np.arange(1, candidates + 1)).mean()) if metric == "mrr" else 1 / candidates

    def description(self) -> list[str]:
        found = [f"{self.rows:,} pairs of like texts, {self.triplets:,} of them with an unlike one"]
        if self.overlap is not None:
            found.append(
                "the vector of a long text is the mean of its windows' vectors, scaled to length 1; "
                "sentence-transformers has no windows, and cuts it"
            )
        if self.last_alone:
            found.append(
                "the last step of an epoch has one row, which teaches nothing without another to tell it from; a "
                "--batch of another size avoids that"
            )
        if self.shared:
            found.append(
                f"{self.shared:,} training rows have a text that stands in another row, too (but for case and white "
                "space); such texts are not taken for unlike ones"
            )
        return found

    def facts(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "window_overlap": self.overlap}

    def folder_files(self, config: BertConfig, max_length: int) -> dict[str, Any]:
        return folder_files(SentenceRules(self.pooling, max_length=max_length), config.hidden_size)

    def shown(self, record: Record) -> str:
        assert isinstance(record, PairRecord)
        score = "" if record.label is None else f" ({record.label:g})"
        return f"{record.text_b}{score}" + ("" if record.negative is None else f"; not: {record.negative}")

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"embedding"} for a row with one text, the H numbers of its vector; {"similarity"} for one with two, their
        cosine."""
        found: list[Answer] = []
        vectors = text_vectors(scores, sequences)
        for record, first in zip(records, sequences.text_offsets[:-1], strict=True):
            if record.text_b is None:
                found.append({"embedding": short_numbers(vectors[first])})
            else:
                found.append({"similarity": float(vectors[first].astype(np.float64) @ vectors[first + 1])})
        return found

    def cells(self, answer: Answer) -> Answer:
        """Rows of one text and of two may stand in one table."""
        return {"similarity": None, "embedding": None, **answer}


def by_row(vectors: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
    """The vectors of a batch, [S, H], as ranking takes them: [N, K, H], zeros for a missing text. targets: [N, K]."""
    rows, texts = targets.shape
    table = vectors.new_zeros(rows * texts, vectors.shape[1])
    places = inputs.texts.unit * texts + inputs.texts.place
    return table.index_copy(0, places, batch_text_vectors(vectors, inputs)).view(rows, texts, vectors.shape[1])


def short_numbers(vector: Floats) -> list[float]:
    """The numbers of a vector in as few digits as give the same fp32 again."""
    return [float(f"{number:.9g}") for number in vector.tolist()]


def _ranks(scores: Floats, examples: Examples) -> Ints:
    targets = all_of(examples.targets)
    table = np.zeros((*targets.shape, scores.shape[1]), dtype=np.float32)
    table[targets != NO_TEXT] = text_vectors(scores, examples.sequences)
    return ranks_of_like(table, targets)


def _far_off(cosines: NDArray[np.float64], scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """The pairs whose score is furthest from the one at the place of their cosine, both in ascending order: {"row",
    "given", "suggested", "difference", "cosine"}. Cosines have another scale than scores, and Spearman's correlation
    depends on the order alone."""
    suggested = np.empty_like(scores)
    suggested[np.argsort(cosines, kind="stable")] = np.sort(scores)
    missed = scores - suggested
    worst = np.argsort(-np.abs(missed), kind="stable")[: np.count_nonzero(missed)]
    columns = {"given": scores, "suggested": suggested, "difference": missed, "cosine": cosines}
    return [{"row": int(row), **{name: float(values[row]) for name, values in columns.items()}} for row in worst]


def _cosines(scores: Floats, sequences: Sequences) -> NDArray[np.float64]:
    vectors, first = text_vectors(scores, sequences), sequences.text_offsets[:-1]
    return np.asarray((vectors[first].astype(np.float64) * vectors[first + 1]).sum(1))


def _scores(records: Sequence[Record]) -> NDArray[np.float64]:
    return np.array([record.label for record in records], dtype=np.float64)
