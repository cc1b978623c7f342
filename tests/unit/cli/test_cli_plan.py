"""`bertsmith plan`: what it prints and writes, for pre-training and fine-tuning, and one message for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.cli.plan import KINDS
from bertsmith.recipes.loader import load_recipe
from bertsmith.training import plan
from bertsmith.training.planning.calibration import calibration_lines, predicted
from bertsmith.training.planning.where import Where
from made_pages import write_table
from made_rows import CONFIG, QUICK, made_model, rows
from made_runs import corpus, small_corpus

TINY = ("plan", "bert-tiny", "--corpus")


def planned(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The figures that a plan writes."""
    assert main([*arguments, "--json", str(tmp_path / "plan.json")]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    return found


def test_a_plan_of_pre_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    flags = ("--gpus", "8", "--gpu", "h200", "--price", "3.5", "--phase2.steps", "10", "--png", str(picture))
    found = planned(tmp_path, "plan", "bert-base-nvlamb", "--corpus", str(small_corpus()), *flags)
    said = capsys.readouterr().out
    first, second = found["stages"]
    assert (first["steps"], second["steps"]) == (7038, 10)
    assert found["tokens"] == pytest.approx(first["tokens"] + second["tokens"])
    assert found["money"] == pytest.approx(3.5 * 8 * found["hours"])
    assert found["hours"] == pytest.approx(sum(each["hours"] for each in found["stages"]))
    assert [each["hosts"] for each in found["hosts"]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert found["memory_bytes"]["needed"] == pytest.approx(sum(found["memory_bytes"]["parts"].values()))
    assert "our run on one H200 141 GB" in said
    assert f"{found['money']:,.2f}" in said
    assert f"{found['parameters']:,} parameters" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_written_is_refused_before_planning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = (*TINY, str(tmp_path / "no-corpus"))
    (tmp_path / "file").touch()
    assert main([*call, "--json", str(tmp_path / "file" / "x.json")]) == 2
    assert "a file is in the way" in capsys.readouterr().err
    assert main([*call, "--png", str(tmp_path / "file" / "x.png")]) == 2
    assert "a file is in the way" in capsys.readouterr().err
    assert main([*call, "--png", str(tmp_path / "x.jpg")]) == 2
    assert "'.jpg' is not a kind of picture that is written here" in capsys.readouterr().err


@pytest.mark.parametrize("of_rows", [True, False])
def test_a_plan_is_written_over_nothing_that_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_rows: bool
) -> None:
    path = tmp_path / "read.yaml"
    path.write_text("seed: 1\n")
    call = ["classify", "--model", str(tmp_path), "--train", str(path)] if of_rows else [str(path), "--corpus", "c"]
    assert main(["plan", *call, "--gpu", "h100", "--json", str(path)]) == 2
    assert "this file is read here, and would be written over" in capsys.readouterr().err
    assert path.read_text() == "seed: 1\n"


def test_without_a_price_no_money_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(tmp_path, "plan", "bert-base-nvlamb", "--corpus", str(small_corpus()))["money"] == 0
    said = capsys.readouterr().out
    assert "speed-up" in said
    assert "money" not in said


def test_tokens_and_epochs_are_those_of_a_run(tmp_path: Path) -> None:
    """Of as many steps as an epoch has, whose instances all have their own lengths."""
    from bertsmith.batches.epochs import Epochs
    from bertsmith.batches.order import Order

    order = Order(Epochs(corpus(), seed=42, phase=1, sequence_length=128))
    size, lengths = order.epoch(0).size, order.epoch(0).lengths
    flags = ("--phase1.steps", "3", "--phase1.global-batch", str(size), "--phase2.steps", "0", "--compile", "false")
    (stage,) = planned(tmp_path, *TINY, str(small_corpus()), *flags)["stages"]
    assert stage["epochs"] == pytest.approx(3)
    assert stage["tokens"] == pytest.approx(3 * int(lengths.sum()))


def test_what_does_not_fit_is_warned_of_with_a_micro_batch_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = ("plan", "bert-large-nvlamb", "--corpus", str(small_corpus()), "--gpu", "v100")
    found = planned(tmp_path, *large, "--micro-batch-tokens", "65536", "--phase1.global-batch", "4096")
    (warning,) = (each for each in found["warnings"] if "does not fit" in each)
    most = found["largest_micro_batch_tokens"]
    assert f"--micro-batch-tokens {most}" in warning
    assert warning in capsys.readouterr().out
    fitting = planned(tmp_path, *large, "--micro-batch-tokens", str(most))
    assert fitting["memory_bytes"]["needed"] <= fitting["memory_bytes"]["capacity"]
    assert not any("does not fit" in each for each in fitting["warnings"])


def test_a_micro_batch_that_is_left_to_the_device_has_room_for_the_longest_sequence(tmp_path: Path) -> None:
    long = ("--model.max-positions", "16500", "--phase1.sequence-length", "16500", "--phase2.steps", "0")
    call = (*TINY, str(small_corpus()), "--gpu", "h100", "--micro-batch-tokens", "auto", *long)
    assert planned(tmp_path, *call)["largest_micro_batch_tokens"] >= 16_512, "in multiples of 128"


def test_a_plan_for_a_cpu_is_measured_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(tmp_path, *TINY, str(small_corpus()), "--gpu", "cpu", "--gpus", "2", "--precision", "fp32")
    assert "measured just now" in capsys.readouterr().out
    assert all(each["seconds_per_step"]["compute"] > 0 for each in found["stages"])
    assert found["memory_bytes"]["parts"]["PyTorch"] > 1e8


def test_a_plan_of_fine_tuning_has_the_steps_of_the_run(tmp_path: Path) -> None:
    model = made_model(tmp_path / "base")
    write_table(tmp_path / "train.csv", rows(50, 1))
    write_table(tmp_path / "dev.csv", rows(20, 2))
    files = ("--train", str(tmp_path / "train.csv"), "--dev", str(tmp_path / "dev.csv"), "--model", str(model))
    settings = ("--epochs", "3", "--seeds", "2", "--batch", "16", "--max-length", "32", "--precision", "fp32")
    found = planned(tmp_path, "plan", "classify", *files, *settings, "--gpu", "cpu")
    quick = replace(QUICK, epochs=3, seeds=2)
    result = bertsmith.finetune("classify", model, rows(50, 1), rows(20, 2), tmp_path / "run", settings=quick)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert result.folder is not None
    (stage,) = found["stages"]
    assert stage["steps"] == max(each["step"] for each in lines)
    assert stage["epochs"] == pytest.approx(3 * 2)
    gpu = planned(tmp_path, "plan", *files, *settings[:-2], "--gpu", "a100", "--gpus", "8")
    assert gpu["stages"][0]["steps"] == stage["steps"]
    assert "SQuAD" in " ".join(gpu["rates"])
    many = planned(tmp_path, "plan", *files, *settings[2:-2], "--epochs", "150", "--gpu", "a100")
    assert not many["warnings"], "what is usual for a corpus says nothing of rows"
    measured = {
        (): (2 * 3 + 1) * 20,  # after each epoch of each seed, and of the finished model
        ("--evaluate-every", "1"): (2 * 12 + 1) * 20,
        ("--max-steps", "1"): (2 + 1) * 20,
        ("--learning-curve",): (2 * 3 + 2 + 1) * 20,
        ("--folds", "5"): (2 * 3 + 1) * 20 + 50,
    }
    seconds_of_a_row = gpu["stages"][0]["evaluation_seconds"] / measured[()]
    for flags, count in measured.items():
        (stage,) = planned(tmp_path, "plan", *files, *settings[:-2], "--gpu", "a100", "--gpus", "8", *flags)["stages"]
        assert stage["evaluation_seconds"] == pytest.approx(count * seconds_of_a_row), flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--frozen-layers", "9"), "frozen_layers is 9"),
        (("--folds", "50"), "60 training rows are too few to be divided"),
        (("--metric", "f1"), "metric 'f1' is not one of classify"),
    ],
)
def test_a_plan_refuses_what_the_run_would(
    flags: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "train.csv", rows(60, 1))
    files = ("--train", str(tmp_path / "train.csv"), "--model", str(made_model(tmp_path / "base")))
    assert main(["plan", "classify", *files, "--dev", str(tmp_path / "train.csv"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_calibration_is_a_plan_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--calibration"]) == 0
    assert capsys.readouterr().out.splitlines() == calibration_lines(predicted())


@pytest.mark.parametrize("preset", ["bert-tiny", "budget"])
def test_a_plan_for_gpus_needs_no_torch(preset: str) -> None:
    """So that it answers at once."""
    command = ["plan", preset, "--corpus", str(small_corpus()), "--gpu", "a100", "--hours", "8"]
    code = f"import sys; from bertsmith.cli import main; main({command!r}); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_tasks_that_it_knows_are_all() -> None:
    from bertsmith.tasks.registry import TASKS

    assert {*KINDS} == {"auto", *TASKS}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((*TINY, "CORPUS", "--gpu", "a10"), "did you mean 'a100'?"),
        ((*TINY, "CORPUS", "--gpus", "0"), "--gpus is 0"),
        ((*TINY, "CORPUS", "--price", "-1"), "--price is -1"),
        ((*TINY, "CORPUS", "--price", "nan"), "--price is nan"),
        ((*TINY, "no/corpus"), "there is no corpus here"),
        ((*TINY, "CORPUS", "--gpu", "v100", "--precision", "bf16"), "V100 32 GB has no fast bf16 products"),
        (("plan", "budget", "--hours", "8", "--corpus", "CORPUS", "--gpu", "v100", "--precision", "bf16"), "use fp16"),
        (("plan", "bert-tiny"), "missing: --corpus"),
        (("plan", "bert-tinny", "--corpus", "CORPUS"), "'bert-tiny'"),
        (("plan", "classify", "--model", "no/model", "--train", "rows.csv"), "no/model"),
        (("plan", "--calibration", "--gpus", "8"), "give it alone"),
        ((*TINY, "CORPUS", "--device", "cpu"), "use --gpu cpu"),
        ((*TINY, "CORPUS", "--micro-batch-tokens=auto", "--parallel=shard", "--gpus=2"), "give a number"),
        (("plan", "mrpc", "--model", "no/model", "--data", "glue", "--device", "cpu"), "use --gpu cpu"),
        (
            ("plan", "mrpc", "--model", "no/model", "--data", "glue", "--gpus", "2", "--side-by-side", "--seeds", "2"),
            "not seeds side by side",
        ),
        (("plan", "mrpc", "--gpu", "h100"), "bertsmith plan mrpc --help"),
    ],
)
def test_a_mistake_is_one_message(
    arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(small_corpus()) if each == "CORPUS" else each for each in arguments]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_more_ranks_than_sequences_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    call = [*TINY, str(small_corpus()), "--gpu", "a100", "--gpus", "8", "--phase1.global-batch", "4"]
    assert main(call) == 2
    assert "a step has 4 sequences, and 8 ranks are to share it" in capsys.readouterr().err


def test_checkpointing_costs_time(tmp_path: Path) -> None:
    call = [*TINY, str(small_corpus()), "--gpu", "a100"]
    one, two = planned(tmp_path, *call), planned(tmp_path, *call, "--gradient-checkpointing", "true")
    compute = [each["stages"][0]["seconds_per_step"]["compute"] for each in (one, two)]
    assert compute[1] == pytest.approx(4 / 3 * compute[0], rel=0.01)


def test_masked_words_alone_need_no_pooler(tmp_path: Path) -> None:
    call = [*TINY, str(small_corpus()), "--gpu", "a100"]
    both, alone = planned(tmp_path, *call), planned(tmp_path, *call, "--objective", "mlm")
    width = load_recipe("bert-tiny").model.hidden
    assert both["parameters"] - alone["parameters"] == (width + 1) * width + 2 * (width + 1)
    assert both["stages"][0]["epochs"] != alone["stages"][0]["epochs"]


@pytest.mark.parametrize("gpu", ["cpu", "h100"])
def test_the_preset_of_a_budget_is_planned_as_it_would_be_trained(
    gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--corpus", str(small_corpus()), "--hours", "2", "--precision", "fp32" if gpu == "cpu" else "auto")
    found = planned(tmp_path, "plan", "budget", *flags, "--gpu", gpu)
    (stage,), told = found["stages"], capsys.readouterr()
    if gpu == "cpu":
        from bertsmith.training.budget import budget_recipe

        fields = [f"{flags[place]}={flags[place + 1]}" for place in (2, 4)]
        with_steps = budget_recipe(small_corpus(), tmp_path / "run", ["--device=cpu", *fields])
        shape = f"{with_steps.model.layers} layers of {with_steps.model.hidden}"
        batch, rate = with_steps.phase1.global_batch, with_steps.phase1.learning_rate
    else:
        # 0.4 x 989.5 TFLOP/s for two hours: of BERT-base 5 billion tokens, and of BERT-large less than 20 a weight.
        shape, batch, rate = "12 layers of 768", 2048, 1e-3 * (2048 / 4096) ** 0.5
    assert stage["sequences_of_a_step"] == batch
    assert f"{batch} sequences a step, learning rate {rate:.2g}" in told.err
    assert shape in told.out
    # Those before the first step and of the finished model are beside the hours.
    assert found["hours"] - stage["evaluation_seconds"] / 3600 < 2 < found["hours"] * 1.01


def test_a_plan_of_going_on_has_the_shape_of_that_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = corpus().tokenizer().pieces
    model = made_model(tmp_path / "encoder", replace(CONFIG, vocab_size=len(pieces)), pieces)
    call = [*TINY, str(small_corpus()), "--gpu", "a100", "--phase1.sequence-length", "32", "--phase2.steps", "0"]
    assert planned(tmp_path, *call, "--init-from", str(model))["parameters"] < planned(tmp_path, *call)["parameters"]
    assert "2 layers of 32 (those of" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(plan, "_plan", lambda recipe, *_: recipe)
        short = ["--phase1.sequence_length=32", "--phase2.steps=0", "--model.hidden_dropout=0"]
        recipe: Any = plan.plan_pretraining(load_recipe("bert-tiny", short), corpus(), Where("a100", 1), model)
    assert (recipe.model.hidden_dropout, recipe.model.attention_dropout) == (0.1, 0.1)
    assert main([*TINY, str(small_corpus()), "--gpu", "a100", "--init-from", str(model)]) == 2
    said = capsys.readouterr().err
    assert "do not fit a model of 40 positions" in said
    assert "use at most 40" in said  # the recipe's max_positions is not the model's
    assert main([*call, "--init-from", str(made_model(tmp_path / "other"))]) == 2
    assert "another tokenizer than this model's" in capsys.readouterr().err
    few = made_model(tmp_path / "few", replace(CONFIG, vocab_size=len(pieces) - 1), pieces)
    assert main([*call, "--init-from", str(few)]) == 2
    assert f"{len(pieces):,} pieces and the model {len(pieces) - 1:,}" in capsys.readouterr().err
    budget = ["budget", "--hours", "1", "--corpus", str(small_corpus()), "--init-from", str(model)]
    for verb in (
        ["plan"],
        ["pretrain", "--out", str(tmp_path / "run")],
        ["pretrain", "--check", "--out", str(tmp_path)],
    ):
        assert main([verb[0], *budget, *verb[1:]]) == 2
        assert "chooses a model" in capsys.readouterr().err


@pytest.mark.parametrize("evaluate_every", ["500", "1"])
def test_a_plan_by_hours_has_the_steps_that_fit_into_them(tmp_path: Path, evaluate_every: str) -> None:
    call = ("plan", "bert-mini", "--corpus", str(small_corpus()), "--gpu", "a100", "--evaluate-every", evaluate_every)
    first, second = planned(tmp_path, *call, "--hours", "3")["stages"]
    assert first["hours"] + second["hours"] == pytest.approx(3, rel=0.01)
    recipe = load_recipe("bert-mini")
    tokens = [each.steps * each.global_batch * each.sequence_length for each in (recipe.phase1, recipe.phase2)]
    assert first["hours"] / second["hours"] == pytest.approx(tokens[0] / tokens[1], rel=0.01)
    assert first["steps"] > recipe.phase1.steps or evaluate_every == "1"


def test_a_budget_needs_hours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "budget", "--corpus", str(small_corpus())]) == 2
    assert "--hours 8" in capsys.readouterr().err
