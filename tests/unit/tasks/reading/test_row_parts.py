"""Dev rows held out of the training rows, and rows that come twice, are counted and named."""

from __future__ import annotations

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.kinds.regress import Regress
from bertsmith.tasks.reading.bad_rows import SkippedRows
from bertsmith.tasks.reading.parts import hold_out, read_parts, warn_of_copies, warn_of_groups
from bertsmith.tasks.reading.records import Columns, Record, RowReader
from bertsmith.tasks.resolve import chosen
from bertsmith.tasks.settings import FinetuneSettings

ROWS = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(40)]


def parts(train, **others):
    return read_parts({"train": train, **others}, Columns(), RowReader, None)


def held_out(train, reader=RowReader, share=0.25, columns=None):
    columns = columns or Columns()
    return hold_out(read_parts({"train": train}, columns, reader, None), columns, reader, share, 7)


class Contextual(RowReader):
    """As questions are read: what stands in one context stays together."""

    @classmethod
    def unit(cls, record):
        return (record.text_b,)

    @classmethod
    def texts(cls, record):
        return record.text, record.text_b, record.id

    @classmethod
    def stratum(cls, record):
        return "all"


def test_rows_are_divided_and_keep_their_order(said):
    found = held_out(ROWS)
    assert list(found) == ["train", "dev"]
    test = hold_out(parts(ROWS, test=ROWS[:3]), Columns(), RowReader, 0.25, 7)
    assert (list(test), len(test["test"]), test["dev"]) == (["train", "dev", "test"], 3, found["dev"])
    assert len(found["dev"]) == 10
    wheres = [int(each.where.removeprefix("row ")) for each in found["dev"]]
    assert wheres == sorted(wheres)
    assert {each.text for each in found["train"] + found["dev"]} == {row["text"] for row in ROWS}
    assert "dev: 10 of 40 rows of train (25%, by label, 40 different texts; seed 7)" in said.text
    held_out([{**row, "text_b": row["text"]} for row in ROWS], Contextual)
    assert "dev: 10 of 40 rows of train (25%, 40 different texts; seed 7)" in said.text, "none has a label to divide by"


def test_texts_that_differ_in_case_and_white_space_stay_together():
    found = held_out([*ROWS, *({**row, "text": f" {row['text'].upper()}  "} for row in ROWS)])
    train, dev = ({each.text.strip().lower() for each in found[part]} for part in ("train", "dev"))
    assert not train & dev
    assert len(found["dev"]) == 20


def test_a_label_that_stays_in_train_is_named(said):
    held_out([*ROWS, {"text": "one", "label": "rare"}])
    assert "dev has no row of these labels, which train has too few of: rare (1)" in said.text


def test_numbers_that_dev_lacks_are_named_as_numbers(said):
    held_out([{"text": f"text {number}", "label": number / 4} for number in range(12)], Regress, share=0.1)
    assert "dev: 1 of 12 rows of train (8.33%, of each fifth of the numbers, 12 different texts; seed 7)" in said.text
    assert "dev has no row with numbers from 0 to 0.5 (3 in train), 2.25 to 2.75 (3 in train), 0.75 to" in said.text
    assert "label" not in said.text


