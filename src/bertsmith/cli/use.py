"""The verbs that use a model: predict, embed, evaluate."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bertsmith.base.errors import BertsmithError
from bertsmith.cli.verb import Call, Either, Verb, default_said, either, import_torch
from bertsmith.tasks.reading.bad_rows import BAD_SHARE, SkippedRows, check_list

if TYPE_CHECKING:
    from bertsmith.inference.parts.run import RowOptions


@dataclass(frozen=True)
class TextColumns:
    """Where texts stand, as `finetune` takes it; what is not given is as in training."""

    text: str | None = None
    """The column of the text, or of the first of two."""
    header: Either = False
    """The first line of a csv or tsv file names its columns."""
    no_header: Either = False
    """The first line is a row; columns are named 1, 2, 3 and so on."""
    quoted: Either = False
    """Fields may be quoted."""
    no_quoted: Either = False
    """A quotation mark is text."""

    def given(self, prog: str) -> dict[str, str | bool]:
        """What was given, as fields of Columns. Raises BertsmithError for a flag and its opposite."""
        found = {name: either(self, name, prog, "columns.") for name in ("header", "quoted")}
        texts = {name: value for name, value in vars(self).items() if isinstance(value, str)}
        return {name: value for name, value in found.items() if value is not None} | texts


@dataclass(frozen=True, kw_only=True)
class DeviceFlags:
    """Where and how a model is run."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "int8"] = "auto"
    """The dtype of matrix products: torch has all but int8, onnx fp32 and int8, openvino fp32, bf16 and int8."""
    backend: Literal["torch", "onnx", "openvino"] = "torch"
    """What runs the model: PyTorch, or another engine for a folder that `bertsmith export` wrote for it."""

    def run_by(self) -> dict[str, Any]:
        """As arguments."""
        return {"device": self.device, "precision": self.precision, "backend": self.backend}


@dataclass(frozen=True, kw_only=True)
class RowFlags(DeviceFlags):
    """How the rows of a file are worked through."""

    workers: int = 1
    """How many single-threaded processes, each of which loads the model."""
    gpus: Annotated[str | None, default_said("none")] = None
    """How many GPUs, or all; each gets a process and a model of its own."""
    on_error: Literal["stop", "skip"] = "stop"
    """What to do with a row that cannot be used; skip leaves it out, counts it and writes it to OUT.errors.jsonl."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue from the finished parts of an earlier run of this command, in OUT.parts."""
    part_rows: int = 0
    """Rows per part, fewer where they are long; a part that is unfinished when the command is killed is done again.
    0: 4,096, or 64 with --layers."""

    def rows(self) -> RowOptions:
        """As prediction takes them. Raises BertsmithError for --gpus without a value, which would be a run on one."""
        from bertsmith.inference.parts.run import RowOptions

        if self.gpus == "":
            what = "--gpus is empty, as where a variable of the shell is not set"
            raise BertsmithError(what, "--gpus", "name a number, or all")
        return RowOptions(self.workers, self.gpus or "", self.on_error, self.resume, self.part_rows)


@dataclass(frozen=True)
class PredictColumns(TextColumns):
    """With those of all kinds of rows."""

    text_b: str | None = None
    """The column of the second text."""
    question: str | None = None
    """The column of the question (qa)."""
    context: str | None = None
    """The column of the text that answers it (qa)."""
    id: str | None = None
    """The column that names a row."""
    tokens: str | None = None
    """The column of the words (tag)."""
    tags: str | None = None
    """The column of the words' tags; if it is given, rows hold words and not a text (tag)."""
    choices: str | None = None
    """The column, or the columns, of the choices (choice)."""


@dataclass(frozen=True)
class EvaluateColumns(PredictColumns):
    """With those of labels."""

    label: str | None = None
    """The column of the label."""
    label_separator: str | None = None
    """What separates the labels of a row that has several in one cell, such as ";" (classify)."""
    answers: str | None = None
    """The column of the answers (qa)."""
    tag_names: str | None = None
    """What tags that are whole numbers stand for, from 0 and joined by commas (tag)."""
    spans: str | None = None
    """The column of the marked spans (tag)."""
    negative: str | None = None
    """The column of a text that is unlike the first one (embed)."""


