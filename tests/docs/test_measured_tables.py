"""Tables of measurements in docs are those of the stored rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from bertsmith.base.files import read_json
from bertsmith.bench.batches.bench import tables as tables_of_batch_cases
from bertsmith.bench.finetune.results import speed_table
from bertsmith.bench.measure import Measured
from bertsmith.bench.predict.bench import tables as tables_of_prediction
from bertsmith.bench.prepare.bench import Case, Side
from bertsmith.bench.prepare.bench import tables as tables_of_prepare
from bertsmith.bench.reference.bench import tables as tables_of_reference
from bertsmith.bench.scaling.bench import tables as tables_of_scaling
from bertsmith.bench.serve.results import tables_of as tables_of_serving
from bertsmith.bench.step.results import ladder_table, steps_table, time_table
from bertsmith.bench.table import Table
from bertsmith.bench.text import Text
from made_commands import called
from made_pages import ROOT, page

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
    for row in [*stored("plan-runs.json")["rows"], *stored("plan-runs-amd.json")["rows"]]:
        planned, found, errors = row["planned"], row["found"], row["errors"]
        head = NAMES.get(row["run"], row["run"]), row["ranks"]
        if "memory" in errors:
            memory = (f"{side['memory'] / 1e9:.2f} GB" for side in (planned, found))
            assert line(*head, *memory, percent(errors["memory"])) in lines
        if "whole run" in errors:
            seconds = (f"{side['whole run']:.0f} s" for side in (planned, found))
            assert line(*head, *seconds, percent(errors["whole run"])) in lines
            continue
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
    seconds = {(row["seed"], row["precision"]): row["training_seconds"] for row in stored("seed-runs.json")}
    cells = (*deviated([seconds[seed, "fp32"] for seed in range(1, 6)]), seconds[1, "bf16"])
    assert line("seconds of the steps", *map("{:.1f}".format, cells)) in lines


def test_where_the_rest_of_blimp_is() -> None:
    (row,) = [each for each in stored("ladder.json") if each["rung"] == "chosen"]
    text, found = " ".join(page("runs/learning.md").split()), row["blimp_files"]
    error = sum(each * (1 - each) / row["pairs"] for each in found.values()) ** 0.5 / len(found)
    assert f"**{row['blimp']['mean']:.1%}**, with a standard error of {100 * error:.1f}" in text
    between = [found[f"distractor_agreement_{each}"] for each in ("relational_noun", "relative_clause")]
    assert "have {:.1%} and {:.1%}.".format(*between) in text
    pairs = [[found[f"wh_vs_that_{gap}_gap{far}"] for far in ("", "_long_distance")] for gap in ("with", "no")]
    assert max(pairs[0]) == 0.005
    assert min(pairs[1]) == 0.99
    assert found["matrix_question_npi_licensor_present"] == found["existential_there_quantifiers_2"] == 0.005
    hours, minutes = divmod(round(row["seconds"] / 60), 60)
    assert f"It took {hours} h {minutes} min" in text


def test_the_killed_run(script: Callable[[str], Any]) -> None:
    table = script("killed_run").table(stored("killed-run.json"))
    assert "\n".join(line.rstrip() for line in table.splitlines()) in page("scaling.md")


def beside_pipeline(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of runs before the field was kept, with it: all sides took turns with one pipeline then."""
    of = {row["case"]: row["texts_per_second"] for row in rows if row["side"] == "pipeline, fp32"}
    return [{"beside_pipeline": row["texts_per_second"] / of[row["case"]]} | row for row in rows]


@pytest.mark.parametrize(
    "names", [("predict-avx512.json",), ("predict-amd.json", "predict-int8-amd.json")], ids=["Xeon", "EPYC"]
)
def test_prediction_of_real_texts(names: tuple[str, ...]) -> None:
    lines = page("speed.md").splitlines()
    kept, *int8 = (beside_pipeline(stored(name)["rows"]) for name in names)
    for row in kept + [row for each in int8 for row in each if "real" in row["case"] and "int8" in row["side"]]:
        rates = f"{row['texts_per_second']:.1f}", f"{row['tokens_per_second']:,.0f}"
        if row["case"].endswith("one by one"):
            rates = rates[0], *(f"{row[f'p{share}_ms']:,.0f}" for share in (50, 90, 95, 99))
        cells = (row["side"], *rates, f"{row['beside_pipeline']:.2f}x")
        assert line(*cells) in lines, line(*cells)


