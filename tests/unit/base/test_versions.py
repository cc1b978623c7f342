"""Versions are told without importing what they are of."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertsmith.base.versions import git_state, processor_name, version_of


def test_versions_by_the_name_of_the_import() -> None:
    assert version_of("numpy") == np.__version__
    assert version_of("no_such_package_at_all") is None
    assert version_of("sklearn") == version_of("scikit-learn")


def test_the_processor_has_a_name() -> None:
    assert processor_name()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree of git with a committed file."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    (tmp_path / "file").write_text("a")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (("init", "-q"), ("add", "file"), (*who, "commit", "-qm", "first")):
        subprocess.run([git, *words], cwd=tmp_path, check=True)
    git_state.cache_clear()
    return tmp_path


def test_the_state_of_a_working_tree(tree: Path) -> None:
    commit = git_state(tree)
    assert len(commit) == 40
    assert git_state(tree, "file") == commit
    (tree / "other").write_text("b")
    git_state.cache_clear()
    assert git_state(tree) == commit, "a file that does not belong to the tree is no change of it"
    assert git_state(tree, "other") == "", "code that is not of the tree it lies in"
    (tree / "module.py").touch()
    git_state.cache_clear()
    assert git_state(tree) == commit
    assert git_state(tree, "file") == f"{commit}, changed", "code that is not committed yet"
    (tree / "module.py").unlink()
    (tree / "file").write_text("c")
    git_state.cache_clear()
    assert git_state(tree) == f"{commit}, changed"


def test_no_tree_and_no_git_are_no_state(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(outside.parent))
    assert git_state(outside) == ""
    git_state.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert git_state(tree) == ""
    git_state.cache_clear()


def test_nothing_is_imported_for_it() -> None:
    lines = ("import sys", "from bertsmith.base.versions import version_of", "version_of('torch')")
    code = "\n".join([*lines, "assert 'torch' not in sys.modules"])
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
