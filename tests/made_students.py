"""Rows of real letters, a vocabulary for them, and fine-tuned teachers of any shape."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import bertsmith
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import save_pretraining_model

WORDS = [first + last for first in "bdfgk" for last in ("am", "en", "ip", "ot", "us")]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "lovely", "awful", "##ly", "!", "7"]
CONFIG = BertConfig(
    vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=40,
)  # fmt: skip
QUICK = DistillSettings(
    epochs=2, learning_rate=3e-3, batch=16, max_length=32, device="cpu", precision="fp32", report=False, log_every=1,
    save_every=2, keep=2,
)  # fmt: skip


def made_bert(folder: Path, pieces: list[str] = PIECES, **shape: int) -> Path:
    """A small encoder with its two heads, as pre-training leaves it but for the training."""
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "tokenizer")
    model = PretrainingModel(replace(CONFIG, vocab_size=len(pieces), **shape))
    initialise(model, 0.1, seed=shape.get("hidden_size", 0))
    save_pretraining_model(model, folder / "tokenizer", folder / "model")
    return folder / "model"


def rows(count: int, seed: int, labels: tuple[str, str] = ("praise", "blame")) -> list[dict[str, Any]]:
    """Rows of filler, now and then with a word of two pieces, whose label is decided by one word among it."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        label = draw.choice((labels[0], *labels))
        words = [word + draw.choice(("", "", "", "ly", "!")) for word in draw.choices(WORDS, k=draw.randrange(3, 10))]
        words.insert(draw.randrange(len(words) + 1), "lovely" if label == labels[0] else "awful")
        made.append({"text": " ".join(words), "label": label})
    return made


def made_teacher(
    folder: Path, model: Path, train: list[dict[str, Any]], task: str = "classify", **changes: Any
) -> Path:
    """A run whose model is fine-tuned on these rows, for an epoch."""
    usual = {each.name: getattr(QUICK, each.name) for each in fields(FinetuneSettings)}
    settings = FinetuneSettings(**{**usual, "epochs": 1, **changes})
    bertsmith.finetune(task, model, train, train, folder, settings=settings)
    return folder
