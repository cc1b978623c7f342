"""Importing a checkpoint of Google's or NVIDIA's: its weights, its shape and its vocabulary become a model folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice, say
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.initial import shapes_only
from bertsmith.model.pretraining import MaskedHead
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.architecture import CHOICES, SEQUENCES, architecture_of, named_classifier
from bertsmith.weights.find_checkpoint import find_checkpoint
from bertsmith.weights.foreign import Foreign
from bertsmith.weights.google import read_tensorflow
from bertsmith.weights.huggingface import FolderContents, check_replaceable, shape_in, tell_dtypes, write_folder
from bertsmith.weights.names import ALIASES, HEADS, POOLER, bare, part_of, to_ours
from bertsmith.weights.nvidia import read_nvidia
from bertsmith.weights.strict import fit

_CONFIG_FILES = ("bert_config.json", "config.json")
_VOCABULARY_FILES = ("tokenizer.json", "vocab.txt")
# What decides the shapes and the function; a value that is merely assumed would make another model.
_NEEDED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "hidden_act",
)  # fmt: skip
_WITH_DEFAULTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
# NVIDIA's scripts round the vocabulary up to this for the tensor cores.
_PADDED_TO = 8
_WORD = "encoder.embeddings.word.weight"


def import_checkpoint(
    checkpoint: str | Path,
    out: str | Path,
    vocabulary: str | Path | None = None,
    config: str | Path | None = None,
    lowercase: bool | None = None,
    activation: str | None = None,
) -> Path:
    """Makes a model folder, which `transformers` reads too, of a checkpoint of Google's or NVIDIA's, and returns it.

    checkpoint: a TensorFlow checkpoint (V2) by its prefix, one of its files or its folder; or a `.pt` file. vocabulary
    (a vocab.txt or a tokenizer's folder) and config (a bert_config.json): else those beside the checkpoint. lowercase:
    else as the vocabulary is. activation: one of model.config.ACTIVATIONS; else the config's, where gelu means the tanh
    form. Nothing is drawn at random, and nothing but the state of training is left out. Raises BertsmithError that
    lists every missing, unexpected and wrongly shaped tensor, and names what is damaged.
    """
    if not isinstance(lowercase, bool | None):
        raise BertsmithError(f"lowercase is {lowercase!r}", "lowercase", "use True or False, or leave it out")
    out = files.as_path(out, "out")
    if check_replaceable(out):
        raise BertsmithError("a model is here already", out, "choose another --out, or remove this folder first")
    place = find_checkpoint(files.as_path(checkpoint, "checkpoint"))
    tokenizer = _tokenizer(place.path.parent, vocabulary, lowercase)
    config_path = _beside("config", place.path.parent, config, _CONFIG_FILES)
    foreign = read_tensorflow(place.path) if place.kind == "tensorflow" else read_nvidia(place.path)
    if config_path is None:
        what = f"no {' or '.join(_CONFIG_FILES)} beside this checkpoint"
        raise BertsmithError(what, foreign.where, _config_fix(foreign))
    values = files.read_json(config_path, "name the model's bert_config.json with --config")
    shape = _with_rows_of(foreign, _shape_of(values, config_path, activation), tokenizer)
    tensors = _fitted(foreign, shape, named_classifier(values))
    architecture, labels = architecture_of(tensors, values, foreign.where)
    write_folder(tensors, shape, FolderContents(architecture, tokenizer.save, labels), out)
    if foreign.left_out:
        say(f"{foreign.where}: left out: {', '.join(foreign.left_out)}")
    tell_dtypes(foreign.where, tensors)
    count = sum(each.numel() for each in tensors.values())
    say(f"{len(tensors):,} tensors, {count:,} parameters: {architecture} in {out}")
    return out


def _beside(what: str, folder: Path, named: str | Path | None, names: tuple[str, ...]) -> Path | None:
    """The file that the user names, else the first of `names` that lies in the checkpoint's folder; None without."""
    if named is not None:
        return files.as_path(named, what)
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is not None:
        log_choice(what, str(found), "found beside the checkpoint")
    return found


def _tokenizer(folder: Path, named: str | Path | None, lowercase: bool | None) -> Tokenizer:
    source = _beside("vocabulary", folder, named, _VOCABULARY_FILES)
    if source is None:
        fix = "name the model's vocabulary with --vocab vocab.txt"
        raise BertsmithError("no vocab.txt beside this checkpoint", folder, fix)
    tokenizer = Tokenizer.load(source)
    if lowercase is None or lowercase == tokenizer.lowercase:
        return tokenizer
    log_choice(f"casing of {source}", "lower-cased" if lowercase else "cased", "the command says so")
    return tokenizer.with_casing(lowercase)


def _shape_of(values: Any, path: Path, activation: str | None) -> BertConfig:
    """The shape in a bert_config.json, with the activation that the user names or that Google's code computes."""
    missing = [name for name in _NEEDED if not isinstance(values, dict) or values.get(name) is None]
    if missing:
        fix = "name the bert_config.json that belongs to the checkpoint"
        raise BertsmithError(f"this config lacks {', '.join(missing)}", path, fix)
    shape = shape_in(values, path, _WITH_DEFAULTS)
    if activation is None and shape.hidden_act == "gelu":
        activation = "gelu_pytorch_tanh"
        reason = "what they call gelu is computed with tanh; NVIDIA's PyTorch scripts once took erf: --activation gelu"
        log_choice(f"activation of {path}", activation, reason)
    return dataclasses.replace(shape, hidden_act=activation or shape.hidden_act)


def _config_fix(foreign: Foreign) -> str:
    """What the tensors tell of the config, for a user who has to write it."""
    found = {to_ours(name): (*tensor.shape, 0, 0) for name, tensor in foreign.tensors.items()}
    word, position, kind = (
        found.get(f"encoder.embeddings.{name}.weight", (0, 0)) for name in ("word", "position", "token_type")
    )
    layers = [name for name in found if name is not None and name.endswith(".feed_forward.inner.weight")]
    inner = found.get("encoder.layers.0.feed_forward.inner.weight", (0, 0))
    return (
        f"name it with --config; by the tensors it says vocab_size {word[0]}, hidden_size {word[1]}, "
        f"num_hidden_layers {len(layers)}, intermediate_size {inner[0]}, max_position_embeddings {position[0]}, "
        f"type_vocab_size {kind[0]}; no tensor tells num_attention_heads and hidden_act"
    )


def _with_rows_of(foreign: Foreign, shape: BertConfig, tokenizer: Tokenizer) -> BertConfig:
    """The shape with the vocabulary's size on disk, which NVIDIA pads, and the tokenizer's [PAD].

    Raises BertsmithError where the tokenizer has another number of pieces than the model.
    """
    rows = next((len(each) for name, each in foreign.tensors.items() if to_ours(name) == _WORD and each.dim()), None)
    if rows is not None and rows != shape.vocab_size and rows == _padded(shape.vocab_size):
        why = f"NVIDIA's scripts pad {shape.vocab_size:,} to a multiple of {_PADDED_TO}"
        log_choice(f"{foreign.where}: vocab_size", f"{rows:,}, as stored", why)
        shape = dataclasses.replace(shape, vocab_size=rows)
    if shape.vocab_size not in (tokenizer.size, _padded(tokenizer.size)):
        what = f"the vocabulary has {tokenizer.size:,} pieces and the model {shape.vocab_size:,}"
        fix = "name the vocabulary and the config that belong to the checkpoint with --vocab and --config"
        raise BertsmithError(what, foreign.where, fix)
    if shape.vocab_size != tokenizer.size:
        say(f"{shape.vocab_size - tokenizer.size} rows of the vocabulary stand for no piece: padding, kept")
    return dataclasses.replace(shape, pad_token_id=tokenizer.special.pad)


def _padded(rows: int) -> int:
    return -(-rows // _PADDED_TO) * _PADDED_TO


class _Found(nn.Module):
    """The parameters that a checkpoint with these heads must have, and no others. rows: of the classifier."""

    def __init__(self, config: BertConfig, heads: set[str], rows: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        if "masked_head" in heads:
            self.masked_head = MaskedHead(config)
        for head, outputs in (("next_sentence", 2), ("qa_outputs", 2), ("classifier", rows)):
            if head in heads:
                setattr(self, head, nn.Linear(config.hidden_size, outputs))


def _fitted(foreign: Foreign, shape: BertConfig, classifier: str | None) -> dict[str, Tensor]:
    """The checkpoint's tensors by our names, all of them, of the right shapes; raises BertsmithError otherwise.

    classifier: the class that the config names, if it has a classifier.
    """
    given = {ours: each for name, each in foreign.tensors.items() if (ours := to_ours(name)) is not None}
    given |= {ALIASES[bare(name)]: each for name, each in foreign.tensors.items() if bare(name) in ALIASES}
    heads = {part_of(name) for name in given} & set(HEADS)
    bias = given.get("classifier.bias")
    rows = len(bias) if bias is not None and bias.dim() == 1 else 2
    with shapes_only():
        model = _Found(shape, heads, rows)
    # Words, answers and classes of tokens are found without the pooler, so a checkpoint of these may lack it.
    needs_pooler = "next_sentence" in heads or ("classifier" in heads and classifier in (SEQUENCES, CHOICES))
    fitted = fit(model, foreign.tensors, () if needs_pooler else (POOLER,), foreign.where)
    if fitted.fresh:
        say(f"{foreign.where}: it has no pooler, so the model folder has none either")
    return fitted.tensors
