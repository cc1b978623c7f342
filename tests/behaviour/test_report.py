"""Promise: one self-contained page under 2 MB shows what runs of every kind came to, whatever became of them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.report.report import MOST_BYTES, write_report
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.continued import BEFORE
from bertsmith.training.records.names import EVENTS_FILE
from bertsmith.training.run_folder import Run
from made_pages import read_lines
from made_reports import Parsed, train_record, write_run
from made_rows import QUICK, made_model, rows
from made_runs import corpus, small_recipe, stopped_after

RECIPE = small_recipe(phase1__steps=6, evaluate_every=3)
SETTINGS = replace(QUICK, epochs=3, seeds=2, folds=2, learning_curve=True, report=True, log_every=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of pre-training, one that was stopped and resumed, one that is stopped, and one of fine-tuning."""
    folder = tmp_path_factory.mktemp("runs")
    pretrain(RECIPE, corpus(), folder / "finished")
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(3, patch, replace(RECIPE, seed=8), folder / "resumed")
        stopped_after(2, patch, RECIPE, folder / "stopped")
    pretrain(replace(RECIPE, seed=8, micro_batch_tokens=128), corpus(), folder / "resumed", resume=True)
    made = rows(64, 1)
    made[5]["text"] += " <script>alert(1)</script>"
    dev = [{**row, "label": "blame" if row["label"] == "praise" else "praise"} for row in rows(3, 9)]
    options = {"test": rows(16, 3), "settings": SETTINGS}
    model = made_model(folder)
    bertsmith.finetune("classify", model, made, [*rows(30, 2), *dev], folder / "labels", **options)
    return {name: folder / name for name in ("finished", "resumed", "stopped", "labels")}


def test_a_page_needs_no_torch(runs: dict[str, Path], tmp_path: Path) -> None:
    """So that it is there at once."""
    command = ["report", *map(str, runs.values()), "--out", str(tmp_path / "page.html")]
    code = f"import sys; from bertsmith.cli import main; main({command!r}); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()


def shown(out: Path, *folders: Path) -> Parsed:
    path = write_report(folders, out / "page.html")
    assert path.stat().st_size < MOST_BYTES
    found = Parsed(path.read_text(encoding="utf-8"))
    check_contained(found)
    return found


def check_contained(page: Parsed) -> None:
    """Nothing is loaded from elsewhere, no script runs, and links stay on the page."""
    assert not {"script", "link", "img", "iframe", "object", "base"} & {name for name, _ in page.elements}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "action")]
        if "href" in attributes:
            assert attributes["href"].removeprefix("#") in ids
        for name in ("aria-labelledby", "for"):
            assert attributes.get(name, ids[0]) in ids


def test_a_pretraining_run(runs: dict[str, Path], tmp_path: Path) -> None:
    found = shown(tmp_path, runs["finished"])
    facts = found.column("Final figures")
    records = Run(runs["finished"]).metrics("train")
    assert (facts["state"], facts["kind"], facts["last step"]) == ("finished", "pre-training", "9")
    assert facts["tokens"] == f"{sum(each['tokens'] for each in records):,.0f}"
    assert facts["training: loss"] == f"{records[-1]['loss']:.4g}"
    charts = {each.findtext("title") for each in found.charts if each.get("role") == "img"}
    assert charts >= {
        "Loss, all together", "Loss: masked", "Loss: next sentence", "Masked accuracy", "Next sentence accuracy",
        "Learning rate", "Throughput, tokens a second", "Time spent waiting for data, %",
        "Memory of the first rank, the most so far, GB", "Norm of the gradient",
    }  # fmt: skip
    assert "Share of the device's peak, %" not in charts, "that of a CPU is not known"
    numbers = found.tables["Learning rate: numbers"][1]
    assert numbers[1] == str(len(records))
    assert numbers[-1] == f"{records[-1]['learning_rate']:.4g} at 9"
    measured = found.tables["Held-out figures of finished"]
    assert len(measured) == 1 + 1 + 3 + 2, "before the first step, three evaluations, and both lengths at the end"
    machine = found.column("What runs were made on")
    assert machine["bertsmith"] == bertsmith.__version__
    assert machine["ranks"] == "1"


