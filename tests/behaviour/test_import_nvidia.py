"""NVIDIA's .pt checkpoints become folders that transformers opens to the same numbers, or one clear message."""

from __future__ import annotations

import json

import pytest
import torch

from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.weights.convert import import_checkpoint
from bertsmith.weights.huggingface import load_pretraining_model, save_pretraining_model
from fixtures.make_tensorflow_checkpoint import CONFIG, FOLDER

transformers = pytest.importorskip("transformers")

PADDED = 16


def their_model(rows: int = PADDED):
    """transformers' model of as many rows as NVIDIA's scripts make of 11."""
    torch.manual_seed(rows)
    config = transformers.BertConfig(**{**CONFIG, "vocab_size": rows, "hidden_act": "gelu_pytorch_tanh"})
    model = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def nvidia_names(state, wrapper=""):
    """A state dict as NVIDIA's modules name it: maps with an activation are `dense_act`."""
    renamed = {}
    for name, tensor in state.items():
        for module in ("intermediate", "pooler", "transform"):
            name = name.replace(f"{module}.dense.", f"{module}.dense_act.")
        renamed[wrapper + name] = tensor
    return renamed


@pytest.fixture
def folder(tmp_path):
    """Where a .pt file lies beside config and vocabulary of 11 pieces."""
    (tmp_path / "run").mkdir()
    for name in ("bert_config.json", "vocab.txt"):
        (tmp_path / "run" / name).write_bytes((FOLDER / name).read_bytes())
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("wrapper", "dtype", "archive"),
    [("", torch.float32, True), ("module.", torch.float16, True), ("module.module.", torch.float32, False)],
)
def test_a_training_checkpoint_gives_transformers_the_same_logits(wrapper, dtype, archive, folder, tmp_path, caplog):
    theirs = their_model()
    theirs.load_state_dict({name: each.to(dtype).float() for name, each in theirs.state_dict().items()})
    weights = nvidia_names({name: each.to(dtype) for name, each in theirs.state_dict().items()}, wrapper)
    assert f"{wrapper}bert.encoder.layer.1.intermediate.dense_act.weight" in weights
    optimizer = torch.optim.Adam(theirs.parameters())
    saved = {
        "model": weights,
        "optimizer": optimizer.state_dict(),
        "master params": [each.detach() for each in theirs.parameters()],
        "files": [1, 2],
        "epoch": 0,
    }
    name = "ckpt_8601.pt" if archive else "ckpt_8601.pth"
    torch.save(saved, folder / name, _use_new_zipfile_serialization=archive)
    with caplog.at_level("INFO", "bertsmith"):
        out = import_checkpoint(folder, tmp_path / "model")
    found, report = transformers.AutoModelForPreTraining.from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    config = json.loads((out / "config.json").read_text())
    assert (config["vocab_size"], config["hidden_act"]) == (PADDED, "gelu_pytorch_tanh")
    ids = torch.tensor([[2, 5, 7, 4, 3], [2, 8, 9, 10, 3]])
    with torch.no_grad():
        wanted, mine = theirs(ids), found.eval()(ids)
    torch.testing.assert_close(mine.prediction_logits, wanted.prediction_logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(mine.seq_relationship_logits, wanted.seq_relationship_logits, atol=1e-6, rtol=0)
    assert len(transformers.AutoTokenizer.from_pretrained(out)) == 11
    for said in (
        f"{name} (it is the only one)",
        "vocab_size: 16, as stored (NVIDIA's scripts pad 11 to a multiple of 8)",
        "5 rows of the vocabulary stand for no piece",
        "left out: 'optimizer', 'master params', 'files', 'epoch'",
    ):
        assert said in caplog.text
    assert ("stored as torch.float16" in caplog.text) == (dtype == torch.float16)


def test_saving_what_was_imported_gives_the_same_bytes(folder, tmp_path):
    torch.save(nvidia_names(their_model().state_dict()), folder / "bert.pt")
    (folder / "bert_config.json").rename(folder / "config.json")  # no sign of a model folder without its weights
    out = import_checkpoint(folder, tmp_path / "model")
    save_pretraining_model(load_pretraining_model(out), out, tmp_path / "again")
    save_pretraining_model(load_pretraining_model(tmp_path / "again"), tmp_path / "again", tmp_path / "third")
    first, again, third = (
        {each.name: each.read_bytes() for each in (tmp_path / name).iterdir()} for name in ("model", "again", "third")
    )
    assert first == again == third


def test_a_model_is_not_replaced(folder, tmp_path):
    torch.save(nvidia_names(their_model().state_dict()), folder / "bert.pt")
    out = import_checkpoint(folder / "bert.pt", tmp_path / "model")
    before = {each.name: each.read_bytes() for each in out.iterdir()}
    with pytest.raises(BertsmithError, match="a model is here already"):
        import_checkpoint(folder / "bert.pt", out)
    assert {each.name: each.read_bytes() for each in out.iterdir()} == before


def test_a_classifier(folder, tmp_path):
    config = transformers.BertConfig(**{**CONFIG, "vocab_size": 11, "num_labels": 3})
    theirs = transformers.BertForSequenceClassification(config)
    torch.save({"model": nvidia_names(theirs.state_dict())}, folder / "pytorch_model.bin")
    out = import_checkpoint(folder / "pytorch_model.bin", tmp_path / "model")
    found, report = transformers.AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(each, found.state_dict()[name]) for name, each in theirs.state_dict().items())


