"""Published weights: fetched from a server that cuts connections, checked by what is known of them, and imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.download import catalogue as catalogue_module
from bertsmith.download import download as download_module
from bertsmith.download.catalogue import catalogue, checked_by
from bertsmith.download.download import DownloadOptions, download
from bertsmith.download.fetch import Patience
from bertsmith.weights.convert import import_checkpoint
from bertsmith.weights.huggingface import load_pretraining_model
from fixtures.make_tensorflow_checkpoint import CONFIG, FOLDER, values
from made_server import Behaviour, serving, zipped

QUICK = Patience(attempts=3, delay_seconds=0.0, timeout_seconds=2.0)
RENAMED = {"bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "bert_config.json", "vocab.txt"}
PATH = "/2018_10_18/uncased_L-12_H-768_A-12.zip"
BASE = "google-bert-base-uncased"
MINIATURE = "/2020_02_20/uncased_L-4_H-256_A-4.zip"


def members() -> dict[str, bytes]:
    """A tiny checkpoint that TensorFlow wrote, as Google's archives have one."""
    found = {name: (FOLDER / name).read_bytes() for name in RENAMED}
    return {**found, "bert_model.ckpt.meta": b"a graph that nobody reads"}


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, Behaviour]]:
    behaviour = Behaviour({MINIATURE: zipped(members()), PATH: zipped(members(), "uncased_L-12_H-768_A-12/")})
    with serving(behaviour) as url:
        yield url, behaviour


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """BERT-base is the tiny checkpoint, with checksums of its files."""
    entry = catalogue()[BASE]
    (file,) = entry.files
    assert set(file.holds) == members().keys()
    tiny = replace(file, holds={name: sha256(body) for name, body in members().items()})
    monkeypatch.setitem(catalogue_module.catalogue(), BASE, replace(entry, files=(tiny,)))


@pytest.mark.usefixtures("known")
def test_from_the_server_to_a_model_folder_with_a_cut_connection(server, tmp_path, caplog):
    url, how = server
    how.cuts = [500, 300, 0]
    with caplog.at_level("INFO", "bertsmith"):
        (folder,) = download(BASE, tmp_path / "data", DownloadOptions(url=url), QUICK)
    assert [asked.get("range") for asked in how.asked] == [None, "bytes=500-", "bytes=800-", "bytes=800-"]
    assert "sha256 verified of 5" in caplog.text
    assert f"read it by: bertsmith import {folder} --out MODEL" in caplog.text
    out = import_checkpoint(folder, tmp_path / "model")
    model = load_pretraining_model(out)
    assert model.config.hidden_size == CONFIG["hidden_size"]
    wanted = values("bert/embeddings/word_embeddings", (CONFIG["vocab_size"], CONFIG["hidden_size"]))
    assert (model.encoder.embeddings.word.weight.detach().numpy() == wanted).all()
    how.asked.clear()
    download(BASE, tmp_path / "data", DownloadOptions(url=url), QUICK)
    assert how.asked == [], "nothing is fetched again"


def test_a_command_that_gave_up_is_resumed_by_the_next(server, tmp_path):
    url, how = server
    how.cuts = [700, 0, 0]
    options = DownloadOptions(shape="4x256", url=url)
    with pytest.raises(BertsmithError, match="3 times in a row"):
        download("google-bert-miniature", tmp_path, options, QUICK)
    how.cuts, how.asked[:] = [], []
    (folder,) = download("google-bert-miniature", tmp_path, options, QUICK)
    assert [asked["range"] for asked in how.asked] == ["bytes=700-"]
    assert folder == tmp_path / "weights/google/miniatures/uncased_L-4_H-256_A-4"
    assert (folder / "vocab.txt").read_bytes() == members()["vocab.txt"]


