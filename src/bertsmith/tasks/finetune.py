"""Fine-tuning from a model folder and labelled rows to a run folder: where the parts are put together."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError, check_class
from bertsmith.base.files import StrPath, as_path
from bertsmith.base.log import say, warn
from bertsmith.base.ranks.together import together
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.model.config import BertConfig
from bertsmith.recipes.loader import as_yaml
from bertsmith.tasks.benchmarks.inputs import BenchmarkChoice, run_inputs, tell_rows
from bertsmith.tasks.examples import by_windows, check_sources, checksums, encode_sources, given_parts, most_tokens
from bertsmith.tasks.finetuning.augmented import check_augmented
from bertsmith.tasks.finetuning.finish import drop_leftovers, finish
from bertsmith.tasks.finetuning.side_by_side import train_side_by_side
from bertsmith.tasks.finetuning.start import started
from bertsmith.tasks.finetuning.teacher import check_teacher, distilled_identity
from bertsmith.tasks.finetuning.trials import trials
from bertsmith.tasks.finetuning.work import Distilled, Work
from bertsmith.tasks.nvidia_results import nvidia_scores
from bertsmith.tasks.reading.documents import parsed_once
from bertsmith.tasks.reading.records import Source
from bertsmith.tasks.resolve import chosen
from bertsmith.tasks.results import FinetuneResult
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings, check_settings
from bertsmith.tasks.task import Task
from bertsmith.training.agreement import agree, code_facts
from bertsmith.training.loop import run_stages
from bertsmith.training.records.events import Events
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import only_training
from bertsmith.training.run_folder import Run, RunFacts, check_free, model_identity, opened, settings_identity
from bertsmith.weights.huggingface import FINETUNE_FILE, model_folder, read_config
from bertsmith.weights.stored import refuse_export

# Settings that change what is written, how fast, or how a step is cut up, never what it holds; a resumed run may change
# them.
_FREE_SETTINGS = (
    *("device", "micro_batch_tokens", "log_every", "save_every", "keep", "keep_every"),
    *("report", "nvidia_results", "skip_bad_rows", "augment_model"),
)
# Of these, the ones that ranks need not have alike.
_OF_A_RANK = ("device",)
# Of the tokens of train, above which their loss is warned of where nobody has chosen the length.
_MUCH = 0.25


def finetune(
    task: str,
    model: StrPath,
    train: Source | None = None,
    dev: Source | None = None,
    out: StrPath | None = None,
    *,
    test: Source | None = None,
    data: str | Path | None = None,
    hyper_parameters: str | None = None,
    fold: int = 0,
    settings: FinetuneSettings | None = None,
    resume: bool = False,
    outputs: Outputs | None = None,
) -> FinetuneResult:
    """Trains a task model on labelled rows, from one or several seeds, and writes a run folder with the best one.

    task: the name of a kind, such as "classify", of a benchmark, such as "mrpc", or "auto" for the kind that the rows
    show. model: a Hugging Face BERT folder with its tokenizer, or a run that has one. train, dev, test: a file of rows,
    or a list of {"text": ..., "label": ...}; dev selects the epoch and the seed, test is only measured. Without dev a
    share of the training rows (`settings.dev_share`) takes its place. data: of a benchmark, the folder with its files,
    in place of train, dev and test. hyper_parameters: of a benchmark, whose are taken, such as "google" or "nvidia";
    None for the first that it has. fold: of a benchmark with published folds, which one. settings: without them
    a benchmark's own.
    out: the run folder, whose `model` is complete in itself (weights, tokenizer, labels, task.json, finetune.json);
    None leaves nothing behind, and has no report. resume: continue the run in `out`, to the bit. outputs: what is
    written beside the run folder's own records. The same seed gives the same score. In each of several processes that
    torch.distributed has joined, it takes that rank's part of the run, and all get the result. What it sets in PyTorch
    for the whole process, such as random states, is as before when it returns.
    Returns the figures of all seeds, on dev and test, which seed's model is kept, and the run folder.
    Raises BertsmithError for rows, columns, labels, settings or a folder that cannot be used and where another run
    trains in this process, before any training, and for a gradient that is not finite; StoppedAfterSaving after
    SIGTERM, SIGUSR1 or SIGINT.
    """
    check_class(outputs, Outputs, "outputs")
    given = given_parts(train, dev, test)
    start, taken = as_path(model, "model"), BenchmarkChoice(data, hyper_parameters, fold)
    asked = Asked(task, start, given, taken, settings, outputs=outputs or Outputs())
    return tune(asked, None if out is None else as_path(out, "out"), resume)


@dataclass(frozen=True)
class Asked:
    """What a run is asked for, beside its folder. model: the folder that it starts from. given: rows by part.
    teacher: the folder of a model to learn from; then `settings` are a `DistillSettings`. shape: of random weights in
    place of the model's. as_teacher: as of `Distilled`. named: what `recipe.yaml` says of teacher and student.
    outputs: what is written beside the run folder's own records."""

    task: str
    model: Path
    given: dict[str, Source]
    taken: BenchmarkChoice
    settings: FinetuneSettings | None
    teacher: Path | None = None
    shape: BertConfig | None = None
    as_teacher: bool = False
    named: Mapping[str, str] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)


