"""Model folders as `transformers` reads and writes them: config.json, model.safetensors, and the tokenizer's files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bertsmith.base import files
from bertsmith.base.device import check_process
from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import LOCK_FILE
from bertsmith.base.log import first_of, log_choice, say, warn
from bertsmith.base.streams import stream_key
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.initial import initialise, shapes_only
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.tokenizer_files import ADDED_FILE, ROLES_FILE, set_max_length
from bertsmith.weights.names import CONFIG_FILE as CONFIG_FILE
from bertsmith.weights.names import FINETUNE_FILE as FINETUNE_FILE
from bertsmith.weights.names import POOLER, RUN_FILE, part_of, to_huggingface, to_ours
from bertsmith.weights.stored import FOLDER_FIX, WEIGHTS_FILES, read_tensors, write_tensors
from bertsmith.weights.strict import Fit, fit, is_finite, own_parameters

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
TASK_FILE, PRETRAINING_FILE = "task.json", "pretraining.json"
_OPTIONAL_FILES = (ADDED_FILE, ROLES_FILE)
# What sentence-transformers reads beside the model (`tasks/embedding/folders.py`), the last one a folder.
_SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling")
# All that a folder of ours may hold.
_WRITTEN_FILES = (
    CONFIG_FILE,
    *WEIGHTS_FILES,
    *TOKENIZER_FILES,
    *_OPTIONAL_FILES,
    TASK_FILE,
    FINETUNE_FILE,
    PRETRAINING_FILE,
    *_SENTENCE_FILES,
)
# What no tensor's shape would show to be another.
_UNSEEN = ("num_attention_heads", "hidden_act", "layer_norm_eps")

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class FolderContents:
    """What a model folder says beside the weights.

    architecture: the class of `transformers` that reads it. write_tokenizer: puts the tokenizer's files into a folder.
    config: keys added to config.json. json_files: further files by name. max_length: the most tokens of a row; unless
    given, as many as the model has positions.
    """

    architecture: str
    write_tokenizer: Callable[[Path], object]
    config: Mapping[str, Any] = field(default_factory=dict)
    json_files: Mapping[str, Any] = field(default_factory=dict)
    max_length: int | None = None


def load_encoder(folder: files.StrPath, compute: torch.dtype | None = None) -> Encoder:
    """The encoder of a Hugging Face BERT folder, or of a finished run, in evaluation mode, with fp32 parameters.

    Needs config.json and weights only. Heads in the folder are left out, and said; a pooler that it lacks is fresh, and
    warned of. compute: the dtype of hidden states and products. Write to its weights under `torch.no_grad()`: a write
    to `.data` that is no optimizer's goes unnoticed (`docs/precision.md`). Raises BertsmithError that lists every
    tensor that is missing, unexpected or wrongly shaped.
    """
    return load_model(lambda config: Encoder(config, compute), folder, may_be_fresh=(POOLER,), warn_of_fresh=True)


def load_pretraining_model(
    folder: files.StrPath, compute: torch.dtype | None = None, pairs: bool = True
) -> PretrainingModel:
    """The encoder of a Hugging Face BERT folder, or of a finished run, with its masked-word and next-sentence heads, in
    evaluation mode.

    A head or pooler that the folder lacks is fresh, and warned of; otherwise as `load_encoder`. pairs: with the
    next-sentence head, and the pooler that feeds it.
    """
    fresh = (POOLER, "masked_head", "next_sentence")
    return load_model(lambda config: PretrainingModel(config, compute, pairs), folder, fresh, warn_of_fresh=True)


@torch.inference_mode(False)  # what a program loads in that mode could neither be trained nor rearranged
def load_model(
    build: Callable[[BertConfig], Model],
    folder: files.StrPath,
    may_be_fresh: Collection[str] = (),
    leave_out: Collection[str] = (),
    seed: int = 0,
    warn_of_fresh: bool = False,
) -> Model:
    """Builds a model from the config.json of a folder, or of a finished run's model, and gives it the folder's weights,
    all of them.

    may_be_fresh: the parts that may be drawn anew (from `seed`) where the folder lacks them. leave_out: heads of the
    folder that are not read. warn_of_fresh: a program without a log shows warnings only, and would use what is random
    unawares. Raises BertsmithError, also as `check_process` does.
    """
    check_process()
    folder = model_folder(folder)
    config = read_config(folder)
    with shapes_only():
        model = build(config)
    path, tensors = read_tensors(folder)
    unread = {name for name in tensors if part_of(to_ours(name) or "") in leave_out}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in unread}
    fitted = fit(model, tensors, may_be_fresh, path)
    # As `to_empty`, by which PyTorch would import sympy: half a second of every start.
    shaped = model.state_dict().items()
    # In fp32 even where a program has another default.
    empty = {name: torch.empty(each.shape, dtype=torch.float32, device="cpu") for name, each in shaped}
    model.load_state_dict(empty, assign=True)
    for part in sorted(fitted.fresh):
        module = model.get_submodule(part.removeprefix("encoder.") if isinstance(model, Encoder) else part)
        initialise(module, config.initializer_range, stream_key(seed, part))
    with torch.no_grad():
        for name, parameter in own_parameters(model).items():
            if name in fitted.tensors:
                parameter.copy_(fitted.tensors[name])
    if unread:
        fitted.fresh -= set(leave_out)
        why = "training starts anew; the folder's is not read"
        log_choice(f"{path}: {' and '.join(leave_out)}", "randomly initialised", why)
    _tell(path, fitted, tensors, warn_of_fresh)
    return model.eval()


def _tell(path: Path, fitted: Fit, tensors: Mapping[str, Tensor], warn_of_fresh: bool) -> None:
    """Says once what was drawn anew, left out or widened."""
    if fitted.fresh:
        what = f"{path}: {' and '.join(sorted(fitted.fresh))}"
        why = f"the folder has no weights for {'it' if len(fitted.fresh) == 1 else 'them'}"
        if warn_of_fresh:
            warn(f"{what}: randomly initialised ({why})", of_all_ranks=True)
        else:
            log_choice(what, "randomly initialised", why)
    if fitted.unused:
        log_choice(f"{path}: {' and '.join(sorted(fitted.unused))}", "left out", "this model has no such part")
    tell_dtypes(path, tensors)


def tell_dtypes(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Says where weights are stored in another type than the fp32 that they are held in."""
    other = {str(each.dtype) for each in tensors.values() if each.is_floating_point() and each.dtype != torch.float32}
    if other:
        log_choice(f"{path}: weights", "held as torch.float32", f"stored as {' and '.join(sorted(other))}")


