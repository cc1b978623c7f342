"""The Python of docs/embeddings.md, run as it stands here; its commands are run by tests/docs/test_task_pages.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from made_pages import blocks, page, run_here
from made_pairs import pairs
from made_rows import QUICK, made_model

OURS, THEIRS = blocks(page("embeddings.md"), "python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run that the page names."""
    folder = tmp_path_factory.mktemp("page")
    rows, short = pairs(32, 1), replace(QUICK, epochs=1)
    bertsmith.finetune(
        "embed", made_model(folder / "encoder"), rows, rows[:8], folder / "runs" / "alike", settings=short
    )
    return folder


def test_the_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    vectors = run_here(OURS)["vectors"]
    assert vectors.shape == (2, 32)
    assert abs(vectors[0] @ vectors[0] - 1) < 1e-5


def test_the_folder_opens_in_sentence_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    monkeypatch.chdir(folder)
    assert run_here(THEIRS)["vectors"].shape == (1, 32)
