"""Every class of transformers' BERT, in every way it was ever stored, opens here to the same numbers."""

from __future__ import annotations

import json
import re

import huggingface_hub
import pytest
import torch

from bertsmith.model.pretraining import PretrainingModel
from bertsmith.weights.huggingface import load_encoder, load_model, load_pretraining_model
from bertsmith.weights.stored import stored_files
from bertsmith.weights.strict import own_parameters

transformers = pytest.importorskip("transformers")

# The class, the parts that it has beside the encoder, and what `load_encoder` says.
CLASSES = {
    "BertModel": {"encoder.pooler"},
    "BertForPreTraining": {"encoder.pooler", "masked_head", "next_sentence"},
    "BertForMaskedLM": {"masked_head"},
    "BertForSequenceClassification": {"encoder.pooler", "classifier"},
    "BertForTokenClassification": {"classifier"},
    "BertForQuestionAnswering": {"qa_outputs"},
    "BertForMultipleChoice": {"encoder.pooler", "classifier"},
}
STORED = ["safetensors", "safetensors in shards", "bin", "bin in shards", "old bin"]
# What else a state dict of the years before 2020 held, and how it called LayerNorm's tensors.
OLD = ((re.compile(r"LayerNorm\.weight$"), "LayerNorm.gamma"), (re.compile(r"LayerNorm\.bias$"), "LayerNorm.beta"))


def saved(name, how, folder):
    """A random model of a class, stored in one of the ways; every bias differs from 0 so that a forgotten one shows."""
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, num_labels=3,
    )  # fmt: skip
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if how.startswith("safetensors"):
        model.save_pretrained(folder, max_shard_size="6KB" if "shards" in how else "1GB")
        return model
    config.save_pretrained(folder)
    tensors = model.state_dict()
    if how == "old bin":
        for pattern, old in OLD:
            tensors = {pattern.sub(old, key): each for key, each in tensors.items()}
        prefix = "" if name == "BertModel" else "bert."
        tensors[f"{prefix}embeddings.position_ids"] = torch.arange(24)[None]
    if "shards" not in how:
        torch.save(tensors, folder / "pytorch_model.bin")
        return model
    split = huggingface_hub.split_torch_state_dict_into_shards(
        tensors, filename_pattern="pytorch_model{suffix}.bin", max_shard_size="6KB"
    )
    for file, names in split.filename_to_tensors.items():
        torch.save({key: tensors[key] for key in names}, folder / file)
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return model


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("name", CLASSES)
def test_the_encoder_of_every_class(name, how, tmp_path, caplog):
    torch.manual_seed(len(name) + len(how))
    theirs = saved(name, how, tmp_path)
    assert (len(stored_files(tmp_path)) > 3) == ("shards" in how)
    with caplog.at_level("INFO", "bertsmith"):
        ours = load_encoder(tmp_path)
    encoder = theirs if name == "BertModel" else theirs.bert
    ids = torch.randint(5, 50, (3, 9))
    mask = torch.tensor([[1] * 9, [1] * 4 + [0] * 5, [1] * 7 + [0] * 2])
    with torch.no_grad():
        wanted = encoder(ids, attention_mask=mask)
        hidden = ours.encode_padded(ids, mask)
        pooled = torch.tanh(ours.pooler(hidden[:, 0]))
    torch.testing.assert_close(hidden, wanted.last_hidden_state * mask[..., None], atol=1e-5, rtol=0)
    heads = CLASSES[name] - {"encoder.pooler"}
    if "encoder.pooler" in CLASSES[name]:
        torch.testing.assert_close(pooled, wanted.pooler_output, atol=1e-5, rtol=0)
        assert "randomly initialised" not in caplog.text
    else:
        assert "encoder.pooler: randomly initialised (the folder has no weights for it)" in caplog.text
    assert ("left out" in caplog.text) == bool(heads)
    assert all(head in caplog.text for head in heads)


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("name", CLASSES)
def test_the_heads_of_every_class(name, how, tmp_path):
    theirs = saved(name, how, tmp_path)
    found = own_parameters(load_pretraining_model(tmp_path))
    state = theirs.state_dict()
    pairs = {
        "masked_head.bias": "cls.predictions.bias",
        "masked_head.transform.weight": "cls.predictions.transform.dense.weight",
        "masked_head.norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "next_sentence.bias": "cls.seq_relationship.bias",
    }
    for ours, name_there in pairs.items():
        assert (name_there in state) == (ours.split(".")[0] in CLASSES[name])
        if name_there in state:
            assert torch.equal(found[ours], state[name_there])

    class WithHead(PretrainingModel):
        def __init__(self, config):
            super().__init__(config)
            head = "qa_outputs" if name == "BertForQuestionAnswering" else "classifier"
            setattr(self, head, torch.nn.Linear(16, len(state[f"{head}.bias"])))

    if {"classifier", "qa_outputs"} & CLASSES[name]:
        fresh = ("encoder.pooler", "masked_head", "next_sentence")
        task = own_parameters(load_model(WithHead, tmp_path, may_be_fresh=fresh))
        head = "qa_outputs" if name == "BertForQuestionAnswering" else "classifier"
        assert torch.equal(task[f"{head}.weight"], state[f"{head}.weight"])
        assert torch.equal(task[f"{head}.bias"], state[f"{head}.bias"])
