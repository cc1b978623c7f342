"""Promises of a student on a task: what it learns from, what it starts as, and the run that it is."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks import rank
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.distilling import augment
from bertsmith.tasks.finetuning import augmented
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.checkpoints.folders import STATE_FILE
from bertsmith.training.run_folder import Run
from made_kills import Moment
from made_runs import figures, ran, weights
from made_students import PIECES, QUICK, made_bert, made_teacher, rows

TRAIN, DEV = rows(70, 1), rows(24, 2)
STILL = replace(QUICK, dropout=0.0, attention_dropout=0.0)
LABELS_ALONE: dict[str, Any] = {"label_weight": 1.0, "logits_weight": 0.0, "hidden_weight": 0.0}
# 70 rows and as many made ones, in steps of 16; maps from a width of 24 to the teacher's 32; dropout.
ALL = replace(QUICK, dropout=0.2, seeds=2, epochs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distilled")


@pytest.fixture(scope="module")
def bert(folder: Path) -> Path:
    return made_bert(folder / "bert")


@pytest.fixture(scope="module")
def narrow(folder: Path) -> Path:
    return made_bert(folder / "narrow", hidden_size=24)


@pytest.fixture(scope="module")
def teacher(folder: Path, bert: Path) -> Path:
    return made_teacher(folder / "teacher", bert, TRAIN, epochs=4)


def distil(teacher: Path, student: Path | str | None, out: Path | None, **more: Any) -> Any:
    given: dict[str, Any] = {"task": "classify", "train": TRAIN, "dev": DEV, "settings": QUICK}
    return bertsmith.distill(teacher, student, out, **{**given, **more})


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_labels_alone_are_fine_tuning_to_the_bit(teacher: Path, bert: Path, tmp_path: Path) -> None:
    distil(teacher, bert, tmp_path / "student", settings=replace(QUICK, **LABELS_ALONE))
    usual = FinetuneSettings(**{each.name: getattr(QUICK, each.name) for each in fields(FinetuneSettings)})
    bertsmith.finetune("classify", bert, TRAIN, DEV, tmp_path / "tuned", settings=usual)
    student, tuned = Run(tmp_path / "student"), Run(tmp_path / "tuned")
    assert weights(student) == weights(tuned)
    assert figures(student) == figures(tuned)


def test_that_a_teacher_may_have_learned_from_rows_held_out_of_train_is_said(
    teacher: Path, bert: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    for out, dev, is_said in (("drawn", None, True), ("given", DEV, False)):
        said.clear()
        distil(teacher, bert, tmp_path / out, dev=dev, settings=replace(QUICK, max_steps=1))
        assert ("where the teacher has learned from these dev rows" in said.text) is is_said
        assert "figures of folds" not in said.text
    distil(teacher, bert, tmp_path / "folds", settings=replace(QUICK, max_steps=1, folds=2))
    assert "figures of folds are too high where the teacher has learned from the training rows" in said.text


def test_losses_add_up_and_weigh_what_they_are_given(teacher: Path, narrow: Path, tmp_path: Path) -> None:
    once = replace(STILL, max_steps=1)
    distil(teacher, narrow, tmp_path / "one", settings=once)
    distil(teacher, narrow, tmp_path / "two", settings=replace(once, label_weight=1.0, hidden_weight=3.0))
    distil(teacher, narrow, tmp_path / "soft", settings=replace(once, soft_temperature=8.0))
    one, two, soft = (Run(tmp_path / name).metrics("train")[0] for name in ("one", "two", "soft"))
    names = ("classify_loss", "logits_loss", "hidden_loss")
    assert one["loss"] == pytest.approx(sum(one[name] for name in names))
    assert [two[name] / one[name] for name in names] == pytest.approx([2, 1, 3])
    assert min(one[name] for name in names) > 0
    differs = {name: soft[name] != pytest.approx(one[name], rel=1e-3) for name in names}
    assert differs == {"classify_loss": False, "logits_loss": True, "hidden_loss": False}
    assert (one["classify_count"], one["logits_count"]) == (16, 16)
    assert one["hidden_count"] == one["tokens"]


def test_a_student_comes_nearer_to_its_teacher(teacher: Path, narrow: Path, tmp_path: Path) -> None:
    taught = replace(STILL, epochs=8, label_weight=0.0)
    distil(teacher, narrow, tmp_path / "run", settings=taught)
    first, *_, last = Run(tmp_path / "run").metrics("train")
    assert "classify_loss" not in first
    assert last["hidden_loss"] < 0.7 * first["hidden_loss"]
    assert last["logits_loss"] < 0.5 * first["logits_loss"]


def test_layers_of_the_teacher_make_a_smaller_model_that_predicts(
    teacher: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    distil(teacher, None, tmp_path / "run", settings=replace(STILL, student_layers=1, learning_rate=1e-9, max_steps=1))
    assert f"student: layers 2 of 2 of {teacher / 'model'} with the head; teacher: {teacher / 'model'}" in said.text
    assert "losses: classify x 0.5, logits x 1, hidden x 1; layers (student:teacher) 0:0, 1:2" in said.text
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["num_hidden_layers"] == 1
    ours, theirs = tensors(tmp_path / "run"), tensors(teacher)
    for name, each in ours.items():
        assert torch.allclose(each, theirs[name.replace("layer.0.", "layer.1.")], atol=1e-6), name
    assert len(Predictor(tmp_path / "run", "cpu")(DEV)) == len(DEV)


def test_a_folder_that_is_named_has_a_fresh_head_even_where_it_is_the_teacher_s(
    teacher: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    settings = replace(STILL, learning_rate=1e-9, max_steps=1)
    distil(teacher, teacher, tmp_path / "run", settings=settings)
    assert f"student: all layers of {teacher / 'model'}; teacher: {teacher / 'model'}" in said.text
    ours, theirs = tensors(tmp_path / "run"), tensors(teacher)
    equal = {name: torch.allclose(each, theirs[name], atol=1e-6) for name, each in ours.items()}
    assert equal.pop("classifier.weight") is False
    equal.pop("classifier.bias")
    assert all(equal.values())
    with pytest.raises(BertsmithError, match="student was not given, is 'the teacher with its head'"):
        distil(teacher, None, tmp_path / "run", settings=settings, resume=True)


def test_a_student_that_becomes_no_smaller_or_learns_no_answers_is_warned_of(
    teacher: Path, bert: Path, said: pytest.LogCaptureFixture
) -> None:
    hidden_alone = {"label_weight": 0.0, "logits_weight": 0.0, "max_steps": 1}
    distil(teacher, None, None, settings=replace(QUICK, max_steps=1))
    assert "the student is its teacher with all layers, so nothing becomes smaller" in said.text
    assert "have a weight" not in said.text
    said.clear()
    distil(teacher, bert, None, settings=replace(QUICK, **hidden_alone))
    assert "so the student's head stays random, and so is what it answers" in said.text
    assert "nothing becomes smaller" not in said.text
    distil(teacher, None, None, settings=replace(QUICK, student_layers=1, **hidden_alone))
    assert "so the student's head stays the teacher's" in said.text


def test_a_student_of_a_recipe_is_of_its_shape_and_has_no_maps_when_finished(teacher: Path, tmp_path: Path) -> None:
    distil(teacher, "bert-tiny", tmp_path / "run", settings=replace(STILL, max_steps=2))
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert (config["hidden_size"], config["vocab_size"]) == (128, len(PIECES))
    assert not [name for name in tensors(tmp_path / "run") if "map" in name]
    assert "hidden_loss" in Run(tmp_path / "run").metrics("train")[0]
    assert len(Predictor(tmp_path / "run", "cpu")(DEV)) == len(DEV)


def test_made_rows_are_counted_kept_and_have_no_label(teacher: Path, bert: Path, tmp_path: Path) -> None:
    settings = replace(STILL, augment=2, augment_model=str(bert), epochs=1)
    result = distil(teacher, bert, tmp_path / "run", settings=settings)
    lines = (tmp_path / "run" / "augmented.jsonl").read_text(encoding="utf-8").splitlines()
    assert result.rows == {"train": 70, "dev": 24, "augmented": len(lines)}
    assert 70 < len(lines) <= 140
    for line in map(json.loads, lines):
        assert line["text"] != TRAIN[line["row"]]["text"]
        assert len(line["text"].split()) == len(TRAIN[line["row"]]["text"].split())
    written = json.loads((tmp_path / "run" / "finetune.json").read_text(encoding="utf-8"))
    assert (written["train_rows"], written["augmented_rows"]) == (70, len(lines))
    train = Run(tmp_path / "run").metrics("train")
    assert sum(each["classify_count"] for each in train) == 70
    assert sum(each["logits_count"] for each in train) == 70 + len(lines)
    kept = distil(teacher, bert, None, settings=replace(settings, label_augmented=True))
    assert kept.rows == result.rows


def test_made_rows_without_a_label_change_nothing_of_the_loss_of_labels(
    teacher: Path, bert: Path, tmp_path: Path
) -> None:
    almost_alone = {**LABELS_ALONE, "logits_weight": 1e-9}
    settings = replace(STILL, **almost_alone, batch=256, max_steps=1)  # all rows in a step
    distil(teacher, bert, tmp_path / "alone", settings=settings)
    distil(teacher, bert, tmp_path / "made", settings=replace(settings, augment=1, augment_model=str(bert)))
    alone, made = (Run(tmp_path / name).metrics("train")[0] for name in ("alone", "made"))
    for name in ("classify_count", "classify_loss", "gradient_norm"):
        assert made[name] == pytest.approx(alone[name], rel=1e-5), name


def test_what_is_cut_of_made_rows_is_counted_by_itself(
    teacher: Path, bert: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    settings = replace(STILL, augment=2, augment_model=str(bert), max_steps=1, max_length=8)
    result = distil(teacher, bert, tmp_path / "run", settings=settings)
    alone = distil(teacher, bert, None, settings=replace(settings, augment=0, augment_model=None))
    cut = result.truncated
    assert cut["train"] == alone.truncated["train"]
    assert 0 < cut["train"].rows < cut["augmented"].rows < result.rows["augmented"]
    assert cut["augmented"].tokens > cut["train"].tokens
    assert f"{cut['augmented'].rows:,} of them truncated, {cut['augmented'].tokens:,} tokens lost; " in said.text
    assert json.loads((tmp_path / "run" / "finetune.json").read_text())["truncated_rows"] == cut["train"].rows


def test_made_rows_may_keep_the_label_of_their_row(teacher: Path, bert: Path, tmp_path: Path) -> None:
    settings = replace(STILL, **LABELS_ALONE, augment=1, augment_model=str(bert), label_augmented=True, epochs=1)
    result = distil(teacher, bert, tmp_path / "run", settings=settings)
    counts = [each["count"] for each in Run(tmp_path / "run").metrics("train")]
    assert sum(counts) == 70 + result.rows["augmented"]


@pytest.mark.parametrize("mark", ["\u2028", "\u0085"])
def test_texts_with_marks_that_end_a_line_elsewhere_are_made_and_read(
    teacher: Path, bert: Path, tmp_path: Path, mark: str
) -> None:
    marked = [{**row, "text": row["text"].replace(" ", f" {mark} ", 1)} for row in TRAIN[:16]]
    settings = replace(STILL, augment=1, augment_model=str(bert), max_steps=1)
    result = distil(teacher, bert, tmp_path / "run", train=marked, settings=settings)
    lines = (tmp_path / "run" / "augmented.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert result.rows["augmented"] == len(lines) == 16
    assert all(mark in json.loads(line)["text"] for line in lines)


def test_of_made_pairs_both_texts_are_learned(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [{"text": "7 7", "text_b": row["text"], "label": row["label"]} for row in TRAIN[:16]]
    encoded, usual = [], Work.examples
    monkeypatch.setattr(Work, "examples", lambda work, records: encoded.append(records) or usual(work, records))
    settings = replace(STILL, augment=1, augment_model=str(bert), max_steps=1)
    distil(made_teacher(tmp_path, bert, pairs), bert, tmp_path / "run", train=pairs, dev=pairs, settings=settings)
    lines = (tmp_path / "run" / "augmented.jsonl").read_text(encoding="utf-8").splitlines()
    made = [(each["text"], each["text_b"]) for each in map(json.loads, lines)]
    assert [(each.text, each.text_b) for each in encoded[-1]] == [
        *((row["text"], row["text_b"]) for row in pairs),
        *made,
    ]


def student(teacher: Path, narrow: Path, words: Path, out: Path) -> None:
    distil(teacher, narrow, out, settings=replace(ALL, augment=1, augment_model=str(words)), resume=True)


def test_killed_and_resumed_is_unbroken_with_maps_made_rows_and_dropout(
    teacher: Path, narrow: Path, bert: Path, tmp_path: Path
) -> None:
    given = (teacher, narrow, bert)
    student(*given, tmp_path / "unbroken")
    steps = Run(tmp_path / "unbroken").metrics("train")[-1]["step"] // 2
    for step in (3, steps + 3):  # of the first seed, and of the second
        ran(student, 1, *given, tmp_path / "run", kill=Moment(step, 0.0, saved=True))
        state = load_file(step_folders(tmp_path / "run")[-1] / STATE_FILE)
        assert "model.hidden_maps.0.weight" in state
    student(*given, tmp_path / "run")
    resumed, unbroken = Run(tmp_path / "run"), Run(tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_a_resumed_run_whose_made_rows_changed_makes_them_again_or_is_refused(
    teacher: Path, narrow: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (teacher, narrow, bert, tmp_path / "run")
    ran(student, 1, *given, kill=Moment(2, 0.0, saved=True))
    path = tmp_path / "run" / "augmented.jsonl"
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace("am", "en"), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(augmented, "make_rows", lambda *_: augment.Made([(0, "bam", None)]))
        with pytest.raises(BertsmithError, match="making them again gives other ones"):
            student(*given)
    student(*given)
    assert path.read_text(encoding="utf-8") == before


def test_two_ranks_have_the_losses_of_one(teacher: Path, narrow: Path, bert: Path, tmp_path: Path) -> None:
    one, two = Run(tmp_path / "one"), Run(tmp_path / "two")
    still(teacher, narrow, bert, one.folder)
    ran(still, 2, teacher, narrow, bert, two.folder)
    assert len(one.metrics("train")) > 3
    for ours, theirs in zip(two.metrics("train"), one.metrics("train"), strict=True):
        for name in ("loss", "classify_loss", "logits_loss", "hidden_loss", "logits_count", "classify_count"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
    for name, each in tensors(two.folder).items():
        other = tensors(one.folder)[name.replace("key.bias", "key.weight")]
        assert float((each - tensors(one.folder)[name]).norm()) < 1e-5 * float(other.norm()), name


def still(teacher: Path, narrow: Path, words: Path, out: Path) -> None:
    settings = replace(STILL, augment=1, augment_model=str(words), epochs=1, micro_batch_tokens=60)
    distil(teacher, narrow, out, settings=settings, resume=True)


def test_ranks_share_the_making_of_rows(teacher: Path, bert: Path, tmp_path: Path) -> None:
    for ranks in (1, 2):
        ran(in_parts, ranks, teacher, bert, tmp_path / str(ranks))
    one, two = ((tmp_path / str(ranks) / "augmented.jsonl").read_bytes() for ranks in (1, 2))
    assert one == two
    rows = [
        [int(each) for each in (tmp_path / f"{run} by {rank}").read_text().split()]
        for run, rank in (("1", 0), ("2", 0), ("2", 1))
    ]
    assert rows[0] == list(range(70))
    assert rows[1] == [*range(16), *range(32, 48), *range(64, 70)]
    assert sorted(rows[1] + rows[2]) == rows[0]


def in_parts(teacher: Path, words: Path, out: Path) -> None:
    """A run of a step that writes beside its folder which rows this rank made others of."""
    make = augment._made_of

    def told(records: Any, *given: Any) -> Any:
        with open(out.parent / f"{out.name} by {rank()}", "a") as file:
            file.writelines(f"{number}\n" for number, _ in records)
        return make(records, *given)

    augment._ROWS_AT_ONCE, augment._made_of = 16, told
    settings = replace(STILL, augment=2, augment_model=str(words), max_steps=1)
    distil(teacher, words, out, settings=settings, resume=True)


def test_a_run_that_is_ended_while_it_makes_rows_continues_from_there(
    teacher: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [], augment._made_of

    def ended(records: Any, *given: Any) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append([number for number, _ in records])
        return make(records, *given)

    monkeypatch.setattr(augment, "_ROWS_AT_ONCE", 16)
    settings = replace(STILL, augment=2, augment_model=str(bert), max_steps=1)
    whole = distil(teacher, bert, tmp_path / "unbroken", settings=settings)
    monkeypatch.setattr(augment, "_made_of", ended)
    with pytest.raises(KeyboardInterrupt):
        distil(teacher, bert, tmp_path / "run", settings=settings)
    unfinished = tmp_path / "run" / "augmented.unfinished.jsonl"
    with open(unfinished, "a", encoding="utf-8") as file:
        file.write('{"end": 48, "ma')
    made.append([])
    result = distil(teacher, bert, tmp_path / "run", settings=settings, resume=True)
    assert sorted(number for each in made for number in each) == list(range(70))
    assert result.rows == whole.rows
    ours, theirs = ((tmp_path / name / "augmented.jsonl").read_bytes() for name in ("run", "unbroken"))
    assert ours == theirs
    assert not unfinished.exists()


def test_another_teacher_is_another_run(teacher: Path, bert: Path, tmp_path: Path) -> None:
    distil(teacher, bert, tmp_path / "run", settings=replace(STILL, max_steps=1))
    other = made_teacher(tmp_path / "other", bert, TRAIN)
    with pytest.raises(BertsmithError, match=r"teacher\.model\.safetensors was"):
        distil(other, bert, tmp_path / "run", settings=replace(STILL, max_steps=1), resume=True)
