"""Every class of transformers' BERT, in every way it was ever stored, opens here to the same numbers."""

from __future__ import annotations

import json
import re

import huggingface_hub
import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.predictor import Predictor
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.answering.passages import read_passages
from bertsmith.tasks.tagging.align import align_text
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.tokenizer_files import SPECIAL_PIECES
from bertsmith.weights.huggingface import copy_without_weights, load_encoder, load_model, load_pretraining_model
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


PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "paris", "is", "here", "covid", "url", "##s", "e1",
    *"[]<>/",
]  # fmt: skip
TEXTS = [
    "[E1] Paris [/E1] is <url> here",
    "paris[E1]s  [E1]  is<url>s <URL> [e1] [/e1]",
    "here COVID Covids [unused1] [UNUSED1] is",
]


def described(content, special=True, **flags):
    usual = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": not special}
    return {"content": content, "special": special, **usual, **flags}


FIVE = {str(number): described(piece) for number, piece in enumerate(PIECES[:5])}
FIRST, SECOND, THIRD = range(len(PIECES), len(PIECES) + 3)
ADDED = {"[E1]": FIRST, "[/E1]": SECOND, "<url>": THIRD}
ROLES = {"mask_token": "[MASK]", "additional_special_tokens": ["[E1]", "[unused1]"]}
DECODER = {
    **FIVE,
    str(THIRD): described("<url>", special=False),
    str(FIRST): described("[E1]", lstrip=True),
    str(SECOND): described("[/E1]", special=False, single_word=True),
}
# What slow tokenizers of several versions of transformers wrote beside a vocab.txt.
BESIDE = {
    "decoder": {"tokenizer_config.json": {"added_tokens_decoder": DECODER, "additional_special_tokens": ["[E1]"]}},
    "decoder alone is read": {
        "tokenizer_config.json": {"added_tokens_decoder": {**FIVE, str(FIRST): described("[/E1]")}},
        "added_tokens.json": {"<url>": FIRST},
        "special_tokens_map.json": {"additional_special_tokens": ["<url>"]},
    },
    "added_tokens.json": {"added_tokens.json": {**ADDED, "covid": PIECES.index("covid")}},
    "added_tokens.json and roles": {"added_tokens.json": ADDED, "special_tokens_map.json": ROLES},
    "added_tokens.json and config": {
        "added_tokens.json": ADDED,
        "tokenizer_config.json": {"additional_special_tokens": ["[E1]"], "eos_token": "[/E1]"},
    },
    "cased": {"added_tokens.json": ADDED, "tokenizer_config.json": {"do_lower_case": False}},
    "roles": {"special_tokens_map.json": {"bos_token": described("[E1]"), "additional_special_tokens": ["[unused1]"]}},
}


def slow_folder(folder, beside):
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    for name, values in ({"tokenizer_config.json": {}} | beside).items():
        (folder / name).write_text(json.dumps({"do_lower_case": True} | values if "config" in name else values))
    return folder


@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
def test_tokens_that_files_beside_a_vocabulary_add(beside, tmp_path):
    folder = slow_folder(tmp_path / "slow", beside)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    wanted = theirs(TEXTS, add_special_tokens=False)["input_ids"]
    assert max(max(ids) for ids in wanted) >= FIRST, "one of the added tokens is found"
    assert [ids.tolist() for ids in ours.encode_ids(TEXTS)] == wanted
    ours.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    for saved in ("saved", "saved/vocab.txt"):
        assert Tokenizer.load(tmp_path / saved).sha256 == ours.sha256


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "added_tokens.json",
            {"[E1]": SECOND},
            rf"'\[E1\]' has id {SECOND}, and with this vocabulary it would be {FIRST}",
        ),
        ("added_tokens.json", {"covid": FIRST}, f"has id {FIRST}, and with this vocabulary it would be 9"),
        ("added_tokens.json", {"[E1]": str(FIRST)}, "does not give each token an id"),
        ("added_tokens.json", {"[E1]": FIRST, "[E2]": FIRST}, "an id of its own"),
        ("special_tokens_map.json", {"additional_special_tokens": 3}, "3 is no token"),
        ("added_tokens.json", ["[E1]"], "no JSON object"),
        ("special_tokens_map.json", {"additional_special_tokens": [3]}, "3 is no token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"[E1]": FIRST}}, "with ids as keys"),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(FIRST): {"special": True}}}, "is no token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"4": described("[E1]")}}, "has id 4, and"),
    ],
)
def test_tokens_without_their_place_are_refused(name, values, message, tmp_path):
    folder = slow_folder(tmp_path / "slow", {name: values})
    with pytest.raises(BertsmithError, match=message) as caught:
        Tokenizer.load(folder)
    assert caught.value.where.endswith(name)


