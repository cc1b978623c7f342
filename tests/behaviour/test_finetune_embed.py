"""Promises of fine-tuning embeddings: it learns, resumes to the bit, is the same over ranks, and names wrong input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.tasks.reading.records import Columns
from bertsmith.training.run_folder import Run
from made_kills import Moment, drawing
from made_pairs import EXACT, pairs, scored_pairs
from made_rows import QUICK
from made_runs import OF_THE_CLOCK, figures, ran, weights

LAYERS = 1

TRAIN, DEV, SCORED, TEST = pairs(97, 1, negatives=True), pairs(40, 2), scored_pairs(40, 3), pairs(9, 4)
# 97 rows in steps of 24: the last step of an epoch has one row. Most steps are cut into several micro-batches, and
# texts of more than 8 words are read in windows.
SETTINGS = replace(
    EXACT, epochs=2, learning_rate=1e-3, micro_batch_tokens=200, log_every=2, save_every=2, keep=2,
    windows=True, window_overlap=2, max_length=10,
)  # fmt: skip
DROPPING = replace(SETTINGS, dropout=0.2, attention_dropout=0.1)
STEPS = 2 * 5
CLOSE = 1e-5


def tune(model: Path, run: Path, settings: Any) -> None:
    bertsmith.finetune("embed", model, TRAIN, DEV, run, test=TEST, settings=settings, resume=True)


def check_close(found: Run, expected: Run) -> None:
    for ours, theirs in zip(found.metrics(), expected.metrics(), strict=True):
        for name in theirs.keys() - OF_THE_CLOCK - {"kind", "fill", "padding_share", "memory_bytes"}:
            assert ours[name] == pytest.approx(theirs[name], rel=CLOSE), (theirs["kind"], theirs["step"], name)
    ours, theirs = (load_file(run.model / "model.safetensors") for run in (found, expected))
    for name, each in theirs.items():
        of = theirs[name.replace("key.bias", "key.weight")]
        assert float((ours[name] - each).norm()) <= CLOSE * float(of.norm()), name


def test_it_learns_which_texts_are_alike(model: Path) -> None:
    settings = replace(QUICK, epochs=8, batch=32)
    for dev, metric in ((DEV, "mrr"), (SCORED, "spearman")):
        result = bertsmith.finetune("embed", model, pairs(200, 5), dev, None, settings=settings)
        assert result.metric == metric
        first, last = result.seeds[0].epochs[0], result.seeds[0].epochs[-1]
        assert last.train_loss < first.train_loss / 2
        assert result.scores[0] > max(first.dev[metric], 0.8)


def test_killed_and_resumed_is_unbroken(model: Path, tmp_path: Path) -> None:
    draw = drawing()
    tune(model, tmp_path / "unbroken", DROPPING)
    ran(tune, 1, model, tmp_path / "run", DROPPING, kill=Moment(draw.randint(1, STEPS - 2), draw.random() * 0.05))
    assert not Run(tmp_path / "run").is_finished()
    tune(model, tmp_path / "run", DROPPING)
    resumed, unbroken = Run(tmp_path / "run"), Run(tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one process whose steps go through whole."""
    run = tmp_path_factory.mktemp("whole") / "run"
    tune(model, run, replace(SETTINGS, micro_batch_tokens=9999))
    return Run(run)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_end_as_one(whole: Run, model: Path, tmp_path: Path, ranks: int) -> None:
    ran(tune, ranks, model, tmp_path / "run", SETTINGS)
    check_close(Run(tmp_path / "run"), whole)


def test_a_run_moves_from_two_ranks_to_one(whole: Run, model: Path, tmp_path: Path) -> None:
    ran(tune, 2, model, tmp_path / "run", SETTINGS, kill=Moment(4, 0.0, saved=True))
    tune(model, tmp_path / "run", replace(SETTINGS, micro_batch_tokens=300))
    check_close(Run(tmp_path / "run"), whole)
    known = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["begun_on"]
    assert (known["ranks"], known["micro_batch_tokens"]) == ("2, 1", "200, 300")


