"""The built wheel alone is enough: installed outside the repository, it runs the README's first command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from made_pages import blocks, without_warnings, write_topics

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 40  # of the quickstart, on other text beside its warnings and the command that make prints


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without isolation, so without a network, by the build back-end that `pyproject.toml` names."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(ROOT)], folder)
    (built,) = folder.glob("bertsmith-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel, beside the packages of this one; for make, one that is set up."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    run([*pip, "--no-deps", "--no-index", "--quiet", str(wheel)], folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("-packages")]
    # They come after the wheel; `.pth` files in them, such as that of an editable install, are not read.
    (packages / "others.pth").write_text("\n".join(here) + "\n")
    (folder / ".ready").touch()
    return folder


def run(command: list[str], folder: Path, **variables: str) -> str:
    # `make test ARGS=...` hands its own ARGS down by MAKEFLAGS.
    others = ("PYTHONPATH", "PYTHONHOME", "MAKE", "MFLAGS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(others)} | variables
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    tracked = {path for path in (ROOT / "src" / "bertsmith").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    missing = {path.relative_to(ROOT / "src").as_posix() for path in tracked} - names
    assert not missing


@pytest.mark.parametrize("source", ["--source texts", pytest.param("", marks=pytest.mark.slow)])
def test_make_quickstart(source: str, installed: Path, tmp_path: Path) -> None:
    """In a folder that has what make needs, and nothing of the package."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    write_topics(tmp_path / "texts")
    python = str(installed / "bin" / "python")
    assert str(installed) in run([python, "-c", "import bertsmith; print(bertsmith.__file__)"], tmp_path)
    call = ["bash", "-euo", "pipefail", "-c", blocks(README)[0]]
    said = run(call, tmp_path, VENV=str(installed), ARGS=f"--budget tiny {source}".strip())
    assert said.startswith(f"{installed}/bin/bertsmith quickstart --budget tiny"), "make prints the command"
    assert len(without_warnings(said)) <= MOST_LINES + 1, said
    assert source or len(said.splitlines()) <= MOST_LINES + 2, said
    assert "The tiny budget shows that everything runs" in said
    assert "Try next:" in said
    made = tmp_path / "runs" / "quickstart"
    promised = re.findall(r"^\| `([\w./]+)` \|", README, re.MULTILINE)
    assert {"curves.png", "pretrained/model"} <= set(promised)
    assert not [path for path in promised if not (made / path).exists()]
    assert (made / "pretrained" / "model" / "model.safetensors").is_file()
