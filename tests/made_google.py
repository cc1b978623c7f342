"""A small BERT as Google's archives have one: a TensorFlow checkpoint beside its config and vocabulary."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from safetensors.numpy import load_file

from bertsmith.model.pretraining import PretrainingModel
from bertsmith.weights.huggingface import save_pretraining_model
from made_bundle import write_bundle

WORDS = "bert/embeddings/word_embeddings"


def their_variable(name: str) -> str:
    """Google's variable for a tensor of transformers' BertForPreTraining, the other way round than the importer."""
    special = {
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.predictions.decoder.bias": "cls/predictions/output_bias",
        "cls.predictions.decoder.weight": WORDS,
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    }
    if name in special:
        return special[name]
    variable = name.replace("layer.", "layer_").replace(".", "/")
    for theirs, google in (
        ("_embeddings/weight", "_embeddings"),
        ("LayerNorm/weight", "LayerNorm/gamma"),
        ("LayerNorm/bias", "LayerNorm/beta"),
        ("/weight", "/kernel"),
    ):
        if variable.endswith(theirs):
            return variable.removesuffix(theirs) + google
    return variable


def write_archive(model: PretrainingModel, tokenizer: Path, archive: Path) -> None:
    """Writes the zip that Google would publish of a model. tokenizer: a folder with a vocab.txt."""
    folder = archive.with_suffix("")
    save_pretraining_model(model, tokenizer, folder / "huggingface")
    tensors = {}
    for name, tensor in load_file(folder / "huggingface" / "model.safetensors").items():
        variable = their_variable(name)
        tensors[variable] = tensor.T.copy() if variable.endswith("/kernel") else tensor
    write_bundle(folder / "bert_model.ckpt", tensors)
    shutil.copyfile(tokenizer / "vocab.txt", folder / "vocab.txt")
    theirs = {**model.config.to_dict(), "hidden_act": "gelu"}
    (folder / "bert_config.json").write_text(json.dumps(theirs), encoding="utf-8")
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(each for each in folder.iterdir() if each.is_file()):
            packed.write(path, path.name)
