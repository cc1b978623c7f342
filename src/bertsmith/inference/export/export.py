"""A model folder exported: a folder complete in itself that another engine runs, checked before it is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from bertsmith.base import files, fp32_products
from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError, TypeChecked, check_class
from bertsmith.base.log import first_of, say, size
from bertsmith.base.versions import version_of
from bertsmith.inference.backends.engines import PACKAGES, check_installed, open_graph
from bertsmith.inference.backends.exported import GRAPH_FILES, graph_in
from bertsmith.inference.export.int8 import MAX_LOSS, check_enough, measured_loss
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.embedding.folders import SentenceRules, read_rules
from bertsmith.tasks.embedding.pooling import VectorModel
from bertsmith.tasks.reading.files import is_pipe
from bertsmith.tasks.registry import answering, architecture_of, read_task
from bertsmith.weights.huggingface import (
    CONFIG_FILE,
    TASK_FILE,
    copy_without_weights,
    load_model,
    model_folder,
    read_config,
)
from bertsmith.weights.names import POOLER
from bertsmith.weights.stored import EXPORT_FILE

TARGETS = ("onnx", "openvino", "triton")


@dataclass(frozen=True)
class ExportOptions(TypeChecked):
    """to: one of `TARGETS`. int8: whether there is a graph in int8, too. data: rows to measure that on; columns: where
    texts and labels stand in them. max_loss: the share of the metric's value that int8 may cost. few_lengths: whether
    some lengths are checked, not every one. measure: False writes int8 without data, for a bench of its speed. name:
    the model's in a repository for Triton; None for the name of the folder."""

    to: str = "onnx"
    int8: bool = False
    data: Path | None = None
    max_loss: float = MAX_LOSS
    columns: Mapping[str, Any] = field(default_factory=dict)
    few_lengths: bool = False
    measure: bool = True
    name: str | None = None


@fp32_products.kept()
def export(model: files.StrPath, out: str | Path, options: ExportOptions | None = None) -> dict[str, Any]:
    """Writes the folder `out`, whole or not at all: the graph, the tokenizer, config.json and task.json, and in
    export.json how it was checked, which is given back.

    An earlier export in `out` is replaced. Raises BertsmithError for options that do not belong together, for a model
    that cannot be exported, where the graph does not give what PyTorch gives, and where int8 costs too much.
    """
    check_class(options, ExportOptions, "options")
    options, source, out = options or ExportOptions(), model_folder(model), files.as_path(out, "out")
    read_config(source)
    _check_options(options)
    backend = "openvino" if options.to == "openvino" else "onnx"
    for package in ("onnx", PACKAGES[backend]):
        check_installed(package, backend)
    from bertsmith.inference.export.triton import arrange, check_name, labels_of  # here and below: it imports onnx

    name = ""
    if options.to == "triton":
        name = check_name(options.name or out.resolve().name)
        labels_of(files.read_json(source / CONFIG_FILE))
    files.check_name(out)  # before what is in it is listed: of / that would be the whole disk
    files.check_utf8(out)
    _check_replaceable(out, name)
    with files.whole_folder(out) as aside:
        copy_without_weights(source, aside)
        facts = _write_graphs(source, aside, backend, options)
        if options.data is not None:
            loss = measured_loss(aside, backend, options.data, options.max_loss, options.columns)
            facts["int8"] = {"data": options.data.name, **asdict(loss), "max_loss": options.max_loss}
        if options.to == "triton":
            served = "int8" if options.int8 else "fp32"
            arrange(aside, name, GRAPH_FILES[backend][served])
            facts["bytes"] = {precision: count for precision, count in facts["bytes"].items() if precision == served}
            facts["name"] = name
            say("the graph was run by ONNX Runtime; Triton's server, and TensorRT, were not")
        facts["files"] = _files_in(aside)
        files.write_json(aside / EXPORT_FILE, facts)
    sizes = ", ".join(f"{precision} {size(count)}" for precision, count in facts["bytes"].items())
    say(f"{out}: a model for {options.to} ({sizes})")
    return facts


def _check_options(options: ExportOptions) -> None:
    if options.to not in TARGETS:
        raise BertsmithError(f"nothing is exported to '{options.to}'", "--to", f"use one of {', '.join(TARGETS)}")
    if options.measure and options.int8 != (options.data is not None):
        what = "--int8 needs labelled rows to measure its cost on" if options.int8 else "--data is for --int8 alone"
        raise BertsmithError(what, "--data", "give both, or neither")
    if options.data is not None and is_pipe(options.data):
        raise BertsmithError("--data is read more than once, and a pipe can be read once", "--data", "name a file")
    if options.columns and options.data is None:
        raise BertsmithError("--columns is of the rows of --data", "--columns", "give both, or neither")
    if options.name is not None and options.to != "triton":
        raise BertsmithError("--name is of a model for Triton", "--name", "leave it out, or use --to triton")
    if not options.int8 and options.max_loss != MAX_LOSS:
        raise BertsmithError("--max-loss is for --int8, which may cost so much", "--max-loss", "give both, or neither")
    if not 0 <= options.max_loss <= 1:
        what = f"--max-loss is {options.max_loss:g}"
        raise BertsmithError(what, "--max-loss", "use a share from 0 to 1 of the metric's value in fp32")