def test_groups_stay_together_and_rows_without_one_by_their_text(said):
    rows = [{**row, "group": "" if number < 8 else number // 4} for number, row in enumerate(ROWS)]
    copies = held_out([*rows, *({"text": f"copy {number % 5}", "label": "a"} for number in range(20))])
    assert not {each.text for each in copies["train"]} & {each.text for each in copies["dev"]}
    assert "8 groups by column 'group' and 28 rows without one" in said.text
    found = held_out(rows)
    groups = [{each.group for each in found[part] if each.group} for part in ("train", "dev")]
    assert not groups[0] & groups[1]
    assert len(groups[0] | groups[1]) == 8
    assert "8 groups by column 'group' and 8 rows without one" in said.text
    named = held_out(
        [{**row, "doctor": number // 4} for number, row in enumerate(ROWS)], columns=Columns(group="doctor")
    )
    assert len({each.group for each in named["dev"]}) * 4 == len(named["dev"])


def test_a_few_values_of_a_column_group_are_no_groups_unless_it_is_named(said):
    rows = [{**row, "group": number % 4, "trial": number % 4} for number, row in enumerate(ROWS)]
    assert {each.group for each in parts(rows)["train"]} == {None}
    assert "column 'group' is not used: 4 values, too few to tell which rows belong together" in said.text
    assert {
        each.group for each in read_parts({"train": rows}, Columns(group="trial"), RowReader, None)["train"]
    } == set("0123")


def test_a_task_says_what_stays_together_and_what_is_a_copy(said):
    rows = [{"text": f"q{number}", "text_b": f"context {number // 4}", "label": "x"} for number in range(40)]
    found = held_out(rows, Contextual)
    contexts = [{each.text_b for each in found[part]} for part in ("train", "dev")]
    assert not contexts[0] & contexts[1]
    twice = [{"text": "q", "text_b": "c", "label": "x", "id": number} for number in range(2)]
    warn_of_copies(parts(twice[:1], dev=twice[1:]), Contextual)
    assert "have the text" not in said.text
    warn_of_copies(parts(twice[:1], dev=twice[1:]), RowReader)
    assert "1 of 1 dev rows have the text of train rows" in said.text


def test_copies_in_all_parts_are_named(said):
    made = {"train": ROWS[:10], "dev": [*ROWS[8:12], {"text": "TEXT 3", "label": "a"}], "test": ROWS[9:14]}
    warn_of_copies(parts(made.pop("train"), **made), RowReader)
    for line in (
        "3 of 5 dev rows have the text of train rows (case and white space aside), so their score may be optimistic",
        "row 5 is row 4 (labelled a, there b)",
        "1 of 5 test rows have the text of train rows",
        "3 of 5 test rows have the text of dev rows",
    ):
        assert line in said.text
    assert "several labels" not in said.text


def test_pairs_are_copies_where_both_texts_are(said):
    one = [{"text": "a", "text_b": "b", "label": "x"}]
    warn_of_copies(parts(one, dev=[{"text": "a", "text_b": "c", "label": "x"}]), RowReader)
    assert "have the text" not in said.text
    warn_of_copies(parts(one, dev=[{"text": "A", "text_b": "b ", "label": "x"}]), RowReader)
    assert "1 of 1 dev rows" in said.text


def test_groups_of_several_parts_are_named(said):
    grouped = [{**row, "group": number // 4} for number, row in enumerate(ROWS)]
    made = parts(grouped[:20], dev=grouped[10:30], test=grouped[36:])
    warn_of_groups(made, "group")
    assert (
        "3 groups of column 'group' with dev rows and train rows, so the score of dev may be optimistic:" in said.text
    )
    assert "2: row 1, row 9" in said.text
    assert "test" not in said.text
    made = parts(
        [{**row, "group": number} for number, row in enumerate(ROWS)],
        dev=[{**row, "group": number} for number, row in enumerate(ROWS)],
    )
    warn_of_groups(made, "group")
    assert "and 35 more" in said.text


@pytest.mark.parametrize("labels", [("1", "0"), (1.5, 2.5), (0, 1)])
def test_texts_with_several_labels_are_named(said, labels):
    records = [Record("same", None, label, f"row {place}") for place, label in enumerate(labels, start=1)]
    warn_of_copies({"train": records}, RowReader)
    assert f"row 1 is labelled {labels[0]}, row 2 {labels[1]}" in said.text


@pytest.mark.parametrize("labels", [("1", "1.0"), (("a",), ("b",)), (None, None)])
def test_labels_that_are_equal_or_lists_do_not_contradict_each_other(said, labels):
    warn_of_copies({"train": [Record("same", None, label, "row 1") for label in labels]}, RowReader)
    assert "several labels" not in said.text


def test_a_part_without_the_line_of_names_is_told_from_a_missing_column(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,1\nb,2\n")
    (tmp_path / "dev.csv").write_text("c,1\nd,2\n")
    with pytest.raises(BertsmithError, match=r"the dev rows have no column of the training rows.*: c \| 1") as caught:
        parts(tmp_path / "train.csv", dev=tmp_path / "dev.csv")
    assert caught.value.where == str(tmp_path / "dev.csv")
    assert "its first line): text, label" in caught.value.fix
    (tmp_path / "dev.jsonl").write_text('{"note": "c", "urgency": "1"}\n')
    with pytest.raises(BertsmithError, match=r"they have: note \| urgency") as caught:
        parts(tmp_path / "train.csv", dev=tmp_path / "dev.jsonl")
    assert caught.value.fix.startswith("name its columns as those"), "a line of names would spoil a file of JSON"
    (tmp_path / "dev.csv").write_text("body,label\nd,2\n")
    with pytest.raises(BertsmithError, match="there is no column 'text'"):
        parts(tmp_path / "train.csv", dev=tmp_path / "dev.csv")


def test_bad_rows_of_all_parts_are_collected_together(tmp_path):
    skipped = SkippedRows(0.5)
    sources = {"train": [*ROWS, {"text": "", "label": "a"}], "dev": [{"text": "x"}, *ROWS[:3]]}
    found = read_parts(sources, Columns(), RowReader, skipped)
    assert [len(each) for each in found.values()] == [40, 3]
    assert [error.what for error, _ in skipped.rows] == ["column 'text' is empty", "there is no column 'label'"]


def test_of_a_kind_that_is_named_the_first_rows_alone_are_read_for_its_columns():
    """Of a large file that is a part of the time of a start."""
    rows = iter([{"sentence": f"this is number {place}", "mood": str(place % 2)} for place in range(3000)])
    _, settings = chosen("classify", {"train": rows}, FinetuneSettings())
    assert (settings.columns.text, settings.columns.label) == ("sentence", "mood")
    assert len(list(rows)) > 1900
