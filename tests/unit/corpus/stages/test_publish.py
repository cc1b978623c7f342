"""What is published is on the disk before corpus.json says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.base import files
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from made_corpora import OPTIONS, made_text


def test_every_file_is_synced_where_it_is_and_its_folder_before_corpus_json_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut cannot be had here: what would be lost by one is what was never waited for."""
    out, happened, sync, replace = tmp_path / "corpus", list[Path](), files.sync, Path.replace

    def noting_sync(path: Path) -> None:
        happened.append(Path(path))
        sync(path)

    def noting_move(path: Path, target: Path) -> Path:
        if target == out / "corpus.json":
            happened.append(target)
        return replace(path, target)

    monkeypatch.setattr(files, "sync", noting_sync)
    monkeypatch.setattr(Path, "replace", noting_move)
    prepare(made_text(tmp_path / "text.txt"), out, options=PrepareOptions(**OPTIONS, workers=1))
    monkeypatch.undo()
    before = happened[: happened.index(out / "corpus.json")]
    made = out / ".work" / "corpus"
    for split in ("train", "held_out", "tokenizer"):
        assert {made / split / path.name for path in (out / split).iterdir()} <= set(before)
        assert made / split in before
    assert before[-1] == out, "the moves of all the others"