def model_folder(folder: files.StrPath, name: str = "model") -> Path:
    """A model folder, or the finished model of a run folder. Raises BertsmithError for a run that is not finished, and
    for an argument `name` that is no path."""
    folder = files.as_path(folder, name)
    inner = folder / "model"
    if (folder / CONFIG_FILE).is_file():
        return folder
    if (inner / CONFIG_FILE).is_file():
        return inner
    if (folder / RUN_FILE).is_file():
        what = "this run is not finished, so it has no model yet"
        raise BertsmithError(what, folder, "finish it with --resume, or name another model")
    return folder


def read_config(folder: Path) -> BertConfig:
    """The shape of the BERT in a folder; what decides its numbers and is not said there is as in `transformers`, and
    told. Raises BertsmithError as `read_values` does, and for one that is no BERT's."""
    return shape_in(read_values(folder), folder / CONFIG_FILE, _UNSEEN)


def read_values(folder: Path) -> Any:
    """What the config file of a folder holds. Raises BertsmithError where there is none, and for a folder whose name is
    not UTF-8: its weights could not be read."""
    if folder.is_dir():
        files.check_utf8(folder)
        return files.read_json(folder / CONFIG_FILE, FOLDER_FIX)
    if folder.exists():
        raise BertsmithError("this is a file, not a model folder", folder, FOLDER_FIX)
    fix = f"{FOLDER_FIX}; nothing is fetched from a hub by its name"
    raise BertsmithError("this model folder does not exist", folder, fix)


def shape_in(values: Any, path: Path, told: Collection[str]) -> BertConfig:
    """The shape that the values of a config file describe. told: names of values whose lack there is logged. Raises
    BertsmithError that names the file."""
    try:
        shape = BertConfig.from_dict(values)
    except BertsmithError as error:
        raise BertsmithError(error.what, path, error.fix) from error
    for name in (each for each in told if values.get(each) is None):
        log_choice(f"{name} of {path}", str(getattr(shape, name)), "the file does not say; BERT's own value")
    return shape


def save_pretraining_model(
    model: PretrainingModel, tokenizer_folder: str | Path, out: str | Path, facts: Mapping[str, Any] | None = None
) -> None:
    """Writes a folder that `transformers` reads as a BertForPreTraining, or as a BertForMaskedLM where the model has no
    pairs, and its `AutoTokenizer`; see `save_model`.

    facts: of the model's training, for its pretraining.json.
    """
    architecture = "BertForPreTraining" if model.pairs else "BertForMaskedLM"
    save_model(model, _pretrained(architecture, tokenizer_folder, facts), out)


