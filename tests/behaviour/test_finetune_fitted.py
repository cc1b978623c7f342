"""Promises of what is fitted to dev rows and of rare classes: stored in the model folder, used by what reads it."""

import json
import math
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.results import FinetuneResult
from bertsmith.tasks.settings import FinetuneSettings
from made_rows import QUICK as PLAIN
from made_rows import WORDS, rows

LAYERS = 1

QUICK = replace(PLAIN, epochs=7, learning_rate=6e-3, report=True)

# The labels of a row are decided by one word of it.
SIGNS = {"word1": ["fruit"], "word3": ["bird", "metal"], "lovely": []}


def labelled(count, seed):
    """Rows of filler with a sign among it."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        sign = draw.choice([*SIGNS, "word1"])
        words = [*draw.choices(WORDS[4:], k=draw.randrange(2, 7)), sign]
        draw.shuffle(words)
        made.append({"text": " ".join(words), "label": SIGNS[sign]})
    return made


TRAIN, DEV, TEST = labelled(200, 1), labelled(80, 2), labelled(40, 3)


@pytest.fixture(scope="module")
def several(model, tmp_path_factory):
    """The run folder of a model of rows with several labels, and its result; a dev row is wrong."""
    out, settings = tmp_path_factory.mktemp("several") / "run", replace(QUICK, epochs=14, learning_rate=3e-3)
    wrong = [{**DEV[0], "label": [] if DEV[0]["label"] else ["fruit"]}, *DEV[1:]]
    return out, bertsmith.finetune("classify", model, TRAIN, wrong, out, test=TEST, settings=settings)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_rows_with_several_labels_are_learned_and_answered(several):
    out, result = several
    assert result.metric == "micro_f1"
    assert result.mean > 0.9 > 0.8 > result.baseline > 0.3
    answers = Predictor(out, "cpu", precision="fp32")([row["text"] for row in DEV])
    right = sum(set(each["labels"]) == set(row["label"]) for each, row in zip(answers, DEV, strict=True))
    assert right / len(DEV) > 0.8


def test_the_answers_follow_the_stored_thresholds(several):
    out, _ = several
    task = read(out / "model" / "task.json")
    assert list(task["thresholds"]) == ["bird", "fruit", "metal"]
    before = Predictor(out, "cpu", precision="fp32")(DEV)
    highest = {name: max(each["scores"][name] for each in before) for name in task["thresholds"]}
    kept = (out / "model" / "task.json").read_text()
    try:
        changed = {**task, "thresholds": {**task["thresholds"], "fruit": 0.999999, "metal": 0.0}}
        (out / "model" / "task.json").write_text(json.dumps(changed))
        after = Predictor(out, "cpu", precision="fp32")(DEV)
    finally:
        (out / "model" / "task.json").write_text(kept)
    assert highest["fruit"] < 0.999999
    assert all("fruit" not in each["labels"] and "metal" in each["labels"] for each in after)
    assert [each["scores"] for each in after] == [each["scores"] for each in before]


def test_transformers_reads_a_model_of_several_labels(several):
    transformers = pytest.importorskip("transformers")
    out, _ = several
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "model")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    assert theirs.config.problem_type == "multi_label_classification"
    pipeline = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer, top_k=None)
    texts = [row["text"] for row in DEV[:20]]
    for ours, each in zip(Predictor(out, "cpu", precision="fp32")(texts), pipeline(texts), strict=True):
        assert {one["label"]: one["score"] for one in each} == pytest.approx(ours["scores"], abs=1e-5)


def test_the_run_folder_has_reports_of_dev_and_test_rows(several):
    out, _ = several
    for part, count in (("dev", 80), ("test", 40)):
        figures = read(out / "report" / part / "intervals.json")
        assert (figures["rows"], figures["count"]) == (part, count)
        micro = figures["figures"]["micro_f1"]
        assert micro["low"] <= micro["value"] <= micro["high"]
        assert micro["value"] > 0.8
        names = {path.name for path in (out / "report" / part).iterdir()}
        assert names >= {"per_class.json", "confusion.json", "calibration.json", "likely_label_errors.json"}


def test_a_planted_label_error_is_among_the_likeliest(several):
    found = read(several[0] / "report" / "dev" / "likely_label_errors.json")["likely_label_errors"]
    assert found[0]["where"] == "row 1"
    assert found[0]["text"] == DEV[0]["text"]


def test_separated_labels_on_the_command_line(model, tmp_path):
    for name, made in (("train", TRAIN), ("dev", DEV)):
        lines = [f"{row['text']},{'|'.join(row['label'])}\n" for row in made]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(lines))
    command = ["finetune", "classify", "--model", str(model), "--out", str(tmp_path / "run")]
    command += [f"--{name}={tmp_path / name}.csv" for name in ("train", "dev")]
    flags = ["--epochs=2", "--device=cpu", "--precision=fp32", "--learning-rate=6e-3", "--columns.label-separator=|"]
    assert main([*command, *flags, "--sampling=balanced", "--focal=2", "--class-weights=balanced"]) == 0
    settings = replace(
        QUICK, epochs=2, batch=32, max_length=128, sampling="balanced", focal=2.0, class_weights="balanced"
    )
    lists = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "lists", settings=settings)
    written = read(tmp_path / "run" / "finetune.json")
    measured = [(each.train_loss, each.dev) for each in lists.seeds[0].epochs]
    assert [(each["train_loss"], each["dev"]) for each in written["seeds"][0]["epochs"]] == measured
    predicted = tmp_path / "out.csv"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "dev.csv"), "--out", str(predicted)]) == 0
    assert predicted.read_text().splitlines()[0].endswith("predicted_labels,predicted_scores,truncated_tokens")


def noisy(count, seed, share=0.12, sure=0.75):
    """Rows of two labels, one of them rare, that the sign word tells apart for only a part of the rows."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        rare = draw.random() < share
        sign = "awful" if (draw.random() < sure) == rare else "lovely"
        made.append({"text": " ".join([*draw.choices(WORDS, k=6), sign]), "label": "rare" if rare else "usual"})
    return made


