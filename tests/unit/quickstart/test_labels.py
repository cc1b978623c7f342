"""Labelled rows out of a text itself: what is a label, what parts train from dev, and why there may be none."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources import python_docs
from bertsmith.quickstart import labels as labels_module
from bertsmith.quickstart.labels import _NAMES, Labelled, RowCounts, Unlabelled, rows_of_docstrings, rows_of_sources

OPTIONS = ReadOptions("file", "text", False)
ROWS = RowCounts(60, 30)
NAMES = ("python", "cpython", "numpy", "np", "torch", "pytorch", "scipy", "sklearn", "scikit-learn", "matplotlib")
_numbers = itertools.count()

LIMITS = "; passages of 20 to 60 words, from the first 1,000 or 2.0 MB of each label"


def paragraphs(count: int, words: int = 30, about: str = "word") -> str:
    """Paragraphs of words of which no two in a test run are alike."""
    return "\n\n".join(" ".join(f"{about}{next(_numbers)}" for _ in range(words)) for _ in range(count))


def write(folder: Path, texts: dict[str, str]) -> Path:
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def labelled(sources: list[str], seed: int = 1) -> Labelled:
    found = rows_of_sources(sources, OPTIONS, ROWS, seed)
    assert isinstance(found, Labelled), found
    return found


def labels(found: Labelled) -> set[str]:
    assert {row["label"] for row in found.train} == {row["label"] for row in found.dev}
    return {name(row) for row in found.train}


def name(row: dict[str, str]) -> str:
    """A row's label without the folders before it."""
    return Path(row["label"]).name


