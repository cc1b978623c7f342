"""Labels, and the task model's arithmetic."""

import numpy as np
import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.pooled import Classifier, config_labels, names_of_config
from bertsmith.tasks.reading.labels import class_names, label_text
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.registry import answering
from bertsmith.tasks.sequences import Sequences, encode, pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, FolderFacts, Runner
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
CONFIG = BertConfig(
    vocab_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16,
)  # fmt: skip


NONE = Sequences([], *[np.zeros(0, np.int64)] * 3)


def records(*labels):
    return [Record("a", None, label, f"rows.csv:{line}") for line, label in enumerate(labels, start=2)]


def of_dev(task, those, part="dev"):
    counts = np.zeros(len(those), np.int64)
    sequences = Sequences([np.arange(3)] * len(those), counts, counts, np.arange(len(those)))
    return Examples(those, sequences, task.targets(those, sequences), sequences.row_offsets, part)


@pytest.fixture
def classifier():
    model = Classifier(CONFIG, 3)
    initialise(model, 0.3, seed=0)
    return model.eval()


def truths(targets):
    """Rows of one sequence each with these targets."""
    sequences = Sequences(
        [np.arange(3)] * len(targets), *[np.zeros(len(targets), np.int64)] * 2, np.arange(len(targets))
    )
    return Examples(records(*targets), sequences, targets, sequences.row_offsets)


def task_of(*labels, **settings):
    return Classify.of_records(records(*labels), FinetuneSettings(**settings))


def test_labels_are_ordered_as_numbers_or_words():
    assert task_of("10", "9", "-1", "9").names == ("-1", "9", "10")
    assert task_of("b", "10", "a").names == ("10", "a", "b")
    with pytest.raises(BertsmithError, match="1 label"):
        task_of("a", "a")


def test_an_unknown_label_is_named_by_its_row():
    with pytest.raises(BertsmithError) as caught:
        Classify(("cat", "dog")).targets(records("cat", "dgo"), NONE)
    assert caught.value.where == "rows.csv:3"
    assert caught.value.fix.startswith("did you mean 'dog'?")
    assert Classify(("a", "b")).targets(records("b", "a"), NONE).tolist() == [1, 0]


def test_numbers_of_rows_are_fp32_whatever_the_products_are(classifier):
    """In bf16 numbers from 64 to 128 would be told in steps of 1/2."""
    wide = Classifier(CONFIG, 3, torch.bfloat16).eval()
    wide.load_state_dict(classifier.state_dict())
    with torch.no_grad():
        for model in (wide, classifier):
            model.classifier.bias.fill_(70.3)
    records = [Record(text, None, None, text) for text in ("a", "b c", "d e f")]
    inputs = pack(
        encode(records, Tokenizer.from_vocabulary(PIECES, lowercase=True), 8), np.arange(3), torch.device("cpu")
    )
    assert wide(inputs).dtype == torch.float32
    torch.testing.assert_close(wide(inputs), classifier(inputs), atol=0.05, rtol=0)


def test_labels_go_through_a_config_and_back():
    names = [f"label {number}" for number in range(12)]
    assert names_of_config(config_labels(names)) == names
    with pytest.raises(BertsmithError, match="id2label"):
        names_of_config({"id2label": {"0": "a", "2": "b"}})


@pytest.mark.parametrize("more", [{}, {"num_labels": 1}, {"problem_type": "regression"}])
@pytest.mark.parametrize("broken", [3, "ab", [0], []])
def test_labels_that_are_no_object_are_named_whatever_may_read_the_folder(broken, more):
    config = {"architectures": ["BertForSequenceClassification"], "id2label": broken} | more
    with pytest.raises(BertsmithError, match="id2label"):
        answering(config).of_folder(FolderFacts(config, {}, None))


def test_two_labels_without_names_are_called_as_transformers_calls_them():
    assert names_of_config({}) == ["LABEL_0", "LABEL_1"]


def test_labels_without_names_are_as_many_as_the_config_says(monkeypatch):
    said = []
    monkeypatch.setattr("bertsmith.tasks.kinds.pooled.log_choice", lambda *line: said.append(line))
    assert names_of_config({"num_labels": 3}) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert said == [("labels", "LABEL_0 to LABEL_2", "config.json gives their number and no names")]
    assert names_of_config({"num_labels": 3, "id2label": {"0": "a", "1": "b"}}) == ["a", "b"]
    for wrong in ("3", 0, True, 2.0):
        with pytest.raises(BertsmithError, match="num_labels is"):
            names_of_config({"num_labels": wrong})


