"""How far the logits of every head are from transformers' own in fp32, by each engine and precision.

    python benchmarks/export_parity.py run --data DATA --out parity.json [--heads answers] [--few-lengths]
    python benchmarks/export_parity.py table parity.json

The encoder is all-MiniLM-L6-v2, the heads are drawn, and so are the tokens: a sequence of every length from 1 to the
longest that the model reads (with --few-lengths 70 of 512), in padded batches of as many tokens as `predict` gives an
engine. Every head is written to the JSON file when it ends, and one that is there is not run again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peer_tasks import MODEL
from runs_file import flags, once

from bertsmith.base import files
from bertsmith.base.tables import aligned
from bertsmith.inference.backends.engines import Feed, open_graph
from bertsmith.inference.backends.exported import graph_in
from bertsmith.inference.backends.model import padded
from bertsmith.tasks.sequences import Inputs, by_length, pack
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import read_config

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "classes": ("BertForSequenceClassification", {"num_labels": 3}),
    "number": ("BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "entities": ("BertForTokenClassification", {"id2label": dict(enumerate(("O", "B-person", "I-person")))}),
    "answers": ("BertForQuestionAnswering", {}),
    "choices": ("BertForMultipleChoice", {}),
    "vectors": ("BertModel", {}),
    "masked words": ("BertForMaskedLM", {}),
}
GRAPHS = [("onnx", "fp32"), ("onnx", "int8"), ("openvino", "fp32"), ("openvino", "bf16"), ("openvino", "int8")]
ENGINES = ["torch fp32", *(" ".join(each) for each in GRAPHS)]
_SEED, _SPREAD = 1, 0.3  # of the drawn heads
Numbers = dict[str, NDArray[np.float32]]
Side = Callable[[Inputs, Feed], Numbers]


def main() -> None:
    parser, run = flags(__doc__)
    run.add_argument("--heads", nargs="*", default=list(HEADS), choices=list(HEADS))
    run.add_argument("--few-lengths", action="store_true", help="70 of 512 lengths")
    given = parser.parse_args()
    if given.verb == "table":
        print("\n".join(table_of(files.read_json(given.scores))))
        return
    for head in given.heads:
        key = {"head": head, "few_lengths": given.few_lengths}
        once(given.out, key, ("head",), partial(compared, head, given.data / MODEL, given.few_lengths))


@torch.no_grad()
def compared(head: str, encoder: Path, few_lengths: bool) -> dict[str, Any]:
    """The largest difference from transformers by each engine, and the largest logit."""
    from bertsmith.inference.export.check import BATCH_TOKENS, checked_lengths, drawn  # it imports onnx

    with tempfile.TemporaryDirectory() as made:
        folder, peer = with_head(head, encoder, Path(made) / "model")
        sides = sides_of(folder, Path(made))
        lengths = checked_lengths(read_config(folder).max_position_embeddings, few_lengths)
        sequences = drawn(read_config(folder), lengths)
        worst, largest = dict.fromkeys(sides, 0.0), 0.0
        for members in by_length(sequences, BATCH_TOKENS):
            inputs = pack(sequences, members, torch.device("cpu"))
            feed = padded(inputs)
            wanted = of_transformers(head, peer, feed)
            largest = max(largest, *(float(np.abs(each).max()) for each in wanted.values()))
            for name, side in sides.items():
                found = side(inputs, feed)
                worst[name] = max(worst[name], *(float(np.abs(found[each] - wanted[each]).max()) for each in wanted))
    return {"score": worst["onnx fp32"], "largest": largest, "differences": worst, "lengths": len(lengths)}


def with_head(head: str, encoder: Path, folder: Path) -> tuple[Path, Any]:
    """The encoder with a drawn head, as transformers writes its folder, and that model."""
    import transformers

    kind, settings = HEADS[head]
    torch.manual_seed(_SEED)
    model = getattr(transformers, kind).from_pretrained(encoder, **settings, attn_implementation="eager").eval().float()
    body = {id(each) for each in model.base_model.parameters()}
    for each in model.parameters():
        if id(each) not in body:
            torch.nn.init.normal_(each, std=_SPREAD)
    model.save_pretrained(folder)
    Tokenizer.load(encoder).save(folder)
    return folder, model


def sides_of(folder: Path, made: Path) -> dict[str, Side]:
    """What gives the numbers of each of `ENGINES`."""
    from bertsmith.inference.export.check import numbers_of
    from bertsmith.inference.export.export import ExportOptions, export, exported_model

    for backend in ("onnx", "openvino"):
        options = ExportOptions(backend, int8=True, measure=False, few_lengths=True)
        export(folder, made / backend, options)
    model = exported_model(folder, ExportOptions())
    sides: dict[str, Side] = {"torch fp32": lambda inputs, feed: numbers_of(model, inputs, ())}
    for backend, precision in GRAPHS:
        run = open_graph(graph_in(made / backend, backend, precision))
        sides[f"{backend} {precision}"] = partial(_of_graph, run)
    return sides


def _of_graph(run: Any, inputs: Inputs, feed: Feed) -> Numbers:
    real = feed["attention_mask"] > 0
    return {name: each[real] if each.shape[:2] == real.shape else each for name, each in run(feed).items()}


def of_transformers(head: str, model: Any, feed: Feed) -> Numbers:
    """By the names of a graph's outputs, those of tokens for the real ones alone."""
    given = {name: torch.from_numpy(each) for name, each in feed.items()}
    real = feed["attention_mask"] > 0
    if head == "choices":  # a row of a graph is one choice
        return {"logits": model(**{name: each[:, None] for name, each in given.items()}).logits.numpy()}
    found = model(**given)
    if head == "answers":
        return {name: found[name].numpy()[real] for name in ("start_logits", "end_logits")}
    if head == "vectors":
        hidden, weights = found.last_hidden_state, given["attention_mask"][:, :, None]
        means = (hidden * weights).sum(1) / weights.sum(1)
        return {"last_hidden_state": hidden.numpy()[real], "sentence_embedding": means.numpy()}
    logits = found.logits.numpy()
    return {"logits": logits[real] if logits.ndim == 3 else logits}


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each head: the largest difference by each engine, and the largest logit."""
    lines = [["", *ENGINES, "largest logit"]]
    for head in HEADS:
        for row in rows:
            if row["head"] == head:
                cells = [f"{row['differences'][engine]:.1e}" for engine in ENGINES]
                lines.append([head, *cells, f"{row['largest']:.1f}"])
    return aligned(lines, "lr")


if __name__ == "__main__":
    main()
