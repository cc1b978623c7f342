"""A conversation with a person at a terminal, and rows in it that the model refuses."""

import json

from bertsmith.inference.interactive import converse
from bertsmith.inference.predictor import Predictor
from made_heads import made_head


def test_a_row_that_the_model_refuses_is_told_and_the_next_one_answered(tmp_path, capsys):
    predictor = Predictor(made_head("masked words", tmp_path / "model"), "cpu")
    typed = iter(["word1 word2", "word1 [MASK]", ""])
    assert converse(predictor, lambda prompt: next(typed)) == 1
    printed = capsys.readouterr()
    assert "there is no [MASK] in this row" in printed.err
    assert len(json.loads(printed.out)["guesses"]) == 1


def test_a_second_text_that_a_row_may_be_without_is_not_kept(tmp_path, capsys):
    """The first row has two texts, the second one has one."""
    folder = made_head("score", tmp_path / "model")
    (folder / "config_sentence_transformers.json").unlink()  # by which all rows had two
    predictor = Predictor(folder, "cpu")
    typed, prompts = iter(["word1", "word2", "word1", "", ""]), []
    assert converse(predictor, lambda prompt: prompts.append(prompt) or next(typed)) == 2
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == predictor([{"text": "word1", "text_b": "word2"}, {"text": "word1"}])
    assert prompts == ["text: ", "text_b: "] * 2 + ["text: "]


def test_a_person_is_told_how_to_end_and_answered_on_several_lines(tmp_path, monkeypatch, capsys):
    predictor = Predictor(made_head("regress", tmp_path / "model"), "cpu")
    typed, prompts = iter(["word1", ""]), []
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or next(typed))
    assert converse(predictor) == 1
    printed = capsys.readouterr()
    assert prompts == ["text: ", "text: "]
    assert "An empty text ends this.\n" in printed.err
    assert printed.out == json.dumps(json.loads(printed.out), indent=2) + "\n"