def test_counts_put_the_most_frequent_first():
    assert list(task_of("a", "b", "b").counts.items()) == [("b", 2), ("a", 1)]


@pytest.mark.parametrize(
    ("value", "text"), [(" x\n", "x"), (1, "1"), (True, "true"), (0.5, "0.5"), ("two words", "two words")]
)
def test_a_label_is_its_text_without_space_around_it(value, text):
    assert label_text(value) == text


@pytest.mark.parametrize("value", [["x", "y"], {"x": 1}, float("nan"), float("inf"), "NaN", " nan ", "1" * 5000])
def test_what_is_no_label_is_refused(value):
    with pytest.raises(ValueError, match="label"):
        label_text(value)


def test_one_number_is_one_class_however_it_is_written():
    task = task_of("1", "1.0", "0", "+1", "-0.0")  # as NumPy rounds -0.3
    assert task.names == ("0", "1")
    assert task.targets(records("1.00", "0.0", "-0"), NONE).tolist() == [1, 0, 0]


def test_labels_that_are_written_differently_stay_apart():
    """Leading zeros, digits of other scripts and numbers past what a float holds."""
    assert task_of("01", "1").names == ("01", "1")
    assert task_of("9007199254740993", "9007199254740992").names == ("9007199254740992", "9007199254740993")
    assert len(task_of("١", "1").names) == 2
    assert len(task_of("1" * 400, "2").names) == 2
    assert task_of("1_0", "inf", "1e3").names == ("1_0", "1e3", "inf")


def test_numpys_numbers_are_labels_and_bytes_are_not():
    assert label_text(np.int64(1)) == "1"
    with pytest.raises(ValueError, match="of type bytes"):
        label_text(b"x")
    for value in (np.inf, float("-inf"), np.float32("nan")):
        with pytest.raises(ValueError, match="not a finite number"):
            label_text(value)


def test_numbers_with_fractions_and_hundreds_of_labels_need_the_users_word():
    with pytest.raises(BertsmithError, match=r"fractions, such as 2\.5") as caught:
        task_of("1", "2.5", "3")
    assert caught.value.where == "rows.csv:2"
    assert "--many-labels" in caught.value.fix
    assert task_of("1", "2.5", "3", many_labels=True).names == ("1", "2.5", "3")
    many = [f"label {number}" for number in range(101)]
    with pytest.raises(BertsmithError, match="101 different labels"):
        class_names(many, "rows.csv", many=False)
    assert len(class_names(many[:100], "rows.csv", many=False)) == 100
    assert len(class_names(many, "rows.csv", many=True)) == 101
    assert len(class_names(many * 10, "rows.csv", many=False)) == 101, "as many intents, each with its sentences"


def test_the_positive_label_is_the_one_named_or_sorts_last_and_is_said():
    assert task_of("no", "yes").positive == "yes"
    task = task_of("entailment", "not_entailment", positive="entailment", metric="binary_f1")
    assert task.positive == "entailment"
    scores = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    assert task.evaluate(scores, truths(np.array([0, 1, 1])))["binary_f1"] == pytest.approx(2 / 3)
    other = task_of("entailment", "not_entailment", metric="binary_f1")
    assert other.evaluate(scores, truths(np.array([0, 0, 1])))["binary_f1"] == pytest.approx(1.0)
    assert any("'not_entailment'" in line and "sorts last" in line for line in other.description())
    with pytest.raises(BertsmithError, match="no training row has the label 'maybe'"):
        task_of("no", "yes", positive="maybe")
    with pytest.raises(BertsmithError, match="with 3 labels"):
        task_of("a", "b", "c", positive="a")
    assert "binary_f1" not in task_of("a", "b", "c").evaluate(np.eye(3, dtype=np.float32), truths(np.arange(3)))


def test_an_unknown_metric_is_named_before_any_work():
    with pytest.raises(BertsmithError, match="metric 'f1' is not one of classify"):
        Classify.metric_of(FinetuneSettings(metric="f1"))


