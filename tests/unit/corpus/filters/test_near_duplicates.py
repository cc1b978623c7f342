"""Near-duplicates: what is dropped agrees with something that is kept, the first in source order stays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.filters.near_duplicates import (
    PERMUTATIONS,
    NearTask,
    band_hashes,
    band_rows,
    find_buckets,
    find_near_copies,
    library,
    recall,
    signatures_of,
)
from bertsmith.corpus.filters.ranges import RangeTask

WORDS = [f"word{number}" for number in range(500)]


def text(seed: int, length: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def changed(whole: str, count: int) -> str:
    """The text with `count` words in a row replaced, which touches count + 4 of its runs of five."""
    words = whole.split()
    words[50 : 50 + count] = [f"new{number}" for number in range(count)]
    return " ".join(words)


@given(st.integers(0, 1000), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_signatures_estimate_the_share_of_runs_in_common(seed: int, count: int) -> None:
    first, second = signatures_of([text(seed), changed(text(seed), count)], 5)
    runs = 196
    other = count + 4 if count else 0
    share = (runs - other) / (runs + other)
    assert abs((first == second).mean() - share) < 0.2, "five standard deviations at most"


def test_case_and_punctuation_make_no_difference_and_short_texts_are_compared_whole() -> None:
    one, other, short, same, differs = signatures_of(
        ["Five words, and one (more).", "five words and ONE more", "Two words", "two, words!", "two ways"], 5
    )
    assert (one == other).all()
    assert (short == same).all()
    assert (short == differs).mean() < 0.6, "a third of the words in common"


def test_signatures_do_not_depend_on_what_is_signed_together() -> None:
    texts = [text(seed, length) for seed, length in enumerate((5, 3000, 0, 40))]
    together = signatures_of(texts, 5)
    assert (together == np.concatenate([signatures_of([each], 5) for each in texts])).all()


def test_long_texts_that_only_begin_alike_are_unlike() -> None:
    """A fifth of all their runs of five are in common."""
    begin = text(0, 1500)
    one, other = signatures_of([f"{begin} {text(seed, 3000)}" for seed in (1, 2)], 5)
    assert (one == other).mean() < 0.4


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    rows = band_rows(threshold)
    assert recall(threshold, rows) >= 0.95
    assert rows == PERMUTATIONS or recall(threshold, rows + 1) < 0.95


def test_band_hashes_are_those_of_equal_bands() -> None:
    signatures = np.random.default_rng(0).integers(0, 2**32, (2, PERMUTATIONS), dtype=np.uint32)
    signatures[1, :20] = signatures[0, :20]
    hashes = band_hashes(signatures, 10)
    assert (hashes[0] == hashes[1]).tolist() == [True, True] + [False] * 10
    assert len(np.unique(hashes)) == 22
    assert len(np.unique(band_hashes(np.zeros_like(signatures), 10))) == 12, "equal values are no equal bands"


def near_copies(folder: Path, parts: Sequence[np.ndarray], threshold: float, ranges: int = 1) -> list[list[int]]:
    """The rows of drops.npy for parts of these signatures."""
    rows = band_rows(threshold)
    signed = []
    for number, signatures in enumerate(parts):
        signed.append(folder / f"signed{number}")
        signed[-1].mkdir()
        hashes = band_hashes(signatures, rows)
        table = np.column_stack([hashes.ravel(), np.repeat(np.arange(len(signatures)), hashes.shape[1])])
        np.save(signed[-1] / "bands.npy", table.astype(np.uint64)[np.argsort(hashes, axis=None, kind="stable")])
        np.save(signed[-1] / "signatures.npy", signatures)
        np.save(signed[-1] / "documents.npy", 10 * np.arange(len(signatures)))
    tasks = [RangeTask(folder / f"b{ranges}-{i}", "x", "buckets", i, ranges, tuple(signed)) for i in range(ranges)]
    counts = tuple(find_buckets(task)["buckets"] for task in tasks)
    task = NearTask(
        folder / f"near{ranges}", "x", tuple(signed), tuple(each.folder for each in tasks), counts, threshold
    )
    dropped = find_near_copies(task)["dropped"]
    drops = np.load(task.folder / "drops.npy")
    assert len(drops) == dropped
    assert sorted(path.name for path in task.folder.iterdir()) == ["drops.npy", "part.done"]
    return [list(map(int, row)) for row in drops]


def test_the_first_in_source_order_wins_whatever_the_ranges(tmp_path: Path) -> None:
    base, other = text(1), text(2)
    parts = [[other, base], [changed(base, 3), text(3)], [text(4), base, changed(other, 2)]]
    signed = [signatures_of(part, 5) for part in parts]
    for ranges in (1, 4):
        (tmp_path / str(ranges)).mkdir()
        found = near_copies(tmp_path / str(ranges), signed, 0.8, ranges)
        assert [row[:4] for row in found] == [[1, 0, 0, 10], [2, 10, 0, 10], [2, 20, 0, 0]]
        assert found[1][4] == 1000
        assert 800 <= found[0][4] < 1000


def test_a_copy_of_a_copy_that_is_unlike_what_is_kept_stays(tmp_path: Path) -> None:
    """Values are replaced bit by bit: 1 agrees with 0, 2 with 1 but not with 0, 3 with 2, which is kept."""
    draw = np.random.default_rng(0)
    chain = [draw.integers(0, 2**32, PERMUTATIONS, dtype=np.uint32)]
    for step in range(3):
        chain.append(chain[-1].copy())
        chain[-1][20 * step : 20 * step + 20] = draw.integers(0, 2**32, 20, dtype=np.uint32)
    found = near_copies(tmp_path, [np.array(chain)], 0.8)
    assert [row[1:4] for row in found] == [[10, 0, 0], [30, 0, 20]]


def test_documents_that_agree_in_the_threshold_are_near_copies(tmp_path: Path) -> None:
    first, half, less = np.random.default_rng(0).integers(0, 2**32, (3, PERMUTATIONS), dtype=np.uint32)
    half[:64], less[:63] = first[:64], first[:63]
    assert near_copies(tmp_path, [np.array([first, half, less])], 0.5) == [[0, 10, 0, 0, 500]]


def test_a_document_is_compared_with_every_leader_of_each_of_its_buckets(tmp_path: Path) -> None:
    """It shares a band with one that is unlike it, and another band with the one that it is like; or the same band with
    both."""
    rows, draw = band_rows(0.8), np.random.default_rng(0)
    band = [slice(rows * number, rows * (number + 1)) for number in range(PERMUTATIONS // rows)]
    first, second, third = draw.integers(0, 2**32, (3, PERMUTATIONS), dtype=np.uint32)
    third[band[2]] = first[band[2]]

    def like(other: np.ndarray, shared: int) -> np.ndarray:
        """As `other`, with one value of every band but one changed."""
        copy = other.copy()
        for number, values in enumerate(band):
            copy[values.start] ^= np.uint32(number != shared)
        return copy

    of_second, of_first, of_third = like(second, 1), like(first, 0), like(third, 2)
    of_second[band[0]], of_first[band[1]] = first[band[0]], second[band[1]]
    found = near_copies(tmp_path, [np.array([first, second, third, of_second, of_first, of_third])], 0.8)
    assert [row[1:4] for row in found] == [[30, 0, 10], [40, 0, 0], [50, 0, 20]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_of_many_equal_documents_one_stays(kinds: list[int], parts: int) -> None:
    import tempfile

    distinct = np.random.default_rng(1).integers(0, 2**32, (5, PERMUTATIONS), dtype=np.uint32)
    cut = [distinct[kinds[place::parts]] for place in range(parts)]
    order = [kind for place in range(parts) for kind in kinds[place::parts]]
    with tempfile.TemporaryDirectory() as folder:
        found = near_copies(Path(folder), cut, 0.8)
    assert len(found) == len(order) - len(set(order))


def test_a_missing_library_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library().startswith("datasketch 2.")
    monkeypatch.setattr("bertsmith.corpus.filters.near_duplicates.version_of", lambda package: None)
    with pytest.raises(BertsmithError, match="datasketch") as caught:
        library()
    assert "bertsmith[near]" in caught.value.fix
