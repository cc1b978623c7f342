"""The end of a fine-tuning run: its results, its report, and the finished model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.base import files
from bertsmith.base.log import say
from bertsmith.model.distillation.maps import without_maps
from bertsmith.tasks.finetuning.folds import drop_scores, out_of_fold
from bertsmith.tasks.finetuning.side_by_side import drop_trials
from bertsmith.tasks.finetuning.trials import FOLD, SEED, SHARE, Trial, trials
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.nvidia_results import NVIDIA_FILE, nvidia_results
from bertsmith.tasks.report.parts import OUT_OF_FOLD, REPORT
from bertsmith.tasks.results import CROSS_FITTED_DEV, LAST, FinetuneResult, kept_seed, last_figures, results_of
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, Runner
from bertsmith.training.checkpoints import Best, drop_checkpoints, load_best
from bertsmith.training.records.names import METRICS_FILE
from bertsmith.training.run_folder import Run
from bertsmith.weights.huggingface import FINETUNE_FILE, TASK_FILE, FolderContents, read_config, save_model


def finish(
    work: Work, run: Run, model: nn.Module | None, bests: Sequence[tuple[Path, Best]], seconds: float
) -> FinetuneResult:
    """Writes the results of all seeds, and the weights that are kept as the finished model. model: after the last step;
    on the first rank never None. bests: each with the run folder that has them."""
    assert model is not None
    keep = work.settings.keep_seed
    if keep != LAST:  # those of the last step are the model's
        load_best(*bests[kept_seed(keep, [best.score for _, best in bests])], model)
    model = without_maps(model)
    work.task.finish(model)
    device = next(model.parameters()).device
    runner = Runner(device, work.settings.micro_batch_tokens)
    stages = trials(work)
    work, tuned = _tuned(work, stages, model.eval(), runner, run.folder / REPORT)
    result = _result(work, stages, run, tuned, seconds)
    say(result.line())
    if work.settings.report:
        say(f"report: {run.folder / REPORT}")
    if work.settings.nvidia_results:
        keys = nvidia_results(result, work.parts["dev"], model, runner, run.metrics("train"))
        files.write_json(run.folder / NVIDIA_FILE, keys)
        say(f"results under NVIDIA's names: {run.folder / NVIDIA_FILE}")
    # Before the model, which makes the run a finished one.
    files.write_json(run.folder / FINETUNE_FILE, result.to_dict())
    _save(model, replace(work, task=work.task.put_into(model)), result, run.model)
    drop_leftovers(run, work.settings, stages)
    return result


def drop_leftovers(run: Run, settings: FinetuneSettings, stages: Sequence[Trial]) -> None:
    """Removes what a finished run needs no more."""
    drop_checkpoints(run.folder, settings.keep_every)
    if settings.side_by_side:
        drop_trials(run.folder, stages, settings.keep_every)
    drop_scores(run.folder)


def _tuned(
    work: Work, stages: Sequence[Trial], model: nn.Module, runner: Runner, report: Path
) -> tuple[Work, dict[str, dict[str, float]]]:
    """With the task as it is after tuning on the dev rows, and its figures; writes what the task has to report."""
    held_out = work.held_out
    scores = {
        part: replace(runner, doing=f"measuring {part}").scores(model, rows.sequences, work.task.per_token)
        for part, rows in held_out.items()
    }
    task = work.task.tuned(scores["dev"], work.parts["dev"])
    if work.settings.report:
        for part, rows in held_out.items():
            task.write(scores[part], rows, report / part)
        folds = out_of_fold(report.parent, stages)
        if folds is not None:
            task.write(*folds, report / OUT_OF_FOLD)
    figures = {part: task.evaluate(scores[part], rows) for part, rows in held_out.items()}
    if by_others := task.cross_fitted(scores["dev"], work.parts["dev"]):
        figures[CROSS_FITTED_DEV] = by_others
    return replace(work, task=task), figures


def _result(
    work: Work, stages: Sequence[Trial], run: Run, tuned: dict[str, dict[str, float]], seconds: float
) -> FinetuneResult:
    parts, settings = work.parts, work.settings
    told, seed = _told(parts), stages[-1]
    path, records = run.folder / METRICS_FILE, run.metrics()
    labels = {kind: [each.label for each in stages if each.kind == kind] for kind in (SEED, FOLD, SHARE)}
    return FinetuneResult(
        folder=run.folder,
        task=work.task.kind,
        metric=work.metric,
        keep_seed=settings.keep_seed,
        seeds=results_of(path, records, labels[SEED], work.metric, seed.epoch_steps, seed.due, settings.patience),
        folds=last_figures(path, records, FOLD, labels[FOLD], work.metric),
        shares=last_figures(path, records, SHARE, labels[SHARE], work.metric),
        tuned=tuned,
        baseline=work.task.baseline(work.metric, parts["dev"]),
        baseline_name=work.task.baseline_name,
        class_counts=dict(work.task.counts or {}),
        rows={part: len(rows.records[some]) for part, (rows, some) in told.items()},
        truncated={part: rows.sequences.truncated_of(some) for part, (rows, some) in told.items()},
        seconds=seconds,
    )


def _told(parts: Mapping[str, Examples]) -> dict[str, tuple[Examples, slice]]:
    """Which rows results count under each name: those that were made of training rows by themselves."""
    found = {part: (rows, slice(None)) for part, rows in parts.items()}
    train = parts["train"]
    if train.originals is None:
        return found
    first = train.original_records
    return {**found, "train": (train, slice(first)), "augmented": (train, slice(first, None))}


def _save(model: nn.Module, work: Work, result: FinetuneResult, out: Path) -> None:
    task: dict[str, Any] = {
        "task": result.task,
        "max_length": work.max_length,
        "lowercase": work.tokenizer.lowercase,
        "columns": asdict(work.settings.columns),
        "metric": result.metric,
        **({"benchmark": work.benchmark} if work.benchmark else {}),
        **work.task.facts(),
    }
    contents = FolderContents(
        work.task.architectures[0],
        work.tokenizer.save,
        config=work.task.config(),
        json_files={
            TASK_FILE: task,
            FINETUNE_FILE: {**result.to_dict(), "settings": asdict(work.settings)},
            **work.task.folder_files(read_config(work.folder), work.max_length),
        },
        max_length=work.max_length,
    )
    save_model(model, contents, out)
