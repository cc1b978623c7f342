"""The documentation that comes with Python: read without importing, the same every time, each docstring once."""

from __future__ import annotations

import ast
import json
import sys
import warnings
from pathlib import Path

import pytest

from bertsmith.base.log import logger
from bertsmith.corpus.sources import python_docs
from bertsmith.corpus.sources.python_docs import Collection, cut_runs


@pytest.fixture(scope="module")
def found() -> Collection:
    """The standard library and numpy, which is enough to see every rule at work."""
    patch = pytest.MonkeyPatch()
    patch.setattr(python_docs, "PACKAGES", ("numpy", "a_package_that_is_not_installed"))
    patch.setattr(python_docs, "MOST_SOURCE_BYTES", 800_000)
    python_docs.collect.cache_clear()
    loaded = set(sys.modules)
    collection = python_docs.collect()
    patch.undo()
    python_docs.collect.cache_clear()
    assert not {
        name for name in set(sys.modules) - loaded if name.split(".")[0] in ("turtle", "tkinter", "antigravity")
    }
    return collection


def test_docstrings_come_once_by_package_and_module(found: Collection) -> None:
    texts = [" ".join(docstring.text.split()) for docstring in found.docstrings]
    assert len(set(texts)) == len(texts) > 500
    assert {docstring.package for docstring in found.docstrings} == {"python", "numpy"}
    modules = [(docstring.package != "python", docstring.module) for docstring in found.docstrings]
    assert modules == sorted(modules)
    assert not any(".tests." in docstring.module for docstring in found.docstrings)


def test_what_is_left_out_is_counted(found: Collection) -> None:
    counts = {what: entry.count for what, entry in found.counts.items()}
    assert counts["packages that are not installed"] == 1
    assert counts["docstrings met before, left out"] > 0
    assert counts["modules past 800.0 kB of source of one package, left out"] > 0
    assert counts["runs of one punctuation mark, cut to three"] > 0


def test_a_document_is_a_module_or_a_topic(found: Collection) -> None:
    documents = {document.id: document.text for document in found.documents()}
    assert len(documents) == len(found.topics) + len({docstring.module for docstring in found.docstrings})
    assert "truth" in documents["topic:assert"] or "assert" in documents["topic:assert"]
    module = next(docstring.module for docstring in found.docstrings)
    own = [docstring.text for docstring in found.docstrings if docstring.module == module]
    assert documents[module] == "\n\n".join(own)


def test_documents_are_written_as_json_lines(found: Collection) -> None:
    rows = [json.loads(line) for line in found.as_json_lines("body").split("\n")[:-1]]
    assert rows == [{"id": document.id, "body": document.text} for document in found.documents()]


def test_every_docstring_of_a_module_is_found_in_its_order(tmp_path: Path) -> None:
    source = '''"""Module."""
class A:
    """Class."""
    def f(self):
        """Method."""
        def inner():
            """Inner."""
    try:
        def g(self):
            """In try."""
    except E:
        def h(self):
            """In except."""
if True:
    async def k():
        """In if."""
else:
    def m():
        """In else."""
match 1:
    case 1:
        def p():
            """In match."""
def no(): "   "
x = """not a docstring"""
'''
    path = tmp_path / "module.py"
    path.write_text(source)
    texts = python_docs._docstrings_of(path)
    assert texts == [
        "Module.",
        "Class.",
        "Method.",
        "Inner.",
        "In try.",
        "In except.",
        "In if.",
        "In else.",
        "In match.",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = [
            ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, python_docs._SCOPES)
        ]
    assert {text for text in every if text and text.strip()} == set(texts)
    path.write_text("def broken(:")


def test_modules_that_cannot_be_read_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        "__init__": '"""A package of which not every module can be read."""',
        "broken": "def broken(:",
        "nested": "if 1:\n pass\n" + "elif 1:\n pass\n" * 5000,
        "zero": "x = '\0'",
    }
    folder = tmp_path / "odd_package"
    (folder / "folder.py").mkdir(parents=True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "link.py").symlink_to(folder / "nothing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(python_docs, "PACKAGES", ("odd_package",))
    monkeypatch.setattr(python_docs, "MOST_SOURCE_BYTES", 100_000)
    python_docs.collect.cache_clear()
    collection = python_docs.collect()
    python_docs.collect.cache_clear()
    assert [each.text for each in collection.docstrings if each.package == "odd_package"] == [sources["__init__"][3:-3]]
    unread = collection.counts["modules that cannot be read or parsed, left out"]
    assert unread.count == 4
    assert unread.bytes == sum(len(sources[name]) for name in ("broken", "nested", "zero"))
    assert unread.examples == [
        "odd_package.link (FileNotFoundError)",
        "odd_package.broken (SyntaxError)",
        "odd_package.nested (RecursionError)",
    ]


def test_runs_of_punctuation() -> None:
    assert cut_runs("a ----- b === c ____ ....") == ("a --- b === c ____ ...", 2)
    assert logger.name == "bertsmith"
