"""`bertsmith bench pretrain-step`: a training step against transformers, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bertsmith.base.device import Device, choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.batches.packing import PretrainBatch
from bertsmith.bench.made_corpus import open_or_prepare
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.step.instances import real_batches
from bertsmith.bench.step.made_batches import PERCENTILES
from bertsmith.bench.step.plan import VOCABULARY, CpuSizes, GpuSizes, Plan, cpu_plan, gpu_plan
from bertsmith.bench.step.results import ladder_table, steps_table, time_table, with_gains
from bertsmith.bench.step.run import LADDER, TIME, StepRun
from bertsmith.bench.table import Report
from bertsmith.bench.turns import FEWEST_ROUNDS, MOST_ROUNDS
from bertsmith.model.flop import FORMULA

PEERS = ("transformers",)
_TEXT_BYTES, _QUICK_TEXT_BYTES = 20_000_000, 1_000_000
_BATCHES = {128: 2}
"""Of real pairs, by length; another length has one."""


def bench_pretrain_step(options: BenchOptions, folder: Path) -> Report:
    """Measures in `folder`. Raises BertsmithError for an unknown peer, a missing device, an `only` that no case
    matches, and if a side ends by itself."""
    deadline = options.deadline()
    peers = options.peers(PEERS, "pretrain-step")
    device = choose_device(options.device, "fp32")
    plan, source = _plan(options, device, folder)
    run = StepRun(plan if peers else plan.alone(), folder, deadline, options.only)
    run.all()
    return report(run, source)


def _plan(options: BenchOptions, device: Device, folder: Path) -> tuple[Plan, str]:
    lengths = options.sequence_lengths()
    if device.is_cpu:
        sizes = CpuSizes("tiny", sequences=4, seconds=0.5) if options.quick else CpuSizes()
        real, vocabulary, source = _real(options, folder, dict.fromkeys(lengths, sizes.sequences))
        return cpu_plan(sizes, real, vocabulary), source
    gpu = GpuSizes(str(device.torch_device), lengths=lengths)
    if options.quick:
        gpu = replace(gpu, models=("tiny",), tokens=2048, passes=1, seconds=0.5, compiled=False)
    if options.corpus is None:
        unknown = sorted({*lengths} - {*PERCENTILES})
        if unknown:
            what = f"how long Wikipedia's pairs are is not known at {', '.join(map(str, unknown))}"
            raise BertsmithError(what, "--lengths", f"use {' or '.join(map(str, PERCENTILES))}, or give a --corpus")
        return gpu_plan(gpu, {}), "made-up pieces in pairs as long as those of English Wikipedia"
    real, vocabulary, source = _real(options, folder, {each: max(1, gpu.tokens // each) for each in lengths})
    return gpu_plan(replace(gpu, vocabulary=vocabulary), real), source


def _real(
    options: BenchOptions, folder: Path, sequences: Mapping[int, int]
) -> tuple[dict[int, list[PretrainBatch]], int, str]:
    """Batches of real pairs by length, the rows that a vocabulary must have, and where they come from."""
    corpus, source = open_or_prepare(options, _QUICK_TEXT_BYTES if options.quick else _TEXT_BYTES, folder)
    real = {
        length: real_batches(corpus, length, count, 1 if options.quick else _BATCHES.get(length, 1), folder / "order")
        for length, count in sequences.items()
    }
    return real, max(VOCABULARY, corpus.special.vocabulary_size), f"real pairs of {source}"


def report(run: StepRun, source: str) -> Report:
    """What a run of the plan found. Raises BertsmithError where it found nothing."""
    plan = run.plan
    rows = [result.row(run.peaks) for result in run.results]
    rungs = with_gains([rung.row(run.peaks) for rung in run.rungs], [rung.case for rung in run.rungs])
    if not rows and not rungs and not run.profiles:
        cases = "; ".join([*(match.case(name) for match in plan.matches for name in match.sets), TIME, LADDER])
        what = f"nothing was measured: {run.left_out[0]}" if run.left_out else f"no case contains '{run.only}'"
        raise BertsmithError(what, "bench pretrain-step", f"cases are: {cases}")
    about = [*about_steps(run, source), *(f"left out: {case}" for case in run.left_out)]
    tables = [steps_table(rows)] if rows else []
    tables += [time_table(run.profiles, f"{plan.model}, ours, {plan.profiled.label}")] if run.profiles else []
    tables += [ladder_table(rungs, plan.model)] if rungs else []
    ran_on = {name: str(what) for name, what in run.ran_on.items() if what}
    profiles = [{"case": f"{TIME} {name}", **found} for name, found in run.profiles.items()]
    return Report(about, [*rows, *rungs, *profiles], tables, ran_on)


def about_steps(run: StepRun, source: str) -> list[str]:
    """What was measured and how, a sentence each. source: where batches of real pairs are from."""
    peaks = ", ".join(f"{precision} {flops / 1e12:.2f} TFLOP/s" for precision, flops in run.peaks.items())
    return [
        f"batches: those not called real are of made-up pieces; {source}",
        *run.plan.about,
        "both sides take the same instances, in train mode, with dropout 0.1 unless a row says otherwise, and clip "
        "gradients at a norm of 1; each is a process of its own",
        "ours decays matrices alone, with epsilon 1e-6, as BERT does; transformers' side all parameters, with 1e-8, as "
        "PyTorch's AdamW does by itself: the same work",
        f"{FEWEST_ROUNDS} to {MOST_ROUNDS} rounds, an odd number, after one turn each that is not counted; a round is "
        "a turn of either side over the same batches; figures are those of the round with the median ratio",
        "tokens are real ones: padding does not count",
        *([f"matrix rate, the best of this run: {peaks}"] if peaks else []),
        f"floating-point operations of a step: {FORMULA}",
    ]
