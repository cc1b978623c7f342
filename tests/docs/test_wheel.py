"""The built wheel alone is enough: installed outside the repository, it runs the quickstart."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from made_pages import without_warnings, write_topics

ROOT = Path(__file__).resolve().parents[2]


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
    """The folder of commands of an environment that holds the wheel, beside the packages of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    run([*pip, "--no-deps", "--no-index", "--quiet", str(wheel)], folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("-packages")]
    # They come after the wheel; `.pth` files in them, such as that of an editable install, are not read.
    (packages / "others.pth").write_text("\n".join(here) + "\n")
    return folder / "bin"


def run(command: list[str], folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    tracked = {path for path in (ROOT / "src" / "bertsmith").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    missing = {path.relative_to(ROOT / "src").as_posix() for path in tracked} - names
    assert not missing


def test_the_quickstart_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    where = run([str(installed / "python"), "-c", "import bertsmith; print(bertsmith.__file__)"], tmp_path)
    assert str(installed.parent) in where
    write_topics(tmp_path / "texts")
    call = ["quickstart", "--budget", "tiny", "--source", "texts", "--out", "made"]
    said = run([str(installed / "bertsmith"), *call], tmp_path)
    assert "The tiny budget shows that everything runs" in said
    assert len(without_warnings(said)) <= 40, said
    assert (tmp_path / "made" / "pretrained" / "model" / "model.safetensors").is_file()
