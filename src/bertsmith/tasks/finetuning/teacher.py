"""The teacher of a fine-tuning run: whether it fits the run, and what the student takes from it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.base import files
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.model.distillation import maps
from bertsmith.tasks.distilling.objective import Teaching, weights
from bertsmith.tasks.finetuning.work import Distilled, Work
from bertsmith.tasks.registry import answering, architecture_of, of_folder, read_task
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.task import FolderFacts, Task
from bertsmith.training.run_folder import model_identity, settings_identity
from bertsmith.weights.huggingface import CONFIG_FILE, TASK_FILE, load_model, model_folder, read_config

_FIX = "name a teacher that was fine-tuned for this task on rows with these labels"


def check_teacher(work: Work) -> None:
    """Says who teaches whom. Raises BertsmithError where the teacher is of another task, other labels or another
    tokenizer, where it has too few positions, and where the layers that are named are not there."""
    if work.distilled is None:
        return
    distilled, folder = work.distilled, work.distilled.teacher
    config = read_config(folder)
    tokenizer = load_tokenizer(folder, config)
    if tokenizer.sha256 != work.tokenizer.sha256:
        what = "the teacher's tokenizer is not the student's, so their ids mean different pieces"
        raise BertsmithError(what, f"{folder} and {work.folder}", "give a student with the teacher's vocabulary")
    values, facts = files.read_json(folder / CONFIG_FILE), read_task(folder / TASK_FILE).values
    kind = answering(facts | values)
    if kind is None or not issubclass(kind, Task):
        raise BertsmithError(f"the teacher is not fine-tuned: it holds {architecture_of(values)}", folder, _FIX)
    _check_same(work.task, of_folder(kind, folder, FolderFacts(values, facts, tokenizer)), str(folder))
    if config.max_position_embeddings < work.max_length:
        what = f"the teacher has {config.max_position_embeddings} positions and sequences {work.max_length} tokens"
        raise BertsmithError(what, folder, "lower --max-length")
    every = read_config(work.folder).num_hidden_layers
    if distilled.shape is None and distilled.settings.student_layers > every:
        what = f"student_layers is {distilled.settings.student_layers}, and the folder's model has {every}"
        raise BertsmithError(what, work.folder, f"use at most {every}")
    if distilled.shape is not None and distilled.settings.student_layers:
        what = "student_layers takes layers of a model, and the student is a recipe's"
        raise BertsmithError(what, "student", "give a model as --student, or leave out --student-layers")
    _tell(work, work.layer_pairs)


def _check_same(task: Task, teacher: Task, where: str) -> None:
    if type(task) is not type(teacher):
        names = [each.config().get("problem_type", each.kind) for each in (teacher, task)]
        raise BertsmithError(f"the teacher is fine-tuned for {names[0]}, and the rows are of {names[1]}", where, _FIX)
    theirs, ours = (list(each.config().get("id2label", {}).values()) for each in (teacher, task))
    if theirs != ours:
        what = f"the teacher's labels are {', '.join(theirs)} and the training rows' {', '.join(ours)}"
        raise BertsmithError(what, where, f"{_FIX}, or give their order with --labels")
    if teacher.pairs is not None and task.pairs is not None and teacher.pairs != task.pairs:
        counts = ["two texts" if each.pairs else "one text" for each in (teacher, task)]
        raise BertsmithError(f"the teacher reads {counts[0]} a row, and the rows have {counts[1]}", where, _FIX)
    if (teacher.overlap is None) != (task.overlap is None):
        ways = ["cut" if each.overlap is None else "read in windows" for each in (teacher, task)]
        warn(f"long texts were {ways[0]} when the teacher was trained, and are {ways[1]} here, for both models")


def _tell(work: Work, pairs: tuple[tuple[int, int], ...]) -> None:
    assert work.distilled is not None
    settings, shape, of = work.distilled.settings, work.config, work.distilled.teacher
    if work.starts_random:
        begins = f"random weights, {len(work.layers)} layers of {shape.hidden_size}"
    else:
        every = shape.num_hidden_layers
        some = f"layers {', '.join(map(str, work.layers))} of {every}" if len(work.layers) < every else "all layers"
        head = " with the head" if work.distilled.as_teacher else ""
        begins = f"{some} of {work.folder}{head}"
    say(f"student: {begins}; teacher: {of}")
    losses = ", ".join(f"{name} x {weight:g}" for name, weight in weights(work.task, settings).items())
    layers = ", ".join(f"{ours}:{theirs}" for ours, theirs in pairs)
    if work.distilled.as_teacher and len(work.layers) == shape.num_hidden_layers:
        warn("the student is its teacher with all layers, so nothing becomes smaller: --student-layers takes some")
    if not settings.trains_head(bool(work.task.head)):
        head = "the teacher's" if work.distilled.as_teacher else "random, and so is what it answers"
        warn(f"neither labels nor the teacher's scores have a weight, so the student's head stays {head}")
    say(f"losses: {losses}" + (f"; layers (student:teacher) {layers}" if settings.hidden_weight else ""))


def distilled_identity(distilled: Distilled) -> dict[str, Any]:
    """What a run with a teacher comes to depends on."""
    found: dict[str, Any] = dict(model_identity(distilled.teacher, "teacher"))
    if distilled.settings.augment_model is not None:
        found |= model_identity(model_folder(Path(distilled.settings.augment_model)), "augment_model")
    if distilled.as_teacher:
        found["student"] = "the teacher with its head"
    if distilled.shape is not None:
        found |= settings_identity(asdict(distilled.shape), "student", ())
    return found


def teaching_of(work: Work, device: Device) -> Teaching | None:
    """The teacher with its weights, where one is needed; None for a run without."""
    if work.distilled is None:
        return None
    folder, settings = work.distilled.teacher, work.distilled.settings
    model = None
    if settings.logits_weight or settings.hidden_weight:
        model = load_model(lambda shape: work.task.build(shape, device.compute), folder)
        work.task.start(model, fresh=False)  # so that a student that starts as its teacher is equal to it, to the bit
        model.to(device.torch_device).requires_grad_(False)
    return Teaching(model, read_config(folder), work.layer_pairs, settings)


def add_maps(model: nn.Module, work: Work, seed: int) -> None:
    """Gives a student the maps to its teacher's width, where hidden states are compared and the widths differ."""
    if work.distilled is not None and work.distilled.settings.hidden_weight:
        widths = work.config.hidden_size, read_config(work.distilled.teacher).hidden_size
        maps.add_maps(model, len(work.layer_pairs), widths, seed)
