"""`bertsmith bench finetune` at a tiny size: the same rows on all sides, whole rows, and what fails is said."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.finetune import side as sides
from bertsmith.bench.finetune.bench import bench_finetune
from bertsmith.bench.finetune.results import row_of, speed_table
from bertsmith.bench.finetune.rows import BenchTask, prepare_task, read_features
from bertsmith.bench.finetune.side import OURS, TRANSFORMERS, Case, Side, cases_of
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.process import SideFailed
from bertsmith.bench.turns import Turns, take_turns
from bertsmith.cli import main

pytestmark = pytest.mark.usefixtures("forked_children")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "all", "well"]
SHIPPED = Side(TRANSFORMERS, "fp32")


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """A data folder with a small SST-2 and a small SQuAD, and no MRPC."""
    folder = tmp_path / "data"
    (folder / "glue/SST-2").mkdir(parents=True)
    lines = [f"{' '.join(WORDS[: 2 + row % 8])}\t{row % 2}" for row in range(41)]
    (folder / "glue/SST-2/train.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    context = " ".join(WORDS * 4)
    questions = [
        {"id": str(row), "question": "the cat", "answers": [{"text": "mat", "answer_start": context.index("mat")}]}
        for row in range(20)
    ]
    squad = {"version": "1.1", "data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]}
    (folder / "squad/v1.1").mkdir(parents=True)
    (folder / "squad/v1.1/train-v1.1.json").write_text(json.dumps(squad), encoding="utf-8")
    monkeypatch.setenv("BERTSMITH_DATA", str(folder))
    return folder


@pytest.mark.slow
def test_quick_compares_ours_with_the_trainer_and_names_what_is_missing(data, model, tmp_path, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    to = tmp_path / "rows.json"
    args = ["bench", "finetune", "--quick", "--model", str(model), "--device", "cpu", "--json", str(to)]
    assert main([*args, "--only", "fp32 against", "--against", "transformers"]) == 0
    found = json.loads(to.read_text())
    assert found["command"].startswith("bertsmith bench finetune --quick")
    assert "threads of torch" in found["machine"]["device"]
    assert [row["case"] for row in found["rows"]] == [
        f"{task}: fp32 against transformers, fp32{how}"
        for task in ("SST-2", "SQuAD")
        for how in (" as shipped", ", grouped by length")
    ]
    for row in found["rows"]:
        assert row["note"] == ""
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert len(row["ours_seconds"]) == len(row["peer_seconds"]) >= 3
        assert row["ours_memory_bytes"] > 10_000_000
        assert 0 <= row["peer_padding_share"] < 1
    questions = found["rows"][2]
    assert questions["ours_questions_per_second"] == pytest.approx(questions["ours"] / 2)
    assert questions["peer_questions_per_second"] == pytest.approx(questions["peer"] / 2)
    assert any("MRPC: its files are not in the data folder" in line for line in found["about"])
    assert any("SST-2: 39 rows" in line for line in found["about"])
    assert any("SQuAD: 18 rows in 36 windows" in line for line in found["about"])
    assert "x as fast" in capsys.readouterr().out


@pytest.mark.slow
def test_where_the_time_goes_and_ours_alone(data, model, tmp_path):
    options = BenchOptions(model=model, device="cpu", quick=True, against=(), only="SQuAD")
    report = bench_finetune(options, tmp_path / "run")
    *rows, profile = report.rows
    assert rows
    assert all(row["peer"] is None and row["ratio"] is None and row["note"] == "" for row in rows)
    assert profile["case"] == "time: SQuAD"
    assert profile["groups"]["matrix products"] > 0
    assert [table.title.partition(":")[0] for table in report.tables] == ["Fine-tuning steps", "Where the time goes"]


def test_the_peer_is_given_what_ours_encodes_in_the_order_of_its_steps(data, model, tmp_path):
    from bertsmith.bench.finetune.rows import encode

    task = BenchTask("SQuAD", "squad1", 12, 2)
    prepared = prepare_task(task, model, tmp_path / "task")
    made, parts = encode(task, prepared.rows, model, task.settings)
    train, features = parts["train"], read_features(prepared.features)
    assert prepared.records == 12
    assert prepared.examples == len(features) == 24
    for unit, feature in zip(made.order(train, task.settings.seed, 1), features, strict=True):
        assert feature["input_ids"] == train.sequences.ids[unit].tolist()
        first = int(train.sequences.first_segments[unit])
        assert feature["token_type_ids"] == [0] * first + [1] * (len(feature["input_ids"]) - first)
        assert feature["attention_mask"] == [1] * len(feature["input_ids"])
        assert [feature["start_positions"], feature["end_positions"]] == train.targets[unit].tolist()


def test_cases_meet_in_the_same_precision_or_as_shipped():
    names = [case.name for case in cases_of("X", "bf16", has_peer=True)]
    assert names == [
        "X: bf16 against transformers, fp32 as shipped",
        "X: bf16 against transformers, bf16 autocast, grouped by length",
        "X: fp32 against transformers, fp32 as shipped",
        "X: fp32 against transformers, fp32, grouped by length",
    ]
    assert len(cases_of("X", "fp32", has_peer=True)) == 2
    assert [case.name for case in cases_of("X", "bf16", has_peer=False)] == ["X: bf16", "X: fp32"]


class Answers:
    """A side's process that takes its seconds from a list; an error in it is raised."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, do, steps):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {"seconds": answer}


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("error", [SideFailed("out of memory"), BertsmithError("it ended:\nValueError: no", "peer")])
def test_a_peer_that_fails_in_any_turn_is_a_row_that_says_so(before, error, data, model, tmp_path):
    ours = Side(OURS, "fp32")
    turns = take_turns({ours: Answers(2.0), SHIPPED: Answers(*[3.0] * before, error)}, 4, 0.0)
    assert turns.seconds == {ours: [2.0] * 3}
    why = error.what.splitlines()[-1]
    assert turns.failed == {SHIPPED: why}
    prepared = prepare_task(BenchTask("SST-2", "sst2", None, 4), model, tmp_path / "task")
    row = row_of(Case("SST-2", ours, SHIPPED), prepared, turns, {ours: 5}, {})
    assert (row["ours"], row["peer"], row["ratio"]) == (4 * prepared.task.settings.batch / 2.0, None, None)
    assert row["note"] == f"transformers, fp32 as shipped: {why}"
    assert row["note"] in speed_table([row]).rows[0]


