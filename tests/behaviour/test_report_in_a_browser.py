"""The page of a report in a browser: at the width of a phone and of a desk, light and dark, with runs switched off."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertsmith.report.report import write_report
from bertsmith.tasks.report.parts import About
from bertsmith.tasks.report.report import Classified, report_classes
from bertsmith.tasks.scoring.calibration import calibrate
from made_browser import Page, browsing
from made_reports import train_record, write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a run of both phases, one of fine-tuning with long names and texts, and warnings."""
    folder = tmp_path_factory.mktemp("runs")
    events = [{"kind": "warning", "step": 3, "message": "a warning " * 30}]
    records = [train_record(step, 1 if step < 60 else 2, loss=5 + math.sin(step)) for step in range(1, 100)]
    held_out = [{"kind": "evaluation", "step": step, "loss": 5.5, "f1": 0.5} for step in range(10, 100, 10)]
    first = write_run(folder / "first", [*records, *held_out], events)
    tuned = [
        {"kind": kind, "step": step, "seed": 1, "seed_step": step, "loss": 2.0, "test_f1": 0.5}
        for step in (1, 2, 3)
        for kind in ("train", "evaluation")
    ]
    second = write_run(folder / ("a-long-name-" * 6), tuned, task="classify", recipe="model: " + "x" * 300)
    draw = np.random.default_rng(0)
    true = draw.integers(0, 12, 200)
    logits = (draw.normal(size=(200, 12)) + 2 * np.eye(12)[true]).astype(np.float32)
    names = tuple(f"the class of a long name {number}" for number in range(12))
    about = About("dev", [{"where": f"dev.csv:{row}", "text": f"word{row} " * 90} for row in range(200)])
    report_classes(
        second / "report" / "dev", about, Classified(names, logits, true, logits.argmax(1)), calibrate(logits, true)
    )
    return write_report([first, second], folder / "page.html")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_it_fits_its_window(page: Page, report: Path, width: int, dark: bool) -> None:
    page.problems.clear()
    page.open(report.as_uri(), width, dark=dark)
    if folder := os.environ.get("BERTSMITH_SCREENSHOTS"):
        page.screenshot(Path(folder) / f"report-{width}{'-dark' if dark else ''}.png")
    assert not page.problems
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelectorAll('svg.chart').length") > 5
    wide = "[...document.querySelectorAll('svg.chart')].map((each) => each.getBoundingClientRect().width)"
    widths = page.run(wide)
    assert min(widths) >= 300, "a chart is large enough to read its words, which are 10 units of 360"
    assert max(widths) <= width
    inside = """[...document.querySelectorAll('svg.chart text')].filter((each) => {
        const word = each.getBoundingClientRect(), box = each.ownerSVGElement.getBoundingClientRect();
        return word.left < box.left - 1 || word.right > box.right + 1 || word.bottom > box.bottom + 1;
    }).map((each) => each.textContent)"""
    assert page.run(inside) == [], "words that leave their chart"
    cut = """[...document.querySelectorAll('caption')].filter(
        (each) => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth)"""
    assert page.run(f"{cut}.length") == 0, "a title that only scrolling shows"
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(18, 22, 29)" if dark else "rgb(255, 255, 255)")


def test_a_confusion_of_many_classes_shows_all_of_them(page: Page, report: Path) -> None:
    page.open(report.as_uri(), 1000)
    right = "document.querySelector('.matrix table').getBoundingClientRect().right"
    assert page.run("document.querySelectorAll('.matrix thead th').length") == 13
    assert page.run(right) <= 700
    page.open(report.as_uri(), 390)
    page.run("document.querySelector('.matrix').scrollLeft = 100")
    assert page.run("document.querySelector('.matrix tbody th').getBoundingClientRect().left") <= 12, (
        "names stay in view"
    )
    page.open(report.as_uri(), 717)  # of A4, without its margins
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.run(right) <= 717
    page.call("Emulation.setEmulatedMedia", media="")


def test_a_box_hides_the_curves_of_its_run(page: Page, report: Path) -> None:
    page.open(report.as_uri(), 1280)
    visible = (
        "[...document.querySelectorAll('svg.chart .run-0')].filter((each) => getComputedStyle(each).display != 'none')"
    )
    assert page.run(f"{visible}.length") > 0
    page.run("document.getElementById('show-0').click()")
    assert page.run(f"{visible}.length") == 0
    page.run("document.getElementById('show-0').click()")
    assert page.run(f"{visible}.length") > 0


def test_numbers_open_without_a_script(page: Page, report: Path) -> None:
    page.open(report.as_uri(), 390)
    page.run("document.querySelectorAll('figure details').forEach((each) => { each.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.run("document.scripts.length") == 0
