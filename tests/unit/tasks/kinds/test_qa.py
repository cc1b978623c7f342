"""The span model's arithmetic, and what its folder says."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.tasks.answering import best
from bertsmith.tasks.answering.gold import Gold
from bertsmith.tasks.answering.windows import Windows
from bertsmith.tasks.kinds.qa import Qa, SpanModel, _folds, _losses
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import FolderFacts, Runner
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CONFIG = BertConfig(
    vocab_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16,
)  # fmt: skip


def record(context, *golds, name="q"):
    return Record("a b", context, tuple(golds), "row 1", name)


@pytest.fixture
def model():
    made = SpanModel(CONFIG)
    initialise(made, 0.3, seed=0)
    return made.eval()


def examples(task=None):
    records = [record("c d e f g h a b c", Gold("g h")), record("a b", Gold("b", 2)), record("c d")]
    return (task or Qa(doc_stride=4, unanswerable=True)).examples(records, TOKENIZER, 11)


def test_the_loss_is_the_mean_of_two_cross_entropies_over_the_tokens_of_each_window(model):
    found = examples()
    assert [len(each) for each in found.sequences.ids] == [11, 10, 7, 7]
    units = np.array([3, 1, 0, 2])
    members, unit = found.members(units)
    inputs = pack(found.sequences, members, torch.device("cpu"), unit)
    targets = torch.from_numpy(found.targets[units])
    loss = Qa().loss(model, inputs, targets)
    expected = torch.zeros(())
    for scores, (start, end) in zip(model(inputs).split([7, 10, 11, 7]), targets, strict=True):
        for side, target in ((0, start), (1, end)):
            expected = expected + torch.nn.functional.cross_entropy(scores[None, :, side], target[None]) / 2
    assert loss.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert int(loss.count) == Qa().labels(found.targets[units]) == 4
    ours = torch.autograd.grad(loss.loss, model.qa_outputs.weight)[0]
    theirs = torch.autograd.grad(expected, model.qa_outputs.weight)[0]
    torch.testing.assert_close(ours, theirs)
    likeliest = torch.stack([scores.argmax(0) for scores in model(inputs).split([7, 10, 11, 7])])
    assert float(Qa().loss(model, inputs, likeliest).right) == 4


def test_what_a_teacher_shows_is_the_mean_of_starts_and_ends_over_the_tokens_of_each_window(model):
    found = examples()
    members, unit = found.members(np.arange(4))
    inputs = pack(found.sequences, members, torch.device("cpu"), unit)
    scores = model(inputs).detach()
    teacher = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    loss = Qa().distilled(scores, teacher, inputs, torch.from_numpy(found.targets), 2.0)
    expected = 0.0
    for ours, theirs in zip(scores.split([11, 10, 7, 7]), teacher.split([11, 10, 7, 7]), strict=True):
        logs = [(each / 2).log_softmax(0) for each in (ours, theirs)]
        expected += float(torch.nn.functional.kl_div(*logs, reduction="sum", log_target=True)) * 4 / 2
    assert (float(loss.loss), int(loss.count)) == (pytest.approx(expected, rel=1e-5), 4)


def test_questions_of_a_group_are_in_one_fold():
    records = [replace(record("c"), group=str(number % 7)) for number in range(40)]
    folds = _folds(records)
    assert len({(each.group, fold) for each, fold in zip(records, folds.tolist(), strict=True)}) == 7


def test_windows_are_units_and_their_targets_tokens():
    found = examples()
    assert found.units.tolist() == [0, 1, 2, 3, 4]
    # [CLS] a b [SEP] c d e f g h a [SEP], and then g h a b c: the answer g h is in both.
    assert found.targets.tolist() == [[8, 9], [4, 5], [5, 5], [0, 0]]
    assert found.sequences.rows.tolist() == [0, 0, 1, 2]


def test_scores_are_fp32_whatever_the_products_are(model):
    wide = SpanModel(CONFIG, torch.bfloat16).eval()
    wide.load_state_dict(model.state_dict())
    found = examples()
    inputs = pack(found.sequences, np.arange(4), torch.device("cpu"))
    assert wide(inputs).dtype == torch.float32
    assert wide(inputs).shape == (35, 2)
    torch.testing.assert_close(wide(inputs), model(inputs), atol=0.05, rtol=0.05)


def test_figures_threshold_and_answers_agree(model):
    task = Qa(doc_stride=4, unanswerable=True, tunes=True, top=2)
    found = examples(task)
    scores = Runner(torch.device("cpu"), 64).scores(model, found.sequences, per_token=True)
    tuned = task.tuned(scores, found)
    figures = tuned.evaluate(scores, found)
    assert figures["f1"] == pytest.approx(figures["best_f1"])
    answers = tuned.answers_of(scores, found.records, found.sequences)
    assert [len(each["nbest"]) for each in answers] == [2, 2, 2]
    for each, those in zip(found.records, answers, strict=True):
        assert those["answer"] == ("" if those["start"] is None else each.text_b[those["start"] : those["end"]])
    assert replace(task, tunes=False).tuned(scores, found).threshold == 0.0


@pytest.mark.usefixtures("no_figures")
def test_a_report_of_dev_rows_is_by_thresholds_of_other_questions(tmp_path):
    task = Qa(doc_stride=4, unanswerable=True, tunes=True)
    found = examples(task)
    scores = np.random.default_rng(5).normal(0, 3, (int(found.sequences.lengths.sum()), 2)).astype(np.float32)
    tuned = task.tuned(scores, found)
    for part in ("dev", "test"):
        tuned.write(scores, replace(found, part=part), tmp_path / part)
    dev, test = (json.loads((tmp_path / part / "intervals.json").read_text()) for part in ("dev", "test"))
    figures, by_others = tuned.evaluate(scores, found), tuned.cross_fitted(scores, found)
    assert {name: each["value"] for name, each in dev["figures"].items()}.items() >= by_others.items()
    assert "tuned on other rows" in dev["note"]
    assert "note" not in test
    for name in ("exact_match", "f1", "HasAns_f1", "NoAns_exact"):
        assert test["figures"][name]["value"] == pytest.approx(figures[name])
    assert by_others["f1"] < figures["f1"]
    assert replace(task, tunes=False).cross_fitted(scores, found) == {}


@pytest.mark.usefixtures("no_figures")
def test_the_answers_to_a_question_are_looked_for_once(model, tmp_path, monkeypatch):
    looked = []

    def counted(windows, record, *others):
        looked.append(record)
        return found_by(windows, record, *others)

    found_by = best.best_of
    monkeypatch.setattr(best, "best_of", counted)
    task = Qa(doc_stride=4, unanswerable=True, tunes=True)
    found = replace(examples(task), part="dev")
    scores = Runner(torch.device("cpu"), 64).scores(model, found.sequences, per_token=True)
    tuned = task.tuned(scores, found)
    tuned.write(scores, found, tmp_path)
    figures = tuned.evaluate(scores, found), tuned.cross_fitted(scores, found)
    assert looked == [0, 1, 2]
    others = scores.copy()
    assert (tuned.evaluate(others, found), tuned.cross_fitted(others, found)) == figures
    assert looked == [0, 1, 2] * 2
    replace(tuned, n_best=2).evaluate(others, found)
    assert looked == [0, 1, 2] * 3, "by other rules"
    windows = weakref.ref(found.sequences)
    del found
    assert windows() is not None, "no other ones may take the place in memory that they are known by"
    del scores, others
    assert not best._FOUND, "what is found takes memory no longer than its scores"


def test_the_loss_of_a_question_is_the_mean_over_its_windows(model):
    found = examples()
    scores = Runner(torch.device("cpu"), 64).scores(model, found.sequences, per_token=True)
    targets = torch.from_numpy(found.targets)
    each = [
        Qa().loss(model, pack(found.sequences, np.array([window]), torch.device("cpu")), targets[window : window + 1])
        for window in range(4)
    ]
    windows = [float(one.loss.detach()) for one in each]
    assert _losses(scores, found) == pytest.approx([(windows[0] + windows[1]) / 2, *windows[2:]], rel=1e-5)


def test_where_to_answer_nothing_is_best_nothing_is_answered(model):
    task = Qa(unanswerable=True, tunes=True)
    found = task.examples([record("c d"), record("e f")], TOKENIZER, 11)
    scores = Runner(torch.device("cpu"), 64).scores(model, found.sequences, per_token=True)
    tuned = task.tuned(scores, found)
    assert tuned.evaluate(scores, found)["f1"] == 100.0
    assert [each["answer"] for each in tuned.answers_of(scores, found.records, found.sequences)] == ["", ""]


def test_a_folder_gives_back_what_it_was_told():
    task = Qa(True, -1.25, doc_stride=32, max_query_length=16, n_best=7, max_answer_length=9)
    facts = FolderFacts(task.config(), task.facts(), TOKENIZER, top=3)
    assert Qa.of_folder(facts) == replace(task, top=3)
    assert Qa.of_folder(FolderFacts({}, {}, TOKENIZER)) == Qa(), "a folder of transformers"
    nan = float("nan")
    for wrong in (
        {"n_best": 0}, {"doc_stride": "128"}, {"null_threshold": None}, {"null_threshold": nan}, {"unanswerable": "no"},
    ):  # fmt: skip
        with pytest.raises(BertsmithError, match=next(iter(wrong))):
            Qa.of_folder(FolderFacts({}, wrong, TOKENIZER))


def test_whether_a_question_may_have_no_answer_comes_from_the_rows():
    with_answer, without = record("a b", Gold("b", 2)), record("c d")
    assert not Qa.of_records([with_answer], FinetuneSettings()).unanswerable
    task = Qa.of_records([with_answer, without, without], FinetuneSettings())
    assert task.unanswerable
    assert task.tunes
    assert task.counts == {"with an answer": 1, "without an answer": 2}
    assert Qa.of_records([with_answer], FinetuneSettings(unanswerable=True)).unanswerable
    assert Qa.of_records([with_answer, without], FinetuneSettings(null_threshold=2.0)).threshold == 2.0


def test_an_empty_list_of_rows_has_no_answers():
    assert isinstance(Qa().encode([record("")], TOKENIZER, 11), Windows)


def test_one_best_is_refused_where_a_question_may_have_no_answer() -> None:
    """[CLS] would be the only start of a window that is looked at, and no threshold could choose a span."""
    found = [record("c d", Gold("c", 0)), record("c d")]
    with pytest.raises(BertsmithError, match="n_best is 1 and a question may have no answer"):
        Qa.of_records(found, FinetuneSettings(n_best=1))
    assert Qa.of_records(found[:1], FinetuneSettings(n_best=1)).n_best == 1
    assert Qa.of_records(found, FinetuneSettings(n_best=2)).n_best == 2
