"""The instances that a run's messages number are shown as the run saw them, masks included."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bertsmith.cli import main
from bertsmith.recipes.loader import load_recipe
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.health import Health
from made_runs import corpus

BATCH = 8
SMALL = ("--device=cpu", "--precision=fp32", "--model.layers=1", "--model.hidden=32", "--model.intermediate=48")
SHORT = (*SMALL, "--phase1.steps=3", f"--phase1.global_batch={BATCH}")
SECOND = ("--phase2.steps=2", "--phase2.global_batch=4", "--masking.rate=0.4", "--masking.final_rate=0.1")


def as_shown(step: Step, tokenizer: Tokenizer) -> Counter[str]:
    """The sequences of a step as `inspect` writes them, without their lengths and labels."""
    found: Counter[str] = Counter()
    for batch in step.micro_batches:
        true = dict(zip(batch.masked_positions.tolist(), batch.masked_labels.tolist(), strict=True))
        pieces = [tokenizer.pieces[each] for each in batch.input_ids]
        for slot, label in true.items():
            pieces[slot] = f"{{{pieces[slot]}|{tokenizer.pieces[label]}}}"
        offsets = batch.layout.offsets.tolist()
        found.update(" ".join(pieces[begin:end]) for begin, end in pairwise(offsets))
    return found


def read(text: str) -> list[Counter[str]]:
    """The same of each step that was printed."""
    steps = re.split(r"\nstep [\d,]+ of the phase, from instance [\d,]+:", text)[1:]
    found = []
    for step in steps:
        sequences = re.split(r"\n  \d+ pieces, \d+ of them to predict[^\n]*", step)[1:]
        found.append(Counter(" ".join(re.sub(r"\n    [AB]  ", " ", each).split()) for each in sequences))
    return found


@pytest.mark.parametrize("more", [("--objective=mlm+nsp",), ("--objective=mlm", "--masking.whole_words=true")])
def test_instances_are_those_that_the_run_saw(
    more: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Step] = []
    count = Health.count
    monkeypatch.setattr(Health, "count", lambda health, step: (seen.append(step), count(health, step))[1])
    run = pretrain(load_recipe("bert-tiny", [*SHORT, *SECOND, *more]), corpus(), tmp_path / "run").folder
    tokenizer = corpus().tokenizer()
    expected = [as_shown(step, tokenizer) for step in seen]
    assert [sum(each.values()) for each in expected] == [BATCH] * 3 + [4] * 2

    def printed(*flags: Any) -> list[Counter[str]]:
        capsys.readouterr()
        assert main(["inspect", str(corpus().folder), "--run", str(run), *map(str, flags)]) == 0
        return read(capsys.readouterr().out)

    assert printed("--samples", 3 * BATCH) == expected[:3]
    assert printed("--phase", 2, "--samples", 4, "--first-instance", 4) == expected[4:]
    last, first = printed("--first-instance", 2 * BATCH - 1, "--samples", 2)
    assert (last.total(), first.total()) == (1, 1)
    assert last <= expected[1]
    assert first <= expected[2]


def test_they_go_over_the_ends_of_epochs_and_a_run_by_time_has_those_of_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Step] = []
    count = Health.count
    monkeypatch.setattr(Health, "count", lambda health, step: (seen.append(step), count(health, step))[1])
    longer = ["--phase1.steps=4", "--phase1.global_batch=100", "--phase2.steps=0", "--log_every=1"]
    run = pretrain(load_recipe("bert-tiny", [*SMALL, *longer]), corpus(), tmp_path / "run").folder
    assert len({epoch for step in seen for epoch, _ in step.started_epochs} | {0}) > 1
    call = ["inspect", str(corpus().folder), "--run", str(run)]
    assert main([*call, "--samples", "400"]) == 0
    assert read(capsys.readouterr().out) == [as_shown(step, corpus().tokenizer()) for step in seen]
    bare = shutil.copytree(corpus().folder, tmp_path / "bare", ignore=shutil.ignore_patterns("epoch-*", ".in-use-*"))
    assert main(["inspect", str(bare), "--run", str(run), "--samples", "400"]) == 0
    assert read(capsys.readouterr().out) == [as_shown(step, corpus().tokenizer()) for step in seen]
    assert (bare / "order").is_dir()
    assert not list((bare / "order").glob("epoch-*")), "what is made again is not written"
    recipe, known = run / "recipe.yaml", run / "run.json"
    recipe.write_text(recipe.read_text().replace("hours: 0.0", "hours: 1.0"))
    known.write_text(json.dumps(json.loads(known.read_text()) | {"recipe.hours": 1.0}))
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:  # as a line that was changed by hand
        file.write('{"kind": "train", "step": 4}\n{"kind": "train", "step": 4, "phase": 1}\n')
    assert main([*call, "--first-instance", "1000000"]) == 2
    assert "it has 0 to 499" in capsys.readouterr().err


def test_what_a_run_does_not_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = pretrain(load_recipe("bert-tiny", [*SHORT, "--phase2.steps=0"]), corpus(), tmp_path / "run").folder
    shutil.copytree(run, tmp_path / "tuned")
    (tmp_path / "tuned" / "run.json").write_text('{"task": "classify"}')

    def refused(*flags: str, run: Path = run, of: Path | None = None) -> str:
        assert main(["inspect", str(of or corpus().folder), "--run", str(run), *flags]) == 2
        return capsys.readouterr().err

    assert "it has 1" in refused("--phase", "2")
    for flags in (("--first-instance", "22"), ("--first-instance", "-1")):
        assert "it has 0 to 23" in refused(*flags)
    assert "use a number from 1" in refused("--samples", "0")
    assert "--sequence-length is not read with --run" in refused("--sequence-length", "64")
    other = shutil.copytree(corpus().folder, tmp_path / "other")
    account = other / "corpus.json"
    account.write_text(account.read_text() + "\n")
    assert "another corpus" in refused(of=other)
    assert "not trained on a corpus" in refused(run=tmp_path / "tuned")
    assert "this is a file, and a run is a folder" in refused(run=Path(__file__))
    assert "run.json" in refused(run=tmp_path)
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 42", "seed: 43"))
    assert "recipe.seed" in refused()
    assert main(["inspect", str(corpus().folder), "--phase", "1"]) == 2
    assert "--phase is not read without --run" in capsys.readouterr().err
    assert main(["inspect", str(corpus().folder), "--samples", "0", "--sequence-length", "64"]) == 2
    assert "--sequence-length is not read with --samples 0" in capsys.readouterr().err
