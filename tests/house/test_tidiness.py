"""Habits that a reader relies on: short files, short functions, no trace of one person's machine."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from made_sources import statements

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
MOST_FILE_LINES, MOST_FUNCTION_LINES, MOST_PARAMETERS, MOST_README_LINES = 400, 60, 7, 150

# What users call from Python names its options one by one.
PUBLIC_CALLS = {"finetune", "distill"}

# Written in pieces, so that this file does not hold what it looks for.
_FOLDERS = "|".join(("work", "opt", "root"))
_HOSTS = "|".join(
    ("py" + r"pi\.(org|python)", "files" + r"\.python" + "hosted", "arti" + "factory", "download" + r"\.pytorch")
)
MACHINE = re.compile(rf"(?<![\w.])/({_FOLDERS})/|" + r"\.\./sha" + rf"red|{_HOSTS}|[Ii]ssue " + r"#?\d")


def tracked_texts() -> list[Path]:
    """Every text file that belongs to the project, by git where it is there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    paths = [ROOT / name for name in names if name] or [*CODE, *ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md")]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


def named(path: Path, problem: str) -> str:
    return f"{path.relative_to(ROOT)}: {problem}"


@cache
def tree(path: Path) -> ast.Module:
    """The tree of a source."""
    return ast.parse(path.read_text())


def test_a_file_holds_one_idea():
    lines = {path: len(path.read_text().splitlines()) for path in CODE}
    wrong = [named(path, f"{count} lines") for path, count in lines.items() if count > MOST_FILE_LINES]
    assert not wrong, "\n".join(wrong)


def test_functions_are_short_and_take_few_parameters():
    wrong = []
    for path in SOURCES:
        for node in statements(tree(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            # A kernel takes pointers and numbers one by one; nothing else reaches a GPU.
            is_kernel = any(ast.unparse(each) == "triton.jit" for each in node.decorator_list)
            count = 0 if is_kernel else len([each for each in arguments if each.arg not in ("self", "cls")])
            if lines > MOST_FUNCTION_LINES:
                wrong.append(named(path, f"{node.name} has {lines} lines"))
            if count > MOST_PARAMETERS and node.name not in PUBLIC_CALLS:
                wrong.append(named(path, f"{node.name} has {count} parameters: make them a dataclass"))
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is():
    wrong = [named(path, "no docstring") for path in SOURCES if not ast.get_docstring(tree(path))]
    assert not wrong, "\n".join(wrong)


def unpicklers(source: ast.Module) -> list[str]:
    """The calls in a source that could run code found in a data file."""
    wanted = {"np.load": ("allow_pickle", False), "torch.load": ("weights_only", True)}
    found = []
    for call in [node for node in ast.walk(source) if isinstance(node, ast.Call)]:
        name = ast.unparse(call.func)
        given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
        option, safe = wanted.get(name, ("", None))
        if name.startswith("pickle.") or (option and given.get(option) is not safe):
            found.append(ast.unparse(call))
    return found


def test_nothing_is_unpickled():
    may = [path for path in SOURCES if re.search(r"\bpickle\b|\bload\b", path.read_text())]
    wrong = [named(path, call) for path in may for call in unpicklers(tree(path))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", ["pickle.load(f)", "np.load(f)", "torch.load(f)", "torch.load(f, weights_only=False)"])
def test_a_planted_unpickler_is_seen(line):
    assert unpicklers(ast.parse(line))
    assert not unpicklers(ast.parse("np.load(f, allow_pickle=False); torch.load(f, weights_only=True)"))


def test_no_file_names_a_machine():
    wrong = [
        named(path, f"line {number}: {line.strip()}")
        for path in tracked_texts()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("text", ["see /" + "opt/x", "from ../" + "shared/y", "https://py" + "pi.org", "issue " + "12"])
def test_a_planted_machine_name_is_seen(text):
    assert MACHINE.search(text)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < MOST_README_LINES
