"""What a prediction bench is given: a model, texts of one length, and real ones of many."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import data_folder
from bertsmith.bench.fresh import fresh
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.step.plan import shape
from bertsmith.bench.text import name_sources
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig
from bertsmith.tasks.kinds.pooled import Classifier, config_labels
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import TASK_FILE, FolderContents, save_model

_SENTENCES, _PARAGRAPHS = Path("glue", "SST-2", "dev.tsv"), Path("squad", "v1.1", "dev-v1.1.json")
_SPECIAL_TOKENS = 2  # [CLS] and [SEP]
REAL, QUICK_REAL = (96, 32), (16, 4)
"""Sentences and paragraphs."""


@dataclass(frozen=True)
class TextSet:
    """rows: that a call gets; 0 for all of them. tokens: of each text as far as the model reads it, special ones
    included. every: whether a turn gives each text at least once, as it must where some are longer than others."""

    name: str
    texts: list[str]
    rows: int
    tokens: list[int]
    every: bool = False


def chosen_classifier(options: BenchOptions, folder: Path) -> tuple[Predictor, str]:
    """`open_classifier` of the model of the options, or of a made one where they have none; and its description."""
    about = "" if options.model else made_classifier(folder / "model", options.quick)
    model = options.model or folder / "model"
    return open_classifier(model, folder / "for-all"), about or name_sources([str(model)])


def made_classifier(folder: Path, quick: bool) -> str:
    """Writes a classifier of two classes with random weights. Gives its description."""
    known = data_folder() / "vocab" / "bert-base-uncased" / "vocab.txt"
    if known.is_file():
        tokenizer, words = Tokenizer.load(known), "the vocabulary of bert-base-uncased"
    else:
        pieces = [f"word{number}" for number in range(1000)]
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer, words = Tokenizer.from_vocabulary([*specials, *pieces], lowercase=True), "a made-up vocabulary"
    size = "tiny" if quick else "base"
    config = BertConfig(**shape(size, tokenizer.size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model = fresh(lambda: Classifier(config, 2), torch.device("cpu"))
    contents = FolderContents("BertForSequenceClassification", tokenizer.save, config_labels(["no", "yes"]))
    save_model(model, contents, folder)
    return f"BERT-{size} with random weights, {words}"


def open_classifier(model: Path, folder: Path) -> Predictor:
    """The model in fp32, on a CPU, from a new folder for all sides: its files, with what makes them cut a long text at
    the same token. Raises BertsmithError for a model that does not sort single texts into classes."""
    given = Predictor(model, "cpu", precision="fp32")
    if given.kind != "classify" or given.prompts != [given.columns.text]:
        what = f"this model is of {given.kind}, and reads {', '.join(given.prompts)}"
        raise BertsmithError(what, model, "name a classifier of one text with --model, or leave it out")
    folder.mkdir(parents=True)
    for each in given.folder.absolute().iterdir():
        (folder / each.name).symlink_to(each)
    # By the first, transformers cuts where ours does; by the second, ours reads no windows, which others do not know.
    changes = {"tokenizer_config.json": ("model_max_length", given.max_length), TASK_FILE: ("window_overlap", None)}
    for name, (key, value) in changes.items():
        known = files.read_json(folder / name) if (folder / name).exists() else {}
        files.write_json(folder / name, {**known, key: value})
    del given
    return Predictor(folder, "cpu", precision="fp32")


def texts_of_length(tokenizer: Tokenizer, length: int, batch: int) -> TextSet:
    """Texts of exactly `length` tokens: words that are one piece each, some 64 different texts."""
    words = [piece for piece in tokenizer.pieces if piece.isascii() and piece.isalnum() and len(piece) > 2]
    draw = random.Random(length)
    texts = [" ".join(draw.choices(words, k=length - _SPECIAL_TOKENS)) for _ in range(max(64, batch))]
    return TextSet(f"{batch} x {length}", texts, batch, [length] * len(texts))


def ragged_texts(tokenizer: Tokenizer, longest: int, sentences: int, paragraphs: int) -> TextSet | None:
    """Sentences of SST-2 and paragraphs of SQuAD, mixed; None where the data folder has not both."""
    folder = data_folder()
    if not (folder / _SENTENCES).is_file() or not (folder / _PARAGRAPHS).is_file():
        return None
    with open(folder / _SENTENCES, encoding="utf-8", newline="") as file:
        found = [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    squad = json.loads((folder / _PARAGRAPHS).read_text(encoding="utf-8"))
    contexts = [part["context"] for article in squad["data"] for part in article["paragraphs"]]
    draw = random.Random(0)
    texts = draw.sample(found, min(sentences, len(found))) + draw.sample(contexts, min(paragraphs, len(contexts)))
    draw.shuffle(texts)
    lengths = [min(len(ids) + _SPECIAL_TOKENS, longest) for ids in tokenizer.encode_ids(texts)]
    name = f"{len(texts)} real texts of {min(lengths)} to {max(lengths)} tokens"
    return TextSet(name, texts, 0, lengths)