@pytest.mark.parametrize(
    "names", [("predict-shapes-avx512.json", "predict-32x384-avx512.json"), ("predict-int8-amd.json",)]
)
def test_prediction_of_fixed_shapes(names: tuple[str, ...]) -> None:
    rates: dict[str, list[str]] = {}
    for row in (row for name in names for row in stored(name)["rows"]):
        if " x " in row["case"]:
            rates.setdefault(row["side"], []).append(f"{row['texts_per_second']:.1f}")
    for side, cells in rates.items():
        assert line(side, *cells) in page("speed.md").splitlines()


def test_the_load_of_runs_that_make_one_table_is_told() -> None:
    for name in ("predict-amd.json", "predict-int8-amd.json"):
        assert f"`{name}` (load {stored(name)['machine']['load'].split()[0]}" in page("speed.md")


def tables_of_shapes(rows: list[dict[str, Any]]) -> list[Table]:
    return tables_of_prediction([row for row in beside_pipeline(rows) if " x " in row["case"]])


def tables_of_fine_tuning(rows: list[dict[str, Any]]) -> list[Table]:
    return [speed_table([row for row in rows if "groups" not in row]), time_table(profiles(rows), "ours, bf16")]


def tables_of_steps(rows: list[dict[str, Any]]) -> list[Table]:
    found = [steps_table([row for row in rows if "groups" not in row and "gain" not in row])]
    return [*found, time_table(profiles(rows), "base, ours, bf16, AdamW")]


def tables_of_ladder(rows: list[dict[str, Any]]) -> list[Table]:
    return [ladder_table([row for row in rows if "gain" in row], "base")]


def profiles(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["case"].removeprefix("time: "): row for row in rows if "groups" in row}


def measured(row: dict[str, Any]) -> Measured:
    return Measured(**{each.name: row[each.name] for each in fields(Measured)})


def tables_of_preparing(rows: list[dict[str, Any]]) -> list[Table]:
    texts = (Text(Path(), row["text_bytes"], row["documents"]) for row in rows)
    sides = (Side(row["side"], row["label"], {}) for row in rows)
    return tables_of_prepare([Case(*each) for each in zip(sides, texts, map(measured, rows), strict=True)])


def tables_of_batches(rows: list[dict[str, Any]]) -> list[Table]:
    """The first three, which the page has."""
    found: dict[int, dict[str, Measured]] = {}
    for row in rows:
        found.setdefault(row["length"], {})[row["case"]] = measured(row)
    return tables_of_batch_cases(found, corpus_tokens=33_894_273)[:3]


@pytest.mark.parametrize(
    ("shown", "name", "tables_of"),
    [
        ("scaling.md", "scaling-amd.json", tables_of_scaling),
        ("speed.md", "prepare.json", tables_of_preparing),
        ("speed.md", "batches.json", tables_of_batches),
        ("serving.md", "serve-amd.json", lambda rows: tables_of_serving(rows)[:-1]),  # The last is of the generator.
        ("serving.md", "serve-ours-amd.json", lambda rows: tables_of_serving(rows)[:-1]),
        ("serving.md", "serve-avx512.json", lambda rows: tables_of_serving(rows)[:-1]),
        ("speed.md", "reference-avx512.json", tables_of_reference),
        ("speed.md", "finetune-amd.json", tables_of_fine_tuning),
        ("speed.md", "pretrain-step-amd.json", tables_of_steps),
        ("speed.md", "pretrain-step-amx.json", tables_of_steps),
        ("speed.md", "pretrain-step-amx.json", tables_of_ladder),
        ("speed.md", "pretrain-step-amx-slower.json", lambda rows: tables_of_steps(rows)[:1]),
        ("prediction-latencies.md", "predict-shapes-avx512.json", tables_of_shapes),
        ("prediction-latencies.md", "predict-32x384-avx512.json", tables_of_shapes),
        ("prediction-latencies.md", "predict-int8-amd.json", tables_of_shapes),
    ],
)
def test_a_table_is_what_the_bench_prints(
    shown: str, name: str, tables_of: Callable[[list[dict[str, Any]]], list[Table]]
) -> None:
    tables = tables_of(stored(name)["rows"])
    assert tables
    for table in tables:
        assert table.rows
        assert table.as_markdown() in page(shown), table.title


