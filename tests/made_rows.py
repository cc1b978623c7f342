"""Labelled rows that can be learned, and a small encoder to learn them with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import save_pretraining_model

WORDS = [f"word{number}" for number in range(30)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "lovely", "awful"]
CONFIG = BertConfig(
    vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=40,
)  # fmt: skip
QUICK = FinetuneSettings(
    epochs=12, learning_rate=3e-3, batch=16, max_length=32, device="cpu", precision="fp32", report=False
)


def made_model(folder: Path, config: BertConfig = CONFIG, pieces: Sequence[str] = PIECES) -> Path:
    """A small encoder, as pre-training leaves it but for the training; `folder` also gets a tokenizer."""
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "tokenizer")
    encoder = PretrainingModel(config)
    initialise(encoder, 0.05, seed=0)
    save_pretraining_model(encoder, folder / "tokenizer", folder / "model")
    return folder / "model"


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Rows of filler whose label is decided by one word among it."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        label = draw.choice(["praise", "praise", "blame"])
        words = draw.choices(WORDS, k=draw.randrange(3, 12))
        words.insert(draw.randrange(len(words) + 1), "lovely" if label == "praise" else "awful")
        made.append({"text": " ".join(words), "label": label})
    return made