def save_encoder(
    model: Encoder, tokenizer_folder: str | Path, out: str | Path, facts: Mapping[str, Any] | None = None
) -> None:
    """Writes a folder that `transformers.AutoModel` and `AutoTokenizer` read; as `save_pretraining_model`."""
    save_model(model, _pretrained("BertModel", tokenizer_folder, facts), out)


def _pretrained(architecture: str, tokenizer_folder: str | Path, facts: Mapping[str, Any] | None) -> FolderContents:
    json_files = {} if facts is None else {PRETRAINING_FILE: facts}
    return FolderContents(architecture, partial(_copy_tokenizer, Path(tokenizer_folder)), json_files=json_files)


def save_model(model: nn.Module, contents: FolderContents, out: str | Path) -> None:
    """Writes a complete model folder, whole or not at all; it replaces a model folder that was there, and says so.

    The model must have a `config`. Weights are stored in fp32. Raises BertsmithError where `out` holds something
    other than a model folder, and where the disk refuses.
    """
    tensors = {name: parameter.detach() for name, parameter in own_parameters(model).items()}
    config = model.config
    assert isinstance(config, BertConfig)
    write_folder(tensors, config, contents, Path(out))


def write_folder(tensors: Mapping[str, Tensor], shape: BertConfig, contents: FolderContents, out: Path) -> None:
    """Writes a model folder of tensors under our names; as `save_model` otherwise."""
    broken = [name for name, each in tensors.items() if not is_finite(each.float())]
    if broken:
        what = f"weights are not finite (NaN or infinity) in fp32: {first_of(broken)}"
        fix = "train again with a lower learning rate or --precision fp32; nothing was written"
        raise BertsmithError(what, out, fix)
    replaces = check_replaceable(out)
    prefix = "" if contents.architecture == "BertModel" else "bert."
    stored = {to_huggingface(name, prefix): each.float().cpu().contiguous() for name, each in tensors.items()}
    config = {"architectures": [contents.architecture], **shape.to_dict(), "dtype": "float32"}
    with files.whole_folder(out) as aside:
        files.write_json(aside / CONFIG_FILE, {**config, **contents.config})
        write_tensors(stored, aside / WEIGHTS_FILES[0])
        # safetensors lets its owner alone read what it writes; a model is for all who may read its config.
        shutil.copymode(aside / CONFIG_FILE, aside / WEIGHTS_FILES[0])
        contents.write_tokenizer(aside)
        set_max_length(aside, contents.max_length or shape.max_position_embeddings)
        for name, value in contents.json_files.items():
            files.write_json(aside / name, value)
    if replaces:
        say(f"the model that was in {out} is replaced")


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files; those that the source lacks, as folders of `transformers` may, are made of the
    others, which is logged. Raises BertsmithError where it has neither tokenizer.json nor vocab.txt."""
    lacking = [name for name in TOKENIZER_FILES if not (source / name).is_file()]
    if lacking:
        Tokenizer.load(source).save(target)
        log_choice(f"{' and '.join(lacking)} of the tokenizer", "made of its other files", f"not in {source}")
    for name in (*TOKENIZER_FILES, *_OPTIONAL_FILES):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def copy_without_weights(source: Path, target: Path) -> None:
    """Copies what a model folder says beside its weights and how it was trained; the tokenizer's files whole."""
    _copy_tokenizer(source, target)
    for name in (CONFIG_FILE, TASK_FILE, *_SENTENCE_FILES):
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def check_replaceable(out: Path) -> bool:
    """Whether `out` holds a model folder, which may be replaced; False where nothing is there yet.

    Raises BertsmithError where it holds something else, or something beside the model: it would be deleted; and for a
    name that is not UTF-8, under which no model is read.
    """
    files.check_utf8(out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not _is_model_folder(out):
        fix = "choose another folder, or empty this one first"
        raise BertsmithError("this is there already and is not a model folder", out, fix)
    known = (*_WRITTEN_FILES, LOCK_FILE)
    extra = sorted(
        each.name
        for each in out.iterdir()
        if each.name not in known or each.is_dir() != (each.name == _SENTENCE_FILES[-1])
    )
    if extra:
        what = f"this model folder also holds {first_of(extra)}, which would be deleted with it"
        raise BertsmithError(what, out, "choose another folder, or move these away first")
    return True


def _is_model_folder(out: Path) -> bool:
    """Whether it holds the config of a BERT, and weights."""
    if not (out / CONFIG_FILE).is_file() or not any((out / name).is_file() for name in WEIGHTS_FILES):
        return False
    try:
        config = files.read_json(out / CONFIG_FILE)
    except BertsmithError:
        return False
    return isinstance(config, dict) and config.get("model_type") == "bert"