@dataclass(frozen=True)
class PredictFlags(RowFlags):
    """Flags of `predict`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run, or the folder of a fine-tuned model, or of a pre-trained one to fill [MASK] in."""
    input: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")] = None
    """Rows as .csv, .tsv, .jsonl, .parquet, SQuAD's JSON or CoNLL's columns, compressed or not; - is standard input."""
    question: str | None = None
    """A single question to answer from --context, instead of a file of rows."""
    context: str | None = None
    """The text that answers --question, of any length."""
    interactive: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Read rows from prompts instead of a file, and answer each at once."""
    n_best: Annotated[int | None, default_said("5")] = None
    """How many answers to a question, or pieces for a [MASK], are listed; other models refuse it."""
    likelihood: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """How likely each text is to a pre-trained model: the sum of the log probabilities of its tokens, each masked in
    turn."""
    out: str = "-"
    """Where predictions go, in the order of the rows: .jsonl or .csv; - is JSON lines on standard output."""
    columns: PredictColumns = field(default_factory=PredictColumns)
    """Where the texts stand, if not where they stood in the rows that the model was trained on."""


def _predict(call: Call) -> None:
    flags = call.read(PredictFlags)
    _check(flags, call)
    import_torch(new_shapes=True)
    from bertsmith.inference.interactive import converse
    from bertsmith.inference.predict_file import predict_file
    from bertsmith.inference.predictor import load_predictor

    columns = flags.columns.given(call.prog)
    loading = {**flags.run_by(), "top": flags.n_best, "columns": columns, "likelihood": flags.likelihood}
    if flags.input is not None:
        predict_file(flags.model, flags.input, flags.out, rows=flags.rows(), **loading)
        return
    predictor = load_predictor(flags.model, **loading)
    if flags.interactive:
        converse(predictor)
    else:
        row = {predictor.columns.question: flags.question, predictor.columns.context: flags.context}
        if predictor.prompts != list(row):
            what = f"this model does not answer questions: its rows have {', '.join(predictor.prompts)}"
            raise BertsmithError(what, flags.model, "name a model that was fine-tuned by qa")
        (answer,) = predictor([row])
        print(json.dumps(answer, ensure_ascii=False, indent=2))


def _check(flags: PredictFlags, call: Call) -> None:
    """Raises BertsmithError for flags that do not belong together."""
    asks = flags.question is not None or flags.context is not None
    if [flags.input is not None, asks, flags.interactive].count(True) != 1:
        what = "exactly one of these is required: a file of rows, --question with --context, --interactive"
        raise BertsmithError(what, call.prog, f"see {call.prog} --help")
    if asks and (flags.question is None or flags.context is None):
        raise BertsmithError("--question and --context belong together", call.prog, "give both")
    if flags.input is None:
        call.refuse_unread(flags, ("out", *RowFlags.__annotations__), "without a file of rows: the answer is printed")
    if flags.n_best is not None and flags.n_best < 1:
        raise BertsmithError(f"--n-best is {flags.n_best}", call.prog, "use a whole number from 1")


@dataclass(frozen=True)
class EmbedFlags(RowFlags):
    """Flags of `embed`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run, or the folder of a model: of sentence-transformers, or of any BERT (then the mean of all tokens)."""
    input: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
    """Texts as .csv, .tsv, .jsonl or .parquet, compressed or not; - is standard input."""
    out: str
    """Where the vectors go, in the order of the rows: .npy (fp32, a row for each), .jsonl or .parquet (each row with
    its "embedding" and "truncated_tokens"); - is JSON lines on standard output."""
    max_length: int = 0
    """The most tokens of a text, longer ones are cut at the side that the folder says, else at their end; of a model
    that was fine-tuned with --windows, those of a window; 0 is the folder's own."""
    pooling: Literal["mean", "cls", "max"] | None = None
    """How the vectors of tokens become one; without it as the folder says, else mean."""
    normalise: Either = False
    """Scale vectors to length 1, whatever the folder says."""
    no_normalise: Either = False
    """Do not scale them, whatever the folder says."""
    layers: str = ""
    """Instead of one vector per text, the hidden states of every token after these layers, such as -1,-2,-3,-4 (-1 is
    the last one), as Google's extract_features.py writes them."""
    columns: TextColumns = field(default_factory=TextColumns)
    """Where the texts stand, if not where they stood in training; without training in a column "text"."""


