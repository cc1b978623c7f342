"""Which columns hold texts and labels where several have usual names, or none looks like sentences."""

from __future__ import annotations

from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.reading.table import Table
from bertsmith.tasks.reading.texts import text_and_label

SENTENCES = [f"this is sentence number {number} of many" for number in range(12)]
OTHERS = [f"there are other words in line {number}" for number in range(12)]
TWO = ["a", "b"] * 6


def found(**columns: list[Any]) -> dict[str, str]:
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    columns = text_and_label(Table(rows, Columns(), "rows")).columns
    return {part: name for part, (name, _) in columns.items()}


def test_a_label_with_one_value_so_far_is_asked_for() -> None:
    """The first rows of a file in the order of its classes have one of them alone."""
    with pytest.raises(BertsmithError, match="several columns may be the label"):
        found(text=SENTENCES, sentiment=["pos"] * 12, stars=[1, 2] * 6)


def test_numbers_beside_the_names_of_classes_are_not_the_label() -> None:
    assert found(text=SENTENCES, category=TWO, class_index=[1, 2] * 6)["label"] == "category"
    assert found(text=SENTENCES, class_index=[1, 2] * 6)["label"] == "class_index"


@pytest.mark.parametrize("verdicts", [["accept"] * 12, ["accept", "reject", "ignore"] * 4])
def test_verdicts_on_labels_are_not_the_label(verdicts: list[str]) -> None:
    assert found(text=SENTENCES, accept=TWO, answer=verdicts)["label"] == "accept"


def test_the_usual_names_of_a_pair_settle_it() -> None:
    chosen = found(premise=SENTENCES, hypothesis=OTHERS, comment=[each + "!" for each in OTHERS], label=TWO)
    assert (chosen["text"], chosen["text_b"]) == ("premise", "hypothesis")
    with pytest.raises(BertsmithError, match="several columns may be the texts"):
        found(address1=SENTENCES, address2=OTHERS, review=[each + "!" for each in OTHERS], label=TWO)


def test_files_are_not_texts_and_formulas_are() -> None:
    files = [f"talks/{'x' * number}{number}.wav" for number in range(12)]
    with pytest.raises(BertsmithError, match="no column looks like the text"):
        found(recording=files, label=TWO)
    formulas = [f"{'C' * number}(=O)O{number}" for number in range(12)]
    assert found(formula=formulas, label=TWO)["text"] == "formula"