def test_several_runs_share_axes_and_show_what_differs(runs: dict[str, Path], tmp_path: Path) -> None:
    found = shown(tmp_path, runs["finished"], runs["resumed"])
    (chart,) = [each for each in found.charts if each.findtext("title") == "Loss: masked"]
    groups = {(each.get("class") or "").split()[1] for each in chart.iter("g")}
    assert groups == {"c0", "c1"}
    assert [each.text for each in chart.iter("text") if each.get("class", "").startswith("end")] in (
        ["A", "B"],
        ["B", "A"],
    )
    assert {row[0] for row in found.tables["What differs"][1:]} == {"micro_batch_tokens", "seed"}
    assert {"show-0", "show-1"} <= {attributes.get("id") for _, attributes in found.elements}


def test_warnings_of_a_run_and_its_starts_are_kept_and_shown(runs: dict[str, Path], tmp_path: Path) -> None:
    events = read_lines(runs["resumed"] / EVENTS_FILE)
    assert [each["step"] for each in events if each["kind"] == "environment"] == [0, 3]
    found = shown(tmp_path, runs["resumed"])
    (cut,) = [row for row in found.tables["Warnings of resumed"] if "resumed with its steps cut up otherwise" in row[2]]
    assert cut[0] == "3"
    assert [row[0] for row in found.tables["Warnings of resumed"] if "SIGTERM received" in row[2]] == ["3"]
    assert found.column("What runs were made on")["micro batch tokens"] == "256, 128"


