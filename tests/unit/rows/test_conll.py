"""Files of a token a line are read as sentences, whatever their columns, and nothing else is taken for one."""

from __future__ import annotations

import bz2
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsmith.corpus.filters.contamination import IndexTask, make_index
from bertsmith.corpus.filters.evaluation_texts import evaluation_file
from bertsmith.corpus.inspect import inspect
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.rows.conll import conll_rows

FORMS = {
    "tags after tabs": ("train.conll", "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tI-PER\n"),
    "CoNLL-2003": (
        "eng.testa",
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n-DOCSTART- -X- O O\n\n"
        "Peter NNP B-NP B-PER\nBlackburn NNP I-NP I-PER",
    ),
    "BioBERT's tsv, empty lines of a tab": ("test.tsv", "EU\tB\nrejects\tO\n\t\nPeter\tB\nBlackburn\tI\n"),
    "numbered, with comments": (
        "dev.txt",
        "#\thttp://a.b [2009]\n1\tEU\tB-ORG\tO\n2\trejects\tO\tO\n\n"
        "# next\n1\tPeter\tB-PER\tO\n2\tBlackburn\tI-PER\tO\n",
    ),
    "comments that end like a tag": ("a.conll", "# text = Grade: B\nEU\tB-ORG\nrejects\tO\n\nPeter O\nBlackburn O\n"),
    "no suffix, BILOU, Windows line ends": ("test", "EU U-ORG\r\nrejects O\r\n\r\nPeter B-PER\r\nBlackburn L-PER\r\n"),
    "line ends that Windows wrote twice": ("a.txt", "EU O\r\r\nrejects O\r\r\n\r\r\nPeter B-PER\r\r\nBlackburn I-PER"),
    "numbers of sentences": ("a.conll", "#1\nEU B-ORG\nrejects O\n#2\nPeter B-PER\nBlackburn I-PER\n"),
    "line ends of an old Mac": ("train.txt", "EU O\rrejects O\r\rPeter B-PER\rBlackburn I-PER\r"),
    "a byte order mark, and a token of white space": (
        "a.txt",
        "\ufeffEU\tB-ORG\n\xa0\tO\nrejects\tO\n \nPeter\tB-PER\nBlackburn\tI-PER\n\n\n",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_sentences_of_columns(tmp_path: Path, form: str) -> None:
    name, content = FORMS[form]
    for path, raw in ((tmp_path / name, content.encode()), (tmp_path / f"{name}.bz2", bz2.compress(content.encode()))):
        path.write_bytes(raw)
        file = evaluation_file(path)
        assert "CoNLL" in file.read_as
        assert list(file.texts()) == ["EU rejects", "Peter Blackburn"]


@pytest.mark.parametrize(
    ("name", "content", "read_as"),
    [
        ("a.tsv", "sentence\tlabel\nA river O\t1\nB-side\tO\n", "tsv"),
        ("a.txt", "He plays the B-side\nand then an O\n\nof a song in E-minor which nobody knows\n", "text"),
        ("a.txt", "one O\n", "text"),
        ("a.tsv", "What is it?\tB\nWho was it?\tE\n", "tsv"),
        ("a.txt", "", "text"),
        ("a.json", '"EU O"\n', "JSON"),
        ("a.csv", "EU,O\n", "csv"),
    ],
)
def test_what_is_no_conll(tmp_path: Path, name: str, content: str, read_as: str) -> None:
    (tmp_path / name).write_text(content)
    assert evaluation_file(tmp_path / name).read_as == read_as


def test_lines_without_a_tag_further_on_lose_nothing(tmp_path: Path) -> None:
    """A file is told by its beginning."""
    (tmp_path / "a.conll").write_text("a\tO\nb\tO\n\n" * 10_000 + "left\nout\tO\n-DOCSTART-\nend\n")
    texts = list(evaluation_file(tmp_path / "a.conll").texts())
    assert texts[:-2] == ["a b"] * 10_000
    assert texts[-2:] == ["left out", "end"]


def test_tokens_that_are_figures_are_no_numbers_of_tokens() -> None:
    rows = conll_rows([(0, line) for line in b"1 O\n2 O\n3 B-X\n\n1 O\n2 B-X\n".splitlines(keepends=True)])
    assert [each.cells for each in rows] == [[["1", "O"], ["2", "O"], ["3", "B-X"]], [["1", "O"], ["2", "B-X"]]]


SENTENCE = "The quick brown fox , which nobody had seen since March , jumped over the lazy dog again ."


def test_a_sentence_of_columns_is_found_in_running_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "test.conll").write_text("Short O\n. O\n\n" + "".join(f"{word} O\n" for word in SENTENCE.split()))
    held = SENTENCE.replace(" ,", ",").replace(" .", ".")
    lines = [held, "A line about rivers and bridges.", "Another line about mountains and their snow."]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    options = PrepareOptions(
        documents="line", exclude=(tmp_path / "test.conll",), vocabulary_size=320, workers=1, held_out=0.0
    )
    with caplog.at_level("INFO", "bertsmith"):
        corpus = prepare(tmp_path / "text.txt", tmp_path / "corpus", options=options)
    (figures,) = corpus.account["searches"]["contamination"]["files"]
    assert (figures["documents"], figures["texts"], figures["short"]) == (1, 1, 0)
    assert corpus.documents("train") == 2
    told = "read as CoNLL's columns, the tokens of a sentence joined by spaces"
    assert f"test.conll, {told}" in caplog.text
    assert told in inspect(corpus)


def test_the_sentences_of_wnut17(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """As many as the data's authors count."""
    folder = real_data("ner/wnut17")
    for name, count in (("wnut17train.conll", 3394), ("emerging.dev.conll", 1009), ("emerging.test.annotated", 1287)):
        file = evaluation_file(folder / name)
        assert "CoNLL" in file.read_as
        assert len(list(file.texts())) == count
    made = make_index(IndexTask.of(tmp_path, [folder / "emerging.test.annotated"]))
    assert made["files"][0]["texts"] > 1200
    assert made["files"][0]["ngrams"] > 5000
