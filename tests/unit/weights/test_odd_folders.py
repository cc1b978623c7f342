"""Folders of other tools that hold something odd: one message that names it, or the model."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.inference.export.export import export
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.quickstart.stages import BUDGETS, Quickstart
from bertsmith.training.check import check_pretraining
from bertsmith.training.run_folder import RunFacts, opened
from bertsmith.weights.convert import import_checkpoint
from bertsmith.weights.huggingface import load_encoder, load_pretraining_model, save_encoder
from bertsmith.weights.names import to_huggingface
from bertsmith.weights.stored import load_torch_file
from made_heads import made_head

TINY = BertConfig(
    vocab_size=40, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=7,
    max_position_embeddings=9,
)  # fmt: skip
WORDS, POOLER = "bert.embeddings.word_embeddings.weight", "bert.pooler.dense.weight"
DECODER = "cls.predictions.decoder.weight"


def tensors() -> dict[str, torch.Tensor]:
    model = PretrainingModel(TINY)
    initialise(model, 0.02, seed=1)
    return {to_huggingface(name): each.detach() for name, each in model.named_parameters()}


def folder_of(tmp_path, weights, **config):
    """config: values that differ; None leaves the key out."""
    values = {key: value for key, value in {**TINY.to_dict(), **config}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    torch.save(weights, tmp_path / "pytorch_model.bin")
    return tmp_path


@pytest.mark.parametrize("weights", [{0: torch.ones(1)}, {**tensors(), 0: torch.ones(1)}], ids=["alone", "among"])
def test_names_that_are_numbers(weights, tmp_path):
    with pytest.raises(BertsmithError, match="something other than named tensors"):
        load_encoder(folder_of(tmp_path, weights))


@pytest.mark.parametrize("name", [POOLER, DECODER])
@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, lambda tensor: tensor.to("meta")], ids=["sparse", "meta"])
def test_a_tensor_without_all_its_numbers(name, change, tmp_path):
    weights = tensors()
    weights[DECODER] = weights[WORDS].clone()
    weights[name] = change(weights[name])
    with pytest.raises(BertsmithError, match=f"kind:       {name} is torch") as caught:
        load_pretraining_model(folder_of(tmp_path, weights))
    assert caught.value.what.count("\n") == 1


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_a_tensor_of_numbers_that_need_scales(dtype, tmp_path):
    weights = tensors()
    weights[POOLER] = weights[POOLER].to(dtype)
    with pytest.raises(BertsmithError, match=f"kind:       {POOLER} holds {dtype}, not numbers of fp16, bf16, fp32"):
        load_pretraining_model(folder_of(tmp_path, weights))


@pytest.mark.parametrize("name", [POOLER, WORDS, "cls.predictions.bias"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *((dtype, value) for dtype in (torch.float32, torch.float16) for value in (torch.nan, torch.inf, -torch.inf)),
        (torch.float64, 1e39),
    ],
    ids=str,
)
def test_a_tensor_that_is_not_finite_in_fp32_is_named_with_its_file(name, dtype, value, tmp_path):
    weights = {key: each.to(dtype) for key, each in tensors().items()}
    weights[name].view(-1)[3] = value
    count = weights[name].numel()
    with pytest.raises(BertsmithError) as caught:
        load_pretraining_model(folder_of(tmp_path, weights))
    line = f"not finite: {name} holds NaN or infinity in 1 of {count:,} places"
    assert caught.value.what == f"these weights cannot be used:\n    {line}"
    assert str(caught.value.where) == str(tmp_path / "pytorch_model.bin")
    assert "nothing was loaded" in caught.value.fix


def test_a_head_that_is_not_read_may_hold_anything(tmp_path):
    weights = {**tensors(), "cls.predictions.bias": torch.full((40,), torch.nan)}
    load_encoder(folder_of(tmp_path, weights))


def test_a_tied_tensor_of_another_shape(tmp_path):
    with pytest.raises(BertsmithError, match=r"shape:      cls.predictions.decoder.weight is \[41, 12\] in the file"):
        load_pretraining_model(folder_of(tmp_path, {**tensors(), DECODER: torch.ones(41, 12)}))


def test_a_tied_tensor_that_is_alone_is_listed_once(tmp_path):
    weights = {**tensors(), DECODER: torch.ones(41, 12)}
    del weights[WORDS]
    with pytest.raises(BertsmithError, match=r"decoder.weight is \[41, 12\] in the file") as caught:
        load_pretraining_model(folder_of(tmp_path, weights))
    assert caught.value.what.count("\n") == 1


def test_the_encoder_of_an_untied_model(tmp_path):
    """The head is left out, and with it the matrix that BERT's own head cannot have."""
    folder = folder_of(tmp_path, {**tensors(), DECODER: torch.ones(40, 12)})
    assert torch.equal(load_encoder(folder).pooler.weight, tensors()[POOLER])
    with pytest.raises(BertsmithError, match="BERT ties the two"):
        load_pretraining_model(folder)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.999])
