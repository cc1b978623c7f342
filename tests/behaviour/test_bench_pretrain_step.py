"""`bertsmith bench pretrain-step` at a tiny size: rows are whole, a ratio is ours over the peer's, faults are named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.run import run_bench
from bertsmith.bench.step.bench import bench_pretrain_step, report
from bertsmith.bench.step.plan import CpuSizes, GpuSizes, cpu_plan, gpu_plan, shape
from bertsmith.bench.step.run import StepRun
from bertsmith.cli import main

pytestmark = pytest.mark.usefixtures("forked_children")
HEADLINE = "of 40-128: bf16, AdamW against transformers, bf16"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """Some 60 kB of text, a document a line."""
    path = tmp_path_factory.mktemp("source") / "text.txt"
    sentence = "The {0}th house stands by the river and has {1} windows, of which {2} are open. "
    lines = ["".join(sentence.format(a, a * b, b) for b in range(40)) for a in range(20)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_quick_compares_over_made_up_and_real_pairs(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path / "none"))
    to = tmp_path / "rows.json"
    args = ["bench", "pretrain-step", "--quick", "--device", "cpu", "--source", source, "--lengths", "64"]
    assert main([*args, "--only", "transformers, bf16", "--json", str(to)]) == 0
    found = json.loads(to.read_text())
    assert found["command"].startswith("bertsmith bench pretrain-step --quick")
    assert "threads of torch" in found["machine"]["device"]
    assert "own kernels use" in found["machine"]["instruction sets"]
    assert "torch" in found["machine"]["versions"]
    rows = found["rows"]
    sets = ("4 of 40-128", "4 real at 64")
    assert [row["case"] for row in rows] == [
        f"tiny, {name}: bf16, AdamW against transformers, bf16 autocast, AdamW" for name in sets
    ]
    for row in rows:
        assert row["ours"] > 0
        assert row["peer"] > 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
        assert row["peak_share"] == pytest.approx(row["flop_per_second"] / row["matrix_flop_per_second"])
        assert 0 < row["peak_share"] < 1
        assert len(row["ours_seconds"]) == len(row["peer_seconds"]) >= 3
        assert row["ours_memory_bytes"] > 10_000_000
    said = capsys.readouterr().out
    assert "x as fast" in said
    assert "matrix rate" in said


@pytest.mark.slow
def test_the_cards_plan_its_ladder_and_where_the_time_goes_run_on_a_cpu(tmp_path):
    """All that a card is measured with, at a size for a CPU; two rungs and one match stand for all."""
    sizes = GpuSizes("cpu", ("tiny",), (128,), tokens=512, passes=1, seconds=0.1, compiled=False, vocabulary=700)
    plan = gpu_plan(sizes, {})
    assert [rung.what for rung in plan.ladder] == [
        "fp32, padded",
        "tf32",
        "bf16",
        "no padding",
        "compiler",
        "8 times the sequences",
    ]
    assert [match.ours.model["attention_probs_dropout_prob"] for match in plan.matches] == [0.0, 0.0, 0.1]
    run = StepRun(replace(plan, matches=plan.matches[:2], ladder=plan.ladder[1::4]), tmp_path, float("inf"))
    run.all()
    found = report(run, "made up")
    cases = [row["case"] for row in found.rows]
    assert sum("4 full at 128" in case and "bf16 autocast" in case for case in cases) == 1
    assert sum("4 with Wikipedia's lengths at 128" in case and "against" in case for case in cases) == 1
    (flash,) = run.left_out
    assert "flash attention" in flash
    assert "flash_attn is not installed" in flash
    ladder = [row for row in found.rows if row["case"].startswith("ladder: ")]
    assert [row["case"] for row in ladder] == ["ladder: tf32", "ladder: 8 times the sequences"]
    assert ladder[-1]["gain_in_all"] == pytest.approx(ladder[-1]["ours"] / ladder[0]["ours"])
    times = [row for row in found.rows if row["case"].startswith("time: ")]
    assert all(row["groups"]["matrix products"] > 0 for row in times)
    assert [table.title.partition(":")[0] for table in found.tables] == [
        "A pre-training step",
        "Where the time goes",
        "What each thing gives",
    ]
    assert found.as_text()
    assert found.as_markdown()


def test_what_there_is_no_time_for_is_named(tmp_path):
    run = StepRun(cpu_plan(CpuSizes("tiny", 2, 0.1), {}, 600), tmp_path, deadline=0.0, only="LAMB")
    run.all()
    with pytest.raises(BertsmithError, match=r"nothing was measured: tiny, 2 of 40-128: bf16, LAMB: no time was left"):
        report(run, "made up")


def test_what_ends_a_process_after_one_set_costs_no_other_set_its_row(tmp_path):
    """Steps over loaded batches, of which there cannot be less than none."""
    plan = gpu_plan(GpuSizes("cpu", ("tiny",), (128,), 512, 1, 0.1, compiled=False, loaded_steps=-1), {}).alone()
    run = StepRun(replace(plan, matches=plan.matches[:1]), tmp_path, float("inf"))
    run.meet(run.plan.matches)
    assert [result.case for result in run.results] == [plan.matches[0].case(name) for name in plan.matches[0].sets]
    assert len(run.results) == 2
    assert all("data wait" in result.race.failed for result in run.results)


def test_without_a_peer_every_side_of_ours_is_measured_once():
    plan = cpu_plan(CpuSizes("tiny", 2, 0.1), {}, 600).alone()
    assert all(match.peer is None for match in plan.matches)
    assert [match.ours.label for match in plan.matches] == [
        "bf16, AdamW",
        "fp32, AdamW",
        "bf16, LAMB",
        "bf16, AdamW, no dropout",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pretrain-stepp"], "did you mean 'pretrain-step'?"),
        (["pretrain-step", "--against", "transformer"], "did you mean 'transformers'?"),
        (["pretrain-step", "--device", "tpu"], "use auto, cpu, cuda or cuda:N"),
        (["pretrain-step", "--devise", "cpu"], "--device"),
        (["batches", "--against", "nvidia"], "datasets"),
    ],
)
def test_a_wrong_name_ends_with_status_2(args, said, capsys):
    assert main(["bench", *args]) == 2
    assert said in capsys.readouterr().err


def test_a_case_that_there_is_not_lists_those_that_there_are(source, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTSMITH_DATA", str(tmp_path / "none"))
    options = BenchOptions(source=(source,), device="cpu", lengths=(64,), quick=True, only="no such case")
    with pytest.raises(BertsmithError, match="no case contains 'no such case'") as raised:
        run_bench("pretrain-step", options, ["bertsmith"])
    assert HEADLINE in raised.value.fix


def test_lengths_that_are_not_known_are_refused_on_a_card(tmp_path, monkeypatch):
    """Before anything runs there: the choice of the device is all that needs the card."""
    import torch

    from bertsmith.base.device import Device

    card = Device(torch.device("cuda"), torch.float32)
    monkeypatch.setattr("bertsmith.bench.step.bench.choose_device", lambda *_: card)
    with pytest.raises(BertsmithError, match="not known at 256") as raised:
        bench_pretrain_step(BenchOptions(device="cuda", lengths=(128, 256)), tmp_path)
    assert "128 or 512" in raised.value.fix


def test_a_row_without_memory_fails_by_name_and_the_others_are_measured(tmp_path):
    """A vocabulary whose rows no machine can hold: PyTorch on a CPU raises RuntimeError for them."""
    plan = cpu_plan(CpuSizes("tiny", 2, 0.1), {}, 600).alone()
    huge = replace(
        plan.matches[0], ours=replace(plan.matches[0].ours, model=shape("tiny", 10**8) | {"hidden_size": 10**7})
    )
    run = StepRun(replace(plan, matches=(huge, plan.matches[1]), ladder=()), tmp_path, float("inf"), only="AdamW")
    run.all()
    assert run.left_out == ["tiny, 2 of 40-128: bf16, AdamW: out of memory"]
    assert [result.case for result in run.results] == ["tiny, 2 of 40-128: fp32, AdamW"]
    about = report(run, "made up").about
    assert "left out: tiny, 2 of 40-128: bf16, AdamW: out of memory" in about