def _embed(call: Call) -> None:
    args = _with_layers(call.args)
    if "--layers=" in args:
        what = "--layers is empty, as where a variable of the shell is not set"
        raise BertsmithError(what, call.prog, "write numbers with commas, as --layers=-1,-2, or leave it out")
    flags = replace(call, args=args).read(EmbedFlags)
    import_torch(new_shapes=True)
    from bertsmith.inference.embed import VectorOptions
    from bertsmith.inference.embed_file import embed_file

    unit = either(flags, "normalise", call.prog)
    embed_file(
        flags.model,
        flags.input,
        flags.out,
        rows=flags.rows(),
        columns=flags.columns.given(call.prog),
        **flags.run_by(),
        vectors=VectorOptions(flags.pooling, unit, _layers(flags.layers), flags.max_length),
    )


def _with_layers(args: list[str]) -> list[str]:
    """The arguments with --layers and its numbers as one of them: by itself "-1,-2" looks like a flag."""
    if "--layers" not in args[:-1]:
        return args
    place = args.index("--layers")
    return [*args[:place], f"--layers={args[place + 1]}", *args[place + 2 :]]


def _layers(text: str) -> tuple[int, ...]:
    """Layers as they are written on the command line. Raises BertsmithError."""
    try:
        return tuple(int(each) for each in text.split(",")) if text else ()
    except ValueError as error:
        fix = "write numbers with commas, as --layers=-1,-2"
        raise BertsmithError(f"--layers is '{text}'", "layers", fix) from error


@dataclass(frozen=True)
class EvaluateFlags(DeviceFlags):
    """Flags of `evaluate`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run, or the folder of a fine-tuned model; with --minimal-pairs of a pre-trained one. Or a predictions.json of
    SQuAD, which is scored as the official scripts do."""
    data: Path | None = None
    """Labelled rows as .csv, .tsv, .jsonl or .parquet, compressed or not; or the folder of a benchmark."""
    minimal_pairs: Path | None = None
    """A folder of .jsonl files with pairs of sentences, as BLiMP: how often the better one is the likelier one. A name
    that is no folder here is looked up in $BERTSMITH_DATA (~/.cache/bertsmith-data)."""
    benchmark: str | None = None
    """With a folder: the benchmark's name, if not the one that the model was fine-tuned on."""
    submission: Path | None = None
    """With a folder: a zip for the GLUE server that the answers for test rows are put into."""
    fold: int = 0
    """With a folder: of a benchmark with published folds, which one, from 0."""
    json: Path | None = None
    """A file for the figures."""
    report: Path | None = None
    """A folder for what the task has to tell of the rows, such as tables and pictures."""
    null_scores: Path | None = None
    """With a predictions.json: the no-answer score of each question, as in null_odds.json (higher: no answer is
    likelier)."""
    skip_bad_rows: Path | None = None
    """Leave out rows that cannot be used, and write them to this file as JSON lines, each with the reason."""
    bad_share: float = BAD_SHARE
    """The largest share of the rows that --skip-bad-rows may leave out."""
    columns: EvaluateColumns = field(default_factory=EvaluateColumns)
    """Where texts and labels stand, if not where they stood in the rows that the model was trained on."""


_PAIRS, _ANSWERS, _BENCHMARK, _ROWS = (
    "minimal pairs",
    "a file of answers",
    "the folder of a benchmark",
    "a file of rows",
)
_READ_FOR = {
    _PAIRS: tuple(DeviceFlags.__annotations__),
    _ANSWERS: ("null_scores", "columns"),
    _BENCHMARK: (*DeviceFlags.__annotations__, "benchmark", "submission", "fold"),
    _ROWS: (*DeviceFlags.__annotations__, "report", "skip_bad_rows", "bad_share", "columns"),
}
"""What may be measured, and the flags that decide how, each read for some of these only."""


