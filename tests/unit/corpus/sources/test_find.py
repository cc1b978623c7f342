"""Finding the files of what the user names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources import python_docs
from bertsmith.corpus.sources.find import as_sources, find_files
from bertsmith.corpus.sources.kept import PYTHON_DOCS, forget, keep
from bertsmith.corpus.sources.python_docs import Collection, Docstring

OPTIONS = ReadOptions()
PLAIN = "Some text that is long enough to be a document.\n"


@pytest.mark.parametrize("pattern", ["", "**", "**/*.txt", "**/text.txt", "*/*.txt", "*/**/text.txt", "*"])
def test_a_folder_that_may_not_be_read_is_refused_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(PLAIN)
    scandir, closed = os.scandir, str(tmp_path / "b")

    def scanned(path: str) -> Any:
        if str(path) == closed:
            raise PermissionError(13, "Permission denied", closed)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
    with pytest.raises(BertsmithError, match=r"this folder cannot be read .Permission denied.") as raised:
        list(find_files([str(tmp_path / pattern)], OPTIONS))
    assert raised.value.where == closed
    assert len(find_files([str(tmp_path / "*" / "text.txt")], OPTIONS)[0]) == 2, "it need not be listed"
    assert len(find_files([str(tmp_path / "a*" / "*.txt")], OPTIONS)[0]) == 1


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(PLAIN)
    found, passed = find_files([str(path), str(path), str(tmp_path)], OPTIONS)
    assert [file.path for file in found] == [str(path)]
    assert passed["files named twice, read once"].count == 2


def test_the_vocabulary_of_a_tokenizer_among_texts_is_none_of_them(tmp_path: Path) -> None:
    """As of `vocab . --out tokenizer`, or of a model."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text(PLAIN)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "vocab.txt").write_text(PLAIN)
    found, passed = find_files([str(tmp_path)], OPTIONS)
    assert [file.path for file in found] == [str(tmp_path / "vocab.txt")]
    assert passed["vocabularies of tokenizers, skipped"].count == 1
    assert len(find_files([str(tmp_path / "tokenizer" / "vocab.txt")], OPTIONS)[0]) == 1, "where it is named itself"


