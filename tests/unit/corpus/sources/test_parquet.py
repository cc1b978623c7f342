"""Parquet: fields of several types, slices by row groups, damage, and the library that reads it."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.engines.local import LocalEngine
from bertsmith.corpus.sources import row_documents as parquet
from bertsmith.corpus.sources.find import find_files
from bertsmith.corpus.sources.formats import edges_of, read_documents
from bertsmith.corpus.sources.unpack import is_unpacked, unpack_where_needed
from bertsmith.rows.lines import Slice
from bertsmith.rows.parquet import parquet_rows
from made_corpora import damaged_parquet

OPTIONS = ReadOptions()
TEXTS = [f"Text {n} of {n * n}, größer." for n in range(400)]


def read(part: Slice, options: ReadOptions = OPTIONS) -> tuple[list[Document], Account]:
    account = Account()
    return list(read_documents(part, options, account)), account


def found(path: Path) -> Slice:
    return find_files([path], OPTIONS)[0][0].whole()


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_text_of_any_type_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "named.anything"
    column = pa.array([*TEXTS[:3], None]).cast(kind) if kind != pa.string_view() else pa.array([*TEXTS[:3], None], kind)
    pq.write_table(pa.table({"text": column}), path)
    part = found(path)
    assert part.kind == "parquet"
    documents, account = read(part)
    assert documents == [Document(f"named.anything@{n}", text) for n, text in enumerate([*TEXTS[:3], ""])]
    assert account.stream_bytes == sum(len(text.encode()) for text in TEXTS[:3])


def test_ids_are_taken_and_wrong_fields_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [7, 8], "text": ["one", "two"], "size": [1, 2]}), path)
    assert [document.id for document in read(found(path))[0]] == ["a.parquet@7", "a.parquet@8"]
    with pytest.raises(BertsmithError) as caught:
        find_files([path], ReadOptions(text_field="txt"))
    assert caught.value.fix.startswith("fields found: 'id', 'text', 'size'; did you mean 'text'?")
    with pytest.raises(BertsmithError, match="holds int64, not text"):
        find_files([path], ReadOptions(text_field="size"))


def test_slices_are_row_groups(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("groups") / "a.parquet"

    @settings(max_examples=25, deadline=None)
    @given(count=st.integers(0, 300), group=st.integers(1, 120), part_bytes=st.integers(1, 4000))
    def check(count: int, group: int, part_bytes: int) -> None:
        pq.write_table(pa.table({"text": pa.array(TEXTS[:count], pa.string())}), path, row_group_size=group)
        whole = Slice(str(path), "a.parquet", "parquet")
        account, documents = Account(), []
        for begin, end in itertools.pairwise(edges_of(whole, path.stat().st_size, part_bytes)):
            documents += read_documents(replace(whole, begin=begin or 0, end=end), OPTIONS, account)
        assert (documents, account) == read(whole)
        assert [document.text for document in documents] == TEXTS[:count]

    check()


def test_a_large_file_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=40)
    assert len(edges_of(found(path), path.stat().st_size, 1500)) >= 5


def test_a_damaged_row_group_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    damaged_parquet(path, TEXTS)
    documents, account = read(found(path))
    kept = {document.text for document in documents}
    assert kept >= {*TEXTS[:100], *TEXTS[200:]}
    assert len(kept) < len(TEXTS)
    entry = account.changed["row groups that are damaged, read up to the damage"]
    assert entry.count == 1
    assert entry.examples[0].startswith("a.parquet, row group 1, 100 of 100 rows lost (")
    with pytest.raises(BertsmithError, match="this row group cannot be read"):
        read(found(path), ReadOptions(strict=True))


@pytest.mark.parametrize("names", [None, [f"n{n}" for n in range(400)]], ids=["unnamed", "named"])
def test_a_row_group_too_large_for_one_worker_is_written_again_in_smaller_ones(
    tmp_path: Path, names: list[str] | None
) -> None:
    """As pandas writes all rows into one: the same documents, shared out evenly."""
    path = tmp_path / "a.parquet"
    texts = [*TEXTS[:-1], None]
    pq.write_table(pa.table({"text": texts} | ({"id": names} if names else {})), path)
    part_bytes = 500
    files, _ = find_files([path], OPTIONS)
    assert is_unpacked(files[0], OPTIONS, part_bytes)
    assert not is_unpacked(files[0], OPTIONS, 4 << 20)
    with LocalEngine(1) as engine:
        (smaller,), faults = unpack_where_needed(files, tmp_path / "work", OPTIONS, part_bytes, engine)
    assert not faults
    account, documents = Account(), []
    edges = edges_of(smaller.whole(), smaller.size_bytes, part_bytes)
    for begin, end in itertools.pairwise(edges):
        some = list(read_documents(replace(smaller.whole(), begin=begin or 0, end=end), OPTIONS, account))
        assert sum(len(document.text) for document in some) < 3 * part_bytes
        documents += some
    assert (documents, account) == read(found(path))
    assert Path(smaller.path).stat().st_size < 3 * sum(map(len, TEXTS))


def test_a_damaged_row_group_is_counted_where_it_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, compression="zstd", use_dictionary=False)
    with pq.ParquetFile(path) as file:
        page = file.metadata.row_group(0).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[page + 60 : page + 120] = bytes(60)
    path.write_bytes(content)
    files, _ = find_files([path], OPTIONS)
    with LocalEngine(1) as engine:
        _, faults = unpack_where_needed(files, tmp_path / "work", OPTIONS, 500, engine)
        assert faults["row groups that are damaged, read up to the damage"].count == 1
        with pytest.raises(BertsmithError, match="this row group cannot be read"):
            unpack_where_needed(files, tmp_path / "work", ReadOptions(strict=True), 500, engine)


def test_a_file_cut_short_is_passed_over_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path)
    path.write_bytes(path.read_bytes()[:-100])
    (tmp_path / "good.txt").write_text("Some text.")
    files, passed = find_files([tmp_path], OPTIONS)
    assert [file.kind for file in files] == ["file"]
    assert "parquet that is damaged" in next(iter(passed))
    for sources, options in (([path], OPTIONS), ([tmp_path], ReadOptions(strict=True))):
        with pytest.raises(BertsmithError, match=r"parquet that is damaged \(Parquet magic bytes [^\n]*\)\n") as raised:
            find_files(sources, options)
        assert raised.value.fix.startswith("copy or write it again")


def test_two_columns_of_one_name_are_refused_as_text_and_give_no_names(tmp_path: Path) -> None:
    """No reader can know which of them is meant."""
    path = tmp_path / "a.parquet"
    columns = [pa.array(TEXTS), pa.array(TEXTS[::-1]), pa.array(range(len(TEXTS)))]
    pq.write_table(pa.table(columns, names=["text", "text", "id"]), path)
    with pytest.raises(BertsmithError, match="two columns have one name, 'text'"):
        find_files([path], OPTIONS)
    with pytest.raises(BertsmithError, match="two columns have one name, 'text'"):
        list(parquet_rows(str(path)))
    pq.write_table(pa.table([columns[2], columns[0], columns[2]], names=["id", "text", "id"]), path)
    documents, _ = read(found(path))
    assert [document.id for document in documents[:2]] == ["a.parquet@0", "a.parquet@1"]


def test_cells_too_long_are_cut_and_bad_bytes_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LONGEST_CELL", 5)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([b"abcd\xc3\xa9fgh", b"a\xff"], pa.binary())}), path)
    documents, account = read(found(path))
    assert [document.text for document in documents] == ["abcd", "a\ufffd"]
    assert account.changed["cells longer than 5 B, cut off there"].bytes == 4
    assert account.changed["bytes that are not UTF-8, replaced by U+FFFD"].examples == ["a.parquet, row 1, byte 1"]


def test_a_missing_library_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BertsmithError) as caught:
        find_files([path], OPTIONS)
    assert "pip install 'bertsmith[parquet]'" in caught.value.fix
