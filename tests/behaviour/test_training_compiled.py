"""A run with compiled steps sees what it would see without, says how it fills its shape, and resumes exactly."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from bertsmith.base import log
from bertsmith.training import pretrain as pretrain_module
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining import compiled
from made_runs import corpus, figures, small_recipe, stopped_after, weights

FIELDS = {"micro_batch_tokens": 384, "phase1__steps": 3, "phase2__steps": 0}
OF_CONTENT = ("tokens", "unigram_loss", "most_frequent_accuracy", "guessing_loss", "learning_rate")


@pytest.mark.slow
def test_it_resumes_to_the_bit_and_sees_the_tokens_of_an_eager_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setattr(log, "_said", set())  # a choice is logged once a process
    # The compiler's graphs, run op by op: no wait for a C++ compiler.
    monkeypatch.setattr(compiled, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    recipe = small_recipe(compile="true", **FIELDS)
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    fill = [record["fill"] for record in unbroken.metrics("train")]
    assert f"phase 1: only {fill[0]:.1%} of the slots of its compiled micro-batches hold tokens" in caplog.text
    assert (unbroken.folder / "events.jsonl").read_text().count("phase 1: only") == 1, "warned of once a phase"
    assert "steps: compiled (asked for)" in caplog.text
    assert "compiled again" not in caplog.text

    stopped_after(1, monkeypatch, recipe, tmp_path / "run")
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)

    eager = pretrain(small_recipe(compile="false", **FIELDS), corpus(), tmp_path / "eager")
    for one, two in zip(unbroken.metrics(), eager.metrics(), strict=True):
        assert one["kind"] == two["kind"]
        assert [one.get(name) for name in OF_CONTENT] == [two.get(name) for name in OF_CONTENT]
    start, other = unbroken.metrics("start")[0], eager.metrics("start")[0]
    assert start["masked_loss"] == pytest.approx(other["masked_loss"], rel=1e-5)
    assert start["masked_words"] == other["masked_words"]


@pytest.mark.parametrize(("setting", "graphs"), [("auto", "auto"), ("true", "auto"), ("no-graphs", "false")])
def test_only_no_graphs_goes_without_cuda_graphs(
    setting: str, graphs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where steps are compiled, as if there were a GPU."""
    monkeypatch.setattr(pretrain_module, "choose_compiled", lambda *given: True)

    def made(*given: object, graphs: str) -> None:
        raise KeyError(graphs)

    monkeypatch.setattr(pretrain_module, "CompiledStep", made)
    with pytest.raises(KeyError, match=f"^'{graphs}'$"):
        pretrain(small_recipe(compile=setting, **FIELDS), corpus(), tmp_path / "run")


def test_a_resumed_run_may_go_without_cuda_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is the way out where none can be recorded."""
    stopped_after(2, monkeypatch, small_recipe(**FIELDS), tmp_path / "run")
    resumed = pretrain(small_recipe(compile="no-graphs", **FIELDS), corpus(), tmp_path / "run", resume=True)
    assert "resumed with its steps cut up otherwise" not in caplog.text, "on a CPU neither is compiled"
    assert '"compiled": "false"' in (resumed.folder / "run.json").read_text(encoding="utf-8")
