"""Promises of fine-tuning: it learns, it repeats, its folder is complete, and faults are named before any work."""

import json
import logging
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.predictor import Predictor
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.reading.records import Columns, read_records
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.weights.huggingface import read_config, save_pretraining_model
from made_rows import QUICK, rows

LAYERS = 1

TRAIN, DEV = rows(160, 1), rows(60, 2)
SURE = replace(QUICK, epochs=7, learning_rate=6e-3)


def test_learns_repeats_and_leaves_the_callers_random_state_alone(model):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=SURE)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.mean > 0.95 > first.baseline > 0.5
    short = replace(QUICK, epochs=2)
    once, again, other = (
        bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=each).seeds
        for each in (short, short, replace(short, seed=43))
    )
    assert once == again
    assert [each.train_loss for each in other[0].epochs] != [each.train_loss for each in once[0].epochs]


def test_shuffled_labels_teach_nothing(model):
    """The control: with labels drawn by lot the score on the dev rows stays near the baseline."""
    draw = random.Random(0)
    noise = [{**row, "label": draw.choice(["praise", "blame"])} for row in TRAIN]
    result = bertsmith.finetune("classify", model, noise, DEV, None, settings=replace(QUICK, epochs=1))
    assert result.mean < 0.9


def test_dev_rows_of_one_class_are_warned_of_and_their_score_says_nothing(model, said):
    praised = [row for row in rows(60, seed=2) if row["label"] == "praise"]
    result = bertsmith.finetune("classify", model, TRAIN, praised, None, settings=replace(QUICK, epochs=1))
    assert "all rows of dev have the same label (praise): their figures say nothing of others" in said.text
    assert result.mean == result.baseline == 1.0
    assert "the text-blind baseline is right on every dev row" in result.line()
    assert "try another learning rate" not in result.line()


def test_several_seeds_give_mean_and_spread_and_keep_the_best(model, tmp_path):
    settings = replace(QUICK, seeds=3, epochs=1, learning_rate=1e-3)
    result = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "out", settings=settings)
    assert [each.seed for each in result.seeds] == [42, 43, 44]
    assert result.mean == pytest.approx(sum(result.scores) / 3)
    mean_square = sum((score - result.mean) ** 2 for score in result.scores) / 2
    assert result.standard_deviation == pytest.approx(mean_square**0.5)
    predictions = Predictor(tmp_path / "out", "cpu", precision="fp32")(DEV)
    right = sum(each["label"] == row["label"] for each, row in zip(predictions, DEV, strict=True))
    assert right / len(DEV) == pytest.approx(result.best.score) == pytest.approx(max(result.scores))
    written = json.loads((tmp_path / "out" / "finetune.json").read_text())
    assert (written["mean"], written["best_seed"]) == (result.mean, result.best.seed)


def test_no_micro_batch_passes_the_budget(model, monkeypatch):
    tokens = []

    def counted(*given):
        inputs = pack(*given)
        tokens.append(inputs.asked.tokens)
        return inputs

    monkeypatch.setattr("bertsmith.tasks.objective.pack", counted)
    even = [{"text": " ".join(["word1"] * 28), "label": label} for label in ("praise", "blame", "blame")]
    settings = replace(QUICK, batch=3, epochs=1, micro_batch_tokens=45)
    bertsmith.finetune("classify", model, even, DEV, None, settings=settings)
    assert tokens == [30, 30, 30]


def test_from_scratch_uses_the_shape_and_not_the_weights(model, tmp_path):
    other = PretrainingModel(read_config(model))
    initialise(other, 0.05, seed=99)
    save_pretraining_model(other, model.parent / "tokenizer", tmp_path / "other")
    settings = replace(QUICK, from_scratch=True, epochs=1)
    losses = [
        bertsmith.finetune("classify", folder, TRAIN, DEV, None, settings=settings).seeds[0].epochs[0].train_loss
        for folder in (model, tmp_path / "other")
    ]
    assert losses[0] == losses[1]
    trained = bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=replace(settings, from_scratch=False))
    assert trained.seeds[0].epochs[0].train_loss != losses[0]


