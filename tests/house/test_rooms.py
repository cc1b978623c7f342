"""The rooms of a folder: few enough files to read at a glance, and imports between them that run one way."""

from __future__ import annotations

import graphlib

import pytest
from test_imports import PACKAGE, modules, ours

MOST_FILES = 16
# Their files still lie in one heap.
NOT_DIVIDED = {"corpus", "bench"}


def room(module: str) -> str:
    """The folder of a module: "model.cpu" for "model.cpu.kernels", "model" for "model.encoder" and for "model"."""
    is_folder = (PACKAGE.joinpath(*module.split("."))).is_dir()
    return module if is_folder or "." not in module else module.rpartition(".")[0]


def rooms() -> list[str]:
    return sorted({room(module) for module in modules() if "." in module})


def arrows(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which rooms the modules of each room import, by the source text of every module."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        found.setdefault(room(module), set()).update({room(name) for name in ours(source)} - {room(module)})
    return found


@pytest.mark.parametrize("name", rooms())
def test_a_room_is_read_at_a_glance(name):
    if name in NOT_DIVIDED:
        pytest.skip("not divided yet")
    files = [path for path in PACKAGE.joinpath(*name.split(".")).iterdir() if path.suffix in (".py", ".cpp", ".yaml")]
    assert len([path for path in files if path.name != "__init__.py"]) <= MOST_FILES


def sources() -> dict[str, str]:
    return {name: path.read_text() for name, path in modules().items() if "." in name}


def test_rooms_have_no_cycles():
    list(graphlib.TopologicalSorter(arrows(sources())).static_order())


def test_a_planted_cycle_of_rooms_is_seen():
    planted = sources()
    planted["model.cpu.kernels"] += "\nfrom bertsmith.model.activations import FUNCTIONS\n"
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(arrows(planted)).static_order())