def _files_in(folder: Path) -> list[str]:
    """All files below a folder, relative to it."""
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if not each.is_dir())


def _check_replaceable(out: Path, name: str) -> None:
    """Raises BertsmithError where `out` holds something other than an earlier export, or another model in a repository
    for Triton: it would be deleted. name: of the model in such a repository."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    found = files.read_json(out / EXPORT_FILE) if (out / EXPORT_FILE).is_file() else {}
    earlier = found if isinstance(found, dict) and isinstance(found.get("files"), list) else {}
    if earlier.get("name", name) != name:
        what = f"this is a repository with the model '{earlier['name']}', which would be deleted"
        raise BertsmithError(what, out, "choose another --out; the folders of models can be moved into one repository")
    known = earlier.get("files", ())
    extra = [each for each in _files_in(out) if each not in known] if out.is_dir() else [out.name]
    if extra:
        what = f"this is there already and holds more than an earlier export ({first_of(extra)})"
        raise BertsmithError(what, out, "choose another folder, or move it away first")
    say(f"the export that is in {out} will be replaced once this one was checked")


def _write_graphs(source: Path, aside: Path, backend: str, options: ExportOptions) -> dict[str, Any]:
    """The graphs and a first export.json, with the check of the one in fp32."""
    from bertsmith.inference.export.bert import graph_of
    from bertsmith.inference.export.check import TOLERANCE, check, checked_lengths
    from bertsmith.inference.export.files import write_graph

    choose_device("cpu", "fp32")
    model, shape = exported_model(source, options), read_config(source)
    pretrained = architecture_of(files.read_json(source / CONFIG_FILE)) == "BertForPreTraining"
    names = GRAPH_FILES[backend]
    count = {"fp32": write_graph(graph_of(model, next_sentence=pretrained), aside / names["fp32"])}
    # The longest that divides the rows of every linear map: where it does not, OpenVINO widens the weights instead.
    group = math.gcd(shape.hidden_size, shape.intermediate_size)
    facts: dict[str, Any] = {"backend": backend, "int8_group": group, "bytes": count}
    files.write_json(aside / EXPORT_FILE, facts)
    lengths = checked_lengths(shape.max_position_embeddings, options.few_lengths)
    less = "" if options.few_lengths else "; --few-lengths takes less time"
    say(f"comparing the graph with PyTorch at {len(lengths)} lengths from 1 to {lengths[-1]}{less}")
    checked = check(open_graph(graph_in(aside, backend, "fp32")), model, lengths)
    most = max(checked.differences.values())
    say(f"its numbers are at most {most:.2g} from PyTorch's")
    facts["checked"] = {**asdict(checked), "tolerance": TOLERANCE}
    facts["made_with"] = {each: version_of(each) for each in ("bertsmith", "onnx", "torch", PACKAGES[backend])}
    if options.int8:
        narrow = graph_of(model, "weights" if backend == "openvino" else "operators", pretrained)
        count["int8"] = write_graph(narrow, aside / names["int8"])
        share = count["int8"] / count["fp32"]
        say(f"int8: the weights of linear maps, and embeddings stay in fp32: the graph has {share:.0%} of the bytes")
    return facts


def exported_model(source: Path, options: ExportOptions) -> nn.Module:
    """The model of a folder in fp32: its task's; one that has none gives vectors. Raises BertsmithError for rows that
    int8 cannot be measured on, before any time is spent."""
    config = files.read_json(source / CONFIG_FILE)
    if answering(read_task(source / TASK_FILE).values | config) is not None:
        predictor = Predictor(source, "cpu", precision="fp32", columns=options.columns)
        if options.data is not None:
            check_enough(len(predictor.examples(options.data).records), options.max_loss, options.data)
        return predictor.model
    if options.data is not None:
        what = "this model has no task, and so no metric that would say what int8 costs"
        raise BertsmithError(what, source, "leave out --int8, or fine-tune the model first")
    rules = read_rules(source) or SentenceRules(unit=False)
    say(f"{source} has no task: exported are hidden states, and vectors as `bertsmith embed` makes them")
    return load_model(
        lambda shape: VectorModel(shape, rules.pooling, None, rules.unit, rules.dimensions), source, (POOLER,)
    )