def tune(asked: Asked, out: Path | None, resume: bool) -> FinetuneResult:
    """The run of `finetune`, with a teacher or without one. Raises as that."""
    check_class(resume, bool, "resume")
    if resume and out is None:
        raise BertsmithError("there is no run folder to resume from", "out", "name the folder, or leave resume out")
    ranks.check_joined()
    check_settings(asked.settings, has_teacher=asked.teacher is not None)
    written = (asked.outputs.dllogger, asked.settings.skip_bad_rows if asked.settings else None)
    if all(written) and len({os.path.realpath(each) for each in written if each}) == 1:
        what = "skip_bad_rows of the settings and dllogger of the outputs name the same file"
        raise BertsmithError(what, str(written[0]), "give each of them another name")
    with only_training(), Events() as events:
        return _tune(asked, out, resume, events)


def _tune(asked: Asked, out: Path | None, resume: bool, events: Events) -> FinetuneResult:
    ranks.by_first(lambda: asked.outputs.check(out, resume))
    check_sources(asked.given)
    inputs = together(lambda: run_inputs(asked.task, asked.taken, asked.given, asked.settings))
    sources = inputs.sources
    with nullcontext(out) if out is not None else tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Run(Path(folder))
        ranks.by_first(lambda: check_free(run.folder, resume))
        with parsed_once():
            kind, settings = together(partial(chosen, inputs.kind, sources, inputs.settings))
            if out is None:
                if settings.nvidia_results:
                    what = "nvidia_results is a file, and there is no folder for it"
                    raise BertsmithError(what, "nvidia_results", "give out")
                settings = replace(settings, report=False)
            work, identity = together(lambda: _prepare(kind, asked, sources, settings))
        if inputs.benchmark is not None:
            tell_rows(inputs.benchmark, {part: len(each.records) for part, each in work.parts.items()})
            work = replace(work, benchmark=inputs.benchmark)
        alike = settings_identity(asdict(settings), "settings", _OF_A_RANK)
        agree(lambda: {**alike, **identity, "resume": resume, **code_facts()})
        files_of_rows = {name: _named(each) for name, each in sources.items()}
        recipe = {"task": work.benchmark or kind.kind, "model": str(asked.model), **asked.named, **files_of_rows}
        facts = RunFacts(identity, as_yaml(recipe | asdict(settings)), {}, events)
        with opened(run.folder, facts, resume) as facts:
            if resume and ranks.by_first(run.is_finished_and_whole):
                return _finished(run, work)
            try:
                result = _train(work, run, facts, asked.outputs, resume)
            except StoppedAfterSaving as stopped:
                if out is not None:
                    raise
                raise KeyboardInterrupt("fine-tuning was stopped; no folder was given, so nothing is kept") from stopped
    if out is None:
        return replace(result, folder=None)
    say(f"finished model: {run.model}")
    return result


