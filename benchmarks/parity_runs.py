"""The same run by Bertsmith and by transformers: equal weights at the start, equal instances, and how losses compare.

    python benchmarks/parity_runs.py run --corpus corpus --out benchmarks/results/parity-runs.json
    python benchmarks/parity_runs.py table benchmarks/results/parity-runs.json --png docs/runs/parity.png

Both train `bert-mini` with NVLAMB in fp32. The peer is `BertForPreTraining` with eager attention over padded rows, and
NVLAMB in float64, written here from its formulas. It shares with our run what decides the task: the instances with
their masks, the learning rates and the weights before the first step. Without dropout every step's loss is compared
over 50 steps; with dropout, whose random numbers differ, the mean of the last 50 of 300 steps over three seeds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runs_file import deviation, flags, identity, once

from bertsmith.base import files
from bertsmith.base.device import choose_device
from bertsmith.base.figures import new_figure, save_figure
from bertsmith.base.log import configure
from bertsmith.base.tables import aligned
from bertsmith.bench.step.peer import padded_rows
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.phases import HeldOut, phase_stage
from bertsmith.training.work import model_of, work_of
from bertsmith.weights.huggingface import save_pretraining_model

SEEDS = (1, 2, 3)
LAST = 50
STEPS = {0.0: LAST, 0.1: 300}
RECIPE, BATCH, LENGTH = "bert-mini", 32, 128
OURS, PEER = "bertsmith", "transformers"


class Nvlamb:
    """NVIDIA's LAMB with its shipped settings, all of it in float64 but the weights, which are the model's."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.step_count = 0
        self.tensors = []
        for name, weight in model.named_parameters():
            decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.01
            zeros = torch.zeros_like(weight, dtype=torch.float64)
            self.tensors.append((weight, decay, zeros, zeros.clone()))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        self.step_count += 1
        gradients = [weight.grad.double() for weight, *_ in self.tensors if weight.grad is not None]
        assert len(gradients) == len(self.tensors)
        norm = sum(float(each.square().sum()) for each in gradients) ** 0.5
        for (weight, decay, first, second), raw in zip(self.tensors, gradients, strict=True):
            gradient = raw / max(norm, 1.0)
            first.mul_(0.9).add_(0.1 * gradient)
            second.mul_(0.999).add_(0.001 * gradient.square())
            corrected = second / (1 - 0.999**self.step_count)
            update = first / (1 - 0.9**self.step_count) / (corrected.sqrt() + 1e-6) + decay * weight.double()
            of_weight, of_update = float(weight.double().norm()), float(update.norm())
            ratio = of_weight / of_update if decay and of_weight and of_update else 1.0
            weight.copy_(weight.double() - rate * ratio * update)
            weight.grad = None


def recipe_of(dropout: float, seed: int) -> Recipe:
    """`bert-mini` in one phase of full attention to a few steps."""
    fields = {
        "seed": seed,
        "device": "cpu",
        "precision": "fp32",
        "model.hidden_dropout": dropout,
        "model.attention_dropout": dropout,
        "phase1.steps": STEPS[dropout],
        "phase1.global_batch": BATCH,
        "phase1.sequence_length": LENGTH,
        "phase2.steps": 0,
        "micro_batch_tokens": BATCH * LENGTH,
        "log_every": 1,
        "evaluate_instances": 64,
    }
    return load_recipe(RECIPE, [f"--{name}={value}" for name, value in fields.items()])


def ours(recipe: Recipe, corpus: Corpus) -> Iterator[float]:
    """The loss of each step of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(recipe, corpus, Path(folder, "run"))
        yield from (each["loss"] for each in run.metrics("train"))


def theirs(recipe: Recipe, corpus: Corpus) -> Iterator[float]:
    """The same by transformers."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        start = model_of(work_of(recipe, corpus, None, None), choose_device("cpu", "fp32"))
        save_pretraining_model(start, corpus.folder / "tokenizer", Path(folder))
        model: Any = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager")
    drop = recipe.model.hidden_dropout
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (drop, drop)
    torch.manual_seed(recipe.seed)
    model.train()
    optimizer, stage = Nvlamb(model), phase_stage(recipe, 1, corpus, HeldOut(recipe, corpus))
    for number, step in enumerate(stage.loader(0), start=1):
        (batch,) = step.micro_batches
        loss = model(**padded_rows(batch)).loss
        loss.backward()
        optimizer.step(stage.learning_rate(number))
        yield loss.item()