@pytest.fixture(scope="module")
def docstrings() -> Iterator[Labelled]:
    """Of some modules of some packages: to read all of them takes ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_docs, "PACKAGES", ("numpy", "torch"))
        patch.setattr(python_docs, "MOST_SOURCE_BYTES", 400_000)
        python_docs.collect.cache_clear()
        found = rows_of_docstrings(RowCounts(400, 200), seed=1)
        assert isinstance(found, Labelled), found
        yield found
    python_docs.collect.cache_clear()


def test_docstrings_of_a_module_are_on_one_side(docstrings: Labelled) -> None:
    modules: dict[str, set[str]] = {}
    hide = re.compile(r"\W+|\[MASK\]")

    def bare(text: str) -> str:
        return " ".join(word for word in hide.split(text) if word and word != "MASK")[:120]

    for each in python_docs.collect().docstrings:
        modules.setdefault(bare(each.text), set()).add(f"{each.package}/{each.module}")
    sides = []
    for rows in (docstrings.train, docstrings.dev):
        found = [modules[bare(row["text"])] for row in rows if bare(row["text"]) in modules]
        assert len(found) > 20, "rows without a name in them are found again as they were"
        sides.append(set().union(*(each for each in found if len(each) == 1)))
    assert not sides[0] & sides[1]


def test_docstrings_hide_every_packages_names_and_have_20_words(docstrings: Labelled) -> None:
    shown = re.compile(rf"\b({'|'.join(map(re.escape, NAMES))})\b", re.IGNORECASE)
    rows = docstrings.train + docstrings.dev
    assert any("[MASK]" in row["text"] for row in rows)
    assert set(_NAMES.sub("[MASK]", " ".join(NAMES)).split()) == {"[MASK]"}, "also of packages that are not read here"
    assert "names of packages masked" in docstrings.rule
    for row in rows:
        assert not shown.search(row["text"]), row["text"]
        assert 20 <= len(row["text"].split()) <= 60


def test_docstrings_have_about_even_labels_and_repeat_by_seed(docstrings: Labelled) -> None:
    counts = Counter(row["label"] for row in docstrings.train)
    assert set(counts) == {"python", "numpy", "torch"}
    assert max(counts.values()) <= 400 // len(counts)
    assert rows_of_docstrings(RowCounts(400, 200), seed=1) == docstrings
    assert rows_of_docstrings(RowCounts(400, 200), seed=2) != docstrings


@pytest.mark.parametrize("spelling", ["plain", "slash", "relative", "link"])
def test_sub_folders_are_labels(tmp_path: Path, spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {f"{label}/{n}.txt": paragraphs(6, about=label) for label in ("law", "sea", "sun") for n in range(4)}
    source = write(tmp_path / "texts", texts)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to(source, target_is_directory=True)
    spelled = {"plain": str(source), "slash": f"{source}/", "relative": "texts", "link": str(tmp_path / "linked")}
    found = labelled([spelled[spelling]])
    assert labels(found) == {"law", "sea", "sun"}
    assert "sub-folder" in found.question
    assert found.rule == "parted by document" + LIMITS
    for row in found.train + found.dev:
        assert row["text"].startswith(row["label"])


def test_no_document_is_on_both_sides(tmp_path: Path) -> None:
    """Each document has words of its own, so its rows tell where they are from."""
    texts = {f"{label}/{n}.txt": paragraphs(6, about=f"{label}x{n}y") for label in ("a", "b") for n in range(6)}
    found = labelled([str(write(tmp_path / "texts", texts))])
    sides = [{row["text"].split("y")[0] for row in rows} for rows in (found.train, found.dev)]
    assert all(sides)
    assert not sides[0] & sides[1]


def test_a_document_may_be_called_as_it_likes(tmp_path: Path) -> None:
    """Its id ends as the names do of what is parted by place; that decides nothing."""
    ids = [*map(str, range(6)), "last fifth", "a: last fifth"]
    for label in ("a", "b"):
        rows = [
            {"id": name, "text": " ".join(paragraphs(1, about=f"{label}{n}x").split())} for n, name in enumerate(ids)
        ]
        write(tmp_path / "texts", {f"{label}/rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    found = labelled([str(tmp_path / "texts")])
    assert found.rule.startswith("parted by document;")
    for label in ("a", "b"):
        counts = [sum(row["label"] == label for row in rows) for rows in (found.train, found.dev)]
        assert counts == [5, 3], "a third of the documents"


def test_files_are_labels_where_there_are_no_sub_folders_and_one_document_is_parted_by_place(tmp_path: Path) -> None:
    source = write(tmp_path / "texts", {f"{book}.txt": paragraphs(20, about=book) for book in ("moby", "emma")})
    found = labelled([str(source)])
    assert labels(found) == {"moby.txt", "emma.txt"}
    assert "file" in found.question
    assert "last fifth" in found.rule
    for label in labels(found):
        last = {
            side: [int(re.findall(r"\d+", row["text"])[0]) for row in rows if name(row) == label]
            for side, rows in (("train", found.train), ("dev", found.dev))
        }
        assert len(last["dev"]) == 4, "a fifth of 20 paragraphs"
        assert max(last["train"]) < min(last["dev"]), "what is evaluated on lies behind what is trained on"


def test_several_sources_are_labelled_by_file(tmp_path: Path) -> None:
    write(tmp_path, {"one.txt": paragraphs(10), "two.txt": paragraphs(10)})
    assert len(labels(labelled([str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]))) == 2


def test_a_file_beside_sub_folders_makes_files_the_labels(tmp_path: Path) -> None:
    texts = {"top.txt": paragraphs(8), "in/a.txt": paragraphs(8), "in/b.txt": paragraphs(8), "on/c.txt": paragraphs(8)}
    assert len(labels(labelled([str(write(tmp_path / "texts", texts))]))) == 4


@pytest.mark.parametrize(("files", "reason"), [(1, "1 file"), (51, "51 files")])
def test_too_few_or_too_many_labels_are_none(tmp_path: Path, files: int, reason: str) -> None:
    source = write(tmp_path / "texts", {f"{number}.txt": paragraphs(3) for number in range(files)})
    found = rows_of_sources([str(source)], OPTIONS, ROWS, 1)
    assert isinstance(found, Unlabelled)
    assert reason in found.reason
    assert "2 to 50" in found.reason


def test_fifty_labels_are_enough(tmp_path: Path) -> None:
    source = write(tmp_path / "texts", {f"{number}.txt": paragraphs(6) for number in range(50)})
    assert len(labels(labelled([str(source)]))) == 50


def test_passages_that_are_too_short_are_no_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "texts", {"long.txt": paragraphs(9), "short.txt": "A few words only."})
    found = rows_of_sources([str(source)], OPTIONS, ROWS, 1)
    assert isinstance(found, Unlabelled)
    assert "at least 20 words" in found.reason


def test_a_label_with_too_little_text_is_left_out_and_named(tmp_path: Path) -> None:
    texts = {"a.txt": paragraphs(9), "b.txt": paragraphs(9), "little.txt": paragraphs(1)}
    found = labelled([str(write(tmp_path / "texts", texts))])
    assert labels(found) == {"a.txt", "b.txt"}
    assert "left out for too little text: little.txt" in found.rule.replace("texts/", "")


def test_of_two_documents_of_a_label_each_side_has_one(tmp_path: Path) -> None:
    """Whichever is drawn first: also where it has less than the share of the rows to evaluate on."""
    texts = {f"{label}/{size}.txt": paragraphs(size) for label in "abcdefgh" for size in (2, 12)}
    found = labelled([str(write(tmp_path / "texts", texts))])
    assert found.rule == "parted by document" + LIMITS
    assert labels(found) == set("abcdefgh")


def test_a_sub_folder_of_one_document_is_parted_by_place(tmp_path: Path) -> None:
    texts = {"a/0.txt": paragraphs(20)} | {f"b/{number}.txt": paragraphs(6) for number in range(4)}
    found = labelled([str(write(tmp_path / "texts", texts))])
    assert found.rule.startswith("a label has one document only")
    assert labels(found) == {"a", "b"}


@pytest.mark.parametrize(("limit", "value"), [("_LABEL_PASSAGES", 10), ("_LABEL_BYTES", 10)])
def test_a_label_is_read_up_to_a_limit(limit: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "texts", {f"{label}/{n}.txt": paragraphs(5) for label in "ab" for n in range(4)})
    read = []

    def noted(*given: object) -> Labelled:
        read.extend(given[0])
        return Labelled("", "", [], [])

    monkeypatch.setattr(labels_module, limit, value)
    monkeypatch.setattr(labels_module, "_part", noted)
    rows_of_sources([str(source)], OPTIONS, ROWS, 1)
    assert Counter(each.label for each in read) == dict.fromkeys("ab", value if limit == "_LABEL_PASSAGES" else 1)


def test_short_paragraphs_are_joined_and_long_ones_cut(tmp_path: Path) -> None:
    texts = {
        "short.txt": "\n\n".join(" ".join(f"s{n}w{w}" for w in range(7)) for n in range(40)),
        "long.txt": paragraphs(12, words=200),
    }
    found = labelled([str(write(tmp_path / "texts", texts))])
    lengths = {name(row): len(row["text"].split()) for row in found.train + found.dev}
    assert lengths == {"short.txt": 21, "long.txt": 60}


def test_files_of_several_documents_are_parted_inside_each_document(tmp_path: Path) -> None:
    def block(subject: str) -> str:
        return f'<doc id="{subject}" url="u" title="T">\nT\n\n{paragraphs(10, about=subject)}\n</doc>\n'

    subjects = {"wiki_0": "abcd", "wiki_1": "efgh"}
    write(tmp_path, {file: "".join(map(block, letters)) for file, letters in subjects.items()})
    found = rows_of_sources([str(tmp_path / file) for file in subjects], OPTIONS, RowCounts(200, 100), seed=1)
    assert isinstance(found, Labelled)
    assert "a file is a label by its documents alone" in found.rule
    for rows, each in ((found.train, 8), (found.dev, 2)):
        assert Counter(row["text"][0] for row in rows) == Counter(dict.fromkeys("abcdefgh", each))


def test_files_of_short_documents_have_some_of_them_on_each_side(tmp_path: Path) -> None:
    for file in ("a.txt", "b.txt"):
        (tmp_path / file).write_text("\n".join(" ".join(paragraphs(1).split()) for _ in range(50)))
    options = ReadOptions("line", "text", False)
    found = rows_of_sources([str(tmp_path / file) for file in ("a.txt", "b.txt")], options, RowCounts(200, 100), 1)
    assert isinstance(found, Labelled)
    assert (len(found.train), len(found.dev)) == (80, 20)
    assert not {row["text"] for row in found.train} & {row["text"] for row in found.dev}


@pytest.mark.parametrize(
    ("labels", "train", "dev"), [(2, 500, 250), (10, 100, 50), (20, 100, 50), (25, 80, 40), (50, 40, 20), (3000, 1, 1)]
)
def test_many_labels_get_more_rows_up_to_a_limit(labels: int, train: int, dev: int) -> None:
    assert RowCounts(train_of_label=100).of_label(labels) == (train, dev)