NOISY, NOISY_DEV, NOISY_TEST = noisy(500, 1), noisy(300, 2), noisy(300, 3)
FEW = replace(QUICK, epochs=5, learning_rate=3e-3, batch=32, positive="rare", metric="binary_f1")


def recall(out):
    table = read(out / "report" / "test" / "per_class.json")["classes"]
    return {row["label"]: row["recall"] for row in table}["rare"]


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("plain") / "run"
    bertsmith.finetune("classify", model, NOISY, NOISY_DEV, out, test=NOISY_TEST, settings=FEW)
    return out


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "run"
    settings = replace(FEW, thresholds="tuned")
    bertsmith.finetune("classify", model, NOISY, NOISY_DEV, out, test=NOISY_TEST, settings=settings)
    return out


def test_a_rare_class_is_found_more_often_by_a_tuned_threshold(plain, tuned):
    assert recall(plain) < 0.1 < 0.25 < recall(tuned)


def test_the_score_of_the_rows_that_a_threshold_was_tuned_on_is_called_so_beside_an_honest_one(plain, tuned):
    result = FinetuneResult.from_dict(read(tuned / "finetune.json"), tuned)
    own, honest = (result.tuned[rows]["binary_f1"] for rows in ("dev", "dev_cross_fitted"))
    assert own > honest
    assert result.mean == pytest.approx(honest), "epochs are compared by what the finished model is measured by"
    assert honest == read(tuned / "report" / "dev" / "intervals.json")["figures"]["binary_f1"]["value"]
    told = f"{own:.4f} by the finished model on the dev rows that its thresholds were tuned on"
    assert f"{told}, {honest:.4f} with cross-fitted thresholds" in result.line()
    assert "dev_cross_fitted" not in read(plain / "finetune.json")["tuned"]


@pytest.mark.parametrize("how", [{"class_weights": "balanced"}, {"sampling": "balanced"}])
def test_a_rare_class_is_found_more_often_where_it_is_favoured(model, plain, tmp_path, how):
    out, settings = tmp_path / "run", replace(FEW, **how)
    bertsmith.finetune("classify", model, NOISY, NOISY_DEV[:20], out, test=NOISY_TEST, settings=settings)
    assert recall(plain) < 0.1 < 0.25 < recall(out)