def _measured(flags: EvaluateFlags, call: Call) -> str:
    """What is to be measured. Raises BertsmithError for flags that are not read for it."""
    if (flags.data is None) == (flags.minimal_pairs is None):
        what = "either --data or --minimal-pairs is required, and not both"
        raise BertsmithError(what, call.prog, f"see {call.prog} --help")
    if flags.data is None:
        found = _PAIRS
    elif flags.model.suffix == ".json":
        found = _ANSWERS
    else:
        found = _BENCHMARK if flags.data.is_dir() else _ROWS
    others = [name for names in _READ_FOR.values() for name in names if name not in _READ_FOR[found]]
    call.refuse_unread(flags, dict.fromkeys(others), f"for {found}")
    if flags.skip_bad_rows is None and flags.bad_share != BAD_SHARE:
        raise BertsmithError("--bad-share is for --skip-bad-rows, which leaves rows out", call.prog, "give both")
    return found


def _evaluate(call: Call) -> None:
    flags = call.read(EvaluateFlags)
    measured = _measured(flags, call)
    import_torch(new_shapes=True)
    from bertsmith.base import files
    from bertsmith.base.tables import aligned
    from bertsmith.inference.evaluate import Evaluated, evaluate, evaluate_predictions
    from bertsmith.inference.evaluate_benchmark import BenchmarkScore, evaluate_benchmark
    from bertsmith.inference.minimal_pairs import MinimalPairsScore, evaluate_minimal_pairs, find_folder

    columns = flags.columns.given(call.prog)
    found: Evaluated | BenchmarkScore | MinimalPairsScore
    if flags.minimal_pairs is not None:
        found = evaluate_minimal_pairs(flags.model, find_folder(flags.minimal_pairs), **flags.run_by())
    else:
        assert flags.data is not None
        if measured == _ANSWERS:
            found = evaluate_predictions(flags.model, flags.data, null_scores=flags.null_scores, columns=columns)
        elif measured == _BENCHMARK:
            given: dict[str, Any] = {"benchmark": flags.benchmark, "submission": flags.submission, "fold": flags.fold}
            found = evaluate_benchmark(flags.model, flags.data, **given, **flags.run_by())
        else:
            skipped = None
            if flags.skip_bad_rows is not None:
                check_list(flags.skip_bad_rows)
                skipped = SkippedRows(flags.bad_share)
            loading = {**flags.run_by(), "columns": columns}
            found = evaluate(flags.model, flags.data, report=flags.report, skipped=skipped, **loading)
            if skipped is not None and flags.skip_bad_rows is not None:
                skipped.write(flags.skip_bad_rows)
    print("\n".join(aligned([(name, f"{value:.4f}") for name, value in found.figures.items()])))
    if flags.json is not None:
        files.write_json(flags.json, asdict(found))


VERBS = {
    "predict": Verb(
        "Predict labels, numbers, entities, answers, or the words behind [MASK], for rows in their order.",
        "  bertsmith predict runs/labels new.csv --out predictions.jsonl\n"
        "  bertsmith predict runs/labels big.jsonl --out big.csv --workers 8 --on-error skip --resume\n"
        "  bertsmith predict runs/base texts.csv --likelihood --out likely.jsonl\n"
        '  bertsmith predict runs/squad --question "Who asked?" --context "Ann asked Bob." --n-best 3\n'
        "  bertsmith predict runs/labels --interactive",
        _predict,
    ),
    "embed": Verb(
        "Give a vector for each text, such that like texts have like vectors.",
        "  bertsmith embed runs/embed texts.csv --out vectors.npy\n"
        "  bertsmith embed runs/embed texts.jsonl --columns.text body --out vectors.jsonl",
        _embed,
    ),
    "evaluate": Verb(
        "Measure a fine-tuned model on labelled rows, a pre-trained one on pairs of sentences, or answers to SQuAD.",
        "  bertsmith evaluate runs/labels --data test.csv\n"
        "  bertsmith evaluate runs/mrpc --data glue --submission submission.zip\n"
        "  bertsmith evaluate predictions.json --data dev-v1.1.json\n"
        "  bertsmith evaluate runs/base --minimal-pairs blimp",
        _evaluate,
    ),
}
