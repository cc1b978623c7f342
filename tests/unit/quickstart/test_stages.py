"""The quickstart on a small text of one's own: every stage, once; interrupted and called again; folders not its own."""

from __future__ import annotations

import io
import itertools
import json
import pydoc_data.topics
import shutil
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.corpus.documents import Document
from bertsmith.corpus.shards import Corpus
from bertsmith.corpus.sources import python_docs
from bertsmith.corpus.sources.python_docs import Collection, Docstring
from bertsmith.inference.predictor import Predictor
from bertsmith.quickstart import quickstart
from bertsmith.quickstart.figures import Figure, classifier_figures
from bertsmith.quickstart.samples import show_classes, show_masked_words
from bertsmith.quickstart.stages import BUDGETS, Quickstart, _ending
from bertsmith.tasks.settings import FinetuneSettings
from made_commands import Command

STAGES = ["prepare", "pre-train", "label", "fine-tune", "control", "predict"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sub-folders of topics of Python's documentation, without the paragraphs that another one has too."""
    folder = tmp_path_factory.mktemp("source") / "texts"
    longest = sorted(pydoc_data.topics.topics.values(), key=len)[-16:]
    seen: set[str] = set()
    for number, text in enumerate(longest):
        fresh = [paragraph for paragraph in text.split("\n\n") if " ".join(paragraph.split()) not in seen]
        seen |= {" ".join(paragraph.split()) for paragraph in fresh}
        path = folder / ("even", "odd")[number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(fresh)[:8000], encoding="utf-8")
    return folder


def interrupted(self: Quickstart, from_scratch: bool) -> None:
    """As by Ctrl-C. No signal is sent: OpenVINO, where an earlier test has used it, may have left a handler of its own
    in a library that is unloaded since."""
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quickstart that was killed while it trained, called again, and then was killed again."""
    out = tmp_path_factory.mktemp("finished") / "quickstart"
    call = ["quickstart", "--source", str(source), "--out", str(out), "--budget", "tiny"]
    with Command(*call) as process:
        while not (out / "pretrained" / "metrics.jsonl").exists():  # until the test's own limit of time
            assert process.poll() is None
            time.sleep(0.005)
    assert list(stages(out)) == ["prepare"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Quickstart, "finetune", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quickstart([str(source)], out, "tiny")
    assert list(stages(out)) == STAGES[:3]
    printed, said = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(said):
        patch.setattr(log, "_said", set())
        assert main(call) == 0
    (out.parent / "output.txt").write_text(said.getvalue() + printed.getvalue(), encoding="utf-8")
    return out


def test_the_output_is_short_and_ends_with_what_to_try_next(finished: Path) -> None:
    lines = (finished.parent / "output.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40, "\n".join(lines)
    assert [line.split(":")[0] for line in lines if line.startswith("== ")] == [f"== {name}" for name in STAGES]
    assert lines[-3] == "Try next:"
    assert all(line.startswith("  bertsmith ") for line in lines[-2:])
    assert "YOUR_TEXTS" not in lines[-1], "this was the user's text already"
    assert not [line for line in lines if line.startswith("warning")]


def test_debug_shows_the_rest(finished: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "stages.json").write_text(without(finished / "stages.json", "predict"), encoding="utf-8")
    call = ["--debug", "quickstart", "--source", str(source), "--out", str(finished), "--budget", "tiny"]
    assert main(call) == 0
    said = capsys.readouterr()
    masked = said.out.split("Classes")[0]
    assert sum(" | " in line for line in masked.splitlines()) == 20, "all of the sentences"
    assert "source: plain text" in said.err
    assert "source: plain text" not in (finished.parent / "output.txt").read_text(encoding="utf-8")


def without(path: Path, stage: str) -> str:
    """The text of a `stages.json` without a stage."""
    found = json.loads(path.read_text(encoding="utf-8"))
    del found[stage]
    return json.dumps(found)


def stages(out: Path) -> dict[str, Any]:
    """The stages that are finished, in their order."""
    found = json.loads((out / "stages.json").read_text(encoding="utf-8"))
    return {name: value for name, value in found.items() if name != "identity"}


def test_every_stage_says_what_went_in_and_out(finished: Path) -> None:
    said = {name: stage["summary"] for name, stage in stages(finished).items()}
    assert list(said) == STAGES
    assert "16 documents" in said["prepare"]
    assert "24 steps" in said["pre-train"]
    assert "2 classes" in said["label"]
    assert "over 2 seeds" in said["fine-tune"]
    assert "20 held-out sentences" in said["predict"]


def test_everything_that_it_names_is_there(finished: Path) -> None:
    for path in ("pretrained/model/model.safetensors", "pretrained/metrics.jsonl", "classifier/model/config.json"):
        assert (finished / path).is_file()
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((finished / "figures.json").read_text(encoding="utf-8"))
    assert len(figures) == 5
    final = [
        json.loads(line)
        for line in (finished / "pretrained" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        if '"final"' in line
    ]
    assert [each["sequence_length"] for each in final] == [128, 512], "the finished model, at the length of each phase"
    assert figures[2]["value"] == final[0]["masked_loss"]
    assert all(each["reached"] in (True, False) for each in figures)


def test_guesses_are_of_held_out_sentences(finished: Path) -> None:
    corpus, predict = Corpus.open(finished / "corpus"), stages(finished)["predict"]
    guesses, decode = predict["guesses"], corpus.tokenizer().decode
    shards = [corpus.open_shard("held_out", index) for index in range(len(corpus.shards("held_out")))]
    pairs = [(shard.tokens, *place) for shard in shards for place in itertools.pairwise(shard.sentence_offsets)]
    sentences = [np.asarray(tokens[begin:end], np.int64) for tokens, begin, end in pairs if 12 <= end - begin <= 48]
    held_out = {without_spaces(decode(ids)) for ids in sentences}
    assert len({each["text"] for each in guesses}) == 20
    right = sum(each["true"] == each["guesses"][0] for each in guesses)
    among = sum(each["true"] in each["guesses"] for each in guesses)
    assert predict["summary"].endswith(f": {right} right, {among} among the best five")
    for each in guesses:
        assert without_spaces(each["text"].replace("[MASK]", each["true"])) in held_out
        assert each["text"].count("[MASK]") == 1
        assert len(each["guesses"]) == 5
        assert each["true"].isalpha()
        assert len(each["true"]) >= 3


def without_spaces(text: str) -> str:
    return "".join(text.split())


def test_masked_words_are_shown_with_the_true_one_in_its_place() -> None:
    guesses = [
        {"text": "one [MASK] three", "true": "two", "guesses": ["two", "ten"]},
        {"text": f"{'long ' * 20}[MASK]{' text' * 20}", "true": "two", "guesses": ["ten", "two"]},
    ]
    first, second = show_masked_words(guesses).splitlines()[-2:]
    assert (first[:3], second[:3]) == (" * ", "   ")
    assert [" ".join(first[3:].split())] == ["one [two] three | two, ten"]
    assert "long [two] text" in second
    assert second.endswith("| ten, two")
    assert first.index("|") == second.index("|")


def test_classes_are_shown_with_what_was_predicted(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "classifier" / "dev.jsonl").read_text("utf-8").splitlines()]
    predicted = Predictor(finished / "classifier" / "model")([{"text": row["text"]} for row in rows])
    _, *lines, _ = show_classes(finished / "classifier" / "model", finished / "classifier" / "dev.jsonl", 999).split(
        "\n"
    )
    for line, row, found in zip(lines, rows, predicted, strict=True):
        star = "*" if found["label"] == row["label"] else " "
        beginning = " ".join(row["text"].split())[:60]
        told = f"{row['label']:>14} | predicted {found['label']:>14} ({found['score']:.2f})"
        assert line == f" {star} {told} | {beginning}"
    few = show_classes(finished / "classifier" / "model", finished / "classifier" / "dev.jsonl", 2).split("\n")
    assert few[1:3] == [lines[0], lines[-1]]


def test_the_classifier_is_compared_with_its_control(finished: Path, source: Path, tmp_path: Path) -> None:
    """Its scores are those of the pre-trained model; here they differ from the control's, as those of the normal budget
    do."""
    copy = shutil.copytree(finished, tmp_path / "copy")
    known = json.loads((copy / "stages.json").read_text("utf-8"))
    known["fine-tune"]["scores"], known["control"]["scores"], known["fine-tune"]["majority"] = [0.9, 0.8], [0.6], 0.5
    (copy / "stages.json").write_text(json.dumps(known), "utf-8")
    found = quickstart([str(source)], copy, "tiny")
    assert found[3:] == classifier_figures([0.9, 0.8], [0.6], 0.5)
    assert json.loads((copy / "figures.json").read_text("utf-8")) == [each.as_record() for each in found]


def test_the_control_alone_is_trained_from_random_weights_and_not_kept(
    finished: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def finetune(task: str, model: Path, *parts: Path | None, settings: FinetuneSettings, resume: bool) -> Any:
        asked.append((task, model, *parts, settings, resume))
        return SimpleNamespace(line=lambda: "", scores=[], baseline=0.0)

    monkeypatch.setattr("bertsmith.quickstart.stages.finetune", finetune)
    work, rows = Quickstart([str(source)], finished, BUDGETS["tiny"]), finished / "classifier"
    for from_scratch in (False, True):
        work.finetune(from_scratch)
    common = ("classify", finished / "pretrained" / "model", rows / "train.jsonl", rows / "dev.jsonl")
    settings = BUDGETS["tiny"].finetune
    assert asked == [
        (*common, rows, settings, True),
        (*common, None, replace(settings, from_scratch=True), False),
    ]
    count = {name: len((rows / f"{name}.jsonl").read_text("utf-8").splitlines()) for name in ("train", "dev")}
    label = stages(finished)["label"]
    assert f"{count['train']:,} rows to train on, {count['dev']:,} to evaluate on" in label["summary"]
    assert count["train"] == label["rows"]
    assert 0 < label["rows"] <= BUDGETS["tiny"].rows.train


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [((0.1, 0.2), "Every bound was reached"), ((0.1, 0.9), "1 of 2 bounds were not reached: the curves show")],
)
def test_the_verdict_of_the_normal_budget(
    bounds: tuple[float, ...], verdict: str, finished: Path, source: Path
) -> None:
    work = Quickstart([str(source)], finished, BUDGETS["tiny"])
    figures = [Figure("a", 0.5, bound, "") for bound in bounds]
    assert _ending(work, "normal", figures, True, 1.0).lstrip().startswith(verdict)


def test_called_again_nothing_is_done_again(finished: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert main(["quickstart", "--source", str(source), "--out", str(finished), "--budget", "tiny"]) == 0
    said = capsys.readouterr()
    assert said.err.count("finished before") == 6
    assert "The tiny budget shows that everything runs" in said.out
    held_out = Corpus.open(finished / "corpus").documents("held_out")
    assert held_out > 1
    assert f"The figures are of only {held_out} held-out documents, so others may give other figures." in said.out
    for part in ("model folder:", "metrics:", "curves:", "figures:", "Try next:"):
        assert part in said.out
    assert said.out.count("  bertsmith ") == 2
    changed = {path.name for path, when in kept.items() if path.stat().st_mtime_ns != when}
    assert changed <= {"figures.json"}


@pytest.mark.parametrize("change", ["source", "budget"])
def test_another_source_or_budget_is_refused(finished: Path, source: Path, tmp_path: Path, change: str) -> None:
    (tmp_path / "other.txt").write_text("Another text than before. " * 50, encoding="utf-8")
    before = (finished / "stages.json").read_bytes()
    with pytest.raises(BertsmithError, match="other sources, another budget") as caught:
        quickstart(
            [str(tmp_path / "other.txt" if change == "source" else source)],
            finished,
            "tiny" if change == "source" else "normal",
        )
    assert "--out" in caught.value.fix
    assert (finished / "stages.json").read_bytes() == before


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_folder_of_something_else_is_left_alone(source: Path, tmp_path: Path, what: str) -> None:
    out = tmp_path / "thesis"
    path = out / "chapter.txt" if what == "folder" else out
    path.parent.mkdir(exist_ok=True)
    path.write_text("years of work", encoding="utf-8")
    with pytest.raises(BertsmithError, match="something else"):
        quickstart([str(source)], out, "tiny")
    assert path.read_text(encoding="utf-8") == "years of work"


def test_a_list_of_stages_that_is_another_program_s_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(BertsmithError, match="other sources, another budget or another version"):
        quickstart([str(source)], tmp_path, "tiny")


def test_a_wrong_source_leaves_the_folder_free(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="nothing at this path"):
        quickstart([str(tmp_path / "nowhere")], tmp_path / "out", "tiny")
    assert not (tmp_path / "out").exists()
    with pytest.raises(BertsmithError, match="this name is not UTF-8"):
        quickstart([str(source)], tmp_path / "\udcff", "tiny")
    assert not list(tmp_path.iterdir())
    Quickstart([str(source)], tmp_path / "out", BUDGETS["tiny"])


def test_enough_documents_are_held_out_and_of_few_a_larger_share(source: Path, tmp_path: Path) -> None:
    def share(texts: Path, name: str) -> float:
        return Quickstart([str(texts)], tmp_path / name, BUDGETS["normal"]).prepare_options.held_out

    def texts(count: int) -> Path:
        folder = tmp_path / f"texts{count}"
        folder.mkdir()
        for number in range(count):
            (folder / f"{number}.txt").write_text(f"text {number}", encoding="utf-8")
        return folder

    assert share(source, "few") == 0.25
    assert share(source / "even" / "0.txt", "one") == BUDGETS["normal"].prepare.held_out
    assert share(texts(100), "some") == 0.2
    assert share(texts(500), "more") == pytest.approx(55 / 500), "so that at least 40 are"
    (tmp_path / "tables").mkdir()
    for number in range(10):
        (tmp_path / "tables" / f"{number}.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n', encoding="utf-8")
    assert share(tmp_path / "tables", "not counted") == BUDGETS["normal"].prepare.held_out


@pytest.mark.parametrize(("modules", "share"), [(1920, 0.04), (420, 55 / 500), (0, 0.2)])
def test_enough_of_pythons_documentation_is_held_out_where_few_packages_are_installed(
    modules: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docstrings = (Docstring(f"module{number}", "python", text) for number in range(modules) for text in ("one", "two"))
    topics = (Document(f"topic:{number}", "text") for number in range(80))
    found = Collection(tuple(docstrings), tuple(topics))
    monkeypatch.setattr(python_docs, "collect", lambda: found)
    assert Quickstart([], tmp_path / "out", BUDGETS["normal"]).prepare_options.held_out == pytest.approx(share)


def test_a_text_without_labels_or_held_out_documents_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n\n".join(sorted(pydoc_data.topics.topics.values(), key=len)[-6:])
    (tmp_path / "one.txt").write_text(text[:60_000], encoding="utf-8")
    assert (
        main(["quickstart", "--source", str(tmp_path / "one.txt"), "--out", str(tmp_path / "q"), "--budget=tiny"]) == 0
    )
    said = capsys.readouterr()
    assert "no classifier is trained: labels are sub-folders or files" in said.err
    assert "no held-out documents" in said.err
    assert len((said.err + said.out).splitlines()) <= 40
    assert list(stages(tmp_path / "q")) == ["prepare", "pre-train", "label", "predict"]
    assert "bertsmith pretrain bert-mini" in said.out
    assert "No document was held out, so what the encoder learned was not measured" in said.out
    assert not [words for words in ("Masked words of", "the bound is") if words in said.out], "no table without rows"
    assert "in 1 document, 0 dropped" in said.err