def test_what_is_said_of_our_server_alone() -> None:
    text = " ".join(page("serving.md").split())
    for name, said in (("serve-ours-amd.json", said_of_the_epyc), ("serve-ours-avx512.json", said_of_the_xeon)):
        for figure in said({row["phase"]: row for row in stored(name)["rows"]}):
            assert figure in text, (name, figure)


def said_of_the_epyc(rows: dict[str, dict[str, Any]]) -> list[str]:
    usual, half, most = rows["saturated"], rows["50%"], rows["overload"]
    cores = f"{most['server_cores']:.2f} cores busy in place of {usual['server_cores']:.2f}"
    share = half["server_cores"] / usual["server_cores"]
    tokens, alone = half["tokens_per_cpu_second"], rows["unloaded"]["tokens_per_cpu_second"]
    return [
        f"gives {most['tokens_per_cpu_second']:.0f} tokens in place of {usual['tokens_per_cpu_second']:,.0f}",
        f"{most['refused'] / most['seconds']:.0f} refusals a second take a share of it, and the server keeps {cores}",
        f"At half the load it keeps {half['server_cores']:.2f} busy, {share:.0%} of what it keeps busy",
        f"a CPU second gives {tokens:.0f} tokens there ({alone:.0f} of texts one at a time)",
        f"saturated at {usual['tokens_per_second'] / usual['offline_tokens_per_second']:.0%} of offline prediction",
        f"it answers {most['tokens_per_second'] / usual['tokens_per_second']:.0%} of the saturated rate",
        f"a p99 of {half['p99_ms'] / rows['unloaded']['p99_ms']:.1f} times the unloaded one here",
        f"Refusals take {most['refusal_p99_ms']:.0f} ms",
    ]


def said_of_the_xeon(rows: dict[str, dict[str, Any]]) -> list[str]:
    usual, more, unloaded = rows["saturated"], rows["70%"], rows["unloaded"]["p99_ms"]
    refused = f"{more['refused']} of {more['requests']} refused"
    beside = [usual[name] / usual[f"offline_{name}"] for name in ("tokens_per_second", "tokens_per_cpu_second")]
    return [
        f"serve-ours-avx512.json`) it was {beside[0]:.0%} and {beside[1]:.0%}",
        f"in the run alone {rows['50%']['p99_ms'] / unloaded:.2f} times (aim 5",
        f"In the run alone it was {more['p99_ms'] / unloaded:.1f} times, with {refused}",
        f"{rows['overload']['tokens_per_second'] / usual['tokens_per_second']:.0%} in the run alone)",
    ]


