"""The corpus folder: what is written is read back, what is damaged is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus, shard_file, verify, write_arrays, write_shard
from bertsmith.corpus.stages.assemble import plan_shards
from bertsmith.tokens.special_ids import token_dtype
from bertsmith.tokens.vocabulary import train_vocabulary


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "text").write_text("\n".join(f"Document {n} tells of {n} foxes. They jump." for n in range(200)))
    options = PrepareOptions(documents="line", held_out=0.2, vocabulary_size=256, shard_tokens=800, workers=1)
    prepare(folder / "text", folder / "corpus", options=options)
    return folder / "corpus"


@pytest.fixture
def corpus(made: Path, tmp_path: Path) -> Corpus:
    return Corpus.open(shutil.copytree(made, tmp_path / "corpus"))


def test_a_corpus_reads_back(corpus: Corpus) -> None:
    assert len(corpus.shards("train")) > 1
    assert repr(corpus) == f"Corpus(folder={corpus.folder!r})", "an interactive session shows no account of every shard"
    tokens = np.concatenate([corpus.open_shard("train", n).tokens for n in range(len(corpus.shards("train")))])
    assert len(tokens) == corpus.tokens("train")
    assert np.array_equal(np.bincount(tokens, minlength=256), corpus.unigrams())
    assert corpus.documents("train") + corpus.documents("held_out") == 200
    assert corpus.special == corpus.tokenizer().special
    shard = corpus.open_shard("train", 0)
    assert isinstance(shard.tokens, np.memmap)
    first = shard.tokens[: shard.sentence_offsets[1]]
    assert corpus.tokenizer().decode(first).startswith("document ")
    shards = len(corpus.shards("train")) + len(corpus.shards("held_out"))
    assert verify(corpus) == 3 * shards + 1 + len(list((corpus.folder / "tokenizer").iterdir()))


@pytest.fixture(scope="module")
def flippable(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("flippable") / "corpus"))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_in_any_file_is_found_and_named(flippable: Path, data: st.DataObject) -> None:
    files = sorted(path for path in flippable.rglob("*") if path.is_file() and path.name != ".lock")
    path = data.draw(st.sampled_from(files), "file")
    raw = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1), "bit")
    whole = bytes(raw)
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    try:
        with pytest.raises(BertsmithError) as caught:
            verify(Corpus.open(flippable))
        assert str(path) in caught.value.where
        assert "prepare the corpus again" in caught.value.fix
    finally:
        path.write_bytes(whole)
    assert verify(Corpus.open(flippable)) == len(files) - 1


def test_every_file_that_differs_is_named(corpus: Corpus) -> None:
    changed = [corpus.folder / "train" / "00001.tokens.npy", corpus.folder / "held_out" / "00000.documents.npy"]
    for path in changed:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BertsmithError, match="2 of") as caught:
        verify(corpus)
    assert all(str(path) in caught.value.where for path in changed)


@pytest.mark.parametrize("name", ["00000.tokens.npy", "00000.sentences.npy", "00000.documents.npy"])
def test_cut_and_missing_files_are_named(corpus: Corpus, name: str) -> None:
    path = corpus.folder / "train" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(BertsmithError, match=name):
        corpus.open_shard("train", 0)
    path.write_bytes(b"")
    with pytest.raises(BertsmithError, match=name):
        corpus.open_shard("train", 0)
    np.save(path, np.zeros(4, np.float32))
    with pytest.raises(BertsmithError, match=name):
        corpus.open_shard("train", 0)
    np.save(path, np.ones(4, np.load(path.with_name(name.replace("00000", "00001"))).dtype))
    with pytest.raises(BertsmithError, match="does not hold"):
        corpus.open_shard("train", 0)
    path.unlink()
    with pytest.raises(BertsmithError, match=name):
        Corpus.open(corpus.folder)


def test_what_the_system_refuses_to_read_is_not_called_damaged(corpus: Corpus) -> None:
    """Which would have the corpus prepared again, where its permissions are wrong."""
    (corpus.folder / "unigrams.npy").unlink()
    (corpus.folder / "unigrams.npy").mkdir()
    with pytest.raises(BertsmithError, match=r"cannot be read \(Is a directory\)"):
        corpus.unigrams()


def test_no_object_array_is_ever_loaded(corpus: Corpus) -> None:
    path = corpus.folder / "unigrams.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BertsmithError, match=r"unigrams\.npy"):
        corpus.unigrams()


def test_folders_that_are_no_corpus(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="no corpus here"):
        Corpus.open(tmp_path)
    (tmp_path / "unfinished" / ".work").mkdir(parents=True)
    with pytest.raises(BertsmithError, match="not finished"):
        Corpus.open(tmp_path / "unfinished")
    account = corpus.folder / "corpus.json"
    account.write_text(json.dumps(json.loads(account.read_text()) | {"format": 99}))
    with pytest.raises(BertsmithError, match="not of format"):
        Corpus.open(corpus.folder)
    account.write_text("{")
    with pytest.raises(BertsmithError, match="not JSON"):
        Corpus.open(corpus.folder)


def test_another_tokenizer_is_refused(corpus: Corpus) -> None:
    other = train_vocabulary(["some other words altogether"], 256)
    other.save(corpus.folder / "tokenizer")
    with pytest.raises(BertsmithError, match="the tokenizer of this corpus was changed") as raised:
        corpus.tokenizer()
    assert "put its files back, or prepare the corpus again" in raised.value.fix
    with pytest.raises(BertsmithError, match=r"tokenizer\.json"):
        verify(corpus)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1), min_size=1), st.sampled_from([1000, 70_000]))
def test_a_shard_keeps_ids_sentences_and_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], size: int
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    lengths = [length + 1 for document in documents for length in document]
    tokens = np.arange(sum(lengths)).astype(token_dtype(size)) + (size - 1000)
    arrays = (tokens, np.array(lengths, np.uint16), np.array([len(each) for each in documents], np.uint32))
    info = write_shard(folder, "x", arrays)
    assert (info.documents, info.sentences, info.tokens) == (len(documents), len(lengths), sum(lengths))
    read = [np.load(folder / shard_file("x", name)) for name in ("tokens", "sentences", "documents")]
    for written, found in zip(arrays, read, strict=True):
        assert np.array_equal(written, found)
        assert written.dtype == found.dtype


@given(st.lists(st.lists(st.integers(1, 90), max_size=6), min_size=1, max_size=4), st.integers(20, 200))
def test_a_plan_has_every_document_once_in_order_and_two_a_shard(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], shard_tokens: int
) -> None:
    parts = [tmp_path_factory.mktemp("part") for _ in lengths]
    for part, each in zip(parts, lengths, strict=True):
        tokens, sentences = np.zeros(sum(each), np.uint16), np.array(each, np.uint16)
        write_arrays(part, "train", (tokens, sentences, np.ones(len(each), np.uint32)))
    planned = plan_shards(parts, "train", sum(map(sum, lengths)), shard_tokens)
    found = [[(each.part, place) for each in shard for place in range(each.first, each.last)] for shard in planned]
    wanted = [(part, place) for part, each in zip(parts, lengths, strict=True) for place in range(len(each))]
    assert [each for shard in found for each in shard] == wanted
    assert len(wanted) < 2 or min(map(len, found)) >= 2