def test_a_file_that_is_not_read_is_not_read_the_second_time_either(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.html").write_text("<!DOCTYPE html>")
    (tmp_path / "texts" / "b.html").symlink_to(tmp_path / "texts" / "a.html")
    with pytest.raises(BertsmithError, match="holds no file to read"):
        find_files([str(tmp_path / "texts")], OPTIONS)
    (tmp_path / "texts" / "c.txt").write_text(PLAIN)
    with pytest.raises(BertsmithError, match="holds no file to read") as raised:
        find_files([str(tmp_path / "texts"), str(tmp_path / "texts" / "a.html")], OPTIONS)
    assert raised.value.where.endswith("a.html")


def test_an_empty_name_is_no_source() -> None:
    with pytest.raises(BertsmithError, match="a source is given without a name"):
        find_files([""], OPTIONS)


def test_folders_are_walked_sorted_links_followed_loops_left(tmp_path: Path) -> None:
    corpus, other = tmp_path / "corpus", tmp_path / "other"
    for path in (corpus / "b" / "2.txt", corpus / "a" / "1.txt", corpus / ".hidden" / "x.txt", other / "3.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PLAIN + path.name)
    (corpus / "link").symlink_to(other)
    (corpus / "loop").symlink_to(corpus)
    (corpus / "twin.txt").symlink_to(corpus / "a" / "1.txt")
    (corpus / "a" / "dead.txt").symlink_to(corpus / "nothing")
    files, passed = find_files([corpus], OPTIONS)
    assert [file.name for file in files] == ["corpus/twin.txt", "corpus/b/2.txt", "corpus/link/3.txt"]
    assert passed["files named twice, read once"].count == 1
    assert passed["hidden files and folders, skipped"].examples == ["corpus/.hidden"]
    assert passed["broken links and special files, skipped"].examples == ["corpus/a/dead.txt"]


def test_globs_and_the_documentation_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1.txt", "2.txt", "3.md"):
        (tmp_path / name).write_text(PLAIN + name)
    monkeypatch.setattr(python_docs, "collect", lambda: Collection((Docstring("os", "python", "Miscellaneous."),), ()))
    kept, _ = keep([PYTHON_DOCS], tmp_path / "work", "body")
    named = [f"{tmp_path}/*.txt", PYTHON_DOCS]
    files, _ = find_files(named, ReadOptions(text_field="body"), kept)
    assert [(file.name, file.kind) for file in files] == [("1.txt", "file"), ("2.txt", "file"), (PYTHON_DOCS, "jsonl")]
    again, _ = keep([PYTHON_DOCS], tmp_path / "other work", "body")
    assert find_files(named, ReadOptions(text_field="body"), again)[0][2].stamp == files[2].stamp
    forget(kept)
    assert not (tmp_path / "work").exists()
    with pytest.raises(BertsmithError, match="nothing at this path"):
        find_files(named, OPTIONS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / PYTHON_DOCS).write_text(PLAIN)
    assert keep([PYTHON_DOCS], tmp_path / "work", "body")[0] == {}, "a file of that name comes first"


@pytest.mark.parametrize("own", [None, "corpus", "corpus/texts/out"])
def test_a_glob_leaves_out_what_a_folder_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None) -> None:
    """Of texts in the folder of a corpus, too, which are read where their own folder is named."""
    monkeypatch.chdir(tmp_path)
    for name in ("corpus/corpus.json", "corpus/tokenizer/tokenizer.json"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}")
    Path("corpus/texts/out").mkdir(parents=True)
    for name in ("corpus/tokenizer/vocab.txt", "corpus/texts/a.txt"):
        Path(name).write_text(PLAIN + name)
    for source in ("corpus/texts", "corpus/texts/*.txt", "corpus/texts/**", f"{tmp_path}/corpus/texts/*", "**/a.txt"):
        if source == "**/a.txt":
            monkeypatch.chdir("corpus/texts")
        files, _ = find_files([source], OPTIONS, own=own and tmp_path / own)
        assert [Path(file.path).name for file in files] == ["a.txt"]
    monkeypatch.chdir(tmp_path)
    for source in ("corpus", "corpus/**/*.txt", "**/*.txt", f"{tmp_path}/*/*/*"):
        with pytest.raises(BertsmithError, match="holds no file to read"):
            find_files([source], OPTIONS, own=own and tmp_path / own)


def test_missing_and_empty_sources(tmp_path: Path) -> None:
    (tmp_path / "corpora").mkdir()
    with pytest.raises(BertsmithError, match="did you mean 'corpora'"):
        find_files([tmp_path / "corpra"], OPTIONS)
    (tmp_path / ".hidden").touch()
    with pytest.raises(BertsmithError, match=r"known are: corpora$"):
        find_files([tmp_path / "unlike"], OPTIONS)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(BertsmithError, match="this link leads to nothing"):
        find_files([tmp_path / "link"], OPTIONS)
    with pytest.raises(BertsmithError, match="no file to read"):
        find_files([tmp_path / "corpora"], OPTIONS)
    with pytest.raises(BertsmithError, match="no file to read"):
        find_files([f"{tmp_path}/*.txt"], OPTIONS)
    with pytest.raises(BertsmithError, match="no source"):
        find_files([], OPTIONS)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(BertsmithError, match="a pipe or a device") as caught:
        find_files([tmp_path / "pipe.txt"], OPTIONS)
    assert "bertsmith prepare -" in caught.value.fix
    (tmp_path / "text.txt").write_text(PLAIN)
    found, passed = find_files([f"{tmp_path}/*.txt"], OPTIONS)
    assert [file.name for file in found] == ["text.txt"]
    assert passed["broken links and special files, skipped"].examples == ["pipe.txt"]


def test_a_changed_file_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(PLAIN)
    before = find_files([path], OPTIONS)[0][0].stamp
    path.write_text(PLAIN + "more")
    assert find_files([path], OPTIONS)[0][0].stamp != before


class DataFrame(dict[str, list[str]]):
    """As of pandas, which is not installed for the tests: it has columns, and gives their names one after the other."""

    columns = property(list)


def test_a_table_of_pandas_is_no_list_of_sources() -> None:
    table = DataFrame(text=[PLAIN])
    with pytest.raises(BertsmithError, match="sources is of type DataFrame, which is no list of paths") as caught:
        as_sources(table)
    assert "table.to_csv" in caught.value.fix
