"""Multiple choice: rows, sequences, the loss and its softmax, and answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.kinds.choice import Choice
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.reading.infer import infer
from bertsmith.tasks.reading.records import Columns, read_records
from bertsmith.tasks.sequences import pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import FolderFacts
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
CPU = torch.device("cpu")


def record(row, columns=None, labelled=True):
    return Choice.record(row, columns or Columns(), labelled, "rows.jsonl:1")


def records(counts):
    """A row for each number of choices, whose last choice is right."""
    rows = [{"text": "a b", "choices": list("cdefgh"[:number]), "label": number - 1} for number in counts]
    return read_records(rows, reader=Choice)


class Given(nn.Module):
    """A model whose numbers are given."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor(numbers))

    def forward(self, inputs):
        return self.numbers[: inputs.asked.sequences, None]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"text": "a", "choices": ["b", "c"], "label": 1}, {}),
        ({"text": "a", "choices": '["b", "c"]', "label": "1"}, {}),
        ({"text": "a", "choices": {"text": np.array(["b", "c"]), "label": ["1", "2"]}, "label": "2"}, {}),
        ({"text": "a", "choices": {"text": ["b", "c"], "label": [1, 2]}, "label": 2}, {}),
        ({"text": "a", "choices": '{"text": ["b", "c"], "label": ["A", "c"]}', "label": "c"}, {}),
        ({"text": "a", "choice0": "b", "choice1": "c", "choice3": "", "choice2024": 7, "label": "c"}, {}),
        ({"text": "a", "ending0": "b", "ending1": "c", "label": "1.0"}, {}),
        ({"2": "a", "5": "b", "6": "c", "7": "1"}, {"text": "2", "choices": "5,6", "label": "7"}),
    ],
)
def test_choices_stand_in_a_list_or_in_columns(row, columns):
    found = record(row, Columns(**columns))
    assert (found.text, found.text_b, found.choices, found.label) == ("a", None, ("b", "c"), 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["b", "c"], "label": 2}, "number of a choice, from 0 to 1,.*; choices are counted from 0"),
        ({"choices": ["b", "c"], "label": "C"}, "nor its letter or text$"),
        ({"choices": ["b", "c"], "label": "-1"}, "'-1' is not the number of a choice"),
        ({"choices": ["b", "c"], "label": "d"}, "nor its letter or text$"),
        ({"choices": ["b", "b"], "label": "b"}, "'b' is the text of the choices 0, 1"),
        ({"choices": ["b"], "label": 0}, "there is 1 choice; two are the fewest"),
        ({"choices": [], "label": 0}, "there is no choice; two are the fewest"),
        ({"choice0": "b", "choice1": "", "choice2": "d", "label": 0}, "column 'choice1' is empty"),
        ({"choice0": "b", "choice1": "", "label": 0}, "there is 1 choice; two are the fewest"),
        ({"choice0": "b", "choice1": "c", "choice2": "", "label": 2}, "not the number of a choice, from 0 to 1"),
        ({"choice0": "b", "choice1": "c", "choice3": "d", "label": 0}, "a column 'choice3' and no column 'choice2'$"),
        ({"choices": "b, c", "label": 0}, "holds no list of choices; write one as JSON"),
        ({"choices": 3, "label": 0}, "holds no list of choices"),
        ({"choices": {"text": "b"}, "label": 0}, "holds no list of choices"),
        ({"choices": ["b", " "], "label": 0}, r"column 'choices\[1\]' is empty"),
        ({"label": 0, "A": "b"}, "no column 'choices', nor any choice0.*; found: text, label, A$"),
        ({"choices": ["b", "c"]}, "no label in column 'label'"),
    ],
)
def test_a_bad_row_says_what_is_wrong_with_it(row, message):
    with pytest.raises(ValueError, match=message):
        record({"text": "a", **row})


