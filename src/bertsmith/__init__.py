"""Bertsmith forges BERT encoders: raw text goes in, a pre-trained, fine-tuned, served encoder comes out.

    raw text -> documents -> token shards -> instances -> packed batches -> hidden states -> loss -> update
             -> checkpoint -> task model -> predictions

The folders, in the order in which text flows through them:

    base/        what every stage stands on: errors, device, ranks, random streams, whole files, log, packed layout
    recipes/     what a pre-training run is: typed schema, presets as data, YAML and flags
    rows/        files of rows, compressed or not, in whatever encoding they say
    tokens/      the tokenizer and its files, ids of bulk text, vocabularies trained and extended
    download/    public data, verified and resumable
    corpus/      raw text -> documents -> sentences -> token shards, prepared once for every length, phase and epoch
    batches/     token shards -> instances (pairs, masks) -> packed batches, pure functions of seed, epoch, position
    model/       the encoder on packed tokens, its heads, and losses as sums and counts
    weights/     Hugging Face folders in and out, checkpoints of Google's and NVIDIA's in; strictly
    optim/       NVLAMB, AdamW, parameter groups, learning-rate schedules
    training/    the step, the loop, evaluation, meters, checkpoints, and the pre-training run that joins them
    tasks/       what an encoder is fine-tuned for, and the fine-tuning run
    inference/   predictions and vectors from a model folder, and a server of them
    report/      a page with the curves and tables of one or several runs
    bench/       benchmarks against other libraries
    quickstart/  the whole pipeline in minutes, on a CPU
    cli/         the verbs of the command line, a small file per group
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.corpus.prepare import prepare
    from bertsmith.inference.embed import Embedder
    from bertsmith.inference.predictor import Predictor
    from bertsmith.tasks.distill import distill
    from bertsmith.tasks.finetune import finetune
    from bertsmith.training.pretrain import pretrain
    from bertsmith.weights.convert import import_checkpoint
    from bertsmith.weights.huggingface import load_encoder, load_pretraining_model

__version__ = "0.1.0"
__all__ = [
    "Embedder",
    "Predictor",
    "distill",
    "finetune",
    "import_checkpoint",
    "load_encoder",
    "load_pretraining_model",
    "prepare",
    "pretrain",
]

# Imported when first asked for: `import bertsmith` stays light, and preparing text never loads torch.
_HOMES = {
    "prepare": "bertsmith.corpus.prepare",
    "pretrain": "bertsmith.training.pretrain",
    "finetune": "bertsmith.tasks.finetune",
    "distill": "bertsmith.tasks.distill",
    "import_checkpoint": "bertsmith.weights.convert",
    "load_encoder": "bertsmith.weights.huggingface",
    "load_pretraining_model": "bertsmith.weights.huggingface",
    "Embedder": "bertsmith.inference.embed",
    "Predictor": "bertsmith.inference.predictor",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
