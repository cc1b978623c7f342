"""The metrics of a finished model on labelled rows, and of answers to questions that any program gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base import files, fp32_products
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import counted, say, warn
from bertsmith.inference.predictor import Predictor, changed, predictor_of
from bertsmith.tasks.answering.figures import keys_of, named_as_1_1
from bertsmith.tasks.examples import rows_checksum, warn_of_empty
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.reading.bad_rows import SkippedRows
from bertsmith.tasks.reading.files import is_pipe
from bertsmith.tasks.reading.records import Columns, Source, Truncated, read_records
from bertsmith.tasks.report.parts import REPORT
from bertsmith.tasks.scoring.squad import scores_1_1, scores_2_0
from bertsmith.weights.names import RUN_FILE


@dataclass(frozen=True)
class Evaluated:
    """task: the model's. rows: measured. truncated: how much of them the model did not read. figures: every metric."""

    task: str
    rows: int
    truncated: Truncated
    figures: dict[str, float]


@fp32_products.kept()
def evaluate(
    model: StrPath | Predictor,
    data: Source,
    *,
    report: StrPath | None = None,
    skipped: SkippedRows | None = None,
    **loading: Any,
) -> Evaluated:
    """Every metric of a fine-tuned model, or of a run's, on labelled rows.

    data: a file, or a list of rows. report: a folder for what the task has to tell of them. skipped: is given rows that
    cannot be used; without it they raise BertsmithError, as a label that the model does not know does. loading: of
    `Predictor`, such as `columns`, where `model` is none yet. Warns of rows that the model was trained on, and raises
    BertsmithError for a report in place of that of its run.
    """
    folder = None if report is None else files.as_path(report, "report")
    if folder is not None:
        files.check_place(folder / "report")  # before anything is measured
    predictor = predictor_of(model, **loading)
    run = predictor.folder.resolve().parent
    rows_of_run = _rows_of_run(run)
    if folder is not None and folder.resolve() in [(run / REPORT / part).resolve() for part in rows_of_run]:
        what = "this is the report of the run itself, which would be written over"
        raise BertsmithError(what, folder, "name another folder")
    examples = predictor.examples(data, skipped)
    if "train" in rows_of_run and not is_pipe(data) and rows_checksum(data) == rows_of_run["train"]:
        warn("these are the rows that the model was trained on, so their figures say nothing about other text")
    sequences = examples.sequences
    say(f"{counted(len(examples.records), 'row')}, {sequences.truncation()}")
    warn_of_empty(examples, predictor.tokenizer.special)
    return Evaluated(predictor.kind, len(examples.records), sequences.truncated, predictor.evaluate(examples, folder))


def _rows_of_run(run: Path) -> dict[str, str]:
    """The parts of the rows that a run was made with, "train", "dev" and perhaps "test", each with a checksum; none
    where this is no run, or its file is damaged. run: the folder above the model's."""
    try:
        known = files.read_json(run / RUN_FILE) if (run / RUN_FILE).is_file() else {}
    except BertsmithError:
        return {}
    facts = known.items() if isinstance(known, dict) else ()
    return {name.removesuffix("_rows"): value for name, value in facts if name.endswith("_rows")}


def evaluate_predictions(
    predictions: StrPath,
    data: Source,
    *,
    null_scores: StrPath | None = None,
    columns: Mapping[str, Any] | None = None,
) -> Evaluated:
    """What SQuAD's official scripts give for a predictions.json, the answers to questions by their ids: exact_match and
    f1, by the rules of evaluate-v1.1.py where every question has an answer, else by those of evaluate-v2.0.py.

    data: questions with their answers, each with an id. null_scores: how little likely it is that each has an answer:
    above 1 it counts as having none, and best_exact and best_f1 are given too (the script's --na-prob-file). Raises
    BertsmithError for files that are not of these questions.
    """
    path = files.as_path(predictions, "predictions")
    answers = _by_id(path, str, "an answer as text")
    null_path = None if null_scores is None else files.as_path(null_scores, "null_scores")
    scores = None if null_path is None else _by_id(null_path, (int, float), "a number")
    records = read_records(data, changed(Columns(), columns), reader=Qa)
    # Files of other programs have an id that stands twice once, and our own once for each place.
    names = [key if key in answers else record.id or key for key, record in zip(keys_of(records), records, strict=True)]
    golds = [(name, [gold.text for gold in record.label]) for name, record in zip(names, records, strict=True)]
    of_1_1 = scores is None and all(texts for _, texts in golds)
    missing = [name for name, _ in golds if name not in answers]
    if len(missing) == len(golds):
        what = f"this file answers none of the {len(golds):,} questions, such as the one with the id {golds[0][0]}"
        raise BertsmithError(what, path, "give the answers to these questions, by their ids")
    if missing:
        how = "score 0" if of_1_1 else "are left out"
        warn(f"{len(missing):,} of {len(golds):,} questions have no prediction and {how}, such as {missing[0]}")
    if others := len(answers.keys() - {name for name, _ in golds}):
        say(f"{others:,} of {len(answers):,} predictions are of other questions, and do not count")
    if scores is not None and (without := [name for name, _ in golds if name in answers and name not in scores]):
        what = f"this file lacks {len(without):,} of the questions that are answered, such as {without[0]}"
        raise BertsmithError(what, null_path or "", "give the file that was written with the answers")
    figures = scores_1_1(golds, answers) if of_1_1 else named_as_1_1(scores_2_0(golds, answers, scores))
    return Evaluated(Qa.kind, len(golds), Truncated(0, 0), figures)


def _by_id(path: Path, kind: type | tuple[type, ...], named: str) -> dict[str, Any]:
    """A JSON object with a value of this type for each question."""
    values = files.read_json(path, "write it anew; docs/question-answering.md says what it holds")
    if not isinstance(values, dict):
        raise BertsmithError("this file holds no object of ids and values", path, "see docs/question-answering.md")
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BertsmithError(f"the value of question {name} is {value!r}, not {named}", path, "write it anew")
    return values
