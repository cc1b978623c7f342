"""The English documentation that comes with Python: docstrings read with `ast`, nothing imported, and the help topics.

The standard library is read, and whichever of a few scientific packages are installed. A document is a module (its
docstrings in the order of the source) or a topic. A docstring that was met before is left out.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bertsmith.base.log import say, size
from bertsmith.base.tally import Tally
from bertsmith.base.versions import version_of
from bertsmith.corpus.documents import Document

STANDARD_LIBRARY = "python"
PACKAGES = ("numpy", "torch", "scipy", "sklearn", "matplotlib", "sympy", "networkx")
# Source files of one package that are read at most; the share is drawn by a hash of the module's name.
MOST_SOURCE_BYTES = 4_000_000
_LEFT_OUT = {
    *("test", "tests", "testing", "_testing", "site-packages", "idlelib", "lib2to3", "turtledemo", "pydoc_data"),
    *("externals", "_external", "_vendor", "ensurepip", "_inductor", "_dynamo", "_refs", "_decomp"),
}
_RUN = re.compile(r"([^\w\s])\1{3,}")
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Docstring:
    """One docstring. module: dotted, where it stands. package: "python" for the standard library, else its package."""

    module: str
    package: str
    text: str


@dataclass(frozen=True)
class Collection:
    """What was found on this machine. counts: what was left out or altered."""

    docstrings: tuple[Docstring, ...]
    topics: tuple[Document, ...]
    counts: Tally = field(default_factory=Tally)

    def documents(self) -> Iterator[Document]:
        """The topics, then a document a module, its docstrings separated by blank lines."""
        yield from self.topics
        by_module: dict[str, list[str]] = {}
        for docstring in self.docstrings:
            by_module.setdefault(docstring.module, []).append(docstring.text)
        for module, texts in by_module.items():
            yield Document(module, "\n\n".join(texts))

    def as_json_lines(self, text_field: str) -> str:
        """The documents as JSON lines, the text in `text_field`."""
        rows = ({"id": document.id, text_field: document.text} for document in self.documents())
        return "".join(json.dumps(row) + "\n" for row in rows)


@dataclass(frozen=True)
class _Module:
    name: str
    package: str
    path: Path
    size_bytes: int


@cache
def collect() -> Collection:
    """Reads all there is, once a process: some 10 MB of text in some seconds. What is left out is logged."""
    counts = Tally()
    kept, seen = list[Docstring](), set[bytes]()
    for docstring, runs in (found for module in _modules(counts) for found in _read(module, counts)):
        digest = hashlib.blake2b(" ".join(docstring.text.split()).encode(), digest_size=16).digest()
        if digest in seen:
            counts.note("docstrings met before, left out", 1, len(docstring.text.encode()), docstring.module)
            continue
        seen.add(digest)
        kept.append(docstring)
        if runs:
            counts.note(_RUNS, runs, example=docstring.module)
    topics = tuple(_topics(counts))
    total = sum(len(docstring.text) for docstring in kept) + sum(len(topic.text) for topic in topics)
    named = [f"{name} {version_of(name) or 'of unknown version'}" for name in PACKAGES if _folder(name)]
    versions = ", ".join([f"Python {platform.python_version()}", *named])
    say(f"documentation of {versions}: {len(kept):,} docstrings, {len(topics)} topics, {size(total)}")
    for line in counts.lines():
        say(f"  {line}")
    return Collection(tuple(kept), topics, counts)


_RUNS = "runs of one punctuation mark, cut to three"
_UNREAD = "modules that cannot be read or parsed, left out"
# What broken files, broken source and source nested too deep raise.
_FAULTS = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


def _modules(counts: Tally) -> Iterator[_Module]:
    for package in (STANDARD_LIBRARY, *PACKAGES):
        folder = _folder(package)
        if folder is None:
            counts.note("packages that are not installed", example=package)
            continue
        modules = sorted(_modules_under(folder, package, counts), key=lambda module: module.name)
        chosen, held = set[str](), 0
        for module in sorted(modules, key=lambda module: hashlib.sha256(module.name.encode()).digest()):
            if held + module.size_bytes <= MOST_SOURCE_BYTES:
                chosen.add(module.name)
                held += module.size_bytes
        left = [module for module in modules if module.name not in chosen]
        if left:
            what = f"modules past {size(MOST_SOURCE_BYTES)} of source of one package, left out"
            counts.note(what, len(left), sum(module.size_bytes for module in left), left[0].name)
        yield from (module for module in modules if module.name in chosen)


def _modules_under(folder: Path, package: str, counts: Tally) -> Iterator[_Module]:
    """The modules below a package's folder. What is left out is not walked through: torch alone has thousands of
    folders of other things."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        inside = Path(place).relative_to(folder).parts
        for file in sorted(files):
            stem, ending = os.path.splitext(file)
            if ending != ".py" or file.startswith("test_"):
                continue
            parts = [*inside, *([] if stem == "__init__" else [stem])]
            name = ".".join(parts if package == STANDARD_LIBRARY else [package, *parts])
            path = Path(place, file)
            try:
                yield _Module(name, package, path, path.stat().st_size)
            except OSError as error:  # a link to nothing
                counts.note(_UNREAD, example=f"{name} ({type(error).__name__})")


def _folder(package: str) -> Path | None:
    """Where a package lies, found without importing it; None where it is not installed."""
    if package == STANDARD_LIBRARY:
        return Path(sysconfig.get_paths()["stdlib"])
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found and found.origin else None


def _read(module: _Module, counts: Tally) -> Iterator[tuple[Docstring, int]]:
    """Each docstring of a module with the runs of punctuation that were cut in it."""
    try:
        texts = _docstrings_of(module.path)
    except _FAULTS as error:
        counts.note(_UNREAD, 1, module.size_bytes, f"{module.name} ({type(error).__name__})")
        return
    for text in texts:
        cut, runs = cut_runs(text)
        yield Docstring(module.name, module.package, cut), runs


def _docstrings_of(path: Path) -> list[str]:
    """The docstrings of a module in the order of the source. Raises one of `_FAULTS`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old packages spell invalid escapes
        return list(_in_order(ast.parse(path.read_bytes())))


def _in_order(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _SCOPES) and (text := ast.get_docstring(node)) and text.strip():
        yield text
    # Definitions stand in the lists of statements that a statement holds, never in expressions.
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, name, ()):
            yield from _in_order(inner)


def _topics(counts: Tally) -> Iterator[Document]:
    path = Path(sysconfig.get_paths()["stdlib"], "pydoc_data", "topics.py")
    if not path.is_file():
        counts.note("help topics are not installed with this Python", example="pydoc_data")
        return
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(node.value).items()):
                cut, runs = cut_runs(text)
                if runs:
                    counts.note(_RUNS, runs, example=f"topic {name}")
                yield Document(f"topic:{name}", cut)


def cut_runs(text: str) -> tuple[str, int]:
    """Runs of more than three of one punctuation mark (rules of tables, underlines) become three; and how many."""
    return _RUN.subn(r"\1\1\1", text)
