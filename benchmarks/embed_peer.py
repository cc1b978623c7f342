"""Embeddings beside sentence-transformers' own trainer: same rows, steps, batch, rate and number of seeds.

    python benchmarks/embed_peer.py run --data DATA --out scores.json [--starts minilm] [--seeds 1 2 3]
    python benchmarks/embed_peer.py table scores.json

Rows, settings and seeds were fixed before any run: the pairs of STS-B's training rows with a score of 4 and more, its
dev rows, five seeds, scored after the last step by Spearman's correlation of the cosines with the scores. Both sides
compute in fp32. Every run of a seed is written to the JSON file when it ends, and one that is there is not run again,
so a killed run continues where it was. All runs of the file are in the table.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer_tasks import MODEL, Rows, rows_of
from runs_file import deviation, flags, once

from bertsmith.base import files
from bertsmith.base.tables import aligned

OURS, THEIRS = "ours", "sentence-transformers"
SEEDS = range(1, 6)
LIKE = 4.0


@dataclass(frozen=True)
class Start:
    """What both sides start from, and how they train. fresh_layers: of MiniLM, which was made for similarity already,
    so many layers from the top get random weights, the same ones on both sides."""

    fresh_layers: int
    epochs: int
    learning_rate: float
    batch: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    epsilon: float = 1e-6
    max_gradient_norm: float = 1.0
    max_length: int = 128
    pooling: str = "mean"


STARTS = {"minilm": Start(0, 1, 2e-5), "two layers anew": Start(2, 1, 1e-4)}


def main() -> None:
    parser, run = flags(__doc__)
    run.add_argument("--starts", nargs="*", default=list(STARTS), choices=list(STARTS))
    run.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    run.add_argument("--slice", type=int, help="at most so many rows of train and dev: to try it out")
    given = parser.parse_args()
    if given.verb == "table":
        print("\n".join(table_of(files.read_json(given.scores))))
        return
    train, dev = pairs(given.data, given.slice)
    for name in given.starts:
        with tempfile.TemporaryDirectory() as folder:
            model = start_folder(STARTS[name], given.data / MODEL, Path(folder))
            for seed in given.seeds:
                for side in (OURS, THEIRS):  # in turns, so that a run that is cut off has both
                    key = {"start": name, "side": side, "seed": seed, "settings": asdict(STARTS[name])}
                    key["rows"] = [len(train), len(dev)]
                    work = partial(_run, side, STARTS[name], train, dev, seed, model)
                    once(given.out, key, ("start", "side", "seed"), work)


def pairs(data: Path, most: int | None) -> tuple[Rows, Rows]:
    """Like texts to learn from, without their scores; and scored ones."""
    train, dev = rows_of("stsb", data)
    like = [{"text": row["text"], "text_b": row["text_b"]} for row in train if row["label"] >= LIKE]
    return like[:most], dev[:most]


def start_folder(start: Start, model: Path, folder: Path) -> Path:
    """A model folder that both sides read."""
    from bertsmith.base.streams import stream_key
    from bertsmith.model.initial import initialise
    from bertsmith.weights.huggingface import load_encoder, save_encoder

    encoder = load_encoder(model)
    layers = len(encoder.layers)
    for place in range(layers - start.fresh_layers, layers):
        initialise(encoder.layers[place], encoder.config.initializer_range, stream_key(0, "embed peer", place))
    save_encoder(encoder, model, folder / "start")
    return folder / "start"


def _run(side: str, start: Start, train: Rows, dev: Rows, seed: int, model: Path) -> dict[str, Any]:
    score, seconds = _RUNS[side](start, train, dev, seed, model)
    return {"score": score, "seconds": seconds, "examples_per_second": start.epochs * len(train) / seconds}


def _ours(start: Start, train: Rows, dev: Rows, seed: int, model: Path) -> tuple[float, float]:
    """Spearman's correlation, and the seconds of all steps."""
    import bertsmith
    from bertsmith.tasks.settings import FinetuneSettings
    from bertsmith.training.run_folder import Run

    same = ("epochs", "batch", "learning_rate", "warmup", "weight_decay", "max_gradient_norm", "max_length")
    settings = FinetuneSettings(
        **{name: getattr(start, name) for name in same}, seed=seed, precision="fp32", device="cpu", report=False,
        log_every=10**6,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = bertsmith.finetune("embed", model, train, dev, Path(folder) / "run", settings=settings)
        lines = Run(Path(folder) / "run").metrics("train")
    steps = np.diff([0, *(line["step"] for line in lines)])
    seconds = sum(count * line["seconds_per_step"] for count, line in zip(steps, lines, strict=True))
    return result.seeds[0].epochs[-1].dev["spearman"], float(seconds)


def _theirs(start: Start, train: Rows, dev: Rows, seed: int, model: Path) -> tuple[float, float]:
    import torch
    from datasets import Dataset
    from scipy.stats import spearmanr
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.manual_seed(seed)
    encoder = Transformer(str(model), max_seq_length=start.max_length)
    embedder = SentenceTransformer(modules=[encoder, Pooling(384, start.pooling)], device="cpu")
    steps = start.epochs * -(-len(train) // start.batch)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=start.epochs,
            per_device_train_batch_size=start.batch,
            learning_rate=start.learning_rate,
            warmup_steps=int(start.warmup * steps),
            weight_decay=start.weight_decay,
            adam_epsilon=start.epsilon,
            max_grad_norm=start.max_gradient_norm,
            seed=seed,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        columns = {"anchor": [row["text"] for row in train], "positive": [row["text_b"] for row in train]}
        trainer = SentenceTransformerTrainer(
            embedder, arguments, Dataset.from_dict(columns), loss=MultipleNegativesRankingLoss(embedder)
        )
        done = trainer.train()
    assert done.global_step == steps
    sides = [embedder.encode([row[name] for row in dev], normalize_embeddings=True) for name in ("text", "text_b")]
    score = spearmanr((sides[0] * sides[1]).sum(1), [row["label"] for row in dev])[0]
    return float(score), done.metrics["train_runtime"]


_RUNS = {OURS: _ours, THEIRS: _theirs}


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each start: both means in points, their difference and its standard error, and pairs a second."""
    lines = [["start", "seeds", *(OURS, THEIRS), "difference", "standard error", "pairs/s", "theirs"]]
    for name in STARTS:
        sides = [[row for row in rows if (row["start"], row["side"]) == (name, side)] for side in (OURS, THEIRS)]
        if not all(sides):
            continue
        scores = [np.array([100 * row["score"] for row in side]) for side in sides]
        rates = [float(np.median([row["examples_per_second"] for row in side])) for side in sides]
        error = math.sqrt(sum(deviation(each) ** 2 / len(each) for each in scores))
        means = [f"{each.mean():.2f} +- {deviation(each):.2f}" for each in scores]
        seeds = "/".join(str(len(each)) for each in scores)
        difference = f"{scores[0].mean() - scores[1].mean():+.2f}"
        lines.append([name, seeds, *means, difference, f"{error:.2f}", *(f"{rate:.1f}" for rate in rates)])
    return aligned(lines, "llrrrrrr") if len(lines) > 1 else ["no start has both sides"]


if __name__ == "__main__":
    main()