def run(corpus: Path, out: Path) -> None:
    """All runs that the file does not have yet."""
    opened = Corpus.open(corpus)
    for dropout, steps in STEPS.items():
        for seed in SEEDS if dropout else SEEDS[:1]:
            for who, losses in ((OURS, ours), (PEER, theirs)):
                recipe = recipe_of(dropout, seed)

                def measured(losses: Any = losses, recipe: Recipe = recipe) -> dict[str, Any]:
                    found = list(losses(recipe, opened))
                    return {"score": float(np.mean(found[-LAST:])), "losses": [round(each, 6) for each in found]}

                key = {"who": who, "dropout": dropout, "seed": seed, "steps": steps, "batch": BATCH, "length": LENGTH}
                key |= {"recipe": identity(recipe), "corpus": files.sha256(corpus / "corpus.json")}
                once(out, key, ("who", "dropout", "seed"), measured)


def table(path: Path, png: Path | None) -> None:
    """Prints what was found, and draws it."""
    rows = files.read_json(path)
    of = {(row["who"], row["dropout"], row["seed"]): np.array(row["losses"]) for row in rows}
    plain = [of[who, 0.0, SEEDS[0]] for who in (OURS, PEER)]
    apart = np.abs(plain[0] - plain[1])
    print(
        f"without dropout, {len(apart)} steps: losses differ by at most {apart.max():.1e}, in step 1 by {apart[0]:.1e}"
    )
    lines = [["with dropout", "seed 1", "seed 2", "seed 3", "mean", "deviation"]]
    means = {}
    for who in (OURS, PEER):
        ends = [float(of[who, 0.1, seed][-LAST:].mean()) for seed in SEEDS]
        means[who] = float(np.mean(ends))
        lines.append([who, *(f"{each:.4f}" for each in (*ends, means[who], deviation(ends)))])
    print("\n".join(aligned(lines)))
    print(f"mean loss of the last {LAST} steps: {means[OURS] / means[PEER] - 1:+.2%} beside transformers")
    if png is not None:
        draw(of, apart, png)


def draw(of: dict[tuple[str, float, int], Any], apart: Any, png: Path) -> None:
    """The curves with dropout, and the differences without."""
    figure = new_figure(9, 3.2)
    assert figure is not None, "pip install matplotlib"
    curves, differences = figure.subplots(1, 2)
    for who, colour in ((OURS, "tab:blue"), (PEER, "tab:orange")):
        for seed in SEEDS:
            losses = of[who, 0.1, seed]
            label = who if seed == SEEDS[0] else None
            curves.plot(np.arange(1, len(losses) + 1), losses, color=colour, linewidth=0.6, alpha=0.7, label=label)
    curves.set(title="with dropout, three seeds", xlabel="step", ylabel="loss")
    curves.legend()
    # Losses are kept to six places, which is what fp32 resolves at their size.
    differences.semilogy(
        np.arange(1, len(apart) + 1), np.maximum(apart, 1e-6), color="black", marker=".", linewidth=0.6
    )
    differences.axhline(1e-3, color="tab:red", linestyle="--", linewidth=0.8, label="bound")
    differences.set(title="without dropout", xlabel="step", ylabel="difference of losses, or 1e-6")
    differences.legend()
    save_figure(figure, png)


def main() -> None:
    parser, _ = flags(__doc__, "corpus")
    given = parser.parse_args()
    if given.verb == "table":
        table(given.scores, given.png)
    else:
        configure(quiet=True)
        run(given.corpus, given.out)


if __name__ == "__main__":
    main()
