"""The task and the columns of rows are inferred from names and contents, or refused with the candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.bad_rows import raise_at_once
from bertsmith.tasks.reading.files import Form, rows_of
from bertsmith.tasks.reading.infer import AUTO, infer
from bertsmith.tasks.reading.records import Columns

SENTENCES = [f"this is sentence number {number} of many" for number in range(30)]
OTHERS = [f"another thing, said {number} times over" for number in range(30)]


def table(**columns):
    """Rows of columns, each a list that is repeated to 30 rows."""
    return [{name: values[row % len(values)] for name, values in columns.items()} for row in range(30)]


def read(path, header=True):
    """The rows of a file."""
    return [row for _, row in rows_of(path, Form(header), raise_at_once)]


def inferred(rows, columns=None, kind=AUTO):
    return infer(rows, columns or Columns(), "rows.csv", kind)


def refused(rows, columns=None, kind=AUTO):
    with pytest.raises(BertsmithError) as caught:
        inferred(rows, columns, kind)
    assert caught.value.where == "rows.csv"
    return caught.value


def changed(rows, **options):
    """The kind, and the columns that are not the default ones."""
    found = inferred(rows, **options)
    default = Columns()
    names = {name: value for name, value in vars(found.columns).items() if value != getattr(default, name)}
    assert len(found.reasons) == len(names) + (options.get("kind", AUTO) == AUTO)
    assert all(f"'{value}'" in " ".join(found.reasons) for value in names.values())
    return found.kind, names


LABEL = ["good", "bad"]


@pytest.mark.parametrize(
    ("rows", "kind", "names"),
    [
        (table(text=SENTENCES, label=LABEL), "classify", {}),
        (table(text=SENTENCES, text_b=OTHERS, label=LABEL), "classify", {}),
        (table(text=SENTENCES, title=OTHERS, label=LABEL), "classify", {}),
        (table(Review=SENTENCES, Sentiment=LABEL), "classify", {"text": "Review", "label": "Sentiment"}),
        (table(sentence=SENTENCES, class_=[1, 2]), "classify", {"text": "sentence", "label": "class_"}),
        (table(text=SENTENCES, **{"Class Index": [1, 2]}), "classify", {"label": "Class Index"}),
        (table(text=SENTENCES, accept=[["A"], ["B"]], answer=["accept"]), "classify", {"label": "accept"}),
        (table(remarks=SENTENCES, verdict=LABEL), "classify", {"text": "remarks", "label": "verdict"}),
        (table(remarks=SENTENCES, city=["Rome", "Oslo"], label=LABEL), "classify", {"text": "remarks"}),
        (table(id=SENTENCES, remarks=OTHERS, label=LABEL), "classify", {"text": "remarks"}),
        (table(word=[f"w{number}x{'aei'[number % 3]}" * 2 + "y" for number in range(1)], label=LABEL), None, {}),
        (
            table(sentence1=SENTENCES, sentence2=OTHERS, sentence1_parse=[""], sentence2_parse=[""], label=LABEL),
            "classify",
            {"text": "sentence1", "text_b": "sentence2"},
        ),
        (
            table(premise=SENTENCES, hypothesis=OTHERS, gold_label=LABEL, label1=LABEL),
            "classify",
            {"text": "premise", "text_b": "hypothesis", "label": "gold_label"},
        ),
        (
            table(**{"Text A": SENTENCES, "Text B": OTHERS, "label": LABEL}),
            "classify",
            {"text": "Text A", "text_b": "Text B"},
        ),
        (
            table(s1=SENTENCES, s2=OTHERS, score=[0.5, 2.25]),
            "regress",
            {"text": "s1", "text_b": "s2", "label": "score"},
        ),
        (
            table(question=SENTENCES, passage=OTHERS, answer=[True, False]),
            "classify",
            {"text": "question", "text_b": "passage", "label": "answer"},
        ),
        (table(text=SENTENCES, label=["1.0", "2.0", "3.0"]), "classify", {}),
        (table(text=SENTENCES, label=[1.0, 2.0]), "classify", {}),
        (table(text=SENTENCES, label=["1.5", "2"]), "regress", {}),
        (table(text=SENTENCES, label=[*range(20)]), "classify", {}),
        (table(text=SENTENCES, labels=[["a"], ["a", "b"], []]), "classify", {"label": "labels"}),
        (table(text=SENTENCES, label=[f"intent {number}" for number in range(30)]), "classify", {}),
    ],
)
def test_texts_and_labels(rows, kind, names):
    if kind is None:
        assert "text" in refused(rows).what
    else:
        assert changed(rows) == (kind, names)


def test_a_column_that_most_rows_leave_empty_is_no_label():
    rows = table(remarks=SENTENCES, verdict=LABEL, flag=["new", "old", "", "", ""])
    assert changed(rows) == ("classify", {"text": "remarks", "label": "verdict"})


def test_short_texts_are_taken_where_nothing_else_can_be_the_text():
    rows = table(name=[f"{first}{second}" for first in "abcdef" for second in "uvxyz"], origin=LABEL, label=LABEL)
    assert changed(rows) == ("classify", {"text": "name"})
    formulas = [f"{'C(=O)' * (number % 7)}{number}" for number in range(30)]
    assert changed(table(key=formulas, smiles=formulas, label=LABEL)) == ("classify", {"text": "smiles"})
    assert changed(table(url=formulas, label=LABEL)) == ("classify", {"text": "url"})
    assert "looks like the text" in refused(table(row=[f"row-{number}" for number in range(30)], label=LABEL)).what


WORDS = [["Ann", "sleeps"], ["Rome"]]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (table(tokens=WORDS, tags=[["B-PER", "O"], ["B-LOC"]]), {}),
        (table(id=["1", "2"], tokens=WORDS, pos_tags=[[1, 2], [3]], ner_tags=[[1, 0], [5]]), {"tags": "ner_tags"}),
        (table(words=WORDS, labels=[["B-PER", "O"], ["B-LOC"]]), {"tokens": "words", "tags": "labels"}),
        (table(text=[" ".join(each) for each in WORDS], ner=WORDS, words=WORDS), {"tokens": "words", "tags": "ner"}),
        (table(tokens=["Ann sleeps", "Rome"], tags=["B-PER O", "B-LOC"]), {}),
        (table(parts=WORDS, marks=[["B-PER", "O"], ["B-LOC"]]), {"tokens": "parts", "tags": "marks"}),
        (table(text=SENTENCES, spans=[[{"start": 0, "end": 4, "label": "X"}], []]), {}),
        (table(text=SENTENCES, label=[[[0, 4, "X"]], []]), {"spans": "label"}),
        (table(text=SENTENCES, spans=['[{"start": 0, "end": 4, "label": "X"}]', "[]"]), {}),
        (table(tokens=WORDS, ner_tags=[[0, 1], [2]], label=LABEL), {"tags": "ner_tags"}),
        (table(text=SENTENCES, entities=[[{"start_offset": 0, "end_offset": 4}]]), {"spans": "entities"}),
        (table(content=SENTENCES, entities=[[{"start": 0, "end": 4}]]), {"text": "content", "spans": "entities"}),
    ],
)
def test_tagged_words_and_spans(rows, names):
    assert changed(rows) == ("tag", names)


QUOTED = [[{"text": "another", "answer_start": 0}], []]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (table(question=SENTENCES, context=OTHERS, answers=QUOTED), {}),
        (table(question=SENTENCES, context=OTHERS, answers=[{"text": ["another"], "answer_start": [0]}], id=["a"]), {}),
        (table(question=SENTENCES, passage=OTHERS, answer=["another"]), {"context": "passage", "answers": "answer"}),
        (table(question=SENTENCES, text=OTHERS, answers=[["another"]]), {"context": "text"}),
        (table(query=SENTENCES, context=OTHERS, answers=QUOTED), {"question": "query"}),
    ],
)
def test_questions_about_a_context(rows, names):
    assert changed(rows) == ("qa", names)


ENDINGS = {f"ending{number}": [f"ends so, {number} of four {word}" for word in "abc"] for number in range(4)}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (
            table(sent1=SENTENCES, sent2=["She"], **ENDINGS, label=[0, 1, 2, 3]),
            {"text": "sent1", "text_b": "sent2"},  # such columns are read whatever their number
        ),
        (
            table(premise=SENTENCES, question=["cause", "effect"], choice0=["a"], choice1=["b"], label=[0, 1]),
            {"text": "premise"},
        ),
        (table(text=SENTENCES, choice0=["a"], choice1=["b"], label=["a", "b"]), {}),  # the right one by its text
        (table(text=SENTENCES, choice0=["a"], choice1=["b"], label=[1, 2]), {}),  # from 1, which the reader names
        (table(text=SENTENCES, choices=[{"text": ["a", "b"], "label": ["B", 20]}], label=["B", 20]), {}),
        (table(startphrase=SENTENCES, choices=[["a", "b"]], answer=[0, 1]), {"text": "startphrase", "label": "answer"}),
        (
            table(question=SENTENCES, **{f"Option {letter}": OTHERS for letter in "BA"}, answer=["A", "B"]),
            {"text": "question", "choices": "Option A,Option B", "label": "answer"},
        ),
        (
            table(context=SENTENCES, question=OTHERS, choices=[["a", "b"]], answer=["0", "1"], answers=[["zz", "yy"]]),
            {"text": "context", "text_b": "question", "label": "answer"},
        ),
        (
            table(context=SENTENCES, question=OTHERS, options=[["a", "b", "c"]], label=[0, 2]),
            {"text": "context", "text_b": "question", "choices": "options"},
        ),
    ],
)
def test_choices(rows, names):
    assert changed(rows) == ("choice", names)


def test_a_named_task_decides_what_is_looked_for():
    rows = table(tokens=WORDS, tags=[["B-PER", "O"], ["B-LOC"]], sentence=SENTENCES, label=["1", "2"])
    assert changed(rows)[0] == "tag"
    assert changed(rows, kind="classify") == ("classify", {"text": "sentence"})
    assert changed(rows, kind="regress") == ("regress", {"text": "sentence"})


def test_columns_that_the_user_named_are_kept():
    rows = table(text=SENTENCES, body=OTHERS, mark=LABEL, label=LABEL)
    assert inferred(rows, Columns(text="body", label="mark")).columns == Columns(text="body", label="mark")
    assert inferred(table(one=SENTENCES, two=OTHERS, label=LABEL), Columns(text="two")).columns.text == "two"
    pair = inferred(table(one=SENTENCES, two=OTHERS, label=LABEL), Columns(text="two", text_b="one")).columns
    assert (pair.text, pair.text_b) == ("two", "one")
    numbered = Columns(text="2", choices="3,4", label="1")
    rows = table(**{"1": [0, 1], "2": SENTENCES, "3": OTHERS, "4": OTHERS})
    assert inferred(rows, replace(numbered, header=False)).kind == "choice"


@pytest.mark.parametrize(
    ("rows", "what", "named", "flags"),
    [
        (
            table(title=OTHERS, story=SENTENCES, label=LABEL),
            "several columns may be the text",
            ["'title' (another thing, said 0...", "'story'"],
            "--columns.text and --columns.text-b",
        ),
        (table(line1=SENTENCES, line2=OTHERS, review=OTHERS, label=LABEL), "may be the texts", ["'review'"], "text-b"),
        (table(question=SENTENCES, reply=OTHERS, label=LABEL), "columns may be the text", ["'reply'"], "text-b"),
        (table(review=SENTENCES, summary=OTHERS, label=LABEL), "several columns may", ["'summary'"], "text"),
        (
            table(text=SENTENCES, category=LABEL, sentiment=LABEL),
            "several columns may be the label",
            ["'category' (good, bad)", "'sentiment'"],
            "--columns.label",
        ),
        (table(text=SENTENCES, colour=LABEL, size=["1", "2"]), "several columns may be the label", ["'size'"], "label"),
        (table(text=SENTENCES, note=OTHERS), "no column looks like the label", ["'note'"], "--columns.label"),
        (table(text=SENTENCES, **{"": LABEL}), "may be the label has no name", ["'' (good, bad)"], "give it one"),
        (table(text=SENTENCES), "there is no column for the label beside 'text'", [], "a text and a label"),
        (table(mark=["a", "b"], label=LABEL), "no column looks like the text", ["'mark'"], "--columns.text"),
        (table(s1=SENTENCES, s2=OTHERS, s3=SENTENCES, label=LABEL), "more than two texts", ["'s3'"], "the task choice"),
        (table(text=SENTENCES, label=[*range(30)]), "30 different whole numbers", ["'label'"], "classify or regress"),
        (table(text=SENTENCES, label=["1,5", "2,0"]), "a decimal comma", ["'label' (1,5, 2,0)"], "with a point"),
        (table(text=SENTENCES, label=["5%", *(f"${n},500.5" for n in range(30))]), "amounts", ["'label'"], "plain"),
        (table(word=list("abcdefghijklmnop"), tag=["O", "B-x"]), "tags of words", ["'tag' (O, B-x)"], "each sentence"),
        (table(text=SENTENCES, label=[{"a": 1}]), "holds no labels", ["'label'"], "--columns.label"),
        (table(text=SENTENCES, label=[None]), "holds no labels", ["'label' (empty)"], "--columns.label"),
    ],
)
def test_what_is_not_clear_is_refused_with_the_candidates(rows, what, named, flags):
    error = refused(rows)
    assert what in error.what
    assert all(each in error.what for each in named)
    assert flags in error.fix


@pytest.mark.parametrize("part", ["text", "text_b", "label"])
def test_a_column_that_the_user_named_and_is_not_there(part):
    error = refused(table(text=SENTENCES, label=LABEL), Columns(**{part: "boddy"}))
    assert "there is no column 'boddy'" in error.what
    assert "'label' (good, bad)" in error.what


@pytest.mark.parametrize(("kind", "flag"), [("tag", "tokens"), ("qa", "question"), ("choice", "choices")])
def test_a_named_task_whose_columns_are_missing(kind, flag):
    error = refused(table(text=SENTENCES, label=LABEL), kind=kind)
    assert error.what.startswith(f"{kind} needs")
    assert f"--columns.{flag}" in error.fix


def test_a_first_line_that_is_a_row_is_seen():
    rows = table(**{"I liked it a lot": SENTENCES, "good": LABEL})
    error = refused(rows)
    assert "'good' is a value of its own column" in error.what
    assert "--columns.no-header" in error.fix
    assert "'negative' is a value" in refused(table(negative=["negative"], **{"I liked it": SENTENCES})).what
    assert inferred(table(text=SENTENCES, good=LABEL)).columns.label == "good", "a name may also be one of the classes"


def test_a_separator_of_labels_makes_classes_of_numbers():
    rows = table(text=SENTENCES, label=["1,5", "2,0", "0.5"])
    assert inferred(rows, Columns(label_separator=",")).kind == "classify"


EIGHT = [["w"] * 8, ["w"] * 3]
TAGGED = [["O"] * 8, ["B-X", "O", "O"]]
SPANS = [[{"start": 0, "end": 4, "label": "X"}], []]


@pytest.mark.parametrize(
    ("rows", "bad", "kind"),
    [
        (table(question=SENTENCES, choices=[["a", "b", "c", "d"]], label=[0, 1, 2, 3]), {"label": 7}, "choice"),
        (table(question=SENTENCES, **ENDINGS, label=["0", "3"]), {"label": "none"}, "choice"),
        (table(question=SENTENCES, **ENDINGS, label=["0", "3"]), {"label": "1" * 5000}, "choice"),
        (table(question=SENTENCES, choices=[[3, 4.5, 10, "12"]], label=[1, 2, 3, 4]), {}, "choice"),
        (table(question=SENTENCES, choices=[["a", "b"], ["b", "c"]], label=["a", "c"]), {"label": "x"}, "choice"),
        (table(tokens=EIGHT, tags=TAGGED), {"tags": ["O"] * 7}, "tag"),
        (table(words=EIGHT, ner_tags=TAGGED), {"ner_tags": ["O"] * 7}, "tag"),
        (table(text=SENTENCES, spans=SPANS), {"spans": "[1, 2"}, "tag"),
        (table(text=SENTENCES, spans=['[{"start": 0, "end": 4, "label": "X"}]', "[]"]), {"spans": "[1, 2"}, "tag"),
        (table(text=SENTENCES, label=[number / 7 for number in range(1, 30)]), {"label": "n/a"}, "regress"),
        (table(text=SENTENCES, label=["0.5", "1.5"]), {"label": "n/a"}, "regress"),
        (table(question=SENTENCES, context=OTHERS, answers=QUOTED), {"answers": [{"text": "nowhere"}]}, "qa"),
        (table(question=SENTENCES, context=OTHERS, answers=[[{"text": "nowhere"}]]), {}, "qa"),
        (table(question=SENTENCES, context=OTHERS, answers=[f"nowhere {n}" for n in range(30)]), {}, "qa"),
    ],
)
def test_a_bad_row_does_not_change_the_task(rows, bad, kind):
    expected = inferred(rows)
    assert expected.kind == kind
    found = inferred([*rows[:3], {**rows[3], **bad}, *rows[4:]])
    assert (found.kind, found.columns) == (kind, expected.columns)


def test_what_most_rows_do_not_show_is_no_task():
    few = table(text=SENTENCES, choices=[["a", "b"]], label=["fine", "bad", "1"])
    assert inferred(few).kind == "classify"
    assert inferred(table(text=SENTENCES, tokens=EIGHT, tags=[["news"]], label=LABEL)).kind == "classify"
    assert inferred(table(text=SENTENCES, tokens=[12, 13], tags=[["news"]], label=LABEL)).kind == "classify"
    assert inferred(table(text=SENTENCES, label=["0.5", "low", "1.5"])).kind == "classify"
    assert inferred(table(text=SENTENCES, spans=[[]], tokens=[[{"id": 1}]], label=LABEL)).kind == "classify"
    assert inferred(table(text=SENTENCES, label=["a", "b"], **{"": [""]})).kind == "classify", "commas at line ends"
    yes_or_no = table(question=SENTENCES, context=OTHERS, answers=["yes", "no"], label=LABEL)
    assert inferred(yes_or_no, Columns(text="question", text_b="context")).kind == "classify"


def test_a_column_for_each_label():
    rows = table(text=SENTENCES, toxic=[0, 1], threat=["0", "1", "0"], spam=[0])
    assert "--columns.label toxic,threat,spam" in refused(rows).fix
    found = inferred(rows, Columns(label="toxic,spam"))
    assert (found.kind, found.columns.label) == ("classify", "toxic,spam")
    assert "toxic, spam" in found.reasons[0]
    lacking = refused(table(text=SENTENCES, toxic=[0, 1]), Columns(label="toxic,spam"))
    assert "there is no column 'toxic,spam'" in lacking.what
    exact = inferred(table(text=SENTENCES, **{"a,b": LABEL, "a": [0], "b": [1]}), Columns(label="a,b"))
    assert "2 different labels in 'a,b'" in exact.reasons[0], "a column of that very name comes first"


@pytest.mark.parametrize("more", [{}, {"negative": SENTENCES[::-1]}])
def test_pairs_without_a_label_are_pointed_to_embed(more):
    assert "name the task embed" in refused(table(anchor=SENTENCES, positive=OTHERS, **more)).fix


def test_how_alike_pairs_are_is_a_label_under_its_usual_names():
    pairs = table(sentence1=SENTENCES, sentence2=OTHERS, rank=[1, 2])
    for name in ("label", "score"):  # which the dev rows may have
        assert inferred(pairs, Columns(label=name), kind="embed").columns.label == name
    assert inferred([{**row, "Score": 2.5} for row in pairs], kind="embed").columns.label == "Score"


def test_all_labels_count_and_not_the_first_ones_alone():
    rows = [{"text": f"sentence number {row} of many", "label": row % 3} for row in range(1500)]
    assert inferred(rows).kind == "classify"
    assert inferred([*rows, {"text": "the last one of them", "label": 0.5}]).kind == "regress"


@pytest.mark.parametrize(
    ("part", "kind", "names"),
    [
        ("glue/WNLI/train.tsv", "classify", {"text": "sentence1", "text_b": "sentence2"}),
        ("glue/SST-2/dev.tsv", "classify", {"text": "sentence"}),
        ("glue/MRPC/train.tsv", "classify", {"text": "#1 String", "text_b": "#2 String", "label": "Quality"}),
        (
            "glue/QQP-subset/train.tsv",
            "classify",
            {"text": "question1", "text_b": "question2", "label": "is_duplicate"},
        ),
        (
            "glue/MNLI-subset/dev_matched.tsv",
            "classify",
            {"text": "sentence1", "text_b": "sentence2", "label": "gold_label"},
        ),
        ("glue/QNLI/dev.tsv", "classify", {"text": "question", "text_b": "sentence"}),
        ("glue/STS-B/dev.tsv", "regress", {"text": "sentence1", "text_b": "sentence2", "label": "score"}),
        ("ner/wnut17/emerging.dev.conll", "tag", {}),
        ("ner/wnut17/emerging.test.annotated", "tag", {}),
        ("squad/v1.1/dev-v1.1.json", "qa", {}),
        ("squad/v2.0/dev-subset-v2.0.json", "qa", {}),
        ("swag/swag-subset/swag.jsonl", "choice", {"text": "startphrase", "label": "answer"}),
    ],
)
def test_layouts_of_real_files(real_data, part, kind, names):
    rows = read(real_data(part))
    assert changed(rows) == (kind, names)


def test_cola_has_no_header_and_two_columns_of_few_values(real_data):
    rows = read(real_data("glue/CoLA/train.tsv"))
    assert "'gj04' is a value of its own column" in refused(rows).what
    rows = read(real_data("glue/CoLA/train.tsv"), header=False)
    error = refused(rows, Columns(header=False))
    assert "'1' (gj04, cj99, bc01)" in error.what
    assert "'2' (1, 0)" in error.what
    assert inferred(rows, Columns(header=False, label="2")).columns == Columns(header=False, label="2", text="4")


def test_rows_without_labels_are_refused(real_data):
    assert "no column looks like the label" in refused(read(real_data("glue/diagnostic/diagnostic.tsv"))).what
