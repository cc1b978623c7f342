"""A TensorFlow checkpoint becomes a folder that transformers and we open to the same numbers, or one clear message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.weights.convert import import_checkpoint
from bertsmith.weights.huggingface import load_encoder, load_pretraining_model
from fixtures.make_tensorflow_checkpoint import CONFIG, FOLDER, PIECES, shapes, values
from made_bundle import HALF, MAGIC, Style, write_bundle
from made_google import their_variable

transformers = pytest.importorskip("transformers")

GOOGLE = {name: values(name, shape) for name, shape in shapes().items()}
WORDS = "bert/embeddings/word_embeddings"


def reference(google: dict[str, np.ndarray]) -> torch.nn.Module:
    """transformers' model with Google's weights and tanh GELU."""
    model = transformers.BertForPreTraining(transformers.BertConfig(**{**CONFIG, "hidden_act": "gelu_pytorch_tanh"}))
    state = {}
    for name in model.state_dict():
        variable = their_variable(name)
        tensor = torch.from_numpy(google[variable].astype(np.float32))
        state[name] = tensor.T if variable.endswith("/kernel") else tensor
    model.load_state_dict(state)
    return model.eval()


def logits(model) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([[2, 5, 7, 4, 3, 8, 3, 0], [2, 9, 10, 6, 4, 5, 8, 3]])
    mask, kinds = (ids != 0).long(), torch.tensor([[0] * 5 + [1] * 2 + [0], [0] * 8])
    with torch.no_grad():
        out = model(ids, attention_mask=mask, token_type_ids=kinds)
    return out.prediction_logits[mask.bool()], out.seq_relationship_logits


def folder_with(tmp_path: Path, tensors: dict[str, np.ndarray], style: Style | None = None, **config) -> Path:
    """A folder as Google's archives have it."""
    write_bundle(tmp_path / "google" / "bert_model.ckpt", tensors, style)
    (tmp_path / "google" / "bert_config.json").write_text(json.dumps({**CONFIG, **config}))
    (tmp_path / "google" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    return tmp_path / "google"


def test_what_tensorflow_wrote_gives_transformers_the_same_logits(tmp_path, caplog):
    with caplog.at_level("INFO", "bertsmith"):
        out = bertsmith.import_checkpoint(FOLDER, tmp_path / "model")
    theirs, report = transformers.AutoModelForPreTraining.from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for found, wanted in zip(logits(theirs.eval()), logits(reference(GOOGLE)), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    ours = load_pretraining_model(out)
    assert torch.equal(ours.next_sentence.bias, theirs.cls.seq_relationship.bias)
    assert ours.config.hidden_act == "gelu_pytorch_tanh"
    ids = torch.tensor([[2, 5, 7, 4, 3]])
    with torch.no_grad():
        hidden = theirs.bert(ids).last_hidden_state
    torch.testing.assert_close(load_encoder(out).encode_padded(ids), hidden, atol=1e-5, rtol=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer("Ada the abs")["input_ids"] == [2, 9, 8, 5, 7, 10, 3]
    assert "bert_model.ckpt (its file `checkpoint` names it as the latest)" in caplog.text
    assert "left out: 93 slots and counters of the optimizer (3.8 kB)" in caplog.text
    assert "gelu_pytorch_tanh (what they call gelu is computed with tanh" in caplog.text
    assert f"{len(GOOGLE)} tensors, {sum(each.size for each in GOOGLE.values()):,} parameters: BertFor" in caplog.text


def test_half_precision_and_several_files(tmp_path, caplog):
    halves = {name: each.astype(np.float16) for name, each in GOOGLE.items()}
    folder = folder_with(tmp_path, halves, Style(shards=4, block_bytes=300, snappy=True, dtypes={WORDS: HALF}))
    with caplog.at_level("INFO", "bertsmith"):
        out = import_checkpoint(folder / "bert_model.ckpt.index", tmp_path / "model")
    found = transformers.AutoModelForPreTraining.from_pretrained(out).eval()
    assert all(each.dtype == torch.float32 for each in found.parameters())
    for mine, wanted in zip(logits(found), logits(reference(halves)), strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-6, rtol=0)
    assert "held as torch.float32 (stored as torch.float16)" in caplog.text
    assert "left out" not in caplog.text


@pytest.mark.parametrize(
    "named", ["", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
)
def test_a_checkpoint_is_found_by_any_of_its_names(named, tmp_path):
    folder = folder_with(tmp_path, GOOGLE)
    out = import_checkpoint(folder / named, tmp_path / "model")
    again = import_checkpoint(FOLDER / "bert_model.ckpt", tmp_path / "again")
    assert {each.name: each.read_bytes() for each in out.iterdir()} == {
        each.name: each.read_bytes() for each in again.iterdir()
    }


@pytest.mark.parametrize(("latest", "others"), [("/gone/bert_model.ckpt", ["older"]), ("removed.ckpt", [])])
def test_the_latest_is_found_where_it_lies_now(latest, others, tmp_path):
    """The file `checkpoint` has the path of the machine that wrote it, and may name one that is no longer there."""
    folder = folder_with(tmp_path, GOOGLE)
    for name in others:
        write_bundle(folder / name, GOOGLE)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{latest}"\n')
    assert load_encoder(import_checkpoint(folder, tmp_path / "model")).config.vocab_size == 11


def test_every_problem_is_listed(tmp_path):
    changed = dict(GOOGLE)
    changed["bert/encoder/layer_0/attention/self/key/kernel"] = np.ones((4, 5), np.float32)
    changed["bert/encoder/layer_0/attention/self/value/scale"] = changed.pop("bert/pooler/dense/bias")
    changed["bert/encoder/layer_2/output/dense/bias"] = np.ones(4, np.float32)
    folder = folder_with(tmp_path, changed, max_position_embeddings=16)
    with pytest.raises(BertsmithError, match="not those of the model that its config describes") as caught:
        import_checkpoint(folder, tmp_path / "model")
    for line in (
        "missing:    bert.pooler.dense.bias",
        "shape:      bert.encoder.layer.0.attention.self.key.weight is [5, 4] in the file and [4, 4] by the config",
        "shape:      bert.embeddings.position_embeddings.weight is [8, 4] in the file and [16, 4] by the config",
        "unexpected: bert/encoder/layer_0/attention/self/value/scale",
        "unexpected: bert.encoder.layer.2.output.dense.bias",
    ):
        assert line in caught.value.what
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("heads", "architecture", "outputs"),
    [
        ({"cls/squad/output_weights": (2, 4), "cls/squad/output_bias": (2,)}, "BertForQuestionAnswering", "qa_outputs"),
        ({"output_weights": (3, 4), "output_bias": (3,)}, "BertForSequenceClassification", "classifier"),
        ({}, "BertModel", None),
    ],
)
def test_fine_tuned_models_and_bare_encoders(heads, architecture, outputs, tmp_path):
    tensors = {name: each for name, each in GOOGLE.items() if name.startswith("bert/")}
    tensors |= {name: values(name, shape) for name, shape in heads.items()}
    out = import_checkpoint(folder_with(tmp_path, tensors), tmp_path / "model")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [architecture]
    model, report = getattr(transformers, architecture).from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "mismatched_keys"))
    assert set(report["unexpected_keys"]) <= {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    state = model.state_dict()
    if outputs:
        weights, bias = heads
        assert np.array_equal(state[f"{outputs}.weight"].numpy(), tensors[weights])
        assert np.array_equal(state[f"{outputs}.bias"].numpy(), tensors[bias])
    if outputs == "classifier":
        assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


def test_without_a_pooler_words_are_still_guessed(tmp_path, caplog):
    tensors = {name: each for name, each in GOOGLE.items() if "pooler" not in name and "seq_rel" not in name}
    with caplog.at_level("INFO", "bertsmith"):
        out = import_checkpoint(folder_with(tmp_path, tensors, hidden_dropout_prob=None), tmp_path / "model")
    assert "it has no pooler, so the model folder has none either" in caplog.text
    assert "bert_config.json: 0.1 (the file does not say; BERT's own value)" in caplog.text
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    model, report = transformers.BertForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert np.array_equal(model.cls.predictions.bias.detach().numpy(), GOOGLE["cls/predictions/output_bias"])


def test_a_damaged_checkpoint_leaves_nothing_behind(tmp_path):
    folder = folder_with(tmp_path, GOOGLE)
    data = folder / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 4
    data.write_bytes(content)
    with pytest.raises(BertsmithError, match="not what its checksum says") as caught:
        import_checkpoint(folder, tmp_path / "model")
    assert str(data) in caught.value.where
    assert "bert/" in caught.value.where
    assert [each.name for each in tmp_path.iterdir()] == ["google"]


def test_other_formats_and_names_get_a_clear_message(tmp_path):
    folder = folder_with(tmp_path, GOOGLE)
    old = folder / "old.ckpt"
    old.write_bytes(bytes(40) + MAGIC)
    (folder / "notes.txt").write_text("notes")
    write_bundle(folder / "keras", {"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(1, np.float32)})
    write_bundle(folder / "other", {"resnet/block_1/kernel": np.zeros((2, 2), np.float32)})
    (folder / "bert_model.ckpt.meta").write_bytes(b"graph")
    shutil.copy(folder / "bert_model.ckpt.meta", folder / "half.ckpt.meta")
    for named, what, fix in (
        ("old.ckpt", "V1 format", "SaverDef.V2"),
        ("notes.txt", "neither a TensorFlow checkpoint nor", ".index"),
        ("keras", "TensorFlow 2's objects", "begin with bert/"),
        ("other", "none of its variables is one of a BERT encoder: resnet/block_1/kernel\n", "begin with bert/"),
        ("bert.ckpt", "no checkpoint of this name", "there are: bert_model.ckpt, keras, other"),
        ("half.ckpt", "there is half.ckpt.meta, but no .index", ".index"),
        ("", "here are 3 checkpoints", "bert_model.ckpt, keras, other"),
    ):
        with pytest.raises(BertsmithError, match=what) as caught:
            import_checkpoint(folder / named, tmp_path / "model")
        assert fix in caught.value.fix, named
    with pytest.raises(BertsmithError, match="this is a model folder already"):
        import_checkpoint(import_checkpoint(FOLDER, tmp_path / "model"), tmp_path / "again")
    with pytest.raises(BertsmithError, match="this is the model of a run, and a model folder already"):
        import_checkpoint(tmp_path, tmp_path / "again")
    (tmp_path / "empty").mkdir()
    for name in ("vocabulary", "config"):
        with pytest.raises(BertsmithError, match=f"{name} is of type list, which is no path"):
            import_checkpoint(FOLDER, tmp_path / "again", **{name: [FOLDER]})
    with pytest.raises(BertsmithError, match="lowercase is 'yes'"):
        import_checkpoint(FOLDER, tmp_path / "again", lowercase="yes")
    with pytest.raises(BertsmithError, match="no checkpoint here"):
        import_checkpoint(tmp_path / "empty", tmp_path / "again")


def test_vocabulary_and_config_must_be_the_models(tmp_path):
    folder = folder_with(tmp_path, GOOGLE)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*PIECES, "extra"]))
    import_checkpoint(folder, tmp_path / "model", vocabulary=FOLDER / "vocab.txt")
    with pytest.raises(BertsmithError, match="the vocabulary has 12 pieces and the model 11"):
        import_checkpoint(folder, tmp_path / "again")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES[:-1]))
    with pytest.raises(BertsmithError, match="the vocabulary has 10 pieces and the model 11"):
        import_checkpoint(folder, tmp_path / "again")
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*PIECES[1:], "[PAD]"]))
    assert load_encoder(import_checkpoint(folder, tmp_path / "turned")).config.pad_token_id == 10
    (folder / "vocab.txt").unlink()
    with pytest.raises(BertsmithError, match=r"no vocab\.txt beside this checkpoint") as caught:
        import_checkpoint(folder, tmp_path / "again")
    assert "--vocab" in caught.value.fix
    (folder / "bert_config.json").unlink()
    with pytest.raises(BertsmithError, match=r"no bert_config\.json") as caught:
        import_checkpoint(folder, tmp_path / "again", vocabulary=FOLDER / "vocab.txt")
    told = (
        "vocab_size 11, hidden_size 4, num_hidden_layers 2, intermediate_size 6, max_position_embeddings 8, type_vocab"
    )
    assert f"{told}_size 2; no tensor tells" in caught.value.fix
    (folder / "mine.json").write_text("[]")
    with pytest.raises(BertsmithError, match="this config lacks vocab_size, hidden_size"):
        import_checkpoint(folder, tmp_path / "again", FOLDER / "vocab.txt", folder / "mine.json")
    (folder / "mine.json").write_text(json.dumps({key: CONFIG[key] for key in CONFIG if key != "num_attention_heads"}))
    with pytest.raises(BertsmithError, match="this config lacks num_attention_heads"):
        import_checkpoint(folder, tmp_path / "again", FOLDER / "vocab.txt", folder / "mine.json")
    (folder / "mine.json").write_text(json.dumps({**CONFIG, "num_attention_heads": 0}))
    with pytest.raises(BertsmithError, match="num_attention_heads is 0") as caught:
        import_checkpoint(folder, tmp_path / "again", FOLDER / "vocab.txt", folder / "mine.json")
    assert caught.value.where == str(folder / "mine.json")


def test_an_activation_that_is_named_is_taken(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["--quiet", "import", str(FOLDER), "--out", str(first), "--activation", "gelu"]) == 0
    import_checkpoint(folder_with(tmp_path, GOOGLE, hidden_act="relu"), second)
    assert [load_encoder(each).config.hidden_act for each in (first, second)] == ["gelu", "relu"]


@pytest.mark.parametrize(("flag", "ids"), [([], [9]), (["--no-lowercase"], [9]), (["--lowercase"], [1])])
def test_the_verb(flag, ids, tmp_path, capsys):
    """The vocabulary has the piece Ada; lower-cased it is [UNK]."""
    assert main(["--quiet", "import", str(FOLDER), "--out", str(tmp_path / "model"), *flag]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'model'}\n"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("Ada", add_special_tokens=False)["input_ids"] == ids
    assert main(["import", str(FOLDER), "--out", str(tmp_path / "x"), "--lowercase", "--no-lowercase"]) == 2
    assert "exclude each other" in capsys.readouterr().err
