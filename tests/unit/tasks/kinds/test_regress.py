"""Numbers: what is said of their size before any training, and of each row in a report."""

import json

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.evaluate import evaluate
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.kinds.regress import Regress
from bertsmith.tasks.reading.records import read_records
from made_heads import made_head
from made_rows import QUICK, WORDS

ROWS = [{"text": " ".join(WORDS[: number + 1]), "label": -1.7e9 - 60 * number} for number in range(4)]


def test_numbers_far_below_0_are_named_as_those_far_above_are(said):
    Regress.of_records(read_records(ROWS, reader=Regress), QUICK)
    assert "the labels are as large as 1.7e+09" in said.text
    assert "a model tells such numbers in steps of 128 (fp32)" in said.text
    with pytest.raises(BertsmithError, match=r"the label '-1e\+?39' is beyond"):
        read_records([*ROWS, {"text": "word1", "label": -1e39}], reader=Regress)


@pytest.mark.usefixtures("no_figures")
def test_a_report_tells_what_was_given_from_what_was_predicted(tmp_path):
    folder = made_head("regress", tmp_path / "model")
    evaluate(folder, ROWS, report=tmp_path / "report", device="cpu", precision="fp32")
    found = json.loads((tmp_path / "report" / "likely_label_errors.json").read_text())["likely_label_errors"]
    numbers = [each["number"] for each in Predictor(folder, "cpu", precision="fp32")(ROWS)]
    expected = {row["text"]: (row["label"], number) for row, number in zip(ROWS, numbers, strict=True)}
    assert {each["text"]: (each["given"], each["suggested"]) for each in found} == {
        text: pytest.approx(both) for text, both in expected.items()
    }