def test_the_flag_that_a_missing_column_is_told_of_names_it(model, tmp_path, capsys):
    for name, made in (("train.csv", TRAIN), ("dev.csv", DEV)):
        lines = (f"{row['text']},{row['text'][::-1]},{row['label']}\n" for row in made)
        (tmp_path / name).write_text("review,summary,label\n" + "".join(lines))
    train, dev, out = (str(tmp_path / name) for name in ("train.csv", "dev.csv", "out"))
    command = ["finetune", "classify", "--model", str(model), "--train", train, "--dev", dev, "--out", out]
    command += ["--epochs", "1", "--device", "cpu", "--precision", "fp32"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "several columns may be the text" in said
    assert "'review' (word7 lovely" in said
    assert "name the right one with --columns.text and --columns.text-b" in said
    assert main([*command, "--columns.text", "opinion"]) == 2
    assert "there is no column 'opinion'" in capsys.readouterr().err
    assert main([*command, "--columns.text", "review"]) == 0


def test_the_folder_predicts_the_same_names_and_scores_elsewhere(model, tmp_path):
    train, dev = tmp_path / "train.csv", tmp_path / "dev.jsonl"
    train.write_text("review,opinion\n" + "".join(f"{row['text']},{row['label']}\n" for row in TRAIN))
    dev.write_text("".join(json.dumps({"review": row["text"], "opinion": row["label"]}) + "\n" for row in DEV))
    settings = replace(SURE, columns=Columns(text="review", label="opinion"))
    bertsmith.finetune("classify", model, train, dev, tmp_path / "out", settings=settings)
    here = Predictor(tmp_path / "out", "cpu", precision="fp32")([{"review": row["text"]} for row in DEV[:10]])
    shutil.move(tmp_path / "out" / "model", tmp_path / "moved")
    code = (
        "import json, sys; from bertsmith import Predictor;"
        "predictor = Predictor(sys.argv[1], 'cpu', precision='fp32');"
        "print(json.dumps(predictor(json.loads(sys.argv[2]))));"
        "training = {f'bertsmith.{name}' for name in ('optim', 'training', 'batches', 'recipes')};"
        "assert not training & {*sys.modules};"
        "from bertsmith.model.cpu.prepare import load; load();"  # as training does
        "assert not {'torch._dynamo', 'sympy'} & {*sys.modules}"
    )
    data = json.dumps([{"review": row["text"]} for row in DEV[:10]])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "moved"), data], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == here
    assert {each["label"] for each in here} == {"praise", "blame"}
    task = json.loads((tmp_path / "moved" / "task.json").read_text())
    assert (task["task"], task["max_length"], task["lowercase"]) == ("classify", 32, True)


def test_a_fine_tuned_folder_can_be_fine_tuned_again_for_other_labels(model, tmp_path):
    quick = replace(QUICK, epochs=1)
    bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "first", settings=quick)
    more = [{**row, "label": f"{row['label']} {len(row['text']) % 2}"} for row in TRAIN]
    result = bertsmith.finetune("classify", tmp_path / "first", more, more[:40], tmp_path / "second", settings=quick)
    assert len(result.class_counts) == 4
    assert len(Predictor(tmp_path / "second", "cpu")(["lovely"])[0]["scores"]) == 4


def test_what_is_cut_and_counted_is_said(model, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertsmith"), "propagate", True)
    caplog.set_level(logging.INFO, logger="bertsmith")
    long = [{**row, "text": row["text"] + " word1" * 40} for row in TRAIN[:20]]
    bertsmith.finetune("classify", model, long, DEV, None, settings=replace(QUICK, epochs=1, max_length=64))
    assert "sequences have at most 40 tokens, not 64" in caplog.text
    assert "0 of 60 rows truncated" in caplog.text
    assert re.search(r"train: .* 20 of 20 rows truncated, \d+\.\d% of the tokens lost", caplog.text)
    assert "train rows by label: praise" in caplog.text
    assert "most frequent label" in caplog.text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"task": "clasify"}, "not known"),
        ({"dev": [{"text": "a", "label": "praize"}]}, "no label 'praize'"),
        ({"train": [{"text": "a", "label": "praise"}]}, "1 label"),
        ({"train": [{"text": "a", "label": ""}, {"text": "b", "label": "c"}]}, "1 of 2 rows"),
        ({"model": "nowhere"}, "does not exist"),
        ({"train": [{"text": "a", "label": str(n)} for n in range(3)], "metric": "binary_f1"}, "binary_f1"),
    ],
)
def test_faults_are_named_and_nothing_is_written(model, tmp_path, change, what):
    metric = change.pop("metric", "accuracy")
    call = {"task": "classify", "model": model, "train": TRAIN, "dev": DEV, **change}
    with pytest.raises(BertsmithError, match=what):
        bertsmith.finetune(**call, out=tmp_path / "out", settings=replace(QUICK, metric=metric))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_a_model_or_a_run_is_refused_before_training(model, tmp_path):
    copy, link = tmp_path / "copy", tmp_path / "link"
    shutil.copytree(model, copy)
    link.symlink_to(copy)
    for start, out in ((copy, copy), (copy, link), (link, copy), (copy, tmp_path / "x" / ".." / "copy")):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(BertsmithError, match=r"holds config\.json"):
            bertsmith.finetune("classify", start, TRAIN, DEV, out, settings=QUICK)
    assert (copy / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    quick = replace(QUICK, epochs=1)
    bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "out", settings=quick)
    before = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    with pytest.raises(BertsmithError, match="there is a run in this folder already"):
        bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "out", settings=quick)
    assert (tmp_path / "out" / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_a_real_encoder_beats_random_weights_on_sst2(real_data):
    folder, data = real_data("weights/all-MiniLM-L6-v2"), real_data("glue/SST-2")
    columns = Columns(text="sentence")
    records = read_records(data / "train.tsv", columns)[:200]
    train = [{"text": each.text, "label": each.label} for each in records if each.text.count(" ") < 16]
    dev = [{"text": each.text, "label": each.label} for each in read_records(data / "dev.tsv", columns)[:100]]
    settings = FinetuneSettings(epochs=2, learning_rate=2e-4, max_length=32, device="cpu", precision="fp32")
    trained = bertsmith.finetune("classify", folder, train, dev, None, settings=settings)
    random_weights = bertsmith.finetune(
        "classify", folder, train, dev, None, settings=replace(settings, from_scratch=True, epochs=1)
    )
    assert trained.mean > max(random_weights.mean, trained.baseline) + 0.1