def test_a_stopped_run_and_one_that_is_cut_short(runs: dict[str, Path], tmp_path: Path) -> None:
    metrics = runs["stopped"] / "metrics.jsonl"
    with open(metrics, "a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    found = shown(tmp_path, runs["stopped"])
    facts = found.column("Final figures")
    assert facts["state"] == "stopped by a signal after saving, to be resumed"
    assert facts["last step"] == "2"
    assert "1 line of metrics.jsonl cannot be read" in found.text


def test_a_fine_tuning_run(runs: dict[str, Path], tmp_path: Path) -> None:
    found = shown(tmp_path, runs["labels"])
    result = json.loads((runs["labels"] / "finetune.json").read_text(encoding="utf-8"))
    seeds = found.tables["Seeds"]
    assert [row[0].split()[0] for row in seeds[1:]] == ["42", "43", "mean", "deviation"]
    for row, seed in zip(seeds[1:3], result["seeds"], strict=True):
        assert (row[1], row[2]) == (f"{seed['best_epoch']:g}", f"{seed['score']:.4g}")
        (best,) = [each for each in seed["epochs"] if each["epoch"] == seed["best_epoch"]]
        there, last = (each[result["metric"]] for each in (best["test"], seed["epochs"][-1]["dev"]))
        assert row[3:] == [f"{there:.4g}", f"{last:.4g}"]
    assert seeds[3][2] == f"{result['mean']:.4g}"
    assert float(seeds[4][2]) == pytest.approx(result["standard_deviation"], rel=1e-3)
    assert len(found.tables["Folds of the training rows, after the last step"]) == 3
    assert len(found.tables["Shares of the training rows, after the last step"]) == 3
    for name in ("Classes", "Confusion: a row a true label, a column a predicted one", "Bins of the calibration"):
        assert name in found.tables
    assert found.column("Accuracy: numbers").keys() == {
        f"seed {seed}, {part}" for seed in (42, 43) for part in ("training", "dev", "test")
    }
    for words in (
        "Dev rows, which chose",
        "Test rows, which chose nothing",
        "each by a model that did not train on it",
    ):
        assert words in found.text
    assert any("Likeliest label errors" in name for name in found.tables)


def test_runs_of_both_kinds_stand_on_one_page(runs: dict[str, Path], tmp_path: Path) -> None:
    found = shown(tmp_path, *runs.values())
    assert found.tables["Final figures"][0] == ["", "A finished", "B resumed", "C stopped", "D labels"]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    of_fine_tuning = page.split("<figcaption>Macro f1", 1)[1].split("</figcaption>", 1)[0]
    assert "dev" in of_fine_tuning
    assert "held out" not in of_fine_tuning


def test_a_hundred_thousand_lines_make_a_small_page_that_keeps_the_peak(tmp_path: Path) -> None:
    records = (
        train_record(step, loss=50.0 if step == 77_777 else 5 + math.sin(step / 900)) for step in range(1, 100_001)
    )
    run = write_run(tmp_path / "long", records)
    found = shown(tmp_path, run)
    assert (tmp_path / "page.html").stat().st_size < 500_000
    assert "the longest has 100,000" in found.text
    (row,) = found.tables["Loss: numbers"][1:]
    assert (row[1], row[2], row[4]) == ("100,000", "5.001 at 1", "50 at 77,777")
    (chart,) = [each for each in found.charts if each.findtext("title") == "Loss"]
    (line,) = chart.iter("polyline")
    heights = [float(point.split(",")[1]) for point in (line.get("points") or "").split()]
    assert len(heights) <= 600
    highest, second = sorted(heights)[:2]
    assert highest < 40 < 150 < second, "the peak of one step stands high above the rest"


def test_the_share_of_the_peak_is_drawn_where_it_is_known(tmp_path: Path) -> None:
    run = write_run(tmp_path / "gpu", [train_record(step, peak_share=0.4 + 0.01 * step) for step in (1, 2, 3)])
    found = shown(tmp_path, run)
    title = "Share of the device's peak, %"
    assert title in {each.findtext("title") for each in found.charts}
    assert found.tables[f"{title}: numbers"][1][1:] == ["3", "41 at 1", "41 at 1", "43 at 3", "43 at 3"]


def test_commits_are_told_by_their_beginning(tmp_path: Path) -> None:
    start = {"kind": "environment", "step": 0, "git_code": f"{'0123456789abcdef' * 3:.40}, changed"}
    found = shown(tmp_path, write_run(tmp_path / "run", [train_record(1)], [start]))
    assert found.column("What runs were made on")["git code"] == "0123456789ab, changed"


def test_the_verb(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(runs["finished"]), str(runs["labels"]), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert said.err.startswith("report: 2 runs, ")
    assert main(["report", str(tmp_path), "--out", str(out)]) == 2
    assert "this folder is not a run's" in capsys.readouterr().err
    assert main(["report", "--out", str(out)]) == 2


def test_what_most_measurements_have_comes_first(tmp_path: Path) -> None:
    """Else a table of pre-training begins with columns that are empty but for the loss before the first step."""
    figures = [{"masked_loss": 5.0 - step / 10, "masked_accuracy": 0.1} for step in range(3)]
    records = [{"kind": "start", "step": 0, "loss": 7.0, "guessing_loss": 6.9, **figures[0]}]
    records += [{"kind": BEFORE, "step": 0, **figures[0]}]
    records += [{"kind": "evaluation", "step": step, **each} for step, each in enumerate(figures) if step]
    page = shown(tmp_path, write_run(tmp_path / "run", records))
    header, _, before = page.tables["Held-out figures of run"][:3]
    assert before[0] == "0 (before training)"
    assert [name.strip() for name in header] == [
        *("after step", "masked loss", "masked accuracy"),
        *("loss", "guessing loss"),
    ]


def test_a_figure_keeps_the_capitals_of_its_name(tmp_path: Path) -> None:
    records = [{"kind": "evaluation", "step": step, "HasAns_f1": 50.0, "macro_f1": 0.5} for step in (1, 2)]
    page = shown(tmp_path, write_run(tmp_path / "run", records))
    assert {"HasAns f1", "Macro f1"} <= {each.findtext("title") for each in page.charts}
