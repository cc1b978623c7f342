"""Documents do not drift: every path and every flag that they name is there."""

from __future__ import annotations

import inspect
import io
import re
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.cli.entry import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")
QUOTED = re.compile(r"`([^`\n]+)`")
OURS = re.compile(r"(src|tests|docs|benchmarks|\.ci)(/[\w.-]+)*/?|([\w-]+/)*[\w-]+\.(py|toml)")
IMPORT = re.compile(r"from (bertsmith[\w.]*) import ([\w, ]+)")
DOTTED = re.compile(r"`(bertsmith(?:\.\w+)+)\.([A-Z]\w+)\b")
COMMAND = re.compile(r"`(bertsmith (\w+)[^`\n]*)`|^(bertsmith (\w+).*)$", re.MULTILINE)


def named_paths(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    links = {target for target in LINK.findall(text) if "://" not in target}
    return links | {quoted for quoted in QUOTED.findall(text) if OURS.fullmatch(quoted)}


def is_there(page: Path, name: str) -> bool:
    return any((start / name).exists() for start in (page.parent, ROOT, ROOT / "src" / "bertsmith"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_named_is_there(page):
    missing = {name for name in named_paths(page) if not is_there(page, name)}
    assert not missing


def test_the_pages_name_paths_at_all():
    assert {"docs/architecture.md", "LICENSE"} <= named_paths(ROOT / "README.md")
    assert "src/bertsmith/base/layout.py" in named_paths(ROOT / "docs" / "architecture.md")


def test_every_page_is_in_the_index():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages - {Path(name).name for name in named_paths(ROOT / "docs" / "README.md")} == set()


@cache
def help_of(verb: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        main([verb, "--help"])
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_named_has_its_verb_and_flags(page):
    for inline, inline_verb, line, line_verb in COMMAND.findall(page.read_text(encoding="utf-8")):
        verb = inline_verb or line_verb
        assert verb in VERBS, inline or line
        known = help_of(verb)
        for flag in re.findall(r" (--[a-z][\w.-]*)", inline or line):
            assert flag in known or flag == "--help", f"{verb} has no {flag}"


@pytest.mark.parametrize("page", PAGES[:1] + PAGES[2:], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_to_import_is_there(page):
    text = page.read_text(encoding="utf-8")
    for module, names in IMPORT.findall(text):
        assert all(hasattr(import_module(module), name) for name in names.split(", ")), (module, names)
    for module, name in DOTTED.findall(text):
        assert hasattr(import_module(module), name), (module, name)
    for name in re.findall(r"settings=(\w+Settings)\(", text):
        assert any(name in names for _, names in IMPORT.findall(text)), f"{name} is not imported"


@pytest.mark.parametrize("name", bertsmith.__all__)
def test_what_a_call_says_can_be_followed(name):
    """Names of code that its docstring quotes are its own arguments or the package's, and what comes back is said."""
    call = getattr(bertsmith, name)
    quoted = set(re.findall(r"`([A-Z]\w+|\w+_\w+|\w+/\w+)`", call.__doc__))
    assert quoted <= {*inspect.signature(call).parameters, *bertsmith.__all__}
    assert isinstance(call, type) or name.startswith("load") or re.search(r"\b[Rr]eturns (the|it)\b", call.__doc__)


def test_the_table_of_folders_is_complete():
    folders = {path.name for path in (ROOT / "src" / "bertsmith").iterdir() if (path / "__init__.py").exists()}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert folders == set(re.findall(r"^\| `src/bertsmith/(\w+)` \|", text, re.MULTILINE)) & folders
    river = (ROOT / "src" / "bertsmith" / "__init__.py").read_text(encoding="utf-8").split('"""')[1]
    assert folders == set(re.findall(r"^    (\w+)/ ", river, re.MULTILINE)) & folders