def test_a_file_that_was_cut_off(left, tmp_path):
    path = folder_of(tmp_path, tensors()) / "pytorch_model.bin"
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    with pytest.raises(BertsmithError, match="the end of this file is missing") as caught:
        load_encoder(tmp_path)
    assert "download the file again" in caught.value.fix


@pytest.mark.parametrize("changed", [{"model_type": "roberta"}, {"num_attention_heads": 5}, {"hidden_size": "12"}])
def test_a_config_that_is_no_berts_is_named_by_its_path(changed, tmp_path):
    with pytest.raises(BertsmithError) as caught:
        load_encoder(folder_of(tmp_path, tensors(), **changed))
    assert caught.value.where == str(tmp_path / "config.json")


def test_what_a_config_leaves_open_is_said(tmp_path, caplog):
    """It is as in transformers, which reads such a config without a word."""
    with caplog.at_level("INFO", "bertsmith"):
        config = load_encoder(folder_of(tmp_path, tensors(), hidden_act=None, layer_norm_eps=None)).config
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu", 1e-12)
    for name in ("hidden_act", "layer_norm_eps"):
        assert f"{name} of {tmp_path / 'config.json'}" in caplog.text
    assert "num_attention_heads of" not in caplog.text


NOT_UTF8 = "this name is not UTF-8, and the libraries that read models take no such name"


def test_a_model_in_a_folder_whose_name_is_not_utf8_is_neither_read_nor_written(tmp_path):
    folder = folder_of(tmp_path, tensors())
    renamed = tmp_path / "caf\udce9"
    shutil.copytree(made_head("classify", tmp_path / "m"), renamed)
    refused = {
        "read": lambda: load_encoder(renamed),
        "exported": lambda: export(renamed, tmp_path / "out"),
        "exported there": lambda: export(tmp_path / "m", renamed / "out"),
        "imported there": lambda: import_checkpoint("none", renamed / "out"),
        "saved there": lambda: save_encoder(load_encoder(folder), tmp_path / "m", renamed / "out"),
        "pre-trained there": lambda: check_pretraining("none", "none", renamed / "out"),
        "shown there": lambda: Quickstart([], renamed / "out", BUDGETS["tiny"]),
    }
    for name, call in refused.items():
        with pytest.raises(BertsmithError, match=NOT_UTF8) as caught:
            call()
        assert caught.value.where == str(renamed if name in ("read", "exported") else renamed / "out"), name
    shutil.copyfile(folder / "pytorch_model.bin", renamed / "model.pt")
    with pytest.raises(BertsmithError, match=NOT_UTF8):
        load_torch_file(renamed / "model.pt")
    torch.save(tensors(), renamed / "model.pt", _use_new_zipfile_serialization=False)  # is not mapped, and is read
    assert load_torch_file(renamed / "model.pt").keys() == tensors().keys()


@pytest.mark.parametrize("resume", [False, True])
def test_no_run_starts_in_a_folder_whose_name_is_not_utf8(resume, tmp_path, capsys):
    """Its checkpoints and its model could be written, and not be read again."""
    model, out = made_head("encoder", tmp_path / "m"), tmp_path / "caf\udce9" / "run"
    (tmp_path / "rows.csv").write_text("text,label\n" + "word1,a\nword2,b\n" * 20)
    call = ["finetune", "classify", "--model", str(model), "--train", str(tmp_path / "rows.csv"), "--out", str(out)]
    assert main([*call, *["--resume"] * resume]) == 2
    assert NOT_UTF8 in capsys.readouterr().err
    with pytest.raises(BertsmithError, match=NOT_UTF8), opened(out, RunFacts({}, "", {}), resume):
        pass
    assert not out.parent.exists()