@pytest.mark.parametrize(("pairs", "text_b"), [(True, None), (False, "b")])
def test_one_text_where_two_are_wanted_is_refused_and_the_reverse(pairs, text_b):
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    with pytest.raises(BertsmithError, match="and the training rows have") as caught:
        Classify(("a", "b"), pairs).encode([Record("a", text_b, None, "rows.csv:2")], tokenizer, 16)
    assert caught.value.where == "rows.csv:2"


def test_the_loss_is_a_sum_over_rows_however_they_are_batched(classifier):
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    sequences = encode([Record(text, None, None, "") for text in ("a b c d", "e", "f g")], tokenizer, 16)
    labels, cpu = torch.tensor([0, 2, 1]), torch.device("cpu")

    def gradients(batches):
        classifier.zero_grad()
        losses = [
            Classify(tuple("abc")).loss(classifier, pack(sequences, np.array(each), cpu), labels[each])
            for each in batches
        ]
        sum(each.loss for each in losses).backward()
        return losses, {name: each.grad.clone() for name, each in classifier.named_parameters()}

    (whole,), at_once = gradients([[0, 1, 2]])
    parts, in_parts = gradients([[0, 2], [1]])
    assert int(whole.count) == 3
    torch.testing.assert_close(whole.loss, sum(each.loss for each in parts))
    for name, gradient in at_once.items():
        torch.testing.assert_close(gradient, in_parts[name], rtol=1e-4, atol=1e-6)


def test_scores_keep_the_order_of_the_rows(classifier):
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    texts = ["a", "a b c d e f", "c d", "b " * 9, "h g"]
    sequences = encode([Record(text, None, None, "") for text in texts], tokenizer, 16)
    cpu = torch.device("cpu")
    together = Runner(cpu, budget_tokens=12).scores(classifier, sequences)
    with torch.no_grad():
        alone = [classifier(pack(sequences, np.array([row]), cpu))[0].numpy() for row in range(len(texts))]
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize(
    "stored",
    [{"temperature": 0}, {"temperature": "1"}, {"threshold": -1}, {"threshold": None}, {"temperature_in_weights": 1}],
)
def test_numbers_that_cannot_be_fitted_ones_are_refused(stored):
    with pytest.raises(BertsmithError, match=next(iter(stored))) as caught:
        Classify.of_folder(FolderFacts(config_labels(["a", "b"]), stored, None))
    assert caught.value.where == "task.json"


@pytest.mark.parametrize("stored", [{"positive": "yes", "threshold": 0.3}, {"negative": "yes"}])
def test_a_label_of_another_name_is_refused_where_it_is_wanted(stored):
    """As after labels were renamed in config.json."""
    task = Classify.of_folder(FolderFacts(config_labels(["No", "Yes"]), stored, None))
    with pytest.raises(BertsmithError, match="'yes' is none of this model's labels") as caught:
        task.evaluate(np.eye(2, dtype=np.float32), truths(np.arange(2)))
    assert caught.value.where == "task.json"
    assert "'Yes'" in caught.value.fix


def test_classes_are_weighed_and_drawn_by_their_rows():
    task = task_of("a", "b", "b", "b", class_weights="balanced", sampling="balanced", focal=2.0)
    assert task.rarity.weights == pytest.approx((2, 2 / 3))
    assert task.rarity.gamma == 2
    assert any("class weights: a (2), b (0.667)" in line for line in task.description())
    assert any("rows of an epoch by label: a (2), b (2)" in line for line in task.description())
    those = of_dev(task, records("a", "b", "b", "b"), "train")
    assert sorted(task.order(those, 0, 1).tolist())[:2] == [0, 0]
    plain = task_of("a", "b")
    assert (plain.rarity.is_plain, plain.sampling) == (True, "natural")


@pytest.mark.parametrize(("sampling", "drawn"), [("balanced", "b (2), c (0), a (2)"), ("sqrt", "b (3), c (0), a (1)")])
def test_a_class_that_no_training_row_has_is_neither_weighed_nor_drawn(sampling, drawn):
    task = task_of("a", "b", "b", "b", labels="b,c,a", class_weights="balanced", sampling=sampling)
    assert any("class weights: b (0.667), c (1), a (2)" in line for line in task.description())
    assert any(f"rows of an epoch by label: {drawn}" in line for line in task.description())
    those = of_dev(task, records("a", "b", "b", "b"), "train")
    assert len(task.order(those, 0, 1)) == 4


