"""Model folders: strict reading, whole writing, exact round trips."""

import errno
import json
import logging
import shutil

import pytest
import safetensors.torch
import torch

import bertsmith
from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.run_folder import Run
from bertsmith.weights.huggingface import (
    TOKENIZER_FILES,
    load_encoder,
    load_model,
    load_pretraining_model,
    save_encoder,
    save_pretraining_model,
)
from made_commands import Command

TINY = BertConfig(
    vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip


@pytest.fixture
def tokenizer_folder(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in TOKENIZER_FILES:
        (folder / name).write_text(f"contents of {name}")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return folder


@pytest.fixture
def model():
    model = PretrainingModel(TINY)
    initialise(model, 0.02, seed=1)
    return model


@pytest.fixture
def folder(model, tokenizer_folder, tmp_path):
    save_pretraining_model(model, tokenizer_folder, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertsmith"), "propagate", True)
    caplog.set_level(logging.INFO, logger="bertsmith")
    return caplog


def edit(folder, change):
    """Rewrites the weights of a folder as `change` leaves them."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def same(first, second):
    ours, theirs = dict(first.named_parameters()), dict(second.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("load", [load_encoder, load_pretraining_model])
def test_a_model_that_was_loaded_in_inference_mode_can_be_trained(load, folder):
    with torch.inference_mode():
        loaded = load(folder)
    assert same(loaded, load(folder))
    sum(each.sum() for each in loaded.parameters()).backward()
    assert all(each.grad is not None for each in loaded.parameters())


def test_round_trip_is_exact(model, folder):
    loaded = load_pretraining_model(folder)
    assert same(model, loaded)
    assert loaded.config == TINY
    assert not loaded.training
    assert all(each.dtype == torch.float32 and each.requires_grad for each in loaded.parameters())


def test_a_run_is_read_by_its_finished_model(model, folder, tmp_path):
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / "run.json").write_text("{}")
    with pytest.raises(BertsmithError, match="not finished"):
        load_encoder(run)
    shutil.copytree(folder, run.model)
    for named in (run, run.folder, str(run.folder)):
        assert same(model.encoder, load_encoder(named))
        assert same(model, load_pretraining_model(named))


def test_the_folder_is_complete(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", *TOKENIZER_FILES}
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert (config["model_type"], config["vocab_size"]) == ("bert", 40)


def test_heads_are_left_out_of_an_encoder_and_said(model, folder, said):
    assert same(load_encoder(folder), model.encoder)
    assert "masked_head and next_sentence: left out" in said.text


def test_a_bare_encoder_gets_fresh_heads_and_says_so(model, tokenizer_folder, tmp_path, said):
    save_encoder(model.encoder, tokenizer_folder, tmp_path / "bare")
    loaded = load_pretraining_model(tmp_path / "bare")
    assert same(loaded.encoder, model.encoder)
    assert "masked_head and next_sentence: randomly initialised (the folder has no weights for them)" in said.text
    assert bool(torch.isfinite(loaded.masked_head.transform.weight).all())
    assert 0 < float(loaded.next_sentence.weight.detach().std()) < 0.04


def test_a_head_that_is_not_read_is_not_said_to_be_lacking(model, folder, said):
    left = ["next_sentence"]
    loaded = load_model(PretrainingModel, folder, may_be_fresh=left, leave_out=left)
    assert same(loaded.masked_head, model.masked_head)
    assert not same(loaded.next_sentence, model.next_sentence)
    assert "next_sentence: randomly initialised (training starts anew; the folder's is not read)" in said.text
    assert "has no weights for" not in said.text
    of_seeds = [load_model(PretrainingModel, folder, left, left, seed=seed).next_sentence for seed in (0, 1)]
    assert [same(loaded.next_sentence, each) for each in of_seeds] == [True, False]


def test_a_program_without_a_log_is_warned_of_fresh_heads(model, tokenizer_folder, tmp_path):
    save_encoder(model.encoder, tokenizer_folder, tmp_path / "bare")
    with Command(str(tmp_path / "bare"), does=load_as_a_program_does) as program:
        _, told = program.communicate()
    assert program.poll() == 0
    assert "masked_head and next_sentence: randomly initialised (the folder has no weights for them)" in told


def load_as_a_program_does(folder):
    bertsmith.load_pretraining_model(folder)


def test_a_missing_pooler_is_fresh_and_said(folder, said):
    edit(folder, lambda tensors: [tensors.pop(f"bert.pooler.dense.{leaf}") for leaf in ("weight", "bias")])
    load_encoder(folder)
    assert "encoder.pooler: randomly initialised (the folder has no weights for it)" in said.text


def test_what_is_fresh_is_the_same_in_a_program_that_names_another_device(folder):
    edit(folder, lambda tensors: [tensors.pop(f"bert.pooler.dense.{leaf}") for leaf in ("weight", "bias")])
    with torch.device("meta"):
        loaded = load_encoder(folder)
    assert same(loaded, load_encoder(folder))


def test_every_problem_is_in_one_message(folder):
    def change(tensors):
        tensors["bert.encoder.layer.0.attention.self.querry.weight"] = tensors.pop(
            "bert.encoder.layer.0.attention.self.query.weight"
        )
        tensors.pop("bert.encoder.layer.1.output.LayerNorm.bias")
        tensors["bert.embeddings.word_embeddings.weight"] = torch.zeros(41, 8)
        tensors["bert.encoder.layer.2.output.dense.bias"] = torch.zeros(8)
        tensors["cls.predictions.bias"] = torch.zeros(40, dtype=torch.int64)
        tensors.pop("cls.seq_relationship.bias")
        tensors["cls.predictions.weight"] = torch.zeros(8)

    edit(folder, change)
    with pytest.raises(BertsmithError) as caught:
        load_pretraining_model(folder)
    for line in (
        "missing:    bert.encoder.layer.0.attention.self.query.weight",
        "unexpected: bert.encoder.layer.0.attention.self.querry.weight",
        "missing:    bert.encoder.layer.1.output.LayerNorm.bias",
        "shape:      bert.embeddings.word_embeddings.weight is [41, 8] in the file and [40, 8] by the config",
        "unexpected: bert.encoder.layer.2.output.dense.bias",
        "kind:       cls.predictions.bias holds torch.int64",
        "missing:    cls.seq_relationship.bias",
        "unexpected: cls.predictions.weight",
    ):
        assert line in caught.value.what
    assert caught.value.where.endswith("model.safetensors")


@pytest.mark.parametrize("index", range(0, 37, 4))
def test_no_tensor_of_the_encoder_may_be_missing(folder, index):
    names = sorted(safetensors.torch.load_file(folder / "model.safetensors"))
    name = [each for each in names if not each.startswith(("cls.", "bert.pooler"))][index]
    edit(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(BertsmithError, match="missing"):
        load_encoder(folder)


def test_old_names_no_prefix_and_known_extras_are_read(model, folder):
    def change(tensors):
        for name in list(tensors):
            new = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[new.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["embeddings.position_ids"] = torch.arange(16)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"].clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()

    edit(folder, change)
    assert same(load_pretraining_model(folder), model)


def test_one_tensor_under_two_names_is_refused(folder):
    edit(folder, lambda tensors: tensors.update({"pooler.dense.bias": torch.ones(8)}))
    with pytest.raises(BertsmithError, match="twice"):
        load_pretraining_model(folder)


def test_half_precision_is_widened_and_said(folder, said):
    edit(folder, lambda tensors: tensors.update({name: each.half() for name, each in tensors.items()}))
    assert load_encoder(folder).pooler.weight.dtype == torch.float32
    assert "stored as torch.float16" in said.text


def test_pytorch_bin_is_read_and_one_with_code_is_not(model, folder):
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert same(load_pretraining_model(folder), model)
    torch.save({"weights": pytest.raises}, folder / "pytorch_model.bin")
    with pytest.raises(BertsmithError, match="cannot be read"):
        load_pretraining_model(folder)


def test_a_cut_off_file_and_a_missing_one_are_named(folder, tmp_path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BertsmithError, match="cannot be read"):
        load_encoder(folder)
    path.unlink()
    with pytest.raises(BertsmithError, match="no weights here"):
        load_encoder(folder)
    with pytest.raises(BertsmithError, match="does not exist") as caught:
        load_encoder(tmp_path / "nowhere")
    assert "nothing is fetched from a hub by its name" in caught.value.fix


def test_a_full_disk_leaves_the_old_folder(model, folder, tokenizer_folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with torch.no_grad():
        model.next_sentence.bias.add_(1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(BertsmithError, match="No space left"):
        save_pretraining_model(model, tokenizer_folder, folder)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model", "tokenizer"]
    save_pretraining_model(model, tokenizer_folder, folder)
    assert same(load_pretraining_model(folder), model)


@pytest.mark.parametrize(
    "text",
    ["I/O error: No space left on device (os error 28)", "IoError(Os { code: 28, kind: StorageFull, message: x })"],
)
def test_a_disk_that_is_full_of_weights_is_said(text, model, tokenizer_folder, tmp_path, monkeypatch):
    def full(*_, **__):
        raise safetensors.SafetensorError(f"Error while serializing: {text}")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(BertsmithError, match="No space left") as caught:
        save_pretraining_model(model, tokenizer_folder, tmp_path / "model")
    assert caught.value.where == str(tmp_path / "model")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["tokenizer"]


def test_whoever_may_read_the_config_may_read_the_weights(folder):
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


def test_save_load_save_gives_the_same_bytes(folder, tmp_path):
    save_pretraining_model(load_pretraining_model(folder), folder, tmp_path / "again")
    first, second = ({path.name: path.read_bytes() for path in each.iterdir()} for each in (folder, tmp_path / "again"))
    assert first == second


def test_a_bias_under_its_tied_name_alone_is_read(model, folder):
    edit(folder, lambda tensors: tensors.update({"cls.predictions.decoder.bias": tensors.pop("cls.predictions.bias")}))
    assert same(load_pretraining_model(folder), model)


def test_what_is_no_model_folder_is_never_replaced(model, tokenizer_folder, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(BertsmithError, match="not a model folder"):
        save_pretraining_model(model, tokenizer_folder, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("config", "weights"),
    [("{}", True), ('{"model_type": "gpt2"}', True), ("{", True), ("[]", True), ('{"model_type": "bert"}', False)],
)
def test_a_config_alone_makes_no_model_folder(model, tokenizer_folder, tmp_path, config, weights):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text(config)
    if weights:
        (mine / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(BertsmithError, match="not a model folder"):
        save_pretraining_model(model, tokenizer_folder, mine)
    assert (mine / "config.json").read_text() == config


def test_an_empty_folder_is_filled(model, tokenizer_folder, tmp_path):
    (tmp_path / "made").mkdir()
    save_encoder(model.encoder, tokenizer_folder, tmp_path / "made")
    assert same(load_encoder(tmp_path / "made"), model.encoder)


def test_what_lies_beside_a_model_is_named_and_kept(model, folder, tokenizer_folder):
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text("print()")
    (folder / "notes.txt").write_text("years of work")
    with pytest.raises(BertsmithError, match=r"also holds notes\.txt, src, which would be deleted") as caught:
        save_pretraining_model(model, tokenizer_folder, folder)
    assert caught.value.where == str(folder)
    assert (folder / "src" / "mine.py").read_text() == "print()"


def test_a_model_folder_is_replaced_and_that_is_said(model, folder, tokenizer_folder, said):
    with pytest.raises(BertsmithError, match=r"neither tokenizer\.json nor vocab\.txt"):
        save_pretraining_model(model, folder.parent, folder)
    assert "replaced" not in said.text, "the one that was there still is"
    save_pretraining_model(model, tokenizer_folder, folder)
    assert f"the model that was in {folder} is replaced" in said.text


def test_an_incomplete_tokenizer_is_named(model, tokenizer_folder, tmp_path):
    for name in ("tokenizer.json", "vocab.txt"):
        (tokenizer_folder / name).unlink()
    with pytest.raises(BertsmithError, match=r"neither tokenizer\.json nor vocab\.txt"):
        save_pretraining_model(model, tokenizer_folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()
