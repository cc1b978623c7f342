"""Sample instances show what a batch holds: the pieces seen, the true ones, the label."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.samples import show_instances
from bertsmith.cli import main
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus

HIDDEN = re.compile(r"\{(\S+)\|(\S+)\}")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    draw = random.Random(3)
    words = ["".join(draw.choices("aeioubdklmnrst", k=draw.randint(3, 7))) for _ in range(200)]
    folder = tmp_path_factory.mktemp("samples")
    lines = [" ".join(f"{' '.join(draw.choices(words, k=9)).capitalize()}." for _ in range(8)) for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(lines))
    options = PrepareOptions(documents="line", workers=1, vocabulary_size=512, shard_tokens=3000, held_out=0.1)
    return prepare(folder / "text.txt", folder / "corpus", options=options)


def shown(text: str) -> list[tuple[int, int, int, list[str], list[str]]]:
    """(slots, asked, label, pieces of A, pieces of B) of each instance."""
    found = []
    for block in re.split(r"\n  (?=\d+ pieces, )", text)[1:]:
        heading, body = block.split("\n", 1)
        slots, asked, label = (int(number) for number in re.findall(r"\d+", heading))
        assert heading.endswith("B is random" if label else "B follows A")
        a, b = body.split("\n    B  ")
        found.append((slots, asked, label, a.removeprefix("    A  ").split(), b.split()))
    return found


def test_instances_are_whole_and_true(corpus: Corpus) -> None:
    instances = shown(show_instances(corpus, 12, 48))
    assert len(instances) == 12
    pieces, shards = corpus.tokenizer().pieces, range(len(corpus.shards("train")))
    texts = [" ".join(pieces[each] for each in corpus.open_shard("train", number).tokens) for number in shards]
    labels = set()
    for slots, asked, label, a, b in instances:
        assert len(a) + len(b) == slots <= 48
        assert asked == sum("|" in piece for piece in (*a, *b)) == max(1, round(slots * 0.15))
        assert (a[0], a[-1], b[-1]) == ("[CLS]", "[SEP]", "[SEP]")
        true_a, true_b = (" ".join(HIDDEN.sub(r"\2", piece) for piece in segment) for segment in (a[1:-1], b[:-1]))
        together = [f"{true_a} {true_b}" in text for text in texts]
        assert any(true_a in text for text in texts)
        assert any(true_b in text for text in texts)
        assert any(together) or label == 1 or slots == 48, "what follows stands behind it, unless it was cut"
        labels.add(label)
    assert labels == {0, 1}
    seen = [HIDDEN.fullmatch(piece)[1] for *_, a, b in instances for piece in (*a, *b) if "|" in piece]
    assert 0.5 < seen.count("[MASK]") / len(seen) < 1


def test_equal_seeds_show_equal_instances(corpus: Corpus) -> None:
    assert show_instances(corpus, 2) == show_instances(corpus, 2)
    assert show_instances(corpus, 2) != show_instances(corpus, 2, seed=1)
    with pytest.raises(BertsmithError, match="sequence length 3"):
        show_instances(corpus, 1, 3)


def test_inspect_prints_all_of_it(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "lengths.png"
    assert (
        main(["inspect", str(corpus.folder), "--samples", "2", "--sequence-length", "64", "--png", str(picture)]) == 0
    )
    printed = capsys.readouterr().out
    for needed in (
        "= kept",
        "share of [UNK]",
        "documents by tokens",
        "the shortest documents",
        "at sequence length 64",
    ):
        assert needed in printed
    assert len(shown(printed)) == 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", str(corpus.folder), "--samples", "0"]) == 0
    assert "next sentence label" not in capsys.readouterr().out


def test_a_picture_without_matplotlib_is_one_message(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert main(["inspect", str(corpus.folder), "--png", str(tmp_path / "a.png")]) == 2
    assert "bertsmith[plots]" in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()
