"""What sentence-transformers reads of a model folder beside the model: how vectors are made of hidden states.

modules.json                       the parts, in their order: the encoder, pooling, and perhaps scaling to length 1
1_Pooling/config.json              which pooling
sentence_bert_config.json          the most tokens of a text
config_sentence_transformers.json  prompts, and how many numbers of a vector are kept
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.embedding.pooling import POOLINGS, Pooling
from bertsmith.tokens.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE

MODULES_FILE, PROMPTS_FILE = "modules.json", "config_sentence_transformers.json"
_SETTINGS_FILE = "sentence_bert_config.json"
_POOLING_FOLDER = "1_Pooling"
# The flags of earlier versions, and what later ones call them.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_FIX = "use sentence-transformers for this model, or fine-tune another one"


@dataclass(frozen=True)
class SentenceRules:
    """pooling, unit, dimensions: as of `VectorModel`. max_length: the most tokens of a text; None where the folder does
    not say. lowercase: whether texts are lower-cased before the tokenizer sees them."""

    pooling: Pooling = "mean"
    unit: bool = True
    max_length: int | None = None
    lowercase: bool = False
    dimensions: int | None = None


def read_rules(folder: Path) -> SentenceRules | None:
    """What a folder of sentence-transformers says; None for a folder without modules.json.

    Raises BertsmithError, with its name, for what is not computed here: other parts, other ways of pooling, and a
    prompt before every text.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return None
    modules = _listed(path)
    names = [str(each.get("type")).rpartition(".")[2] for each in modules]
    places = [str(each.get("path", "")) for each in modules]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        what = f"its parts are {', '.join(names)}; read here are Transformer, Pooling and perhaps Normalize"
        raise BertsmithError(what, path, _FIX)
    if places[0]:
        raise BertsmithError(f"its encoder is in '{places[0]}', not beside this file", path, _FIX)
    prompt = read_sentence_config(folder).get("default_prompt_name")
    if prompt is not None:
        what = f"it puts the prompt '{prompt}' before every text, which is not done here"
        raise BertsmithError(what, folder / PROMPTS_FILE, _FIX)
    settings = _object_if_any(folder / _SETTINGS_FILE)
    return SentenceRules(
        pooling=_pooling(folder / places[1] / "config.json"),
        unit=len(names) == 3,
        max_length=_max_length(settings, folder),
        lowercase=settings.get("do_lower_case") is True,
        dimensions=_dimensions(folder),
    )


def folder_files(rules: SentenceRules, width: int) -> dict[str, Any]:
    """The files of a folder, by name. width: of the vectors."""
    prefix = "sentence_transformers.models."
    parts = [("", "Transformer"), (_POOLING_FOLDER, "Pooling"), *([("2_Normalize", "Normalize")] * rules.unit)]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": prefix + kind}
        for place, (path, kind) in enumerate(parts)
    ]
    flags = {flag: mode == rules.pooling for flag, mode in _FLAGS.items()}
    return {
        MODULES_FILE: modules,
        _SETTINGS_FILE: {"max_seq_length": rules.max_length, "do_lower_case": rules.lowercase},
        f"{_POOLING_FOLDER}/config.json": {"word_embedding_dimension": width, **flags},
    }


def _listed(path: Path) -> list[Mapping[str, Any]]:
    modules = files.read_json(path, _FIX)
    if not isinstance(modules, list) or not all(isinstance(each, Mapping) for each in modules):
        raise BertsmithError("this file does not list the parts of a model", path, _FIX)
    return modules


def _object(path: Path) -> Mapping[str, Any]:
    found = files.read_json(path, _FIX)
    if not isinstance(found, Mapping):
        raise BertsmithError("this file holds no JSON object", path, _FIX)
    return found


def _object_if_any(path: Path) -> Mapping[str, Any]:
    """{} where there is no such file."""
    return _object(path) if path.is_file() else {}


def _pooling(path: Path) -> Pooling:
    config = _object(path)
    flags = [flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on is True]
    usual = ["mean"] if not any(flag.startswith("pooling_mode") for flag in config) else []
    named = config.get("pooling_mode", [_FLAGS.get(flag, flag) for flag in flags] or usual)
    modes = named if isinstance(named, list) else [named]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        what = f"its pooling is {' with '.join(map(str, modes)) or 'none'}; read here is one of {', '.join(POOLINGS)}"
        raise BertsmithError(what, path, _FIX)
    return cast(Pooling, modes[0])


def _max_length(settings: Mapping[str, Any], folder: Path) -> int | None:
    """sentence-transformers asks the tokenizer where its own file does not say."""
    path, name = folder / _SETTINGS_FILE, "max_seq_length"
    length = settings.get(name)
    if length is None:
        path, name = folder / TOKENIZER_CONFIG_FILE, "model_max_length"
        length = _object_if_any(path).get(name)
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 3:
        raise BertsmithError(f"its {name} is {length!r}, not a number from 3", path, "correct or remove it")
    return int(min(length, sys.maxsize))  # the file may say infinity


def read_sentence_config(folder: Path) -> Mapping[str, Any]:
    """What sentence-transformers says of a folder's use, such as prompts; {} where it says nothing."""
    return _object_if_any(folder / PROMPTS_FILE)


def read_max_length(folder: Path) -> int | None:
    """The most tokens of a row by what a folder says to `transformers`, or to sentence-transformers where it is one of
    these; None where it does not say."""
    return _max_length(_object_if_any(folder / _SETTINGS_FILE) if (folder / PROMPTS_FILE).is_file() else {}, folder)


def _dimensions(folder: Path) -> int | None:
    """How many numbers of a vector sentence-transformers keeps (`truncate_dim`); None for all. Raises BertsmithError
    for what is no such number."""
    found = read_sentence_config(folder).get("truncate_dim")
    if found is not None and (type(found) is not int or found < 1):
        what = f"its truncate_dim is {found!r}, not a whole number from 1"
        raise BertsmithError(what, folder / PROMPTS_FILE, "correct it, or remove it: then vectors are not cut")
    return found
