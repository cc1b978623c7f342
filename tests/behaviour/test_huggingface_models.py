"""What we write opens in transformers with our logits; what transformers writes opens here with its hidden states."""

import json

import pytest
import torch

from bertsmith.base.layout import Layout
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.weights.huggingface import load_encoder, load_pretraining_model, save_encoder, save_pretraining_model

transformers = pytest.importorskip("transformers")

PARTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##e", "##s", "the"]


@pytest.fixture
def tokenizer_folder(tmp_path):
    """As the tokenizer of a corpus lies on disk."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(PARTS) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(str(folder))
    return folder


def ragged(vocabulary, generator):
    """Padded ids, mask and token types of five rows of 3 to 12 tokens."""
    lengths = torch.tensor([12, 3, 7, 12, 5])
    mask = (torch.arange(12)[None] < lengths[:, None]).long()
    ids = torch.randint(5, vocabulary, mask.shape, generator=generator) * mask
    kinds = (torch.arange(12)[None] >= lengths[:, None] // 2).long() * mask
    return ids, mask, kinds


@pytest.mark.parametrize("activation", ["gelu", "gelu_pytorch_tanh"])
def test_auto_model_for_pretraining_gives_our_logits(tmp_path, tokenizer_folder, activation):
    config = BertConfig(
        vocab_size=len(PARTS), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=24, hidden_act=activation,
    )  # fmt: skip
    model = PretrainingModel(config).eval()
    initialise(model, 0.2, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # so that a forgotten bias shows
                parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    save_pretraining_model(model, tokenizer_folder, tmp_path / "model")
    theirs, report = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    ids, mask, kinds = ragged(config.vocab_size, torch.Generator().manual_seed(0))
    real = mask.bool()
    packed = Packed(Layout.from_lengths(mask.sum(1).numpy()))
    with torch.no_grad():
        expected = theirs.eval()(ids, attention_mask=mask, token_type_ids=kinds)
        columns = real.nonzero(as_tuple=True)[1]
        hidden = model.encoder(ids[real], kinds[real], columns, packed)
        masked = model.masked_logits(hidden, torch.arange(len(columns)))
        next_sentence = model.next_sentence_logits(hidden, packed)
    torch.testing.assert_close(masked, expected.prediction_logits[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(next_sentence, expected.seq_relationship_logits, atol=1e-5, rtol=0)


def test_what_transformers_saves_opens_here(tmp_path):
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24,
    )  # fmt: skip
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_pretraining_model(tmp_path)
    ids, mask, kinds = ragged(50, torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.bert(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
        hidden = ours.encoder.encode_padded(ids, mask, kinds)
    torch.testing.assert_close(hidden, expected * mask[..., None], atol=1e-5, rtol=0)
    assert torch.equal(ours.masked_head.bias, theirs.cls.predictions.bias)


def test_a_real_encoder_gives_transformers_hidden_states(real_data):
    folder = real_data("weights/all-MiniLM-L6-v2")
    ours = load_encoder(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    ids, mask, kinds = ragged(30522, torch.Generator().manual_seed(2))
    packed = Packed(Layout.from_lengths(mask.sum(1).numpy()))
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, token_type_ids=kinds)
        hidden = ours.encode_padded(ids, mask, kinds)
        pooled = ours.pool(hidden[mask.bool()], packed)
    torch.testing.assert_close(hidden, expected.last_hidden_state * mask[..., None], atol=1e-5, rtol=0)
    torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "there",
    [("vocab.txt",), ("tokenizer.json",), ("tokenizer.json", "tokenizer_config.json"), ("vocab.txt", "cased")],
    ids=" and ".join,
)
def test_a_tokenizer_that_lacks_files_is_completed(tmp_path, tokenizer_folder, there, caplog):
    """transformers 5 writes no vocab.txt, and older folders have nothing else."""
    source, out = tmp_path / "source", tmp_path / "model"
    source.mkdir()
    for name in set(there) - {"cased"}:
        (source / name).write_bytes((tokenizer_folder / name).read_bytes())
    if "cased" in there:
        (source / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    config = BertConfig(
        len(PARTS), 8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=48
    )
    with caplog.at_level("INFO", "bertsmith"):
        save_encoder(Encoder(config), source, out)
    found = transformers.AutoTokenizer.from_pretrained(out)
    assert found.model_max_length == 48, "what the model can read"
    pieces = ["[UNK]" if "cased" in there else "the", "b", "##e", "##s", "[MASK]"]
    assert found.convert_ids_to_tokens(found("The bes [MASK]")["input_ids"]) == ["[CLS]", *pieces, "[SEP]"]
    assert {"tokenizer.json", "vocab.txt", "tokenizer_config.json"} <= {each.name for each in out.iterdir()}
    for each in source.iterdir():
        if each.name == "tokenizer_config.json":
            longest = {"model_max_length": config.max_position_embeddings}
            assert json.loads((out / each.name).read_text()) == json.loads(each.read_text()) | longest
        else:
            assert (out / each.name).read_bytes() == each.read_bytes()
    assert "of the tokenizer: made of its other files" in caplog.text


def test_auto_tokenizer_reads_the_folder(tmp_path, tokenizer_folder):
    config = BertConfig(
        vocab_size=len(PARTS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    save_pretraining_model(PretrainingModel(config), tokenizer_folder, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.convert_ids_to_tokens(tokenizer("the bes")["input_ids"]) == [
        "[CLS]", "the", "b", "##e", "##s", "[SEP]",
    ]  # fmt: skip