def saved_classifier(kind: str, folder, rows: int, named: bool):
    """A checkpoint of a class of transformers, and its weights; its config names the class or not."""
    config = transformers.BertConfig(**{**CONFIG, "vocab_size": 11, "num_labels": rows})
    theirs = getattr(transformers, kind)(config)
    torch.save({"model": nvidia_names(theirs.state_dict())}, folder / "bert.pt")
    if named:
        path = folder / "bert_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [kind]}))
    return theirs


@pytest.mark.parametrize(
    ("kind", "rows", "named"),
    [
        ("BertForTokenClassification", 5, True),
        ("BertForTokenClassification", 5, False),
        ("BertForTokenClassification", 1, False),
        ("BertForMultipleChoice", 1, True),
        ("BertForMultipleChoice", 1, False),
        ("BertForSequenceClassification", 1, True),
        ("BertForSequenceClassification", 4, False),
    ],
)
def test_a_classifier_is_kept_for_what_it_is(kind, rows, named, folder, tmp_path, caplog, monkeypatch):
    """By the class that its config names; else by the pooler, which a tagger lacks, and by its one score."""
    theirs = saved_classifier(kind, folder, rows, named)
    monkeypatch.setattr(log.logger, "propagate", True)
    caplog.set_level("INFO", logger="bertsmith")
    out = import_checkpoint(folder / "bert.pt", tmp_path / "model")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [kind]
    assert ("id2label" in config) == (kind != "BertForMultipleChoice")
    found, report = getattr(transformers, kind).from_pretrained(out, output_loading_info=True)
    assert not any(report[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(each, found.state_dict()[name]) for name, each in theirs.state_dict().items())
    (line,) = [line for line in caplog.messages if line.startswith("class of ")]
    assert f": {kind} (" in line
    assert ("its config names it" in line) == named


def test_a_classifier_that_is_not_what_its_config_names_is_refused(folder, tmp_path):
    saved_classifier("BertForSequenceClassification", folder, 4, named=True)
    path = folder / "bert_config.json"
    path.write_text(path.read_text().replace("BertForSequenceClassification", "BertForMultipleChoice"))
    with pytest.raises(BertsmithError, match="a classifier of 4 classes is no BertForMultipleChoice"):
        import_checkpoint(folder / "bert.pt", tmp_path / "model")
    saved_classifier("BertForTokenClassification", folder, 4, named=False)
    path.write_text(path.read_text().replace("BertForMultipleChoice", "BertForSequenceClassification"))
    with pytest.raises(BertsmithError, match=r"missing:    bert\.pooler\.dense"):
        import_checkpoint(folder / "bert.pt", tmp_path / "model")
    theirs = saved_classifier("BertForTokenClassification", folder, 1, named=False)
    path.write_text(path.read_text().replace("BertForSequenceClassification", "BertForMultipleChoice"))
    with pytest.raises(BertsmithError, match=r"missing:    bert\.pooler\.dense"):
        import_checkpoint(folder / "bert.pt", tmp_path / "model")
    torch.save({"model": {**theirs.state_dict(), "classifier.bias": torch.tensor(1.0)}}, folder / "bert.pt")
    with pytest.raises(BertsmithError, match=r"shape:      classifier\.bias is \[\] in the file"):
        import_checkpoint(folder / "bert.pt", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_that_is_not_finite_is_refused(folder, tmp_path):
    theirs = saved_classifier("BertForSequenceClassification", folder, 4, named=True)
    state = theirs.state_dict()
    state["classifier.weight"][0, 0] = torch.nan
    torch.save({"model": nvidia_names(state)}, folder / "bert.pt")
    with pytest.raises(BertsmithError, match=r"not finite: classifier\.weight holds NaN") as caught:
        import_checkpoint(folder / "bert.pt", tmp_path / "model")
    assert str(caught.value.where).endswith("bert.pt")


def test_a_tensor_without_an_axis_tells_nothing_of_the_config(folder, tmp_path):
    torch.save({"model": {"bert.embeddings.word_embeddings.weight": torch.tensor(1.0)}}, folder / "bert.pt")
    (folder / "bert_config.json").unlink()
    with pytest.raises(BertsmithError, match=r"no bert_config\.json") as caught:
        import_checkpoint(folder, tmp_path / "model")
    assert "it says vocab_size 0, hidden_size 0" in caught.value.fix


def test_rows_that_no_padding_explains_are_an_error(folder, tmp_path):
    torch.save(nvidia_names(their_model(rows=24).state_dict()), folder / "bert.pt")
    with pytest.raises(BertsmithError, match=r"word_embeddings.weight is \[24, 4\] in the file and \[11, 4\]"):
        import_checkpoint(folder, tmp_path / "model")


def test_every_problem_is_listed(folder, tmp_path):
    weights = nvidia_names(their_model(11).state_dict(), "module.")
    weights["module.bert.encoder.layer.0.intermediate.dense_act.mask"] = torch.ones(6)
    weights["module.bert.encoder.layer.1.output.dense.weight"] = torch.ones(4, 7)
    del weights["module.cls.predictions.transform.dense_act.bias"]
    weights["module.cls.predictions.decoder.weight"] = torch.ones(11, 4)
    torch.save({"model": weights}, folder / "bert.pt")
    with pytest.raises(BertsmithError) as caught:
        import_checkpoint(folder, tmp_path / "model")
    for line in (
        "unexpected: bert.encoder.layer.0.intermediate.dense.mask",
        "shape:      bert.encoder.layer.1.output.dense.weight is [4, 7] in the file and [4, 6]",
        "missing:    cls.predictions.transform.dense.bias",
        "untied:     cls.predictions.decoder.weight differs",
    ):
        assert line in caught.value.what
    assert caught.value.where == str(folder / "bert.pt")


class Loader:
    """Stands for the data loader that some of NVIDIA's checkpoints hold."""


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        ([1, 2], "this file holds a list"),
        ({"epoch": 3, "step": 4}, "a dictionary of epoch, step"),
        ({"model": "bert-large", "epoch": 3}, "a dictionary of model, epoch"),
        ({"model": {"a": torch.ones(1)}, "data_loader": Loader()}, "holds more than tensors and plain values"),
        ({"a.dense_act.bias": torch.ones(1), "a.dense.bias": torch.ones(1)}, r"two tensors are both a\.dense\.bias"),
    ],
)
def test_what_holds_no_weights_is_named(saved, what, folder, tmp_path):
    torch.save(saved, folder / "bert.pt")
    with pytest.raises(BertsmithError, match=what) as caught:
        import_checkpoint(folder, tmp_path / "model")
    assert caught.value.where == str(folder / "bert.pt")
    assert "save" in caught.value.fix