def test_the_command_line_tunes_evaluates_predicts_and_embeds(model: Path, tmp_path: Path, capsys: Any) -> None:
    for name, rows in (("train", TRAIN), ("dev", SCORED)):
        lines = [json.dumps({"sentence1" if key == "text" else "sentence2" if key == "text_b" else key: value
                             for key, value in row.items()}) for row in rows]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    run, cpu = str(tmp_path / "run"), ["--device", "cpu", "--precision", "fp32"]
    sources = [f"--{name}={tmp_path / name}.jsonl" for name in ("train", "dev")]
    flags = ["--epochs", "1", "--max-length", "32", "--nvidia-results", *cpu]
    assert main(["finetune", "embed", "--model", str(model), *sources, "--out", run, *flags]) == 0
    told = capsys.readouterr().err
    assert "text is column 'sentence1'" in told
    assert "97 pairs of like texts, 48 of them with an unlike one" in told
    assert "spearman selects" in told
    assert "the last step of an epoch has one row" in told
    tuned = json.loads((tmp_path / "run" / "finetune.json").read_text())["tuned"]["dev"]
    assert (tmp_path / "run" / "report" / "dev" / "intervals.json").is_file()
    assert main(["evaluate", run, "--data", f"{tmp_path}/dev.jsonl", "--json", f"{tmp_path}/f.json", *cpu]) == 0
    assert json.loads((tmp_path / "f.json").read_text())["figures"] == pytest.approx(tuned, abs=1e-9)
    for out in ("p.jsonl", "p.csv"):
        assert main(["predict", run, f"{tmp_path}/dev.jsonl", "--out", f"{tmp_path}/{out}", *cpu]) == 0
    found = [json.loads(line)["prediction"]["similarity"] for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert main(["embed", run, f"{tmp_path}/dev.jsonl", "--out", f"{tmp_path}/v.npy", *cpu]) == 0
    first = np.load(tmp_path / "v.npy", allow_pickle=False)
    second = bertsmith.Embedder(run, "cpu", precision="fp32")([row["text_b"] for row in SCORED])
    assert found == pytest.approx((first * second).sum(1).tolist(), abs=1e-5)


def test_texts_that_stand_alone_in_two_parts_are_counted(model: Path, said: pytest.LogCaptureFixture) -> None:
    dev = [*pairs(10, 7), {"text": "word1 word2 word3 word4", "text_b": TRAIN[5]["text_b"]}]
    bertsmith.finetune("embed", model, TRAIN, dev, None, settings=replace(EXACT, epochs=1, batch=24))
    assert "1 of 11 dev rows have one of their texts in train rows, such as row 11" in said.text


def test_folds_shares_seeds_and_held_out_rows_work_as_elsewhere(model: Path, tmp_path: Path) -> None:
    settings = replace(EXACT, epochs=1, folds=3, learning_curve=True, seeds=2, dev_share=0.2, report=True)
    result = bertsmith.finetune("embed", model, TRAIN, None, tmp_path / "run", settings=settings)
    assert (len(result.folds), len(result.shares), len(result.seeds)) == (3, 2, 2)
    assert result.rows["train"] + result.rows["dev"] == 97
    assert (tmp_path / "run" / "report" / "folds" / "intervals.json").is_file()
    again = bertsmith.finetune("embed", model, TRAIN, None, None, settings=settings)
    assert again.scores == result.scores, "one seed gives one score"


@pytest.mark.parametrize(
    ("train", "dev", "changes", "what"),
    [
        (SCORED, DEV, {}, "the training rows have different labels"),
        ([{"text": "word1", "text_b": ""}, *DEV], DEV, {}, "no text_b|is empty|no column"),
        (TRAIN, [*DEV, *SCORED], {}, "this row has a score, and those before it have none"),
        (TRAIN, DEV, {"metric": "spearman"}, "'spearman' is for rows with scores"),
        (TRAIN, DEV, {"metric": "f1"}, "not one of embed"),
        (TRAIN, DEV, {"frozen_layers": 1}, "frozen_layers is 1, which are all, and nothing above them learns"),
        (TRAIN, DEV, {"class_weights": "balanced"}, "embed models do not take class weights"),
        (TRAIN, DEV, {"columns": Columns(negative="unlike")}, "no column 'unlike'"),
        (["word1", "word2"], DEV, {}, "no column|two columns"),
    ],
)
def test_wrong_input_is_named_before_any_training(model, tmp_path, train, dev, changes, what):
    with pytest.raises(BertsmithError, match=what):
        bertsmith.finetune("embed", model, train, dev, tmp_path / "run", settings=replace(EXACT, **changes))
    assert not (tmp_path / "run").exists()


def test_scores_under_another_name_are_not_passed_over_in_silence(model: Path, said: Any) -> None:
    dev = [{"text": row["text"], "text_b": row["text_b"], "likeness": row["label"]} for row in SCORED]
    settings = replace(EXACT, max_steps=1)
    assert bertsmith.finetune("embed", model, TRAIN, dev, None, settings=settings).metric == "mrr"
    assert "columns of the dev rows that are not used: likeness" in said.text
    assert "measured without scores" in said.text
    named = replace(settings, columns=Columns(label="likeness"))
    assert bertsmith.finetune("embed", model, TRAIN, dev, None, settings=named).metric == "spearman"


def test_a_plain_bert_folder_predicts_nothing_and_says_what_does(tmp_path: Path, model: Path) -> None:
    from bertsmith.weights.huggingface import load_encoder, save_encoder

    save_encoder(load_encoder(model), model, tmp_path / "plain")
    with pytest.raises(BertsmithError, match="predicts nothing by itself") as caught:
        bertsmith.Predictor(tmp_path / "plain")
    assert "bertsmith embed" in str(caught.value)


def test_a_finished_folder_can_be_trained_again_and_replaced(model: Path, tmp_path: Path) -> None:
    from bertsmith.weights.huggingface import check_replaceable

    settings = replace(EXACT, epochs=1)
    first = bertsmith.finetune("embed", model, TRAIN, DEV, tmp_path / "run", settings=settings)
    assert first.model is not None
    assert check_replaceable(first.model)
    second = bertsmith.finetune("embed", first.model, TRAIN, DEV, None, settings=settings)
    assert second.seeds[0].epochs[-1].train_loss < first.seeds[0].epochs[-1].train_loss
    (first.model / "1_Pooling").rename(first.model / "notes")
    with pytest.raises(BertsmithError, match="notes"):
        check_replaceable(first.model)
