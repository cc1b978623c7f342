"""The corpus folder: what is written is read back, what is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus, shard_file, token_dtype, verify, write_shard
from bertsmith.corpus.vocabulary import train_vocabulary


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    (folder / "text").write_text("\n".join(f"Document {n} tells of {n} foxes. They jump." for n in range(200)))
    options = PrepareOptions(documents="line", held_out=0.2, vocabulary_size=256, shard_tokens=800, workers=1)
    prepare(folder / "text", folder / "corpus", options=options)
    return folder / "corpus"


@pytest.fixture
def corpus(made: Path, tmp_path: Path) -> Corpus:
    import shutil

    return Corpus.open(shutil.copytree(made, tmp_path / "corpus"))


def test_a_corpus_reads_back(corpus: Corpus) -> None:
    assert len(corpus.shards("train")) > 1
    tokens = np.concatenate([corpus.open_shard("train", n).tokens for n in range(len(corpus.shards("train")))])
    assert len(tokens) == corpus.tokens("train")
    assert np.array_equal(np.bincount(tokens, minlength=256), corpus.unigrams())
    assert corpus.documents("train") + corpus.documents("held_out") == 200
    assert corpus.special == corpus.tokenizer().special
    shard = corpus.open_shard("train", 0)
    assert isinstance(shard.tokens, np.memmap)
    first = shard.tokens[: shard.sentence_offsets[1]]
    assert corpus.tokenizer().decode(first).startswith("document ")
    assert verify(corpus) == 3 * (len(corpus.shards("train")) + len(corpus.shards("held_out"))) + 1


def test_a_flipped_bit_is_found_and_named(corpus: Corpus) -> None:
    path = corpus.folder / "train" / "00001.tokens.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(BertsmithError, match=r"00001\.tokens\.npy") as caught:
        verify(corpus)
    assert "1 of" in caught.value.what


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
    with pytest.raises(BertsmithError, match="not the one"):
        corpus.check_tokenizer(other, "model")
    other.save(corpus.folder / "tokenizer")
    with pytest.raises(BertsmithError, match="not the one"):
        corpus.tokenizer()
    with pytest.raises(BertsmithError, match="not the one"):
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
