"""The whole page: its parts in order, with their style, in one text that loads nothing."""

from __future__ import annotations

from importlib import resources

import bertsmith
from bertsmith.base.log import counted
from bertsmith.report import sections
from bertsmith.report.figures import Runs, curves
from bertsmith.report.finetuned import finetuned
from bertsmith.report.markup import Markup, element, joined
from bertsmith.report.parts import Limits, title_of
from bertsmith.report.svg import COLOURS

DOCTYPE = "<!doctype html>"


def page(runs: Runs, limits: Limits) -> str:
    """The page of these runs."""
    names = ", ".join(run.name for run in runs)
    style = resources.files("bertsmith.report").joinpath("page.css").read_text(encoding="utf-8")
    parts = [
        sections.final_figures(runs),
        curves(runs, limits),
        sections.held_out(runs, limits),
        *finetuned(runs, limits),
        sections.recipes(runs),
        sections.environments(runs),
        sections.warnings(runs, limits),
    ]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        generator(),
        element("title", f"Report: {names}"),
        element("style", Markup(style + _switches(runs))),
    ]
    written = f"Written by bertsmith {bertsmith.__version__} from the folders of the runs."
    body = [_header(runs), element("main", *parts), element("footer", element("p", written))]
    return f'{DOCTYPE}\n<html lang="en">\n{element("head", *head)}\n{element("body", *body)}\n</html>\n'


def generator() -> Markup:
    """What the page names itself in its head, so that one may be replaced by another."""
    return element("meta", name="generator", content="bertsmith report")


def _header(runs: Runs) -> Markup:
    listed = joined(map(title_of, runs), ", ")
    links = [("figures", "runs"), ("curves", "curves"), ("held-out", "held-out figures")]
    links += [(f"task-{run.number}", "task") for run in runs if run.is_finetuned][:1]
    links += [("recipes", "recipes"), ("environment", "environment"), ("warnings", "warnings")]
    menu = element(
        "nav", joined([element("a", words, href=f"#{name}") for name, words in links], " "), aria_label="Parts"
    )
    return element("header", element("h1", "Report of ", counted(len(runs), "run")), element("p", listed), menu)


def _switches(runs: Runs) -> str:
    """The rules by which a box in the legend hides the curves of its run, and those of the colours of curves."""
    colours = "".join(f".c{place} {{ color: var(--c{place}); }}\n" for place in range(COLOURS))
    hidden = "".join(
        f"body:has(#show-{run.number}:not(:checked)) svg .run-{run.number} {{ display: none; }}\n"
        for run in runs
        if run.key
    )
    return colours + hidden
