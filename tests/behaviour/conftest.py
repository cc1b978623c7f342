"""A source that is prepared in seconds and the corpus that a calm preparation makes of it, runs that save, and reports
without figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from made_corpora import OPTIONS, contents, made_text

if TYPE_CHECKING:
    from bertsmith.training.pretrain import Run


@pytest.fixture(scope="module", autouse=True)
def draws_nothing() -> Iterator[None]:
    """As where matplotlib is not installed: to draw the figures of its report takes longer than a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        yield


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder without anything in it."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("BERTSMITH_DATA", str(folder))
    return folder


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file that no test changes."""
    return made_text(tmp_path_factory.mktemp("source") / "text.txt")


@pytest.fixture(scope="session")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The hashes of the files that one process, left alone, makes of the source with OPTIONS."""
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    found = contents(out)
    assert len([name for name in found if name.startswith("train/")]) >= 9
    return found


@pytest.fixture(scope="session")
def served_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model of every kind, for servers."""
    from made_served import made_models

    return made_models(tmp_path_factory.mktemp("served"))


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that answer parts come from the fork server, and do not import torch anew."""
    from bertsmith.inference.parts import workers
    from made_runs import fork_server

    context = fork_server()
    monkeypatch.setattr(workers, "multiprocessing", SimpleNamespace(get_context=lambda way: context))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run as `SAVING` that saves only at the end of each phase."""
    from bertsmith.training.pretrain import pretrain
    from made_runs import LENGTH, corpus, small_recipe

    return pretrain(small_recipe(**LENGTH), corpus(), tmp_path_factory.mktemp("unbroken") / "run")


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `SAVING` with checkpoints of steps 3, 6 and 8."""
    from made_runs import SAVING, stopped_after

    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(8, patch, SAVING, folder)
    assert sorted(each.name for each in folder.glob("step-*")) == ["step-00000003", "step-00000006", "step-00000008"]
    return folder
