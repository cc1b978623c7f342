"""The scripts behind docs/runs, with models of one layer: what they compare, and that nothing is run twice; and the one
that kills a run."""

from __future__ import annotations

import importlib.util
import json
import operator
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.device import choose_device
from bertsmith.base.locks import alone_in
from bertsmith.recipes.loader import load_recipe
from bertsmith.training.run_folder import Run
from made_commands import Command, called
from made_runs import signalled_after, small_corpus

# One layer of 32, so that a run takes a second.
SHAPE = {"model.layers": 1, "model.hidden": 32, "model.heads": 2, "model.intermediate": 48}


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """These scripts do draw."""
    monkeypatch.delitem(sys.modules, "matplotlib.backends.backend_agg", raising=False)


def drawn(png: Path) -> list[object]:
    """The flags for a picture, where one can be drawn."""
    return ["--png", png] if importlib.util.find_spec("matplotlib") else []


@pytest.mark.parametrize(
    ("name", "first", "words"),
    [
        ("attention_on_cpu", "lengths_of", "usage: attention_on_cpu"),
        ("killed_run", "compared", "--kills 60 150 250 \\\n        --out"),
    ],
)
def test_help_is_printed_and_nothing_is_measured(
    script: Callable[[str], Any],
    name: str,
    first: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """first: what the script calls first when it measures."""
    measuring, begun = script(name), list[object]()
    monkeypatch.setattr(measuring, first, lambda *given: begun.append(given))
    with pytest.raises(SystemExit) as ended:
        called(measuring, monkeypatch, "--help")
    assert not ended.value.code
    assert words in capsys.readouterr().out
    assert not begun


def test_a_run_has_the_losses_of_transformers_with_a_float64_update(
    script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = script("parity_runs")
    monkeypatch.setattr(runs, "RECIPE", "bert-tiny")
    monkeypatch.setattr(runs, "BATCH", 8)
    monkeypatch.setattr(runs, "LENGTH", 64)
    monkeypatch.setattr(runs, "LAST", 2)
    monkeypatch.setattr(runs, "STEPS", {0.0: 6, 0.1: 4})
    out, png = tmp_path / "parity.json", tmp_path / "parity.png"
    called(runs, monkeypatch, "run", "--corpus", small_corpus(), "--out", out)
    rows = json.loads(out.read_text())
    plain = {row["who"]: row["losses"] for row in rows if row["dropout"] == 0}
    assert len(plain["bertsmith"]) == len(plain["transformers"]) == 6
    assert plain["bertsmith"] == pytest.approx(plain["transformers"], abs=2e-5)
    assert abs(plain["bertsmith"][-1] - plain["bertsmith"][0]) > 0.05, "the weights have moved"
    assert len(rows) == 2 + 2 * len(runs.SEEDS)
    dropped = {(row["who"], row["seed"]): row["losses"] for row in rows if row["dropout"]}
    for who, losses in plain.items():
        assert abs(dropped[who, 1][0] - losses[0]) > 1e-4, "there is dropout"
    capsys.readouterr()
    called(runs, monkeypatch, "run", "--corpus", small_corpus(), "--out", out)
    assert not capsys.readouterr().out, "nothing is run twice"
    called(runs, monkeypatch, "table", out, *drawn(png))
    *_, line = capsys.readouterr().out.splitlines()
    ours, theirs = (sum(sum(dropped[who, seed][-2:]) / 2 for seed in runs.SEEDS) for who in (runs.OURS, runs.PEER))
    assert line == f"mean loss of the last 2 steps: {ours / theirs - 1:+.2%} beside transformers"
    assert not drawn(png) or png.stat().st_size > 10_000


def test_seeds_are_compared_with_mean_and_deviation(
    script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = script("seed_runs")
    fields = {**SHAPE, "phase1.steps": 3, "phase2.steps": 2, "phase2.global_batch": 2, "evaluate_instances": 8}
    monkeypatch.setattr(runs, "FIELDS", fields)
    monkeypatch.setattr(runs, "SEEDS", (1, 2))
    out, png = tmp_path / "seeds.json", tmp_path / "seeds.png"
    called(runs, monkeypatch, "run", "--corpus", small_corpus(), "--runs", tmp_path / "runs", "--out", out)
    rows = {(row["seed"], row["precision"]): row for row in json.loads(out.read_text())}
    assert set(rows) == {(1, "fp32"), (2, "fp32"), (1, "bf16")}
    capsys.readouterr()
    called(runs, monkeypatch, "table", out, *drawn(png))
    table = capsys.readouterr().out.splitlines()
    line = next(line for line in table if line.startswith("masked_loss at 512"))
    seconds = next(line for line in table if line.startswith("training seconds"))
    assert float(seconds.split()[2]) == pytest.approx(rows[1, "fp32"]["training_seconds"], abs=0.1)
    metrics = Run(tmp_path / "runs" / "fp32-seed-1").metrics("train")
    of_steps = sum(each["steps"] * each["seconds_per_step"] for each in metrics)
    assert rows[1, "fp32"]["training_seconds"] == pytest.approx(of_steps, abs=0.1)
    first, second, mean, deviation, half = map(float, line.split()[3:])
    assert (first, second) == tuple(round(rows[seed, "fp32"]["score"], 4) for seed in (1, 2))
    assert mean == pytest.approx((first + second) / 2, abs=1e-4)
    assert deviation == pytest.approx(abs(first - second) / 2**0.5, abs=1e-4)
    assert half == pytest.approx(first, abs=0.02)
    assert not drawn(png) or png.stat().st_size > 10_000


@pytest.fixture
def ladder(script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script with runs of three steps; two files of BLiMP lie in `blimp`."""
    ladder = script("ladder")
    small = {**SHAPE, "phase1.steps": 3, "phase1.global_batch": 8, "evaluate_every": 2, "evaluate_instances": 8}
    monkeypatch.setattr(ladder, "BASE", ladder.BASE | small)
    names = ("base", "BERT start", "rate 0.001", "30% to 15%", "NVLAMB")
    monkeypatch.setattr(ladder, "RUNGS", {name: ladder.RUNGS[name] for name in names})
    monkeypatch.setattr(ladder, "TIMES", 2)
    monkeypatch.setattr(ladder, "EVALUATE_EVERY", 4)
    blimp = tmp_path / "blimp"
    blimp.mkdir()
    pair = json.dumps({"sentence_good": "the object is callable", "sentence_bad": "the object are callable"})
    for name in ("adjunct_island", "causative"):
        (blimp / f"{name}.jsonl").write_text(f"{pair}\n" * 3)
    return ladder


def test_rungs_and_the_chosen_recipe_end_in_one_table(
    ladder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, png = tmp_path / "ladder.json", tmp_path / "ladder.png"
    flags = ["--corpus", small_corpus(), "--blimp", tmp_path / "blimp", "--runs", tmp_path / "runs", "--out", out]
    called(ladder, monkeypatch, "run", *flags, "--rungs", "BERT start")
    assert [row["rung"] for row in json.loads(out.read_text())] == ["BERT start"]
    called(ladder, monkeypatch, "run", *flags)
    together = [*flags, "--chosen", "30% to 15%", "NVLAMB"]
    called(ladder, monkeypatch, "run", *together)
    called(ladder, monkeypatch, "run", *together, "--pairs", 2)
    with pytest.raises(SystemExit, match="set the same field twice"):
        called(ladder, monkeypatch, "run", *flags, "--chosen", "NVLAMB", "rate 0.001")
    rows = json.loads(out.read_text())
    others = ["base", "rate 0.001", "30% to 15%", "NVLAMB"]
    assert [row["rung"] for row in rows] == ["BERT start", *others, "chosen", "chosen"]
    assert [row["slots"] for row in rows] == [3 * 8 * 128] * 5 + [6 * 8 * 128] * 2
    starts = [row["fields"]["model.fresh_positions"] for row in rows]
    assert starts == ["normal", *["neighbours"] * 6]
    assert {row["precision"] for row in rows} == {choose_device("auto", "auto").precision}
    chosen, of_two = (row["fields"] for row in rows[-2:])
    assert chosen == of_two
    assert [row["fields"]["phase1.learning_rate"] for row in rows[:3]] == [0.0003, 0.0003, 0.001]
    assert (chosen["masking.final_rate"], chosen["optimizer.name"], chosen["phase1.steps"]) == (0.15, "lamb", 6)
    assert [[step for step, _ in row["curve"]] for row in rows] == [[2, 3]] * 5 + [[4, 6]] * 2
    assert len({row["score"] for row in rows}) == 6
    assert [row["pairs"] for row in rows[-2:]] == [200, 2]
    assert all(ladder.by_phenomenon(row["blimp_files"]) == row["blimp"] for row in rows)
    capsys.readouterr()
    called(ladder, monkeypatch, "run", *flags)
    assert json.loads(out.read_text()) == rows
    called(ladder, monkeypatch, "table", out, *drawn(png))
    of_rungs, of_phenomena = capsys.readouterr().out.split("\n\n")
    assert len(of_rungs.splitlines()) == 1 + len(rows)
    assert [line.split("  ")[0] for line in of_phenomena.splitlines()[1:]][-1] == "mean"
    assert len(of_phenomena.splitlines()) == 1 + len(rows[0]["blimp"])
    assert not drawn(png) or png.stat().st_size > 10_000
    monkeypatch.setattr(ladder, "choose_device", lambda *_: Namespace(precision="another"))
    with pytest.raises(SystemExit, match="run with other settings"):
        called(ladder, monkeypatch, "run", *flags)


def test_a_rung_that_is_stopped_continues_with_the_same_command(
    ladder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "ladder.json", tmp_path / "runs" / "base-blimp-200.json"
    flags = ["--corpus", small_corpus(), "--blimp", tmp_path / "blimp", "--runs", tmp_path / "runs", "--out", out]
    flags += ["--rungs", "base"]
    with monkeypatch.context() as patch:
        signalled_after(1, patch)
        called(ladder, monkeypatch, "run", *flags)
    assert "stopped at step 1" in capsys.readouterr().err
    measure, measured = ladder.evaluate_minimal_pairs, []

    def signalled(model: Any, folder: Path) -> Any:
        measured.extend(path.stem for path in folder.iterdir())
        if len(measured) == 1:
            signal.raise_signal(signal.SIGTERM)
        return measure(model, folder)

    monkeypatch.setattr(ladder, "evaluate_minimal_pairs", signalled)
    called(ladder, monkeypatch, "run", *flags)
    assert "1 of 2 files of BLiMP are scored): the same command continues" in capsys.readouterr().err
    assert list(json.loads(kept.read_text())["files"]) == ["adjunct_island"]
    assert not out.exists()
    called(ladder, monkeypatch, "run", *flags)
    assert measured == ["adjunct_island", "causative"], "what was scored is not scored again"
    (row,) = json.loads(out.read_text())
    seconds = [json.loads((tmp_path / "runs" / name).read_text())["seconds"] for name in ("base-seconds.json", kept)]
    assert row["seconds"] == pytest.approx(sum(seconds), abs=0.06)
    assert set(row["blimp"]) == {"argument structure", "island effects", "mean"}


def test_the_preset_for_a_cpu_has_what_the_rungs_chose(script: Callable[[str], Any]) -> None:
    """But for what makes it longer, lets it read longer texts, and says how often it is measured."""
    recipe = load_recipe("bert-small-mlm")
    free = ("model.max_positions", "phase1.steps", "log_every", "evaluate_every", "evaluate_instances", "save_every")
    for name, value in script("ladder").fields_of(["30% to 15%", "batch 16"]).items():
        if name not in free:
            assert operator.attrgetter(name)(recipe) == value, name


def test_two_processes_write_rows_into_one_file(script: Callable[[str], Any], tmp_path: Path) -> None:
    runs = script("runs_file")
    out = tmp_path / "rows.json"

    def first() -> dict[str, Any]:
        # While it runs, another one writes its row.
        runs.once(out, {"who": "second"}, ("who",), lambda: {"score": 2.0})
        return {"score": 1.0}

    runs.once(out, {"who": "first"}, ("who",), first)
    assert {row["who"]: row["score"] for row in json.loads(out.read_text())} == {"first": 1.0, "second": 2.0}
    with ThreadPoolExecutor(1) as pool:
        with alone_in(tmp_path) as alone:
            assert alone
            third = pool.submit(runs.once, out, {"who": "third"}, ("who",), lambda: {"score": 3.0})
            time.sleep(0.3)
            assert len(json.loads(out.read_text())) == 2, "it waits for the lock"
        third.result()
    assert [row["who"] for row in json.loads(out.read_text())] == ["second", "first", "third"]


# Has the first process that trains with --resume, of the first rank where there are several, come no further than some
# steps after those at which it is to be killed.
HOLDS = """
import os, sys, time
if "--resume" in sys.orig_argv and os.environ.get("RANK", "{alone}") == "0" and not os.path.exists("{mark}"):
    open("{mark}", "w").close()
    from bertsmith.training.loop import Trainer
    advance = Trainer._advance
    def held(trainer, step):
        advance(trainer, step)
        while trainer.position.step >= 18:
            time.sleep(0.01)
    Trainer._advance = held
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes where Linux lists them")
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_is_compared_with_the_unbroken_one(
    script: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ranks: int,
) -> None:
    runs = script("killed_run")
    fields = {
        **SHAPE,
        "device": "cpu",
        "save_every": 5,
        "log_every": 2,
        "evaluate_instances": 8,
        "phase1.global_batch": 8,
    }
    flags = ["bert-tiny", "--corpus", small_corpus(), "--runs", tmp_path / "runs", "--out", tmp_path / "killed.json"]
    flags += ["--steps", 24, 2, "--kills", 12, "--ranks", ranks, "--within", 0.1]
    (tmp_path / "sitecustomize.py").write_text(HOLDS.format(alone=0 if ranks == 1 else "", mark=tmp_path / "held"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    started = runs.started

    def starting(command: list[str], log: Path) -> Any:
        """The one that is held is killed, and found by its environment; others come from a process that has PyTorch."""
        is_held = "--resume" in command and not (tmp_path / "held").exists()
        return started(command, log) if is_held else Command(*command[3:], log=log)

    monkeypatch.setattr(runs, "started", starting)
    with pytest.raises(SystemExit) as ended:
        called(runs, monkeypatch, *flags, *(f"--{name}={value}" for name, value in fields.items()))
    assert ended.value.code == 0
    found = json.loads((tmp_path / "killed.json").read_text())
    assert (found["unequal_records"], found["unequal_files"]) == (0, [])
    assert found["records"] > 12
    (kill,) = found["kills"]
    assert 12 <= kill["last_line"] <= 18
    assert 5 <= kill["resumes_from"] <= kill["last_line"] + 2
    assert "of which 0 differ" in capsys.readouterr().out
    # What differs is found.
    run, unbroken = (runs.Run(tmp_path / "runs" / name) for name in ("killed", "unbroken"))
    *lines, _ = (run.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "metrics.jsonl").write_text("".join(lines))
    with (run.model / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        (last,) = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    differences = {"records": found["records"], "unequal_records": 1, "unequal_files": ["weights"]}
    assert runs.differences(run, unbroken) == differences


def test_what_a_save_costs_is_measured_in_turns(
    script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saves, out = script("saves"), tmp_path / "saves.json"
    for name in ("save", "_write"):  # which the script replaces
        monkeypatch.setattr(saves.Saver, name, getattr(saves.Saver, name))
    fields = {**SHAPE, "device": "cpu", "evaluate_instances": 8, "phase1.global_batch": 8}
    flags = ["bert-tiny", "--corpus", small_corpus(), "--steps", 3, "--turns", 4, "--json", out]
    called(saves, monkeypatch, *flags, *(f"--{name}={value}" for name, value in fields.items()))
    found = json.loads(out.read_text())
    assert found["machine"]["cores"].isdigit()
    assert found["arguments"][:1] == ["bert-tiny"]
    kind = [found[name] for name in ("recipe", "parallel", "ranks", "save_every")]
    assert kind == ["bert-tiny", "replicate", 1, 100]
    costs = [saved - plain for saved, plain in found["blocks_seconds"]]
    assert len(costs) == 4
    assert found["save_seconds"] == pytest.approx(sum(costs) / 4)
    assert found["share"] == pytest.approx(found["save_seconds"] / found["step_seconds"] / 100)
    assert found["waits_seconds"] > 0
    assert found["thread_cpu_seconds"] > 0
    assert found["checkpoint_bytes"] > 12 * 32 * 512, "weights and moments"
    assert "in 4 turns a save costs" in capsys.readouterr().out