def test_labels_that_may_stand_for_a_missing_value_are_warned_of(said: pytest.LogCaptureFixture) -> None:
    class_names(["yes", "no", "none", "NaN?"], "rows.csv", many=False)
    class_names(["yes", "no", "NA"], "rows.csv", many=False, given="yes,no,NA")
    assert not said.text
    assert class_names(["yes", "no", "NA", "-"], "rows.csv", many=False) == ["-", "NA", "no", "yes"]
    assert "the label '-' or 'NA' may stand for a missing value; if so, leave out its rows" in said.text
    for labels in ("NULL TRUE FALSE", "NA NO YES", "None Yes No", "NULL EU AS"):
        said.clear()
        class_names(labels.split(), "rows.csv", many=False)
        assert "may stand for a missing value" in said.text


@pytest.mark.parametrize("labels", ["+ -", ". ? ! ,", "NA EU AS AF", "None Mild Moderate Severe"])
def test_classes_that_are_written_as_the_others_are_no_missing_values(labels, said):
    class_names(labels.split(), "rows.csv", many=False)
    assert not said.text


def test_classes_that_a_person_takes_for_one_are_named(said: pytest.LogCaptureFixture) -> None:
    labels = ["Yes", "yes", "no", "No  way", "no way", "caf\u00e9", "cafe\u0301"]
    assert len(class_names(labels, "rows.csv", many=False)) == 7, "they are kept as the user has them"
    assert "'No  way' and 'no way', 'Yes' and 'yes', 'caf" in said.text
    class_names(["a", "a\u200b", "\ufeffb", "b", "b\0"], "rows.csv", many=False)
    assert r"'a' and 'a\u200b', 'b' and 'b\x00' and '\ufeffb'" in said.text
    said.clear()
    class_names(["yes", "no", "007", "7"], "rows.csv", many=False)
    class_names(labels, "rows.csv", many=False, given=",".join(labels))
    assert "alone" not in said.text, "the user has named them one by one"


def test_classes_of_rows_of_two_programs_are_named(said: pytest.LogCaptureFixture) -> None:
    class_names(["no", "Yes", "yes", "2"], "rows.csv", many=False)
    assert "the labels" not in said.text
    assert len(class_names([label_text(each) for each in (True, 1, "1.0", False, 0)], "rows.jsonl", many=False)) == 4
    assert "the labels '0' and 'false', and '1' and 'true' are classes of their own" in said.text


def test_the_log_lists_forty_labels() -> None:
    names = [f"c{number}" for number in range(100)]
    found = [Record("a", None, name, f"row {number}") for number, name in enumerate(names)]
    (line,) = Classify.of_records(found, FinetuneSettings(many_labels=True)).description()
    assert line.endswith(", c38 (1), c39 (1) and 60 more")


@pytest.mark.parametrize(
    ("labels", "mark"),
    [
        (["a", "b", "a|b"], "|"),
        (["x;y", "y; z", "x; z"], ";"),
        (["rock;pop", "rock;jazz", "blues;pop", "blues;jazz"], ";"),  # no two levels are parted by it
        (["a/b", "c"], None),
        (["a|b", "c"], None),  # of which no part stands elsewhere
        (["a", "b"], None),
        (["food/good", "food/bad", "staff/good", "staff/bad"], None),  # of two levels, each with names of its own
    ],
)
def test_classes_that_may_be_several_labels_are_pointed_out(labels, mark, said):
    found = [Record("a", None, label, "row 1") for label in labels]
    Classify.of_records(found, FinetuneSettings())
    assert (f"--columns.label-separator '{mark}'" in said.text) == (mark is not None)
    said.clear()
    Classify.of_records(found, FinetuneSettings(labels=",".join(labels)))
    assert not said.messages


@pytest.mark.parametrize(
    ("labels", "warned"), [("-1 0 1 2", True), ("-1 0 1", False), ("-1 1 2 3", False), ("-1 0 1 2 a", False)]
)
def test_a_class_that_may_stand_for_no_label_is_warned_of(labels, warned, said):
    assert class_names(labels.split(), "rows.csv", many=False) == labels.split()
    assert ("the label '-1' may stand for a missing value" in said.text) == warned
