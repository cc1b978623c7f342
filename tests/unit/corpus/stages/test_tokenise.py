"""Words are counted for a vocabulary where they may be seen in training, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.stages.clean import CleanedPart, CleanTask, clean_part
from bertsmith.corpus.stages.tokenise import WordsTask, count_part_words
from bertsmith.rows.lines import Slice


def test_words_are_those_of_documents_that_are_kept_and_not_held_out(tmp_path: Path) -> None:
    lines = [f"word{number} of {'many ' * number}" for number in range(60)]
    source = tmp_path / "lines.txt"
    source.write_text("\n".join(lines))
    slices = (Slice(str(source), source.name, "line"),)
    clean_part(CleanTask(tmp_path / "cleaned", "x", slices, ReadOptions("line"), 1))
    cleaned, kept = CleanedPart.open(tmp_path / "cleaned"), np.arange(60) % 3 != 0
    trained = kept & ~cleaned.held_out(0.5)
    assert 0 < trained.sum() < kept.sum()
    (tmp_path / "chosen").mkdir()
    np.save(tmp_path / "chosen" / "kept.npy", kept)
    folders = (tmp_path / "cleaned", tmp_path / "chosen")
    made = count_part_words(WordsTask(tmp_path / "words", "x", 0, *folders, held_out=0.5, share=1.0, lowercase=True))
    words = json.loads((tmp_path / "words" / "words.json").read_text())
    assert {word for word in words if word[-1].isdigit()} == {f"word{number}" for number in np.flatnonzero(trained)}
    assert made["bytes"] == sum(len(lines[number].strip()) for number in np.flatnonzero(trained))
