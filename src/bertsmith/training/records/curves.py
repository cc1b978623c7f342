"""A picture of a run: loss, masked-word accuracy and learning rate of every phase, from `metrics.jsonl` alone."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.base.figures import INSTALL, new_figure, save_figure
from bertsmith.base.log import say

Records = Sequence[dict[str, Any]]


def draw_curves(records: Records, path: Path) -> bool:
    """Writes a PNG of the records of `metrics.jsonl`; says so and returns False where matplotlib is not installed."""
    figure = new_figure(9, 9)
    if figure is None:
        say(f"matplotlib is not installed, so the curves are not drawn ({INSTALL})")
        return False
    loss, accuracy, rate = figure.subplots(3, 1, sharex=True)
    train = [each for each in records if each["kind"] == "train"]
    held_out = [each for each in records if each["kind"] == "evaluation"]
    _draw_loss(loss, train, held_out)
    _draw_accuracy(accuracy, train, held_out)
    _line(rate, train, "learning_rate", "C2-", "learning rate")
    rate.set_ylabel("learning rate")
    rate.set_xlabel("optimizer step")
    for axes in (loss, accuracy, rate):
        _mark_phases(axes, train)
        axes.grid(alpha=0.3)
        axes.margins(x=0.01)
        axes.set_ylim(bottom=0)
        axes.legend(loc="best", fontsize="small")
    save_figure(figure, path)
    return True


def _draw_loss(axes: Any, train: Records, held_out: Records) -> None:
    _line(axes, train, "masked_loss", "C0-", "masked words, training")
    _line(axes, held_out, "masked_loss", "C0o", "masked words, held out")
    _line(axes, train, "next_sentence_loss", "C1-", "next sentence, training")
    _line(axes, held_out, "next_sentence_loss", "C1o", "next sentence, held out")
    if any("old_masked_loss" in each for each in held_out):
        _line(axes, held_out, "old_masked_loss", "C3o", "masked words, held out, old text")
    if held_out:
        unigram = held_out[-1]["unigram_loss"]
        axes.axhline(unigram, color="grey", linestyle="--", label=f"masked words by frequency alone ({unigram:.2f})")
    axes.set_ylabel("loss, nats")


def _draw_accuracy(axes: Any, train: Records, held_out: Records) -> None:
    _line(axes, train, "masked_accuracy", "C0-", "masked words, training")
    _line(axes, held_out, "masked_accuracy", "C0o", "masked words, held out")
    _line(axes, held_out, "masked_accuracy_alphabetic", "C4o", "alphabetic masked words, held out")
    if held_out:
        guess = held_out[-1]["most_frequent_accuracy"]
        axes.axhline(guess, color="grey", linestyle="--", label=f"always the most frequent piece ({guess:.3f})")
    axes.set_ylabel("share predicted right")


def _line(axes: Any, records: Records, name: str, style: str, label: str) -> None:
    known = [each for each in records if name in each]  # a loss that nothing counted in has no figure
    axes.plot([each["step"] for each in known], [each[name] for each in known], style, label=label, linewidth=1.2)


def _mark_phases(axes: Any, train: Records) -> None:
    for before, after in itertools.pairwise(train):
        if before["phase"] != after["phase"]:
            axes.axvline(before["step"], color="black", linewidth=0.8)
            axes.annotate(
                f" phase {after['phase']}",
                (before["step"], 1),
                xycoords=("data", "axes fraction"),
                va="top",
                fontsize="small",
            )
