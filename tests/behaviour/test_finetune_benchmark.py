"""A benchmark in one command: its files, columns, labels and settings, and a model that transformers reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml

import bertsmith
from bertsmith.cli import main
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.benchmarks.inputs import benchmark_settings
from bertsmith.tasks.reading.records import read_rows
from made_benchmarks import (
    made_bc5cdr,
    made_chemprot,
    made_codah,
    made_conll2003,
    made_inference,
    made_mnli,
    made_mrpc,
    made_swag,
)

LAYERS = 1

QUICK = ["--device", "cpu", "--precision", "fp32", "--epochs", "1", "--max-length", "40", "--no-report"]


def figures(run):
    return json.loads((run / "finetune.json").read_text())["seeds"][0]["epochs"][-1]["dev"]


def task_of(run):
    return json.loads((run / "model" / "task.json").read_text())


def test_one_command_takes_columns_labels_and_settings(model, tmp_path, capsys):
    made_mrpc(tmp_path / "glue")
    run = tmp_path / "run"
    command = ["finetune", "mrpc", "--model", str(model), "--data", str(tmp_path / "glue"), "--out", str(run)]
    assert main([*command, *QUICK]) == 0
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert (recipe["task"], recipe["learning_rate"], recipe["batch"], recipe["positive"]) == ("mrpc", 2e-5, 32, "1")
    assert (recipe["metric"], recipe["columns"]["text"]) == ("accuracy", "#1 String")
    text = " ".join(capsys.readouterr().err.split())
    assert "mrpc with epochs 1 (not 3), max_length 40 (not 128): the score is not comparable" in text
    assert "mrpc: train has 48 rows and the published one 3,668" in text
    assert task_of(run)["benchmark"] == "mrpc"
    assert figures(run).keys() >= {"accuracy", "binary_f1"}
    assert main([*command, *QUICK, "--resume"]) == 0
    assert "this run is finished already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "metrics", "labels"),
    [
        (["rte", "--data=glue"], {"accuracy", "binary_f1"}, {"entailment", "not_entailment"}),
        (["qnli", "--data=glue"], {"accuracy", "binary_f1"}, {"entailment", "not_entailment"}),
        (["bc5cdr-chemical", "--data=."], {"entity_f1"}, {"O", "B-entity", "I-entity"}),
        (["tag", *(f"--{part}=BC5CDR/chem/{name}.tsv" for part, name in (("train", "train"), ("dev", "devel")))],
         {"entity_f1"}, {"O", "B-entity", "I-entity"}),
        (["conll2003", "--data=."], {"entity_f1"}, {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}),
        (["tag", "--train=conll2003/eng.train", "--dev=conll2003/eng.testa"],
         {"entity_f1"}, {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}),
    ],
    ids=["rte", "qnli", "bc5cdr", "bc5cdr as tag", "conll2003", "conll2003 as tag"],
)  # fmt: skip
def test_one_command_makes_a_model_of_files_in_each_layout(
    model, tmp_path, monkeypatch, capsys, arguments, metrics, labels
):
    for name in ("RTE", "QNLI"):
        made_inference(tmp_path / "glue", name)
    made_bc5cdr(tmp_path)
    made_conll2003(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", *arguments, "--model", str(model), "--out", "run", *QUICK]) == 0, capsys.readouterr().err
    assert figures(tmp_path / "run").keys() >= metrics
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert set(config["id2label"].values()) == labels
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_flags_that_do_not_fit_are_named(model, tmp_path, capsys):
    made_mrpc(tmp_path)
    rest = ["--model", str(model), "--out", str(tmp_path / "run")]
    cases = {
        ("mrpc",): "the files of mrpc are not named",
        ("mrpc", "--data", str(tmp_path), "--train", "a.csv"): "exclude each other",
        ("mrpc", "--data", str(tmp_path), "--hyper-parameters", "authors"): "use google or nvidia",
        ("mrpc", "--data", str(tmp_path), "--fold", "1"): "no fold 1 of mrpc",
        ("rte", "--data", str(tmp_path)): "rte needs train.tsv, dev.tsv",
        ("ax", "--data", str(tmp_path)): "fine-tune mnli and evaluate its run",
        ("classify", "--data", str(tmp_path)): "'classify' is not a benchmark",
        ("classify", "--hyper-parameters", "google"): "'classify' is not a benchmark",
        ("classify",): "there are no rows to train on",
        ("mprc", "--data", str(tmp_path)): "did you mean 'mrpc'?",
    }
    for arguments, message in cases.items():
        assert main(["finetune", *arguments, *rest]) == 2, arguments
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_help_shows_the_numbers_of_the_benchmark(capsys):
    assert main(["finetune", "sst2", "--help"]) == 0
    text = capsys.readouterr().out
    assert "2e-05" in text
    assert "sentence" in text
    words = {word.strip(",.") for word in text.split()}
    assert {name for name, each in benchmarks().items() if each.trained_as is None} <= words


def test_mnli_is_measured_on_both_dev_sets(model, tmp_path):
    made_mnli(tmp_path)
    settings = benchmark_settings("mnli", epochs=1, max_length=40, device="cpu", precision="fp32")
    result = bertsmith.finetune("mnli", model, data=tmp_path, out=tmp_path / "run", settings=settings)
    assert result.rows == {"train": 36, "dev": 12, "mismatched": 12}
    assert result.seeds[0].epochs[0].dev.keys() >= {"accuracy", "mismatched_accuracy"}
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "contradiction", "1": "entailment", "2": "neutral"}


def test_relations_are_scored_by_micro_f1(model, tmp_path):
    made_chemprot(tmp_path)
    settings = benchmark_settings("chemprot", epochs=1, max_length=40, device="cpu", precision="fp32")
    result = bertsmith.finetune("chemprot", model, data=tmp_path, out=tmp_path / "run", settings=settings)
    assert result.metric == "micro_f1"
    assert result.seeds[0].epochs[0].test.keys() >= {"micro_f1"}
    assert task_of(tmp_path / "run")["negative"] == "false"


@pytest.mark.parametrize("name", ["swag", "codah"])
def test_choices_are_learned_and_transformers_gives_the_same_logits(name, model, tmp_path):
    (made_swag if name == "swag" else made_codah)(tmp_path)
    quick = {"learning_rate": 3e-3, "epochs": 3, "max_length": 40, "device": "cpu", "precision": "fp32"}
    settings = benchmark_settings(name, **quick)
    result = bertsmith.finetune(name, model, data=tmp_path, out=tmp_path / "run", settings=settings)
    assert result.mean > 0.9 > 0.5 > result.baseline
    part = {"swag": "test.csv", "codah": "fold_0/test.tsv"}[name]
    rows = [row for _, row in read_rows(tmp_path / part, settings.columns)][:5]
    answers = Predictor(tmp_path / "run", "cpu", precision="fp32")(rows)
    names = settings.columns.choices.split(",")
    assert [answer["choice"] for answer in answers] == [
        row[names[answer["label"]]] for row, answer in zip(rows, answers, strict=True)
    ]
    expected = logits_of_transformers(tmp_path / "run" / "model", rows, settings.columns)
    for answer, logits in zip(answers, expected, strict=True):
        assert answer["scores"] == pytest.approx(torch.softmax(logits, -1).tolist(), abs=1e-5)


def logits_of_transformers(folder, rows, columns):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    for row in rows:
        start = f"{row[columns.text_b]} " if columns.text_b in row else ""
        choices = [start + row[name] for name in columns.choices.split(",")]
        found = tokenizer([row[columns.text]] * len(choices), choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            yield model(**{key: value[None] for key, value in found.items()}).logits[0]


def test_rows_of_ones_own_may_have_different_numbers_of_choices(model, tmp_path):
    rows = []
    for number in range(60):
        count = 2 + number % 4
        choices = ["awful word1" if place != number % count else "lovely word2" for place in range(count)]
        rows.append({"text": "word3 word4", "choices": choices, "label": number % count})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    command = ["finetune", "choice", "--model", str(model), "--train", str(path), "--dev", str(path), "--out", str(run)]
    assert main([*command, *QUICK[:4], "--epochs", "3", "--learning-rate", "3e-3", "--max-length", "40"]) == 0
    assert figures(run)["accuracy"] > 0.9
    out = tmp_path / "out.jsonl"
    assert main(["predict", str(run), str(path), "--out", str(out)]) == 0
    predictions = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    assert [len(each["scores"]) for each in predictions] == [len(row["choices"]) for row in rows]
    right = np.mean([each["label"] == row["label"] for each, row in zip(predictions, rows, strict=True)])
    assert right > 0.9
