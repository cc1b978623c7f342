"""Standard input kept as a file: named by its content, taken up again when nothing comes, left nowhere when wrong."""

from __future__ import annotations

import hashlib
import io
import os
import pty
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.kept import forget, keep, spool

TEXT = b"Some text that is long enough to be a document.\n"


def test_the_name_is_the_hash_of_the_content(tmp_path: Path) -> None:
    path = spool(tmp_path / "work" / "in", io.BytesIO(TEXT))
    assert path.read_bytes() == TEXT
    assert path.name == hashlib.sha256(TEXT).hexdigest()
    assert spool(path.parent, io.BytesIO(TEXT)) == path
    other = spool(path.parent, io.BytesIO(TEXT * 2))
    assert list(path.parent.iterdir()) == [other], "what came before is of no more use"


def test_an_earlier_input_is_taken_up_where_nothing_comes(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    with pytest.raises(BertsmithError, match="standard input is empty"):
        spool(folder, io.BytesIO())
    path = spool(folder, io.BytesIO(TEXT))
    assert spool(folder, io.BytesIO()) == path
    leader, follower = pty.openpty()
    with os.fdopen(follower, "rb") as terminal:
        assert spool(folder, terminal) == path
        with pytest.raises(BertsmithError, match="is a terminal"):
            spool(tmp_path / "other", terminal)
    os.close(leader)


def test_forgetting_leaves_what_others_wrote(tmp_path: Path) -> None:
    kept, _ = keep(["-"], tmp_path / "work", "text", io.BytesIO(TEXT))
    forget(kept)
    assert not (tmp_path / "work").exists()
    kept, _ = keep(["-"], tmp_path / "work", "text", io.BytesIO(TEXT))
    (tmp_path / "work" / "parts").mkdir()
    forget(kept)
    assert [entry.name for entry in (tmp_path / "work").iterdir()] == ["parts"]


def test_it_is_recognised_like_a_file(tmp_path: Path) -> None:
    kept, _ = keep(["-"], tmp_path / "in", "text", io.BytesIO(b'{"text": "x"}\n'))
    (file,), _ = find_files(["-"], ReadOptions(), kept)
    assert (file.kind, file.name, file.stamp) == ("jsonl", "standard-input", kept["-"].path.name)
    again, passed = find_files(["-", "-"], ReadOptions(), kept)
    assert again == [file]
    assert passed["files named twice, read once"].count == 1


@pytest.mark.parametrize("verb", [["vocab", "-"], ["quickstart", "--source", "-"]])
def test_other_verbs_say_what_to_do_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*verb, "--out", "made"]) == 2
    said = capsys.readouterr().err
    assert "standard input cannot be read here" in said
    assert "write it to a file (... > text.txt), and name that" in said
    assert not list(tmp_path.iterdir())
