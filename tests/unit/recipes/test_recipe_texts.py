"""What the recipe's help and the presets' comments say is what the code does."""

from __future__ import annotations

from importlib import resources

import pytest

from bertsmith.cli import main


@pytest.fixture
def help_text(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["pretrain", "bert-tiny", "--help"]) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    "words",
    [
        "The probability that a document is cut to a random shorter length, drawn once per document",
        "orthogonal value and output weights in the last layer",
        "Processes that build batches ahead; 0 builds them in a thread of the main process",
    ],
)
def test_help_says_what_the_code_does(help_text: str, words: str) -> None:
    assert words in help_text


def test_the_preset_of_bert_large_says_where_it_is_not_nvidias() -> None:
    text = (resources.files("bertsmith.recipes") / "presets" / "bert-large-nvlamb.yaml").read_text(encoding="utf-8")
    said = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert "Every number" not in said
    assert "cut at two deviations (0.0176 in effect), while NVIDIA draws from normal(0, 0.02)" in said