@pytest.mark.parametrize("kept", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"word_tokenizer_type": "mecab", "subword_tokenizer_type": "wordpiece"}, 'word_tokenizer_type is "mecab"'),
        ({"word_tokenizer_type": "basic", "subword_tokenizer_type": "character"}, 'tokenizer_type is "character"'),
        ({"word_tokenizer_type": "basic", "subword_tokenizer_type": None}, None),
        ({"cls_token": PIECES[-1]}, f'cls_token is "{PIECES[-1]}", '),
        ({"mask_token": {"content": "<mask>", "lstrip": True}}, 'mask_token is "<mask>", '),
        ({"cls_token": {"content": "[CLS]", "lstrip": False}, "pad_token": None, "mask_token": ""}, None),
        ({"tokenizer_class": "BertTokenizer", "word_tokenizer_type": "mecab"}, None),
    ],
)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_what_is_not_done_as_bert_does_it_is_refused(said, message, name, kept, tmp_path):
    """As of Japanese models, whose words another program finds, and of other special pieces than BERT's."""
    if "tokenizer_type" in (message or "") and name == "special_tokens_map.json":
        message = None  # which says special pieces alone
    folder = slow_folder(tmp_path / "slow", {name: said})
    if kept == "tokenizer.json":
        transformers.BertTokenizer(str(folder / "vocab.txt")).backend_tokenizer.save(str(folder / kept))
    if message is None:
        assert Tokenizer.load(folder).size == len(PIECES)
        return
    with pytest.raises(BertsmithError, match=message) as caught:
        Tokenizer.load(folder)
    assert caught.value.where.endswith(name)


@pytest.mark.parametrize("named", ["BertTokenizer", "PreTrainedTokenizerFast"])
def test_a_casing_that_transformers_would_not_follow_is_said(named, tmp_path, caplog):
    """Without do_lower_case its BertTokenizer lower-cases, whatever tokenizer.json says."""
    folder = slow_folder(tmp_path / "model", {})
    Tokenizer.load(folder).with_casing(lowercase=False).save(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
    with caplog.at_level("INFO", "bertsmith"):
        ours = [each.tolist() for each in Tokenizer.load(folder).encode_ids(["Paris is"])]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(["Paris is"], add_special_tokens=False)["input_ids"]
    assert (ours == theirs) is (named != "BertTokenizer")
    assert (f"casing of {folder / 'tokenizer.json'}: cased" in caplog.text) is (ours != theirs)
    caplog.clear()
    Tokenizer.load(folder).with_casing(lowercase=True).save(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
    with caplog.at_level("INFO", "bertsmith"):
        Tokenizer.load(folder)
    assert "casing of" not in caplog.text


@pytest.mark.parametrize("named", ["PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer"])
def test_a_class_that_takes_tokenizer_json_as_it_is_does_not_follow_the_config(named, tmp_path):
    folder = slow_folder(tmp_path / "model", {})
    Tokenizer.load(folder).with_casing(lowercase=False).save(folder)
    said = {"tokenizer_class": named, "do_lower_case": True, "strip_accents": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    ours = Tokenizer.load(folder).encode_ids(["Paris is"])[0].tolist()
    assert ours == transformers.AutoTokenizer.from_pretrained(folder)("Paris is", add_special_tokens=False)["input_ids"]


def with_added_tokens(folder):
    """A model whose tokenizer got special tokens and an ordinary one, as the guides of transformers do it."""
    slow_folder(folder, {})
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]"]})
    tokenizer.add_tokens(["<url>"])
    config = transformers.BertConfig(
        vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, num_labels=3, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    model.resize_token_embeddings(len(tokenizer))
    for kind in (model, tokenizer):
        kind.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kept", ["tokenizer.json", "vocab.txt"])
def test_added_special_tokens_are_one_token_each(kept, tmp_path):
    folder = tmp_path / "model"
    model = with_added_tokens(folder)
    if kept == "vocab.txt":
        (folder / "tokenizer.json").unlink()
        (folder / "added_tokens.json").write_text(json.dumps(ADDED))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        wanted = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.softmax(-1)
    predictor = Predictor(folder, "cpu", precision="fp32")
    _, sequences = predictor.encoded([("here", {"text": text}) for text in TEXTS])
    assert [ids.tolist() for ids in sequences.ids] == tokenizer(TEXTS)["input_ids"]
    found = [list(each["scores"].values()) for each in predictor(TEXTS)]
    torch.testing.assert_close(torch.tensor(found), wanted, atol=1e-5, rtol=0)
    (tmp_path / "copy").mkdir()
    copy_without_weights(folder, tmp_path / "copy")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert Tokenizer.load(tmp_path / "copy").sha256 == Tokenizer.load(folder).sha256
    predictor.tokenizer.save(tmp_path / "saved")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert set(saved.all_special_tokens) == {*SPECIAL_PIECES, "[E1]", "[/E1]"}


@pytest.mark.parametrize("stripping", [{}, {"lstrip": True}, {"rstrip": True}], ids=str)
def test_added_tokens_stand_at_their_characters(stripping, tmp_path):
    flags = {"tokenizer_config.json": {"added_tokens_decoder": {str(FIRST): described("[E1]", **stripping)}}}
    ours = Tokenizer.load(slow_folder(tmp_path / "slow", flags))
    text = "  [E1] paris is[E1]\n[E1]s"
    ids, offsets = ours.encode_offsets([text])[0]
    assert [text[start:end] for start, end in offsets] == ["[E1]", "paris", "is", "[E1]", "[E1]", "s"]
    words = align_text(text, ours)
    assert words.offsets.tolist() == offsets.tolist()
    assert words.pieces.tolist() == ids.tolist() == ours.encode_ids([text])[0].tolist()
    (passage,) = read_passages(ours, [text])
    assert passage.word.tolist() == [0, 1, 2, 2, 3, 3]