def test_a_column_of_choices_that_is_not_there_is_named():
    columns = Columns(choices="ending0,ending9")
    row = {"text": "a", "ending0": "b", "label": 0}
    with pytest.raises(BertsmithError, match="no column 'ending9'"):
        read_records([row], columns, reader=Choice)
    with pytest.raises(BertsmithError, match="there is no column 'ending0'") as caught:
        read_records([{"text": "a", "label": 0}], columns, reader=Choice)
    assert "--columns.choices" in caught.value.fix


def test_empty_cells_behind_the_last_choice_are_none_and_their_rows_are_counted(tmp_path, said):
    path = tmp_path / "rows.csv"
    path.write_text("text,A,B,C,D,label\na,b,c,,,B\na,b,c,d,e,D\na,b,c,d, ,C\n")
    found = read_records(path, Columns(choices="A,B,C,D"), reader=Choice)
    assert [(each.choices, each.label) for each in found] == [(tuple("bc"), 1), (tuple("bcde"), 3), (tuple("bcd"), 2)]
    assert f"in 2 of 3 rows the last cells for choices are empty, such as {path}:2" in said.text
    numbered = {"text": "a", "ending0": "b", "ending1": "c", "ending2": None, "label": "c"}
    assert record(numbered).choices == ("b", "c")


def test_each_choice_is_a_sequence_behind_the_start_that_it_continues():
    rows = [{"text": "a", "text_b": "b", "choices": ["c", "d"], "label": 0}]
    task = Choice.of_records(read_records(rows, reader=Choice), FinetuneSettings())
    sequences = task.encode(read_records(rows, reader=Choice), TOKENIZER, 16)
    pieces = [[PIECES[piece] for piece in ids] for ids in sequences.ids]
    assert pieces == [["[CLS]", "a", "[SEP]", "b", last, "[SEP]"] for last in "cd"]
    assert sequences.rows.tolist() == [0, 0]
    assert sequences.first_segments.tolist() == [3, 3]
    with pytest.raises(BertsmithError, match="this row has one text"):
        task.encode(read_records([{**rows[0], "text_b": ""}], reader=Choice), TOKENIZER, 16)


