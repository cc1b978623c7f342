"""What the package imports is declared in pyproject.toml: what comes with another package only may go with it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from made_sources import statements

ROOT = Path(__file__).resolve().parents[2]
# Parts of what fastapi gives to its users.
OF_FASTAPI = {"starlette", "pydantic", "pydantic_core"}
# Asked for by a flag, which is refused in one message where they are missing.
ASKED_FOR = {"wandb", "litserve"}
# Of type checkers.
NEVER_RUN = {"_typeshed"}


def imported() -> Iterator[str]:
    """The first names of the modules that the package's files import."""
    for path in (ROOT / "src" / "bertsmith").rglob("*.py"):
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0]


def plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    declared = {plain(re.split(r"[<>=;\[ ]", each)[0]) for each in listed}
    of_module = packages_distributions()
    others = set(imported()) - sys.stdlib_module_names - {"bertsmith"} - OF_FASTAPI - ASKED_FOR - NEVER_RUN
    assert len(others) > 20
    undeclared = {name for name in others if declared.isdisjoint(map(plain, of_module.get(name, [name])))}
    assert not undeclared
