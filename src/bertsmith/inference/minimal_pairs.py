"""Minimal pairs, as BLiMP has them: how often a model finds the grammatical one of two sentences likelier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base import fp32_products
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath, as_path, data_folder
from bertsmith.base.log import Progress, as_details, counted, say
from bertsmith.base.streams import stream_key
from bertsmith.inference.blimp import PHENOMENON
from bertsmith.inference.embed import record_of
from bertsmith.inference.parts.part import Account, Named
from bertsmith.inference.predictor import Predictor, predictor_of
from bertsmith.tasks.reading.records import Columns, NoColumn, read_rows

_GOOD, _BAD = "sentence_good", "sentence_bad"
_ALL = "mean"
# Relative; what is computed in other company differs in its last bits.
_EQUAL = 1e-6


@dataclass
class MinimalPairsScore:
    """rows: pairs of each file. files: the share of pairs of each file whose better sentence is the likelier one.
    figures: the mean of the files of each phenomenon of BLiMP, that of other files, and the "mean" of all files. ties:
    pairs whose sentences are equally likely. truncated_tokens: how many no score is of. precision: of the model's
    products."""

    rows: dict[str, int] = field(default_factory=dict)
    files: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    ties: int = 0
    truncated_tokens: int = 0
    precision: str = ""


def find_folder(name: Path) -> Path:
    """A folder here, or one of this bare name in the data folder. Raises BertsmithError where there is none."""
    places = [name, *([data_folder() / name] if len(name.parts) == 1 else [])]
    for place in places:
        if place.is_dir():
            return place
    beside = f", nor in {data_folder()}" if len(places) > 1 else ""
    raise BertsmithError(f"there is no such folder here{beside}", name, "name a folder that is there")


@fp32_products.kept()
def evaluate_minimal_pairs(model: StrPath | Predictor, folder: StrPath, **loading: Any) -> MinimalPairsScore:
    """Scores every pair of the .jsonl files of a folder, by the pseudo-log-likelihood of its two sentences, computed
    left to right within words.

    A row has a "sentence_good" and a "sentence_bad". Which of two that are equally likely counts is drawn, the same at
    every call. loading: of `Predictor`, such as `device`, where `model` is none yet. Raises BertsmithError for a folder
    without such files, for a bad row, and for a model that was not pre-trained.
    """
    folder = as_path(folder, "folder")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise BertsmithError("there is no .jsonl file with pairs of sentences here", folder, "name BLiMP's folder")
    if (path := folder / f"{_ALL}.jsonl") in paths:
        raise BertsmithError(f"'{_ALL}' is what the mean of all files is called", path, "rename this file")
    predictor = predictor_of(model, **loading).for_likelihood(left_to_right=True)
    score, account = MinimalPairsScore(precision=str(predictor.facts["precision"])), Account()
    with Progress("minimal pairs", None, "pair") as progress:
        for path in paths:
            told = _told(predictor, path, score, account)
            score.rows[path.stem] = len(told)
            score.files[path.stem] = float(np.mean(told))
            progress.advance(len(told), path.stem)
    score.figures, score.truncated_tokens = by_phenomenon(score.files), account.truncated_tokens
    account.warn_of_empty()
    cut = f", {score.truncated_tokens:,} tokens not read" if score.truncated_tokens else ""
    drawn = f", {score.ties:,} of equally likely sentences (drawn)" if score.ties else ""
    pairs = counted(sum(score.rows.values()), "pair")
    say(f"{pairs} in {counted(len(paths), 'file')}, in {score.precision}{drawn}{cut}")
    return score


def by_phenomenon(files: Mapping[str, float]) -> dict[str, float]:
    """`MinimalPairsScore.figures` of its `files`."""
    groups: dict[str, list[float]] = {}
    for name, accuracy in files.items():
        groups.setdefault(PHENOMENON.get(name, name), []).append(accuracy)
    means = {name: float(np.mean(groups[name])) for name in sorted(groups)}
    return means | {_ALL: float(np.mean(list(files.values())))}


def _told(predictor: Predictor, path: Path, score: MinimalPairsScore, account: Account) -> Sequence[bool]:
    """Whether the better sentence of each pair of a file is the likelier one. The account gets both sentences."""
    rows: list[Named] = []
    try:
        for where, row in read_rows(path, Columns(text=_GOOD)):
            rows += [(f"{where}, {name}", record_of(where, row, name).text) for name in (_GOOD, _BAD)]
    except NoColumn as error:  # whose fix names flags, which are not read for pairs
        fix = f"name a folder whose .jsonl files all have '{_GOOD}' and '{_BAD}' in their rows"
        raise BertsmithError(error.what, error.where, fix) from error
    if not rows:
        raise BertsmithError("no rows found", path, "give a file with at least one pair")
    with as_details():
        answers, sequences = predictor.predict(rows)
    account.read_all(rows, sequences, predictor.tokenizer)
    found = [each["log_likelihood"] for each in answers]
    good, bad = np.array(found[::2]), np.array(found[1::2])
    tied = np.abs(good - bad) <= _EQUAL * np.abs(good)
    score.ties += int(tied.sum())
    drawn = np.random.default_rng(stream_key(0, "ties", path.stem)).random(len(tied)) < 0.5
    told: Sequence[bool] = np.where(tied, drawn, good > bad).tolist()
    return told
