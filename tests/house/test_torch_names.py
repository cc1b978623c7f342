"""Every name of torch that the code uses is in the installed torch; `make gpu-check` asks the one of a GPU's image too.

What is called on tensors and other objects is not seen here: mypy checks these.
"""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = [path for part in ("src", "benchmarks", "tests/gpu") for path in sorted((ROOT / part).rglob("*.py"))]


def torch_names(path: Path) -> set[str]:
    """The dotted names that a file imports from torch, or reaches through what it imports."""
    text = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text))) if "torch" in text else []
    known: dict[str, str] = {}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "torch":
                    found.add(each.name)
                    known[each.asname or "torch"] = each.name if each.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch" and not node.level:
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in nodes:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in known:
            found.add(".".join([known[node.id], *parts]))
    return found | set(known.values())


def is_there(name: str) -> bool:
    """Whether the installed torch has this name."""
    module, *rest = name.split(".")
    thing = importlib.import_module(module)
    for part in rest:
        module = f"{module}.{part}"
        try:
            thing = getattr(thing, part)
        except AttributeError:
            try:
                thing = importlib.import_module(module)
            except ImportError:
                return False
    return True


def test_the_installed_torch_has_every_name_that_is_used() -> None:
    users = defaultdict(list)
    for path in CODE:
        for name in torch_names(path):
            users[name].append(str(path.relative_to(ROOT)))
    assert {"torch.nn.attention.varlen.varlen_attn", "torch._foreach_norm"} <= users.keys()
    missing = [f"{name}: {', '.join(users[name])}" for name in sorted(users) if not is_there(name)]
    assert not missing, "\n".join(missing)
    assert not is_there("torch.nn.attention.no_such_name")
