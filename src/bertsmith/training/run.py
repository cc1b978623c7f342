"""What stands around the loop of every run: the process, its device and kernels, checkpoint, metrics file, signals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from bertsmith.base import files, fp32_products, ranks
from bertsmith.base.device import Device, cpu_by_default, device_of_run
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, log_choice, say, warn
from bertsmith.base.processor import this_processor
from bertsmith.base.ranks.shared_stop import SharedStop
from bertsmith.base.ranks.together import together
from bertsmith.base.stopping import stop_on_signals
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import end_training, prepare_training
from bertsmith.model.flop import peak_flops, step_flop
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.agreement import agree, held
from bertsmith.training.checkpoints import Position, load_checkpoint, lost_bests, newest_whole
from bertsmith.training.checkpoints.disk import tell_disk_need
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.loop import Cadence, Trainer
from bertsmith.training.objective import Objective, nothing
from bertsmith.training.records.environment import environment
from bertsmith.training.records.meters import MetricsFile, read_metrics
from bertsmith.training.records.names import METRICS_FILE
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.records.trace import Trace
from bertsmith.training.run_folder import RunFacts, claim, mark_stopped
from bertsmith.training.step import Compiled

_KERNELS = "between_products"
# Of a micro-batch, for each thread of a rank on a CPU: 1,024 tokens of BERT-base, or 512.
_FLOP_OF_A_THREAD, _FLOP_WITHOUT_AVX512 = 0.6e12, 0.3e12
_MICRO_BATCH_TILE = 512

_training = threading.Lock()


@contextmanager
def only_training() -> Iterator[None]:
    """A block that trains, as no other thread does meanwhile: dropout draws from PyTorch's one generator.

    What a program may have set in PyTorch is as training needs it: gradients are computed, numbers are fp32 where no
    dtype is named, which other threads see too, and tensors are on the CPU where no device is named. When the block
    ends that is as it was, and so are the generator's state (of a GPU: see `trainer_of`) and how fp32 products are
    made, and this thread uses no C++ kernels any more. Raises BertsmithError where another run trains in this process.
    """
    if not _training.acquire(blocking=False):
        fix = "wait until that one has ended, or train in another process"
        raise BertsmithError("another run trains in this process", fix=fix)
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        # Outside of inference mode gradients are computed, whatever `no_grad` said before.
        with torch.inference_mode(False), cpu_by_default(), torch.random.fork_rng([]), fp32_products.kept():
            yield
    finally:
        end_training()
        torch.set_default_dtype(dtype)
        _training.release()


@dataclass(frozen=True)
class TrainerSettings:
    """position: of the checkpoint that the run is resumed from. resumed: whether the user asked for that. steps: of the
    whole run, 0 where time ends it. keeps_best: whether it writes best weights. compiled: the model,
    where it runs compiled. outputs: what is written beside the run's own records. before_saves: called before each
    checkpoint is written, for what must be on the disk by then; raises BertsmithError where the disk refuses."""

    device: Device
    cadence: Cadence
    position: Position | None
    resumed: bool
    steps: int
    keeps_best: bool = False
    compiled: Compiled | None = None
    outputs: Outputs = field(default_factory=Outputs)
    before_saves: Callable[[], None] = nothing


def start_device(
    device: str, precision: str, kernels: bool, started_on: Mapping[str, str], folder: Path
) -> tuple[Device, dict[str, str]]:
    """The device of a run, ready to train, and what decides the run's last bits, for `RunFacts.started_on`.

    device, precision: as the user set them; "auto" keeps what a resumed run was started on. kernels: whether a CPU may
    use the C++ kernels. Warns where a resumed run's figures will not be equal to those of an unbroken one.
    """
    chosen = device_of_run(device, precision, started_on, folder)
    agree(lambda: {"device": chosen.torch_device.type})
    if not chosen.is_cpu:
        return chosen, chosen.facts()
    # Runs of versions without kernels for their precision have no record of them.
    started_with = started_on.get(_KERNELS, "") if started_on else None
    found = prepare_training(chosen.compute, kernels, started_with)
    return chosen, chosen.facts() | ({_KERNELS: found} if found else {})


def micro_batch_tokens(asked: int, config: BertConfig, longest: int, device: Device, threads: int = 0) -> int:
    """The most tokens of a micro-batch: as many as asked for, but on a CPU no more than are computed in some seconds.

    longest: the tokens of the longest sequence. threads: of a rank; 0 for what the slowest rank has, for
    which all ranks must make the call. A signal waits for a micro-batch, and those that suit a GPU
    would take a CPU longer than a scheduler waits, and more memory than it has. What a thread can do in some seconds
    follows from its instructions: a measured rate would not be the same at the next start.
    """
    if not device.is_cpu:
        return asked
    flop = _FLOP_OF_A_THREAD if this_processor().has("avx512") else _FLOP_WITHOUT_AVX512
    room = threads * flop
    if not threads:
        threads = torch.get_num_threads()
        room, threads = min(ranks.gathered((threads * flop, threads)))
    fitting = int(room / step_flop(config, 1, longest))
    most = max(fitting // _MICRO_BATCH_TILE * _MICRO_BATCH_TILE, longest)
    if most >= asked:
        return asked
    of = f"{counted(threads, 'thread')} of a CPU"
    why = f"on {of} larger ones are hardly faster, need more memory, and a signal would wait for them"
    log_choice("micro-batches", f"{most:,} tokens, not {asked:,}", why)
    return most


def newest_checkpoint(folder: Path, resume: bool, needs_best: bool = True) -> Path | None:
    """The step folder that a run is resumed from; None where there is none. The first rank verifies and names it,
    because another one's listing of a shared disk may be old; that one waits until it sees the folder. needs_best: as
    of `newest_whole`."""
    checkpoint = ranks.by_first(lambda: newest_whole(folder, needs_best)) if resume else None
    if checkpoint is not None and not ranks.is_first():
        files.wait_for(checkpoint)
    return checkpoint


def resume_position(checkpoint: Path | None, model: nn.Module, optimizer: ClippedOptimizer) -> Position | None:
    """Restores a step folder into model and optimizer, and says so; None for a run without one.

    Raises BertsmithError, on all ranks, where one of them cannot read it or has read something else than the first.
    """
    if checkpoint is None:
        return None
    found = together(lambda: load_checkpoint(checkpoint, model, optimizer))
    position = found.without_bests(ranks.by_first(lambda: lost_bests(checkpoint.parent, found)))
    agree(lambda: held(position, model, optimizer, checkpoint))
    say(f"resuming after step {position.step:,}")
    return position


def cut_of_run(
    started_on: Mapping[str, str], position: Position | None, cut: Mapping[str, object], drops: bool
) -> dict[str, str]:
    """How this run's steps are cut up, for `RunFacts.started_on`: every world size that it has had, and every value of
    the settings in `cut`, the present one last.

    position: of the checkpoint that the run is resumed from. drops: whether the model has dropout. Warns where steps
    were cut up otherwise before that checkpoint.
    """
    facts, changes = {}, []
    for name, value in {"ranks": str(ranks.world_size()), **{name: str(each) for name, each in cut.items()}}.items():
        known = started_on[name].split(", ") if position and name in started_on else []
        if known and known[-1] != value:
            changes.append(f"{name} was {known[-1]} and is {value}")
        facts[name] = ", ".join(known if known[-1:] == [value] else [*known, value])
    if changes:
        curve = "; with dropout its curve differs from that run's within the spread of seeds"
        warn(
            f"this run is resumed with its steps cut up otherwise ({', '.join(changes)}): every step has the content "
            "that it would have had, but sums are taken in another order, so figures will be close to those of an "
            f"unbroken run and not equal to the bit{curve if drops else ''}",
            of_all_ranks=True,
        )
    return facts


@contextmanager
def trainer_of(
    folder: Path, facts: RunFacts, objective: Objective, optimizer: ClippedOptimizer, settings: TrainerSettings
) -> Iterator[Trainer]:
    """Claims the run folder, opens its metrics and listens to signals as long as the block trains; then waits for what
    is being written, ends the use of the C++ kernels, and puts back the random states of PyTorch.

    Raises BertsmithError where the disk refuses the metrics.
    """
    position, cadence, found = settings.position, settings.cadence, environment(settings.device.torch_device)
    kept = cadence.keep, cadence.keep_every
    metrics: list[MetricsFile] = []
    traces: list[Trace] = []
    with ExitStack() as ends:
        ends.callback(end_training)
        ends.callback(_putting_back(settings.device))
        # Also while the last checkpoint is being written.
        stop = SharedStop(ends.enter_context(stop_on_signals()))

        def start() -> None:
            claim(folder, facts, position)
            tell_disk_need(folder, objective.model, *kept, settings.steps, settings.keeps_best)
            metrics.append(ends.enter_context(_metrics_file(folder, facts, settings)))
            if settings.outputs.profile:
                traces.append(Trace(folder, settings.outputs.profile, settings.device.torch_device))
                ends.callback(traces[0].close)

        ranks.by_first(start)

        def before() -> None:
            facts.hold()
            settings.before_saves()
            metrics[0].sync()  # of the first rank, which alone writes checkpoints

        saver = ends.enter_context(Saver(folder, *kept, before))
        if position is not None and ranks.is_first():
            saver.remove_old(position.step)  # a kill may have come before, and fewer may be kept now
        trainer = Trainer(
            objective=objective,
            optimizer=optimizer,
            device=settings.device.torch_device,
            precision=settings.device.precision,
            saver=saver,
            metrics=metrics[0] if metrics else None,
            cadence=cadence,
            position=position or Position(),
            stop=stop,
            resume_hint=f"run the same command {'again' if settings.resumed else 'with --resume'} to resume",
            compiled=settings.compiled,
            peak=_peak(settings.device),
            mark_stopped=lambda why: ranks.by_first(lambda: mark_stopped(folder, facts, why)),  # before any rank leaves
            trace=traces[0] if traces else None,
            skipped_told=_skipped_told(metrics[0].path) if metrics else 0.0,
        )
        facts.events.open(folder, found, lambda: trainer.position.step, facts.is_ours)
        ends.callback(facts.events.hold_step)
        yield trainer
        stop.finish()


def _skipped_told(path: Path) -> float:
    """The skipped updates that the lines of a resumed run tell of."""
    skipped = [each["skipped_updates"] for each in read_metrics(path) if "skipped_updates" in each]
    return float(skipped[-1]) if skipped else 0.0


def _putting_back(device: Device) -> Callable[[], None]:
    """Puts back the present random state of a GPU."""
    if device.is_cpu:
        return nothing  # `only_training` does
    state = torch.cuda.get_rng_state(device.torch_device)

    def put_back() -> None:
        try:
            torch.cuda.set_rng_state(state, device.torch_device)
        except RuntimeError as error:  # after a recording of a CUDA graph that broke off, whose error is to be seen
            warn(f"the random state of the GPU is not what it was before the run: {error}")

    return put_back


def _metrics_file(folder: Path, facts: RunFacts, settings: TrainerSettings) -> MetricsFile:
    """The run's, with what else takes its records."""
    step = settings.position.step if settings.position else 0
    earlier = read_metrics(folder / METRICS_FILE) if settings.outputs.dllogger else []
    sinks = settings.outputs.sinks(folder, facts.recipe, earlier, step)
    return MetricsFile(folder, step + 1 if settings.position else 0, sinks, facts.hold)


def _peak(device: Device) -> float | None:
    """FLOP/s by the data sheet of a GPU; None for what is not listed, and for CPUs."""
    return None if device.is_cpu else peak_flops(torch.cuda.get_device_name(device.torch_device), device.precision)