def _finished(run: Run, work: Work) -> FinetuneResult:
    """The result of a run that is finished already; logs that it is."""
    result = ranks.by_first(lambda: FinetuneResult.from_dict(files.read_json(run.model / FINETUNE_FILE), run.folder))
    say(f"this run is finished already: {run.model}; {result.line()}")
    # Where a kill came before that.
    ranks.by_first(lambda: drop_leftovers(run, work.settings, trials(work)))
    return result


def _prepare(
    kind: type[Task], asked: Asked, sources: dict[str, Source], settings: FinetuneSettings
) -> tuple[Work, dict[str, Any]]:
    """All rows, read and encoded; and all that decides what a run comes to."""
    if asked.teacher is not None and not kind.can_be_distilled():
        raise BertsmithError(f"{kind.kind} has no distillation", asked.teacher, "use finetune")
    folder = model_folder(asked.model)
    config = asked.shape or read_config(folder)
    if asked.shape is None and not settings.from_scratch:
        refuse_export(folder)  # before all rows are read
    tokenizer = load_tokenizer(folder, config)
    max_length = most_tokens(kind, settings, config)
    kind.check(settings)
    task, parts = encode_sources(kind, sources, tokenizer, max_length, settings)
    share = parts["train"].sequences.lost_share
    if share > _MUCH and not settings.max_length and (remedy := by_windows(task)):
        longer = ", and a larger --max-length more of them" if max_length < config.max_position_embeddings else ""
        warn(f"{share:.1%} of the text of train is not read: {remedy}{longer}", of_all_ranks=True)
    distilled = None
    if asked.teacher is not None:
        assert isinstance(settings, DistillSettings)
        if "dev" not in sources:
            same = "fine-tuned with the same --train, --dev-share and --seed it has held them out too"
            say(f"dev figures are too high where the teacher has learned from these dev rows; {same}")
        if settings.folds:
            say("figures of folds are too high where the teacher has learned from the training rows")
        distilled = Distilled(model_folder(asked.teacher), settings, asked.shape, asked.as_teacher)
    task = task.settled(folder, {part: each.records for part, each in parts.items()}, settings)
    work = Work(folder, task, tokenizer, settings, max_length, parts, distilled=distilled)
    check_teacher(work)
    settings.check_layers(len(work.layers), bool(task.head))
    if settings.frozen_layers and work.starts_random:
        warn("the frozen layers have random weights, and keep them", of_all_ranks=True)
    check_augmented(work)
    return work, _identity(work, sources)


def _identity(work: Work, sources: dict[str, Source]) -> dict[str, Any]:
    # Runs of earlier versions have no `side_by_side`.
    free = _FREE_SETTINGS if work.settings.side_by_side else (*_FREE_SETTINGS, "side_by_side")
    settings = settings_identity(asdict(work.settings), "settings", free)
    rows = {f"{part}_rows": checksum for part, checksum in checksums(sources, work.parts).items()}
    model = model_identity(work.folder, "model")
    taught = {} if work.distilled is None else distilled_identity(work.distilled)
    own = {**work.task.identity, "tokenizer": work.tokenizer.sha256}
    return {"task": work.task.kind, **settings, **rows, **model, **taught, **own}


def _named(source: Source) -> str:
    return str(source) if isinstance(source, str | Path) else f"{len(source):,} rows given in Python"


def _train(work: Work, run: Run, facts: RunFacts, outputs: Outputs, resume: bool) -> FinetuneResult:
    """All seeds, and the best one's model."""
    start = time.monotonic()
    if work.settings.side_by_side:
        work, model, bests = train_side_by_side(work, run, facts, outputs, resume)
    else:
        with started(work, run, facts, resume, outputs) as (work, trainer, stages):
            run_stages(trainer, stages)
            trainer.write("end", {"tokens": trainer.position.tokens})
            trainer.saver.wait_for_bests()
            model, bests = trainer.objective.model, [(run.folder, best) for best in trainer.position.bests]
    ranks.by_first(facts.hold)
    # Without the kernels of training, as `predict` and `evaluate` run the model: to the bit what they will find.
    result = ranks.by_first(lambda: finish(work, run, model, bests, time.monotonic() - start))
    ranks.by_first(lambda: outputs.add_totals(nvidia_scores(result.tuned["dev"])))
    return result