def test_what_ends_ours_ends_the_bench_and_what_ours_cannot_do_is_said():
    ours = Side(OURS, "fp32")
    with pytest.raises(BertsmithError, match="it ended"):
        take_turns({ours: Answers(BertsmithError("it ended", "ours"))}, 4, 0.0)
    turns = take_turns({ours: Answers(SideFailed("out of memory")), SHIPPED: Answers(2.0)}, 4, 0.0)
    assert turns == Turns({SHIPPED: [2.0] * 3}, {ours: "out of memory"})


def test_a_trainer_that_breaks_is_a_row_too(data, model, tmp_path, monkeypatch):
    """A real process whose package is broken."""
    pytest.importorskip("transformers")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/accelerate.py").write_text("raise ValueError('this package is broken')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    prepared = prepare_task(BenchTask("SST-2", "sst2", None, 1), model, tmp_path / "task")
    with SHIPPED.start(prepared, model, "cpu", tmp_path / "peer", float("inf")) as peer:
        turns = take_turns({SHIPPED: peer}, 1, 0.0)
    assert turns.failed == {SHIPPED: "ValueError: this package is broken"}


def test_faults_are_said(data, model, tmp_path):
    with pytest.raises(BertsmithError, match="no case contains 'nothing'") as raised:
        bench_finetune(BenchOptions(model=model, only="nothing"), tmp_path)
    assert "MRPC: " in raised.value.fix
    with pytest.raises(BertsmithError, match="no model") as raised:
        bench_finetune(BenchOptions(model=tmp_path / "none"), tmp_path)
    assert "--model" in raised.value.fix
    with pytest.raises(BertsmithError, match="no 'transformer'"):
        bench_finetune(BenchOptions(model=model, against=("transformer",)), tmp_path)


def test_without_any_rows_the_bench_says_which_it_wants(model, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path / "none"))
    with pytest.raises(BertsmithError, match="nothing was measured: MRPC: its files are not in the data folder"):
        bench_finetune(BenchOptions(model=model), tmp_path)


def test_a_spec_goes_through_json(data, model, tmp_path):
    prepared = prepare_task(BenchTask("SST-2", "sst2", 5, 1), model, tmp_path / "task")
    assert type(prepared).of_json(json.loads(json.dumps(asdict(prepared), default=str))) == prepared
    assert sides._MODULES.keys() == {OURS, TRANSFORMERS}
    assert prepared.examples == 5
