"""Tables of measurements in docs are those of the stored rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.base.files import read_json
from bertsmith.bench.scaling.bench import tables as tables_of_scaling
from bertsmith.bench.serve.results import tables_of
from made_pages import ROOT, page, ran

NAMES = {"bert-mini": "bert-mini", "bert-base-nvlamb": "BERT-base"}
FIGURES = {
    "masked_loss": ("loss of masked words", "{:.4f}"),
    "masked_accuracy": ("masked words right", "{:.2%}"),
    "next_sentence_accuracy": ("next sentences right", "{:.2%}"),
}


def stored(name: str) -> Any:
    return read_json(ROOT / "benchmarks" / "results" / name)


def line(*cells: object) -> str:
    """Of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def deviated(found: list[float]) -> tuple[float, ...]:
    """These, then their mean and deviation."""
    return (*found, float(np.mean(found)), float(np.std(found, ddof=1)))


def percent(error: float) -> str:
    return "0%" if round(100 * error) == 0 else f"{error:+.0%}"


def test_plans_beside_runs() -> None:
    lines = page("plan.md").splitlines()
    for row in stored("plan-runs.json")["rows"]:
        planned, found, errors = row["planned"], row["found"], row["errors"]
        head = NAMES[row["run"]], row["ranks"]
        memory = (f"{side['memory'] / 1e9:.2f} GB" for side in (planned, found))
        assert line(*head, *memory, percent(errors["memory"])) in lines
        phases = [
            cell
            for name in ("phase 1", "phase 2")
            for cell in (f"{planned[name]:.2f}", f"{found[name]:.2f}", percent(errors[name]))
        ]
        assert line(*head, *phases) in lines


def test_saves() -> None:
    lines = page("checkpoints.md").splitlines()
    paths = sorted((ROOT / "benchmarks" / "results").glob("saves-*.json"))
    assert paths
    for path in paths:
        row = read_json(path)
        ranks = f", 2 ranks, `{row['parallel']}`" if row["ranks"] == 2 else ""
        thread = f"{row['thread_seconds']:.2f} s, {row['thread_cpu_seconds']:.2f} s of CPU time"
        cells = (
            f"{row['recipe']}{ranks} (every {row['save_every']} steps)",
            f"{row['checkpoint_bytes'] / 1e6:.0f} MB",
            f"{row['step_seconds']:.2f} s",
            f"{row['waits_seconds'] * 1e3:.0f} ms",
            thread,
            len(row["blocks_seconds"]),
            f"{row['share']:.2%} +- {row['share_error']:.2%}",
            row["machine"]["load"].split()[0],
        )
        assert line(*cells) in lines, line(*cells)


def test_runs_beside_transformers() -> None:
    text = page("runs/parity.md")
    losses = {(row["who"], row["dropout"], row["seed"]): row["losses"] for row in stored("parity-runs.json")}
    means = []
    for who in ("bertsmith", "transformers"):
        cells = deviated([float(np.mean(losses[who, 0.1, seed][-50:])) for seed in (1, 2, 3)])
        means.append(cells[3])
        assert line(who, *(f"{each:.4f}" for each in cells)) in text.splitlines()
    assert f"The means differ by {abs(means[0] / means[1] - 1):.2%}." in text
    ours, theirs = (np.array(losses[who, 0.0, 1]) for who in ("bertsmith", "transformers"))
    assert f"{len(ours)} steps: the losses of every step are equal to {np.abs(ours - theirs).max():.0e}" in (
        text.replace("e-6", "e-06")
    )


def test_seeds() -> None:
    lines = page("runs/seeds.md").splitlines()
    held_out = {(row["seed"], row["precision"]): row["held_out"] for row in stored("seed-runs.json")}
    for length in ("128", "512"):
        for name, (words, form) in FIGURES.items():
            found = deviated([held_out[seed, "fp32"][length][name] for seed in range(1, 6)])
            cells = (*found, held_out[1, "bf16"][length][name])
            assert line(f"{words} at {length}", *map(form.format, cells)) in lines
    *seconds, mean, deviation = deviated([row["seconds"] for row in stored("seed-runs.json") if row["seed"] > 1])
    shown = ", ".join(f"{each:.1f}" for each in seconds[:-1])
    took = f"took {shown} and {seconds[-1]:.1f} seconds"
    assert any(took in each and f"{mean:.1f} in the mean, deviation {deviation:.1f}" in each for each in lines)


def test_scaling() -> None:
    for table in tables_of_scaling(stored("scaling-amd.json")["rows"]):
        assert table.as_markdown() in page("scaling.md")


def test_the_killed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("killed_run").table(stored("killed-run.json"))
    assert "\n".join(line.rstrip() for line in table.splitlines()) in page("scaling.md")


def test_prediction_of_real_texts() -> None:
    lines = page("speed.md").splitlines()
    int8 = [row for row in stored("predict-int8-amd.json")["rows"] if "int8" in row["side"]]
    for row in stored("predict-amd.json")["rows"] + [row for row in int8 if "real" in row["case"]]:
        rates = f"{row['texts_per_second']:.1f}", f"{row['tokens_per_second']:,.0f}"
        if row["case"].endswith("one by one"):
            rates = rates[0], *(f"{row[f'p{share}_ms']:,.0f}" for share in (50, 90, 95, 99))
        side = row["side"].removesuffix(", 1 at once")
        assert line(side, *rates, f"{row['beside_pipeline']:.2f}x") in lines


def test_prediction_of_fixed_shapes_in_int8() -> None:
    rates: dict[str, list[str]] = {}
    for row in stored("predict-int8-amd.json")["rows"]:
        if " x " in row["case"]:
            rates.setdefault(row["side"], []).append(f"{row['texts_per_second']:.1f}")
    for side, cells in rates.items():
        assert line(side, *cells) in page("speed.md").splitlines()


def test_serving() -> None:
    *tables, generator = tables_of(stored("serve-amd.json")["rows"])
    assert generator.title.startswith("The generator")
    for table in tables:
        assert table.as_markdown() in page("serving.md")


def test_no_page_waits_for_a_table() -> None:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        assert "<!-- table" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("script", "results", "last", "shown"),
    [
        ("finetune_peer.py", "finetune-peer.json", "mrpc", "finetuning.md"),
        ("export_parity.py", "export-parity.json", "masked words", "export.md"),
    ],
)
def test_a_table_is_what_its_script_prints(tmp_path: Path, script: str, results: str, last: str, shown: str) -> None:
    benchmarks = ROOT / "benchmarks"
    printed = ran(tmp_path, "python", str(benchmarks / script), "table", str(benchmarks / "results" / results)).stdout
    assert last in printed
    assert "\n".join(line.rstrip() for line in printed.splitlines()) in page(shown)
