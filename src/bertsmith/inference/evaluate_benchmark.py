"""A fine-tuned model on a public benchmark: its scores on every labelled part, and its answers for the GLUE server."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.base import files, fp32_products
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import counted, say, warn
from bertsmith.inference.parts.part import Account
from bertsmith.inference.predictor import Predictor, predictor_of
from bertsmith.tasks.benchmarks.benchmark import Benchmark, benchmarks
from bertsmith.tasks.benchmarks.glue import Predictions, add_to_submission, submission_files
from bertsmith.tasks.benchmarks.inputs import benchmark_named, figure_prefix, tell_rows
from bertsmith.tasks.examples import warn_of_empty
from bertsmith.tasks.reading.records import Columns, Row, id_of, read_rows
from bertsmith.tasks.registry import read_task
from bertsmith.weights.huggingface import TASK_FILE

_ROWS_AT_ONCE = 16_384


@dataclass
class BenchmarkScore:
    """rows: of each part that was measured, train excepted. figures: every metric on dev; of another part its name
    begins with what tells the part, as in "mismatched_accuracy", "test_f1" and, by a model of MNLI, "ax_matthews".
    missing: the files that the GLUE server still wants; None where no submission was written."""

    benchmark: str
    rows: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    missing: list[str] | None = None


@fp32_products.kept()
def evaluate_benchmark(
    model: StrPath | Predictor,
    data: StrPath,
    *,
    benchmark: str | None = None,
    submission: StrPath | None = None,
    fold: int = 0,
    **loading: Any,
) -> BenchmarkScore:
    """Measures a fine-tuned model on the files of a benchmark in the folder `data`, by the benchmark's own columns.

    benchmark: its name; by default the one that the model was fine-tuned on. A model of MNLI is measured on GLUE's
    diagnostic set too, where its files are in the folder. submission: a zip that the answers for unlabelled test rows
    are put into. fold: of a benchmark with published folds. loading: of `Predictor`, such as `device`, where `model` is
    none yet. Raises BertsmithError for files that are missing, and for a model of another task.
    """
    data, out = files.as_path(data, "data"), None if submission is None else files.as_path(submission, "submission")
    predictor = predictor_of(model, **loading)
    own = benchmark_named(benchmark or _trained_on(predictor.folder))
    followers = [each for each in benchmarks().values() if each.trained_as == own.name]
    score = BenchmarkScore(own.name)
    if out is not None:
        submission_files(out, own)  # before anything is answered
    for each in (own, *followers):
        found = each.find(data, (), fold) if each is own else each.found(data, ())
        _measure(predictor, each, found, score, f"{each.name}_" if each is not own else "")
        unlabelled = {part: path for part, path in found.items() if part in each.submission}
        if out is not None and unlabelled:
            answers = {part: _answers(predictor, each, part, path) for part, path in unlabelled.items()}
            score.missing = add_to_submission(out, each, answers)
    if out is not None:
        _tell_submission(own, out, score.missing)
    elif not score.figures:
        fix = "name a zip with --submission to have its answers written for the server"
        raise BertsmithError(f"no labelled rows of {own.name} are in this folder", data, fix)
    return score


def _measure(
    predictor: Predictor, benchmark: Benchmark, found: dict[str, Path], score: BenchmarkScore, by: str
) -> None:
    rows = {}
    for part, path in found.items():
        if part == "train" or part not in benchmark.labelled:
            continue
        predictor = predictor.with_columns(Columns(**benchmark.columns_of(part)))
        examples = predictor.examples(path)
        rows[part] = len(examples.records)
        say(f"{benchmark.name} {part}: {counted(rows[part], 'row')}, {examples.sequences.truncation()}")
        warn_of_empty(examples, predictor.tokenizer.special)
        prefix = by + figure_prefix(part)
        score.figures |= {prefix + name: value for name, value in predictor.evaluate(examples).items()}
        score.rows[by + part] = rows[part]
    tell_rows(benchmark.name, rows)


def _answers(predictor: Predictor, benchmark: Benchmark, part: str, path: Path) -> Predictions:
    """The model's answers for the rows of a part without labels."""
    columns = Columns(**benchmark.columns_of(part))
    predictor = predictor.with_columns(columns)
    ids: list[str] = []
    answers: list[str | float] = []
    account = Account()
    rows = read_rows(path, columns, reader=predictor.reader)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        ids += [_id(where, row, columns) for where, row in some]
        predictions, sequences = predictor.predict(some)
        answers += [each["number"] if "number" in each else each["label"] for each in predictions]
        account.read_all(some, sequences, predictor.tokenizer)
    account.warn_of_empty()
    return Predictions(ids, answers)


def _id(where: str, row: Row | str, columns: Columns) -> str:
    """The number of a row for the server. Raises BertsmithError where it has none."""
    assert not isinstance(row, str)
    found = id_of(row, columns)
    if found is None:
        what = f"this row has nothing in a column '{columns.id}', by which the server knows it"
        raise BertsmithError(what, where, "take the file as the benchmark publishes it, or leave out --submission")
    return found


def _trained_on(folder: Path) -> str:
    """The benchmark that a model folder says it was fine-tuned on."""
    name = read_task(folder / TASK_FILE).values.get("benchmark")
    if not isinstance(name, str):
        what = "this model was not fine-tuned on a benchmark by its name"
        raise BertsmithError(what, folder, "name the benchmark with --benchmark")
    return name


def _tell_submission(benchmark: Benchmark, path: Path, missing: list[str] | None) -> None:
    if missing is None:
        warn(f"{benchmark.name} has no test rows in this folder, so nothing was put into {path}")
    elif missing:
        say(f"{path}: the server wants {', '.join(missing)} too; run this with the models of those tasks")
    else:
        say(f"{path} has all files that the server wants")
