"""The options of a preparation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertsmith.base.errors import BertsmithError, TypeChecked
from bertsmith.corpus.documents import PAGE_SECONDS, DocumentRule, ReadOptions
from bertsmith.corpus.engines.array_jobs import Seat
from bertsmith.corpus.engines.local import check_engine
from bertsmith.corpus.filters.evaluation_texts import content_hash
from bertsmith.corpus.filters.near_duplicates import library
from bertsmith.corpus.filters.searches import FilterOptions
from bertsmith.tokens.vocabulary import check_size

ExcludeAction = Literal["drop", "report"]
# These say what does the work, and for how long; whatever they are, the corpus has the same bytes, unless a page had to
# be given up, and then corpus.json says so.
_OF_NO_EFFECT = ("workers", "engine", "address", "array_task", "page_seconds")
_LONGEST_PAGE_SECONDS = 86_400
# Each part takes some 10 ms and 40 kB of disk, whatever it holds.
_LEAST_PART = 100
# Anything else is not a code of ISO 639, and the splitter of sentences would take it for English.
_LANGUAGE = re.compile("[a-z]{2,3}")
# What changes nothing where a tokenizer is given, and without the option that it belongs to.
_OF_TRAINING = ("vocabulary_size", "lowercase", "sample_bytes")
_OF_OTHERS = {"near_threshold": "near_duplicates", "near_shingle": "near_duplicates", "exclude_action": "exclude"}


@dataclass(frozen=True)
class PrepareOptions(TypeChecked):
    """Options of `prepare`. The string under a field is its help on the command line."""

    documents: DocumentRule = "file"
    """What a document is in plain text: a file; lines between blank lines, a sentence each; or a line."""
    text_field: str = "text"
    """The field that holds the text, in JSON lines, csv, tsv and parquet."""
    strict: bool = False
    """Stop at damage and at bytes that are not UTF-8, instead of counting them and continuing."""
    page_seconds: float = PAGE_SECONDS
    """CPU time after which a page of a dump is given up; it is tried again alone, with ten times as much."""
    min_characters: int = 20
    """Shorter documents are dropped."""
    exclude: tuple[Path, ...] = ()
    """Evaluation text (SQuAD JSON, tsv, jsonl, csv, CoNLL, txt): documents with 13 words in a row of it are dropped."""
    exclude_action: ExcludeAction = "drop"
    """What becomes of documents with evaluation text: drop, or report them only."""
    near_duplicates: bool = False
    """Drop near-duplicates of earlier documents."""
    near_threshold: float = 0.8
    """N-gram Jaccard similarity at which a document counts as a near-duplicate."""
    near_shingle: int = 5
    """Words of an n-gram, for --near-threshold."""
    held_out: float = 0.005
    """The share of documents that are kept for evaluation, drawn by a hash of their text."""
    language: str = "en"
    """ISO 639 code of the language, whose abbreviations do not end a sentence."""
    vocabulary_size: int = 30_522
    """Pieces of the vocabulary that is trained where no tokenizer is given; rounded up to a multiple of 64."""
    lowercase: bool = True
    """Whether a trained vocabulary lower-cases text and strips accents."""
    sample_bytes: int = 64_000_000
    """The most text that a vocabulary is trained on, drawn evenly from all documents that are not held out."""
    shard_tokens: int = 1 << 20
    """About how many tokens a shard holds. Random second sentences come from the shard of the first."""
    part_bytes: int = 4 << 20
    """About how many bytes of a source a worker takes at once; its memory is some 100 MB and 20 times this."""
    workers: int | None = None
    """Worker processes; all cores where none is given."""
    engine: str = "local"
    """What does the work: local, worker processes of this machine; or ray, those of a Ray cluster."""
    address: str | None = None
    """Where the Ray cluster is: HOST:PORT, or local for one of this machine alone; without it, the one that this
    machine belongs to, else local."""
    array_task: str | None = None
    """K/N where this is task K of N equal ones that share the corpus folder, each doing what it can claim."""

    @property
    def reading(self) -> ReadOptions:
        return ReadOptions(self.documents, self.text_field, self.strict, self.page_seconds)

    @property
    def filters(self) -> FilterOptions:
        near = (self.near_duplicates, self.near_threshold, self.near_shingle)
        return FilterOptions(self.exclude, self.exclude_action, *near)

    def deciding(self, tokenizer_given: bool) -> dict[str, Any]:
        """The options that decide what the corpus holds, None for those that are `idle`; of files of evaluation text,
        name and content. Raises BertsmithError where one of these is missing.
        """
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in _OF_NO_EFFECT}
        values["exclude"] = [f"{Path(path).name} (sha256 {content_hash(Path(path))})" for path in self.exclude]
        return values | dict.fromkeys(self.idle(tokenizer_given))

    def idle(self, tokenizer_given: bool) -> dict[str, str]:
        """The options whose value makes no difference here, with the reason."""
        fixed = dict.fromkeys(_OF_TRAINING, "a tokenizer is given, so no vocabulary is trained")
        reasons = fixed if tokenizer_given else {}
        return reasons | {name: f"it needs {other}" for name, other in _OF_OTHERS.items() if not getattr(self, other)}

    def without_effect(self, reasons: Mapping[str, str]) -> list[str]:
        """A line for each of these options that was changed from its default. reasons: why each makes no difference."""
        default = PrepareOptions()
        return [
            f"{name} {getattr(self, name)} has no effect: {reason}"
            for name, reason in reasons.items()
            if getattr(self, name) != getattr(default, name)
        ]

    def check(self) -> None:
        """Raises BertsmithError where a value makes no sense."""
        counts = ("min_characters", "near_shingle", "sample_bytes", "shard_tokens", "workers")
        for name, smallest in {**dict.fromkeys(counts, 1), "part_bytes": _LEAST_PART}.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise BertsmithError(f"{name} is {value}", "options of prepare", f"use a whole number from {smallest}")
        check_size(self.vocabulary_size, "vocabulary_size")
        if not 0 < self.page_seconds <= _LONGEST_PAGE_SECONDS:
            fix = f"use a number of seconds above 0, up to {_LONGEST_PAGE_SECONDS}"
            raise BertsmithError(f"page_seconds is {self.page_seconds}", "options of prepare", fix)
        self._check_engine()
        self._check_searches()
        if not 0 <= self.held_out < 1:
            raise BertsmithError(f"held_out is {self.held_out}", "options of prepare", "use a share from 0 to below 1")
        if not _LANGUAGE.fullmatch(self.language):
            fix = "use its ISO 639 code in small letters, such as en, de or pt"
            raise BertsmithError(f"language is '{self.language}'", "options of prepare", fix)

    def _check_searches(self) -> None:
        if not 0.3 <= self.near_threshold <= 1:
            fix = "use a share from 0.3 to 1: with less, everything is compared with everything"
            raise BertsmithError(f"near_threshold is {self.near_threshold}", "options of prepare", fix)
        if self.near_duplicates:
            library()

    def _check_engine(self) -> None:
        check_engine(self.engine)
        if self.address is not None and self.engine != "ray":
            raise BertsmithError("an address was given, but not --engine ray", "address", "add --engine ray")
        if self.array_task is not None:
            Seat.parse(self.array_task)
            if self.engine != "local":
                what = f"array_task and engine '{self.engine}' were given; each distributes the work by itself"
                raise BertsmithError(what, "options of prepare", "omit one of them")