@settings(max_examples=30)
@given(st.lists(st.integers(2, 6), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_loss_is_a_softmax_over_the_choices_of_each_row(counts, draw):
    task = Choice.of_records(records(counts), FinetuneSettings())
    examples = task.examples(records(counts), TOKENIZER, 16)
    # Within 1, so that no loss is so small (0.13 at least) that the rounding of scores in fp32 is beyond the bound.
    numbers = [draw.uniform(-1, 1) for _ in range(sum(counts))]
    model = Given(numbers)
    members, unit = examples.members(np.arange(len(counts)))
    inputs = pack(examples.sequences, members, CPU, unit)
    found = task.loss(model, inputs, torch.from_numpy(np.asarray(examples.targets[np.arange(len(counts))])))
    found.loss.backward()
    other = torch.tensor(numbers, requires_grad=True)
    rows = torch.split(other, counts)
    expected = sum(-torch.log_softmax(row, 0)[-1] for row in rows)
    expected.backward()
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(found.count) == len(counts)
    assert torch.allclose(model.numbers.grad, other.grad, atol=1e-6)
    taught = task.distilled(model(inputs), torch.zeros(len(numbers), 1), inputs, torch.zeros(0), temperature=0.05)
    shares = [(row * 0 + 1 / len(row), (row / 0.05).log_softmax(0)) for row in rows]
    even = sum(torch.nn.functional.kl_div(ours, flat, reduction="sum") for flat, ours in shares)
    assert taught.loss.item() == pytest.approx(0.05**2 * even.item(), rel=1e-4, abs=1e-6)
    right = sum(int(row.argmax()) == len(row) - 1 for row in rows)
    assert int(found.right) == right
    scores = np.array(numbers, dtype=np.float32)[:, None]
    assert task.evaluate(scores, examples)["accuracy"] == pytest.approx(right / len(counts))
    answers = task.answers_of(scores, examples.records, examples.sequences)
    assert [answer["label"] for answer in answers] == [int(row.argmax()) for row in rows]
    for answer, row in zip(answers, rows, strict=True):
        assert answer["scores"] == pytest.approx(torch.softmax(row, 0).tolist(), abs=1e-6)
        assert answer["score"] == max(answer["scores"])
        assert answer["choice"] == "cdefgh"[answer["label"]]


@pytest.mark.usefixtures("no_figures")
def test_the_report_shows_the_choices_of_rows_with_any_number_of_them(tmp_path):
    task = Choice.of_records(records([2, 4, 3]), FinetuneSettings())
    examples = task.examples(records([2, 4, 3]), TOKENIZER, 16)
    task.write(np.array([0, 1, 2, 0, 0, 1, 3, 0, 0], dtype=np.float32)[:, None], examples, tmp_path)
    figures = json.loads((tmp_path / "intervals.json").read_text())["figures"]
    assert figures["accuracy"]["value"] == pytest.approx(1 / 3)
    found = json.loads((tmp_path / "likely_label_errors.json").read_text())["likely_label_errors"]
    assert [(each["where"], each["given"], each["suggested"]) for each in found] == [
        ("row 3", "2: e", "0: c"),
        ("row 2", "3: f", "0: c"),
    ]


def test_labels_that_count_from_one_are_warned_of(said):
    rows = [{"text": "a", "choices": ["b", "c", "d"], "label": label} for label in (1, 2, 1)]
    Choice.of_records(read_records(rows, reader=Choice), FinetuneSettings())
    assert "if labels count from 1" in said.text


def test_a_number_is_the_choices_place_and_where_it_may_be_its_text_is_warned_of(said):
    rows = [{"text": "a", "choices": ["2", "b", "c"], "label": 2}, {"text": "a", "choices": ["b", "1"], "label": "1"}]
    rows += [{"text": "a", "choices": ["b", "2004"], "label": "2004"}, {"text": "a", "choices": ["0", "b"], "label": 0}]
    found = read_records(rows, reader=Choice)
    assert [each.label for each in found] == [2, 1, 1, 0]
    Choice.of_records(found, FinetuneSettings())
    assert "in 1 training row the label is the number of a choice and the text of another, such as row 1" in said.text


def test_a_long_context_is_read_in_windows_beside_each_choice_and_their_numbers_are_joined_by_their_mean():
    rows = [
        {"text": "a b c d e f g h", "choices": ["c d", "b"], "label": 1},
        {"text": "a", "choices": ["d", "c", "b"], "label": 0},
    ]
    made = read_records(rows, reader=Choice)
    task = Choice.of_records(made, FinetuneSettings(windows=True, window_overlap=1))
    assert Choice.of_folder(FolderFacts({}, task.facts(), TOKENIZER)).overlap == 1
    examples = task.examples(made, TOKENIZER, 9)
    read = [" ".join(PIECES[piece] for piece in ids[1:-1]) for ids in examples.sequences.ids]
    long = ["a b c d [SEP] c d", "d e f g [SEP] c d", "g h [SEP] c d", "a b c d e [SEP] b", "e f g h [SEP] b"]
    assert read == [*long, *(f"a [SEP] {choice}" for choice in "dcb")]
    assert examples.sequences.truncated.rows == 0
    numbers = [1.0, 2.0, 6.0, -1.0, 2.0, 0.5, 0.0, 3.0]
    expected = [torch.tensor([3.0, 0.5]), torch.tensor([0.5, 0.0, 3.0])]
    members, unit = examples.members(np.arange(2))
    inputs = pack(examples.sequences, members, CPU, unit)
    model = Given(numbers)
    found = task.loss(model, inputs, torch.tensor([1, 0]))
    found.loss.backward()
    losses = [-torch.log_softmax(row, 0)[right] for row, right in zip(expected, (1, 0), strict=True)]
    assert found.loss.item() == pytest.approx(sum(losses).item(), rel=1e-6)
    of_first = torch.softmax(expected[0], 0)[0] / 3
    assert model.numbers.grad[:3].tolist() == pytest.approx([of_first.item()] * 3, rel=1e-5)
    scores = np.array(numbers, dtype=np.float32)[:, None]
    answers = task.answers_of(scores, examples.records, examples.sequences)
    for answer, row in zip(answers, expected, strict=True):
        assert answer["scores"] == pytest.approx(torch.softmax(row, 0).tolist(), abs=1e-6)
    assert task.evaluate(scores, examples) == {"accuracy": 0.0}


@pytest.mark.parametrize("kind", [Tag, Qa, Classify])
def test_kinds_that_read_in_windows_anyway_say_so(kind, said):
    kind.check(FinetuneSettings())
    kind.check(FinetuneSettings(windows=True))
    line = f"{kind.kind} reads long texts in windows with or without --windows"
    assert said.text.count(line) == (kind is not Classify)


def test_the_baseline_is_the_most_frequent_place():
    rows = [{"text": "a", "choices": ["b", "c"], "label": label} for label in (1, 1, 0)]
    task = Choice.of_records(read_records(rows, reader=Choice), FinetuneSettings())
    assert task.counts == {"1": 2, "0": 1}
    assert task.shown(read_records(rows, reader=Choice)[0]) == "1: c"
    assert task.baseline("accuracy", task.examples(read_records(rows, reader=Choice), TOKENIZER, 16)) == 2 / 3
    assert task.description() == ["rows of up to 2 choices; train rows by the right choice, from 0: 0 (1), 1 (2)"]


def test_rows_whose_labels_are_letters_of_choices_are_not_taken_for_texts_with_classes():
    texts = [f"what is number {number}?" for number in range(30)]
    rows = [{"question": text, "A": text[-3:], "B": "all", "answer": "AB"[len(text) % 2]} for text in texts]
    with pytest.raises(BertsmithError, match="the labels are names of other columns") as caught:
        infer(rows, Columns(), "rows.csv")
    assert "--columns.choices A,B" in caught.value.fix
    assert infer(rows, Columns(choices="A,B"), "rows.csv").kind == "choice"
    scored = [{**row, "A": 0.5, "B": 0.25} for row in rows]
    assert infer(scored, Columns(), "rows.csv").kind == "classify", "columns of how likely each label is"
    listed = [{"question": row["question"], "choices": [row["A"], row["B"]], "answer": row["answer"]} for row in rows]
    assert infer(listed, Columns(), "rows.csv").kind == "choice"
    with pytest.raises(BertsmithError, match="look like letters of choices") as caught:
        infer([{**row, "answer": row["answer"].lower()} for row in listed], Columns(), "rows.csv")
    assert "its letter, from A" in caught.value.fix
    judged = [{**row, "answer": "TF"[len(row["question"]) % 2]} for row in listed]
    assert infer(judged, Columns(), "rows.csv").kind == "classify", "true or false"


def test_letters_name_choices_and_that_is_said(said):
    rows = [{"text": "a", "choices": ["B", "c"], "label": label} for label in ("A", "B", "c")]
    assert [record(row).label for row in rows] == [0, 0, 1], "a text comes before a letter"
    lettered = [{"text": "a", "choices": ["b", "c"], "label": label} for label in ("A", "B")]
    Choice.of_records(read_records(lettered, reader=Choice), FinetuneSettings())
    assert "labels are letters: A is the first choice" in said.text
    Choice.of_records(read_records([*lettered, rows[2]], reader=Choice), FinetuneSettings())
    assert "in 2 of 3 training rows the label is the letter of a choice, such as row 1" in said.text
    said.clear()
    named = [{"text": "a", "choices": {"text": ["1", "0"], "label": ["1", "2"]}, "label": each} for each in ("1", "2")]
    Choice.of_records(read_records(named, reader=Choice), FinetuneSettings())
    assert "A is the first choice, unless a row calls its choices otherwise" in said.text
    assert "the number is taken" not in said.text, "the row's own names are"
