"""The direction of imports: text flows one way through the folders, and no arrow runs against it."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from made_sources import statements

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "bertsmith"

# What the modules of a folder may import of ours. A name with a dot allows that one module.
SEES = {
    "base": set(),
    "recipes": {"base"},
    "rows": {"base"},
    "tokens": {"base"},
    "download": {"base"},
    "corpus": {"base", "rows", "tokens"},
    "batches": {"base", "tokens", "corpus"},
    "model": {"base"},
    "weights": {"base", "tokens", "model"},
    "optim": {"base"},
    "training": {"base", "tokens", "corpus", "batches", "model", "weights", "optim"},
    "tasks": {"base", "rows", "tokens", "model"},
    "inference": {"base", "rows", "tokens", "model", "weights", "tasks"},
    "report": {"base", "weights", "training", "tasks"},
}
SEES["bench"] = {"base", "tokens", "corpus", "batches", "model", "optim", "weights", "training", "tasks", "inference"}
SEES["quickstart"] = set(SEES) - {"bench"}
SEES["cli"] = set(SEES)
# Within a room that has rooms of its own: its sub-rooms, and those of its own files that they import, in an order in
# which each imports from itself and from what stands before it. The room's other files come after all of these.
SUB_ROOMS = {
    "base": ("errors", "log", "stopping", "ranks"),
    "corpus": (
        "accounting",
        "documents",
        "reading",
        "shards",
        "engines",
        "wiki",
        "sources",
        "stages",
        "filters",
    ),
    "weights": ("names", "foreign", "tensorflow"),
    "model": (
        "config",
        "checks",
        "activations",
        "cpu",
        "triton",
        "attention",
        "copies",
        "embedding_lookup",
        "dropout",
        "linear",
        "residual",
        "layers",
        "encoder",
        "losses",
        "initial",
        "distillation",
    ),
    "bench": (
        "child",
        "process",
        "turns",
        "measure",
        "machine",
        "fresh",
        "options",
        "table",
        "text",
        "made_corpus",
        "batches",
        "prepare",
        "step",
        "finetune",
        "predict",
        "reference",
        "serve",
        "scaling",
        "gpu",
    ),
    "tasks": (
        "reading",
        "scoring",
        "losses",
        "sampling",
        "sequences",
        "tagging",
        "report",
        "answering",
        "embedding",
        "settings",
        "benchmarks",
        "task",
        "kinds",
        "registry",
        "resolve",
        "examples",
        "results",
        "objective",
        "contrastive",
        "distilling",
        "nvidia_results",
        "finetuning",
    ),
    "inference": ("backends", "predictor", "export", "parts", "predict_file", "embed", "server"),
    "training": (
        "shape",
        "parallel",
        "objective",
        "step",
        "records",
        "pace",
        "checkpoints",
        "loop",
        "planning",
        "pretraining",
    ),
}
MOST_FILES = 16
# Rooms that are still too large.
TOO_LARGE: set[str] = set()
# Composition roots: they join the stages, and they alone see a recipe.
FINETUNING = [
    f"tasks.finetuning.{name}"
    for name in ("work", "teacher", "augmented", "model", "trials", "folds", "start", "side_by_side", "finish")
]
ROOTS = {
    "training.pretrain": {*SEES["training"], "recipes", "training.pretraining.phases", "training.work"},
    "training.pretraining.phases": {*SEES["training"], "recipes", "training.shape"},
    "training.instances": {*SEES["training"], "recipes", "training.shape"},
    "training.budget": {*SEES["training"], "recipes"},
    "training.work": {*SEES["training"], "recipes", "training.shape"},
    "training.check": {
        *SEES["training"],
        *("recipes", "training.budget", "training.work", "training.shape", "training.pretraining.phases"),
    },
    "training.shape": {*SEES["training"], "recipes"},
    "training.plan": {*SEES["training"], "recipes", "training.shape", "training.work"},
    "tasks.finetune": {*SEES["tasks"], "recipes", "weights", "optim", "training", *FINETUNING},
    "tasks.distill": {
        *SEES["tasks"],
        *("corpus", "recipes", "weights", "training.pretrain", "training.shape", "tasks.finetune"),
    },
    "tasks.plan": {*SEES["tasks"], "weights", "optim", "training"},
    **{name: {*SEES["tasks"], "weights", "optim", "training", *FINETUNING} for name in FINETUNING},
    "bench.finetune.ours": {*SEES["bench"], *FINETUNING},
    # A whole run, in a process of its own and where the command line's parser may be missing.
    "bench.gpu.finetuning_run": {*SEES["bench"], "tasks.finetune"},
    "__main__": {"cli"},
    "__init__": {"corpus", "training", "tasks", "weights", "inference"},
}
BANNED_OUTSIDE = {
    "rows": {"torch"},
    "tokens": {"torch"},
    "download": {"torch"},
    "corpus": {"torch"},
    "batches": {"torch"},
    "recipes": {"torch", "numpy"},
    "base": {"transformers"},
}
BANNED_EVERYWHERE = {"transformers", "cloudpickle", "dill", "joblib"}
# What a bench measures ours against, loaded in a process of its own.
PEERS = {
    f"bench.{name}": {"transformers"}
    for name in (
        "prepare.sides",
        "batches.cases",
        "step.peer",
        "finetune.peer",
        "predict.peer",
        "serve.tutorial",
        "serve.with_litserve",
    )
}


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name below `bertsmith`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


@cache
def imports(source: str) -> set[str]:
    """Every module that a source text imports, inside functions too: "torch.nn", "bertsmith.base.log"."""
    found = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full: from bertsmith.base import ..."
            module = node.module or ""
            found.add(module)
            if module == "bertsmith" or module.startswith(
                "bertsmith."
            ):  # from bertsmith.base import log names a module
                found |= {f"{module}.{alias.name}" for alias in node.names if is_module(f"{module}.{alias.name}")}
    return found


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def ours(source: str) -> set[str]:
    """The modules of ours that a source imports, without the leading `bertsmith.`; packages themselves left out."""
    named = {name.removeprefix("bertsmith.") for name in imports(source) if name.startswith("bertsmith.")}
    return {name for name in named if not any(other.startswith(name + ".") for other in named)}


def allowed(module: str) -> set[str]:
    folder = module.split(".")[0]
    if module in ROOTS:
        return ROOTS[module]
    return {*SEES[folder], folder}


def sub_room(module: str) -> str:
    """The sub-room that a module stands in, or its own name at the top of its room."""
    return module.split(".")[1]


def in_order(module: str, imported: str) -> bool:
    """Whether an import within a room goes to the same sub-room or to one before it."""
    order = SUB_ROOMS.get(module.split(".")[0], ())
    here, there = ((order.index(name) if name in order else len(order)) for name in map(sub_room, (module, imported)))
    return there <= here


def may_see(module: str, imported: str) -> bool:
    if imported in ROOTS and imported not in ROOTS.get(module, set()) and not is_joiner(module):
        return False  # a stage never imports a root
    folder = imported.split(".")[0]
    if folder == module.split(".")[0] and "." in module:
        return "." not in imported or in_order(module, imported)
    rules = allowed(module)
    return folder in rules or imported in rules


def is_joiner(module: str) -> bool:
    return module.split(".")[0] in ("quickstart", "cli", "__main__", "__init__")


def test_no_arrow_runs_against_the_river():
    wrong = {
        module: found
        for module, path in modules().items()
        if (found := {name for name in ours(path.read_text()) if not may_see(module, name)})
    }
    assert not wrong, f"these may not import: {wrong}"


def test_no_module_imports_what_its_folder_must_do_without():
    wrong = {}
    for module, path in modules().items():
        banned = BANNED_EVERYWHERE | BANNED_OUTSIDE.get(module.split(".")[0], set())
        if found := {name.split(".")[0] for name in imports(path.read_text())} & banned - PEERS.get(module, set()):
            wrong[module] = found
    assert not wrong, f"these may not import: {wrong}"


def test_every_folder_has_its_rule():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= set(SEES), f"say in SEES what {sorted(folders - set(SEES))} may import"


def test_folders_have_no_cycles():
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        folder = module.split(".")[0]
        seen = {name.split(".")[0] for name in ours(path.read_text())} - {folder}
        if not is_joiner(module):
            graph.setdefault(folder, set()).update(seen)
    list(graphlib.TopologicalSorter(graph).static_order())


def sub_room_arrows(room: str) -> dict[str, set[str]]:
    """Which sub-rooms of a room import which; files at its top that SUB_ROOMS does not name are one, named ""."""
    named = {*SUB_ROOMS.get(room, ()), *(path.name for path in (PACKAGE / room).iterdir() if path.is_dir())}
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        if module.startswith(room + "."):
            seen = {sub_room(name) for name in ours(path.read_text()) if name.startswith(room + ".")}
            here, *there = (name if name in named else "" for name in (sub_room(module), *sorted(seen)))
            graph.setdefault(here, set()).update(set(there) - {here})
    return graph


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_sub_rooms_have_no_cycles(room):
    list(graphlib.TopologicalSorter(sub_room_arrows(room)).static_order())


def test_every_sub_room_has_its_place():
    for room in SEES:
        inner = {path.name for path in (PACKAGE / room).iterdir() if path.is_dir() and any(path.glob("*.py"))}
        places = SUB_ROOMS.get(room, ())
        assert inner <= set(places), f"say in SUB_ROOMS where {sorted(inner - set(places))} of {room} stand"
        gone = [name for name in places if name not in inner and not (PACKAGE / room / f"{name}.py").is_file()]
        assert not gone, f"{room} has no {gone}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in modules().values()}), ids=lambda path: path.name)
def test_a_folder_can_be_taken_in_at_a_glance(folder):
    count = len(list(folder.glob("*.py")))
    too_large = folder.parent == PACKAGE and folder.name in TOO_LARGE
    assert count <= MOST_FILES or too_large, f"{folder.name} has {count} files: make rooms of its own for them"
    assert count > MOST_FILES or not too_large, f"{folder.name} has {count} files: take it out of TOO_LARGE"


def test_data_and_the_command_line_load_no_torch():
    rooms = ("", "rows", "tokens", "download", "corpus", "batches", "recipes", "cli")
    names = {room: [f"bertsmith.{name}" for name in modules() if name.split(".")[0] == room] for room in rooms}
    # Each room in a copy of a process that has what all of them import: what comes first may need it to come later.
    code = (
        f"import importlib, os, sys\nimport numpy, tokenizers\nfor room, names in {names!r}.items():\n"
        "    if os.fork():\n"
        "        if os.wait()[1]: sys.exit(1)\n"
        "        continue\n"
        "    for name in names or ['bertsmith']: importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'importing bertsmith.{room} loads torch')\n"
        "    sys.exit()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("model.encoder", "from bertsmith.corpus.shards import Shard"),
        ("corpus.shards", "import bertsmith.model.config"),
        ("batches.packing", "from bertsmith.model import encoder"),
        ("inference.predictor", "from bertsmith.training.step import step"),
        ("inference.predictor", "from bertsmith.tasks.finetune import finetune"),
        ("training.step", "from bertsmith.recipes.schema import Recipe"),
        ("optim.lamb", "from bertsmith.model.encoder import Encoder"),
        ("tasks.kinds.classify", "from bertsmith.corpus.shards import Corpus"),
        ("base.log", "from bertsmith.recipes import schema"),
        ("rows.compressed", "from bertsmith.corpus.documents import Document"),
        ("tokens.tokenizer", "from bertsmith.corpus.shards import Shard"),
        ("tasks.reading.records", "from bertsmith.corpus.documents import Document"),
        ("corpus.wiki.text", "from bertsmith.corpus.sources.find import find_files"),
        ("corpus.sources.find", "from bertsmith.corpus.stages import clean"),
        ("corpus.stages.clean", "from bertsmith.corpus.filters.selection import ChooseTask"),
        ("corpus.engines.parts", "from bertsmith.corpus.options import PrepareOptions"),
        ("corpus.shards", "from bertsmith.corpus.stages.publish import publish"),
        ("corpus.accounting", "from bertsmith.corpus.documents import Document"),
        ("weights.tensorflow.bundle", "from bertsmith.weights.strict import load"),
        ("training.loop", "from bertsmith.report.report import write_report"),
        ("report.reading", "from bertsmith.tasks.finetune import finetune"),
    ],
)
def test_a_planted_wrong_arrow_is_seen(module, line):
    assert any(not may_see(module, name) for name in ours(line))


def test_a_planted_right_arrow_is_let_through():
    assert all(may_see("training.pretrain", name) for name in ours("from bertsmith.recipes.schema import Recipe"))
    assert all(
        may_see("tasks.reading.records", name) for name in ours("from bertsmith.tokens.tokenizer import Tokenizer")
    )
    assert all(may_see("corpus.filters.selection", name) for name in ours("from bertsmith.corpus.stages import clean"))
    assert all(may_see("corpus.disk", name) for name in ours("from bertsmith.corpus.filters import contamination"))