def test_no_page_waits_for_a_table() -> None:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        assert "<!-- table" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("name", "results", "last", "shown"),
    [
        ("finetune_peer", "finetune-peer.json", "mrpc", "finetuning.md"),
        ("finetune_options", "finetune-options.json", "cola", "finetuning.md"),
        ("distill_sst2", "distill-sst2.json", "taught", "distillation.md"),
        ("embed_peer", "embed-peer.json", "minilm", "embeddings.md"),
        ("export_parity", "export-parity.json", "masked words", "export.md"),
        ("ladder", "ladder.json", "chosen", "runs/learning.md"),
    ],
)
def test_a_table_is_what_its_script_prints(
    name: str,
    results: str,
    last: str,
    shown: str,
    script: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    called(script(name), monkeypatch, "table", ROOT / "benchmarks" / "results" / results)
    printed = capsys.readouterr().out
    assert last in printed
    assert "\n".join(line.rstrip() for line in printed.splitlines()) in page(shown)


@pytest.mark.parametrize(
    ("head", "form", "name", "start"),
    [
        ("a BERT-base step in bf16", ".0f", "pretrain-step-amd.json", "base, 16 of 40-128: bf16, AdamW against"),
        ("a BERT-base step in fp32", ".0f", "pretrain-step-amd.json", "base, 16 of 40-128: fp32, AdamW against"),
        ("MiniLM fine-tuned on MRPC in bf16", ".1f", "finetune-amd.json", "MRPC: bf16 against"),
    ],
)
def test_rows_of_the_readme_beside_peers(head: str, form: str, name: str, start: str) -> None:
    (shown,) = [each for each in (ROOT / "README.md").read_text("utf-8").splitlines() if each.startswith(f"| {head}")]
    rows = [row for row in stored(name)["rows"] if row["case"].startswith(start)]
    peers = shown.split(" | ")[2].split("; ")
    assert f"{rows[0]['ours']:{form}}" in shown
    for row, peer in zip(rows[: len(peers)], peers, strict=True):
        assert peer.startswith(f"{row['peer']:{form}} "), row["case"]
        assert f"({row['ratio']:.1f}x)" in peer, row["case"]


def gpu_row(start: str) -> dict[str, Any]:
    """The first row of the H200 whose name starts so."""
    return next(each for each in stored("nvidia-h200.json")["rows"] if each["case"].startswith(start))


def test_the_readmes_figures_of_a_gpu() -> None:
    (shown,) = [each for each in (ROOT / "README.md").read_text("utf-8").splitlines() if each.startswith("On one H200")]
    for start in ("large, 256 full at 128", "large, 64 full at 512"):
        row = gpu_row(start)
        assert f"{row['ours']:,.0f} " in shown
        assert f"{row['peak_share']:.1%}" in shown


def test_what_the_gpus_page_says_of_idle_time_kernels_and_slots() -> None:
    """Steps of a turn beside the kernels of a profiled one; single kernels; and products by slots."""
    text = " ".join(page("gpu.md").split())
    longer = {}
    for row in [each for each in stored("nvidia-h200.json")["rows"] if "steps" in each.get("kernels", {})]:
        groups, steps = dict(row["kernels"]["groups"]), row["kernels"]["steps"]
        groups.pop("the GPU idle")
        longer[row["case"]] = 1e3 * (median(row["ours_seconds"]) - sum(groups.values())) / steps
    (graphs,) = [case for case in longer if "CUDA graphs" in case]
    by_graphs, *single = longer.pop(graphs), *longer.values()
    assert f"idle for {by_graphs:.1f} ms of such a step instead of {min(single):.1f} to {max(single):.1f}" in text
    assert f"took {by_graphs:.1f} to {max(single):.1f} ms longer than the kernels" in text
    last, before = gpu_row("large, 256 full at 128: bf16, AdamW, compiled, dr"), gpu_row(graphs)
    assert f"{1e3 * median(before['ours_seconds']) / before['kernels']['steps']:.1f} ms, where single launches" in text

    normalised = last["kernels"]["groups"]["dropout with sum and LayerNorm"] / last["kernels"]["steps"]
    assert f"took {1e3 * normalised:.1f} ms, 16.4" in text
    for row, name, shown in (
        (before, "gelu_backward", "{:.0f} us a layer, twice"),
        (before, "gelu_8", "133 forward where it took {:.0f}"),
        (before, "kept_bits", "drawn in {:.1f} us"),
        (last, "gelu_backward", "Ours takes {:.0f};"),
        (last, "sigmoid", "{:.0f} forward where"),
    ):
        ((taken, launches),) = [(each[2], each[1]) for each in row["kernels"]["longest"] if name in each[0]]
        assert shown.format(1e6 * taken / launches) in text, name
    row = gpu_row("products of a layer")
    rates = dict(zip(row["slots"], row["all"], strict=True))
    least, most = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    assert f"{rates[least]:.0f} (at {least:,}) to {rates[most]:.0f} TFLOP/s (at {most:,})" in text
