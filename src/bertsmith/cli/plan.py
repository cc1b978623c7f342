"""The verb that says what a run will need, before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bertsmith.base.errors import BertsmithError
from bertsmith.base.figures import check_figure
from bertsmith.base.files import write_json
from bertsmith.base.log import say
from bertsmith.cli.train import (
    BenchmarkFlags,
    RecipeFlags,
    finetune_flags,
    given_fields,
    recipe_flags,
    refuse_another_model,
)
from bertsmith.cli.verb import Call, Verb, import_torch
from bertsmith.recipes.flags import wants_help
from bertsmith.recipes.loader import BUDGET

if TYPE_CHECKING:
    from bertsmith.training.planning.plan import Plan
    from bertsmith.training.planning.where import Where

_GPU = "a100 (80 GB), h100 (80 GB), h200 (141 GB), v100 (32 GB), or cpu: this machine's, which is measured right then."
_CALIBRATION = "--calibration"
_OF_ROWS = ("--train", "--data", "--model")
KINDS = ("auto", "classify", "regress", "tag", "qa", "choice", "embed")
"""What a task may be named, beside the benchmarks: here, for the tasks themselves import PyTorch."""


@dataclass(frozen=True, kw_only=True)
class WhereFlags:
    """What a plan is made for beside the run."""

    gpu: Annotated[str, tyro.conf.arg(help=_GPU)] = "a100"
    gpus: int = 1
    """GPUs of a host; on a CPU the ranks that share this machine's cores, as with `pretrain --ranks`."""
    price: float = 0.0
    """What an hour of one of these costs, in any currency."""
    png: Path | None = None
    """Also draw memory, the time of a step, and the hours on more hosts into this file."""
    json: Path | None = None
    """Also write all figures into this file."""


@dataclass(frozen=True, kw_only=True)
class PlanFlags(RecipeFlags, WhereFlags):
    """Flags of `plan` for pre-training, beside those of Recipe."""

    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE|TASK")]
    """A preset's name or a YAML file; or a task of `finetune`, with the flags of that."""
    init_from: Path | None = None
    """Plan for a run that continues from this model folder or run, and has its shape."""
    calibration: bool = False
    """Alone, without a recipe: how well NVIDIA's published runs on 8 to 256 GPUs are predicted from those on one."""


@dataclass(frozen=True, kw_only=True)
class TaskFlags(BenchmarkFlags, WhereFlags):
    """Flags of `plan` for fine-tuning, beside those of FinetuneSettings."""

    model: Path
    """The folder of a pre-trained model, or a run that has one."""


def _plan(call: Call) -> None:
    if _CALIBRATION in call.args and not wants_help(call.args):
        _calibrate(call)
    else:
        _tell(*(_finetuning if _is_of_rows(call) else _pretraining)(call))


def _is_of_rows(call: Call) -> bool:
    """Whether the run is a fine-tuning: by its first word, or by flags that only one has."""
    from bertsmith.tasks.benchmarks.benchmark import benchmarks

    first = call.args[0] if call.args else ""
    return first in (*KINDS, *benchmarks()) or not call.given.isdisjoint(_OF_ROWS)


def _pretraining(call: Call) -> tuple[WhereFlags, Plan]:
    from bertsmith.training.plan import plan_pretraining

    flags, recipe = recipe_flags(call, PlanFlags)
    where = _where(call, flags)
    if where.on_cpu or flags.init_from is not None:
        import_torch()
    if flags.recipe == BUDGET:
        refuse_another_model(flags.init_from)
        from bertsmith.training.budget import planned_recipe

        recipe = planned_recipe(flags.corpus, where, given_fields(call))
    return flags, plan_pretraining(recipe, flags.corpus, where, flags.init_from)


def _finetuning(call: Call) -> tuple[WhereFlags, Plan]:
    if call.args and not call.args[0].startswith("-"):
        call = replace(call, prog=f"{call.prog} {call.args[0]}")  # whose help has the flags of a fine-tuning
    flags, settings = finetune_flags(call, TaskFlags)
    where = _where(call, flags)
    import_torch()
    from bertsmith.tasks.plan import RowsOfRun, plan_finetuning

    rows = RowsOfRun(flags.train, flags.dev, flags.test, flags.data, flags.hyper_parameters, flags.fold)
    return flags, plan_finetuning(flags.task, flags.model, rows, where, settings)


def _where(call: Call, flags: WhereFlags) -> Where:
    """Raises BertsmithError for what is not one, for the flag of a device, and for a picture that cannot be written."""
    if "--device" in call.given:
        raise BertsmithError("a plan is made for --gpu, not for --device", "--device", "use --gpu cpu, or leave it out")
    if flags.png is not None:
        check_figure(flags.png)
    from bertsmith.training.planning.where import Where

    return Where(flags.gpu, flags.gpus, flags.price)


def _tell(flags: WhereFlags, plan: Plan) -> None:
    from bertsmith.training.planning.picture import draw_plan
    from bertsmith.training.planning.plan import as_record
    from bertsmith.training.planning.report import plan_lines

    if flags.json is not None:
        write_json(flags.json, as_record(plan))
        say(f"all figures: {flags.json}")
    if flags.png is not None and draw_plan(plan, flags.png):
        say(f"picture: {flags.png}")
    print("\n".join(plan_lines(plan)))


def _calibrate(call: Call) -> None:
    from bertsmith.training.planning.calibration import calibration_lines, predicted

    if call.args != [_CALIBRATION]:
        raise BertsmithError(f"{_CALIBRATION} is given with other arguments", _CALIBRATION, "give it alone")
    print("\n".join(calibration_lines(predicted())))


VERBS = {
    "plan": Verb(
        "What a run will need, before it starts: tokens, epochs, FLOP, memory, hours, money, on one host and on many.",
        "  bertsmith plan bert-base-nvlamb --corpus corpus --gpus 8 --gpu h200 --price 3.5 --png plan.png\n"
        "  bertsmith plan bert-mini --corpus corpus --gpu cpu --gpus 2 --json plan.json\n"
        "  bertsmith plan budget --hours 24 --corpus corpus --gpu h100\n"
        "  bertsmith plan classify --model runs/mini --train train.csv --dev dev.csv --seeds 5 --gpu v100\n"
        "  bertsmith plan mrpc --model runs/mini --data glue\n"
        "  bertsmith plan mrpc --help          the flags of a plan of fine-tuning\n"
        "  bertsmith plan --calibration        how well NVIDIA's published runs are predicted",
        _plan,
    ),
}
