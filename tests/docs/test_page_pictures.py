"""The script that makes the pictures of the pages of tasks, on a small run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from bertsmith.cli import main
from made_browser import browsing
from made_pages import ROOT, write_table
from made_rows import QUICK, made_model, rows

SCRIPT = ROOT / "benchmarks" / "page_pictures.py"


@pytest.mark.slow
def test_the_pictures_of_a_run_are_those_that_its_page_shows(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    with browsing(tmp_path / "profile"):  # skips where there is none
        pass
    labelled = [{**row, "label": f"{row['label']};text"} for row in rows(64, 1)]
    settings = replace(QUICK, epochs=1, columns=replace(QUICK.columns, label_separator=";"))
    bertsmith.finetune(
        "classify", made_model(tmp_path / "mini"), labelled[:48], labelled[48:], tmp_path / "runs" / "kinds",
        settings=settings,
    )  # fmt: skip
    write_table(tmp_path / "test.csv", labelled[48:])
    run = tmp_path / "runs" / "kinds"
    report = ["--report", str(run / "report" / "test")]
    assert main(["evaluate", str(run), "--data", str(tmp_path / "test.csv"), *report]) == 0
    command = [sys.executable, SCRIPT, tmp_path / "runs", "--only", "kinds", "words", "--out", tmp_path / "pictures"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].split(": ")[-1]) == (1, "words"), done.stderr
    assert sorted(each.name for each in (tmp_path / "pictures").iterdir()) == ["kinds-page.png", "kinds-per_class.png"]
    with images.open(tmp_path / "pictures" / "kinds-page.png") as image:
        assert image.width == 640
        assert image.height > 600
        assert len(image.convert("RGB").getcolors(1 << 20)) > 20  # it shows something
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    command = [sys.executable, SCRIPT, "--report", tmp_path / "report.html", "--out", tmp_path / "pages"]
    subprocess.run(command, capture_output=True, timeout=250, check=True)
    names = [f"report-{name}.png" for name in ("1280-end", "1280-task", "1280", "390-curves", "390")]
    assert sorted(each.name for each in (tmp_path / "pages").iterdir()) == names