@pytest.mark.usefixtures("known")
def test_another_file_than_was_published_never_gets_its_name(server, tmp_path):
    url, how = server
    how.files[PATH] = zipped({**members(), "bert_model.ckpt.index": b"tampered"}, "uncased_L-12_H-768_A-12/")
    with pytest.raises(BertsmithError, match="checksum mismatch: sha256") as raised:
        download(BASE, tmp_path, DownloadOptions(url=url), QUICK)
    assert "bert_model.ckpt.index" in raised.value.where
    folder = tmp_path / catalogue()[BASE].folder
    assert not (folder / "bert_model.ckpt.index").exists()
    assert not list(folder.glob("*.zip")), "the next call fetches it again"
    how.files[PATH] = zipped(members())
    download(BASE, tmp_path, DownloadOptions(url=url), QUICK)
    assert (folder / "bert_model.ckpt.index").read_bytes() == members()["bert_model.ckpt.index"]


def test_a_damaged_zip_is_deleted_and_fetched_again(server, tmp_path):
    url, how = server
    whole = how.files[MINIATURE]
    place = whole.index(b"bert_model.ckpt.data-00000-of-00001") + 200
    how.files[MINIATURE] = whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :]
    options = DownloadOptions(shape="4x256", url=url)
    with pytest.raises(BertsmithError, match=r"damaged .*; the zip was deleted") as raised:
        download("google-bert-miniature", tmp_path, options, QUICK)
    assert raised.value.fix == "run the command again"
    how.files[MINIATURE] = whole
    download("google-bert-miniature", tmp_path, options, QUICK)


def test_a_zip_of_something_else_is_refused_before_it_is_unpacked(server, tmp_path):
    url, how = server
    how.files[MINIATURE] = zipped({"readme.txt": b"moved", "vocab.txt": b"[PAD]"})
    options = DownloadOptions(shape="4x256", url=url)
    with pytest.raises(BertsmithError, match=r"bert_config\.json, .* should be in this zip; it holds readme\.txt"):
        download("google-bert-miniature", tmp_path, options, QUICK)
    assert not list(tmp_path.rglob("vocab.txt"))


def test_what_is_published_about_a_file_is_logged(server, tmp_path, caplog):
    url, _ = server
    with caplog.at_level("INFO", "bertsmith"):
        download("google-bert-miniature", tmp_path, DownloadOptions(shape="4x256", url=url), QUICK)
    assert "unverified: no checksum is published of the zip, so what is in it is checked" in caplog.text
    assert "5 of 5 files unpacked" in caplog.text
    assert "by their CRC-32 as packed" in caplog.text
    (record,) = json.loads(next(tmp_path.rglob("downloads.json")).read_text()).values()
    assert record["verified"] is False
    assert checked_by(catalogue()[BASE]) == "sha256"
    assert checked_by(catalogue()["google-bert-miniature"]) == "crc32 in the zip"
    assert checked_by(catalogue()["nvidia-bert-large-uncased"]) == "unverified"


def test_where_the_vocabulary_does_not_tell_its_casing_the_command_does():
    for name in ("chinese", "multilingual-uncased"):  # lower-cased, as Google's own tokenizer has them
        assert catalogue()[f"google-bert-base-{name}"].then.endswith(" --lowercase")


def test_nvidias_zip_gets_a_name_of_its_own(server, tmp_path):
    url, how = server
    entry = catalogue()["nvidia-bert-base-uncased"]
    how.files[f"/{entry.files[0].path}"] = zipped({"bert_base.pt": b"weights"})
    (folder,) = download(entry.name, tmp_path, DownloadOptions(url=url), QUICK)
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {"bert_base.pt", "bert_pyt_ckpt_base_pretraining_amp_lamb_19.09.0.zip", "downloads.json"}


def test_every_shape_has_an_address_of_its_own():
    entry = catalogue()["google-bert-miniature"]
    shapes = [f"{layers}x{width}" for layers in download_module._LAYERS for width in download_module._WIDTHS]
    named = {entry.files[0].path.format(**DownloadOptions(shape=shape).names) for shape in shapes}
    assert len(named) == 24
    assert "2020_02_20/uncased_L-10_H-768_A-12.zip" in named