def test_favoured_runs_repeat_to_the_bit_and_do_not_depend_on_micro_batches(model):
    settings = replace(
        FEW,
        epochs=1,
        class_weights="balanced",
        sampling="sqrt",
        label_smoothing=0.1,
        dropout=0.0,
        attention_dropout=0.0,
    )
    first, again, cut = (
        bertsmith.finetune("classify", model, NOISY[:160], NOISY_DEV[:20], None, settings=each)
        .seeds[0]
        .epochs[0]
        .train_loss
        for each in (settings, settings, replace(settings, micro_batch_tokens=60))
    )
    assert first == again
    assert cut == pytest.approx(first, rel=1e-4)


@pytest.mark.parametrize(("kind", "pairs"), [("classify", True), ("regress", False)])
def test_the_pipeline_of_transformers_gives_the_same_answers(model, tmp_path, kind, pairs):
    transformers = pytest.importorskip("transformers")

    def made(count, seed):
        labels = {"praise": 1.5, "blame": -0.5}
        return [
            {**row, "label": labels[row["label"]] if kind == "regress" else row["label"]}
            | ({"text_b": " ".join(WORDS[place % 5 :][:6])} if pairs else {})
            for place, row in enumerate(rows(count, seed))
        ]

    held_out = made(120, 2)
    for row, other in zip(held_out[:40], reversed(held_out[:40]), strict=True):
        if kind == "classify":  # so that there is a temperature
            row["label"] = other["label"]
    bertsmith.finetune(kind, model, made(120, 1), held_out, tmp_path / "run", settings=QUICK)
    task = read(tmp_path / "run" / "model" / "task.json")
    assert kind == "regress" or (task["temperature_in_weights"] and abs(task["temperature"] - 1) > 0.05)
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "run" / "model"), top_k=None)
    asked = [{"text": row["text"], **({"text_pair": row["text_b"]} if pairs else {})} for row in held_out]
    found = Predictor(tmp_path / "run", "cpu", precision="fp32")(
        [{name: row[name] for name in ("text", "text_b")[: 1 + pairs]} for row in held_out]
    )
    for ours, theirs in zip(found, map(pipeline, asked), strict=True):
        if kind == "regress":
            assert theirs[0]["score"] == pytest.approx(ours["number"], abs=1e-5)
        else:
            assert {one["label"]: one["score"] for one in theirs} == pytest.approx(ours["scores"], abs=1e-5)
            assert theirs[0]["label"] == ours["label"]


def test_an_overconfident_model_is_calibrated(model, tmp_path):
    """It learns from clean labels to be sure, and a third of the dev rows is labelled otherwise."""
    draw = random.Random(4)
    train, held_out = rows(160, 1), rows(120, 2)
    for row in held_out:
        if draw.random() < 0.3:
            row["label"] = "blame" if row["label"] == "praise" else "praise"
    bertsmith.finetune("classify", model, train, held_out, tmp_path / "run", settings=QUICK)
    found = read(tmp_path / "run" / "report" / "dev" / "calibration.json")
    assert found["kept"]
    assert found["temperature"] > 1.5
    assert found["after"]["ece"] < found["before"]["ece"]
    assert found["after"]["nll"] < found["before"]["nll"]
    off = replace(QUICK, temperature=False, report=False)
    bertsmith.finetune("classify", model, train, held_out, tmp_path / "off", settings=off)
    assert read(tmp_path / "off" / "model" / "task.json")["temperature"] == 1
    divided, plain = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "off"))
    for name, weights in plain.items():
        factor = found["temperature"] if name.startswith("classifier.") else 1
        torch.testing.assert_close(divided[name] * factor, weights, rtol=1e-6 * (factor != 1), atol=0)
    _evaluated(tmp_path / "run", held_out, found)
    # A folder of an earlier version, whose head was left as it was.
    made = read(tmp_path / "run" / "model" / "task.json") | {"temperature_in_weights": False}
    (tmp_path / "off" / "model" / "task.json").write_text(json.dumps(made))
    texts = [row["text"] for row in held_out[:20]]
    for old, new in zip(
        *(Predictor(tmp_path / name, "cpu", precision="fp32")(texts) for name in ("off", "run")), strict=True
    ):
        assert old["scores"] == pytest.approx(new["scores"], abs=1e-5)


def _evaluated(run, held_out, found):
    """A report of the finished model still has the calibration without its temperature."""
    again = run.parent / "again"
    evaluate(run, held_out, report=again, precision="fp32")
    measured = read(again / "calibration.json")
    assert measured["temperature"] == found["temperature"]
    assert measured["before"]["nll"] == pytest.approx(found["before"]["nll"], rel=1e-3)


