"""Rows of which a model reads no token that it knows are answered, and named in a warning."""

import pytest

import bertsmith
from bertsmith.cli import main

NOTHING = "\x01\u200b"


def warnings(log):
    return [record.getMessage() for record in log.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("kind", ["predictor", "embedder"])
def test_a_call_from_python_warns_of_rows_of_which_nothing_is_read(kind, model, caplog):
    if kind == "predictor":
        call = bertsmith.Predictor(model, "cpu", precision="fp32").for_likelihood()
    else:
        call = bertsmith.Embedder(model, "cpu", precision="fp32")
    assert len(call(["word1", "word2 \U0001f600"])) == 2
    assert len(call([])) == 0
    assert not warnings(caplog)
    assert len(call(["word1", "\U0001f600", {"text": NOTHING}, "\u4e2d"])) == 4
    end = "; the answer says nothing of such a text"
    assert warnings(caplog) == [
        f"warning: rows with a text without any token: 1 of 4, such as row 3{end}",
        f"warning: rows with a text of which the vocabulary has nothing ([UNK] alone): 2 of 4, such as row 2{end}",
    ]


def test_a_row_from_a_prompt_is_warned_of(model, monkeypatch, capsys):
    lines = iter(["\U0001f600 \U0001f601", ""])
    monkeypatch.setattr(
        "sys.stdin", type("Lines", (), {"isatty": lambda _: False, "readline": lambda _: next(lines)})()
    )
    assert main(["predict", str(model), "--likelihood", "--interactive", "--device", "cpu"]) == 0
    said = "rows with a text of which the vocabulary has nothing ([UNK] alone): 1 of 1, such as row 1"
    assert said in capsys.readouterr().err