def test_a_tuned_threshold_is_used_by_everything(tuned):
    task = read(tuned / "model" / "task.json")
    assert 0 < task["threshold"] < 0.5
    answers = Predictor(tuned, "cpu", precision="fp32")(NOISY_TEST)
    for each in answers:
        assert each["label"] == ("rare" if each["scores"]["rare"] >= task["threshold"] else "usual")
        assert each["score"] == each["scores"][each["label"]]
    found = np.mean([each["label"] == row["label"] for each, row in zip(answers, NOISY_TEST, strict=True)])
    figures = read(tuned / "report" / "test" / "intervals.json")["figures"]
    assert figures["accuracy"]["value"] == pytest.approx(found)


@pytest.mark.parametrize(
    ("task", "settings", "what"),
    [
        ("regress", {"class_weights": "balanced"}, "regress models do not take class weights"),
        ("regress", {"sampling": "sqrt"}, "regress models do not take sampling"),
        ("regress", {"focal": 1.0}, "regress models do not take focal"),
        ("regress", {"thresholds": "half"}, "regress models do not take thresholds"),
        ("regress", {"many_labels": True}, "regress models do not take many labels"),
        ("regress", {"labels": "0,1,2"}, "regress models do not take labels"),
        ("classify", {"doc_stride": 64}, "classify models do not take doc stride"),
        ("classify", {"window_overlap": 8}, "long texts are cut, not read in windows"),
        ("classify", {"columns": Columns(question="text")}, "classify models do not take --columns.question"),
        (
            "regress",
            {"columns": Columns(label_separator=";")},
            "regress models do not take --columns.label-separator",
        ),
        ("regress", {"columns": Columns(id="number")}, "no training row has a column 'number'"),
        ("regress", {"columns": Columns(group="doctor")}, "no training row has a value in column 'doctor'"),
        ("regress", {"frozen_layers": 1, "reinitialised_layers": 1}, "so that some are both"),
        ("classify", {"metric": "subset_accuracy"}, "subset_accuracy is of rows with several labels"),
        ("classify", {"thresholds": "tuned"}, "one of 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, tmp_path, task, settings, what):
    numbers = [{"text": "word1", "label": number} for number in range(3)] * 4
    with pytest.raises(BertsmithError, match=what):
        bertsmith.finetune(task, model, numbers, numbers, tmp_path / "run", settings=replace(QUICK, **settings))
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"warmup": 1.5}, {"learning_rate": 0.0}, {"dropout": 1.0}, {"max_length": 4}, {"seed": -1}]
    + [{"focal": -1.0}, {"label_smoothing": 1.0}, {"focal": 1.0, "label_smoothing": 0.1}, {"bad_share": 0.1}]
    + [{name: 0} for name in ("doc_stride", "max_query_length", "n_best", "max_answer_length")]
    + [{name: math.inf} for name in ("learning_rate", "weight_decay", "focal")]
    + [{"max_gradient_norm": norm} for norm in (-1.0, 9e-7, math.nan)]
    + [{name: math.nan} for name in ("learning_rate", "warmup")],
)
def test_wrong_numbers_are_named(wrong):
    with pytest.raises(BertsmithError, match=next(iter(wrong))):
        FinetuneSettings(**wrong)


def test_a_number_model_has_its_report_with_pictures(model, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.backends.backend_agg")
    numbers = [{"text": " ".join(["lovely"] * count + WORDS[:3]), "label": count} for count in range(1, 9)] * 6
    result = bertsmith.finetune(
        "regress", model, numbers, numbers[:40], tmp_path / "run", settings=replace(QUICK, epochs=2)
    )
    figures = read(tmp_path / "run" / "report" / "dev" / "intervals.json")["figures"]
    pictures = {path.name for path in (tmp_path / "run" / "report" / "dev").glob("*.png")}
    assert pictures == {"calibration.png", "intervals.png"}
    assert figures["pearson"]["value"] == pytest.approx(result.best.score, abs=0.001)
    assert len(read(tmp_path / "run" / "report" / "dev" / "likely_label_errors.json")["likely_label_errors"]) == 20


def test_columns_of_an_older_folder_are_read():
    stored = {"text": "review", "label": "opinion", "header": True, "quoted": None}
    assert Columns.from_json(stored) == Columns(text="review", label="opinion")
